/* The batch format (src/braidmq/hot/layout.py): built once for PRODUCE_BATCH, walked over in answers to FETCH_BATCHES. */
#ifndef BENCH_BATCH_H
#define BENCH_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

enum { BATCH_HEADER_BYTES = 80 };

struct batch_span {
    uint64_t batches;
    uint64_t records;      /* with offsets from the one asked for */
    uint64_t next_offset;  /* after the last record */
};

/* Writes a batch of `options->records` records with base offset 0 at `at`; returns its size. */
size_t build_batch(uint8_t *at, const struct options *options, uint64_t serial);

/* Fills in the header of a batch whose columns and rows are in place, and its checksum. */
void seal_batch(uint8_t *batch, size_t size, uint32_t count, uint64_t base_offset, int64_t timestamp_ms, uint32_t rows_at,
                uint32_t attrs_at);

/* Walks the headers of whole batches in `data` and ends the program when they are not what follows `from_offset`. The
 * checksums are compared when `thorough` asks for it: a benchmark of a broker has no time to do so in every answer. */
struct batch_span walk_batches(const uint8_t *data, size_t size, uint64_t from_offset, int thorough);

static inline size_t padded_to_8(size_t size) { return (size + 7) & ~(size_t)7; }

#endif
