/* FlyMQ frames: the requests the generator sends and the checks on what comes back. */
#ifndef BENCH_FLYMQ_H
#define BENCH_FLYMQ_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

enum {
    FRAME_HEADER_BYTES = 8,
    OP_PRODUCE = 0x01,
    OP_CREATE_TOPIC = 0x03,
    OP_FETCH = 0x07,
    OP_LIST_TOPICS = 0x08,
    OP_PRODUCE_BATCH = 0x0C,
    OP_FETCH_BATCHES = 0x0D,
    OP_ERROR = 0xFF,
    META_FIXED_BYTES = 30,          /* an answer to PRODUCE is this plus the topic name */
    BATCH_ANSWER_FIXED_BYTES = 27,  /* the same for PRODUCE_BATCH */
    FRAME_BYTES_MAX = 32 << 20,
};

/* Each builds one whole frame at `at` and returns its size; the caller has made room (`request_room`). */
size_t frame_produce(uint8_t *at, const struct options *options, const char *topic, int partition, uint64_t serial);
size_t frame_produce_batch(uint8_t *at, const struct options *options, const char *topic, int partition, uint64_t serial);
size_t frame_fetch(uint8_t *at, const struct options *options, const char *topic, int partition, uint64_t offset);
size_t frame_fetch_batches(uint8_t *at, const struct options *options, const char *topic, int partition, uint64_t offset);
size_t frame_create_topic(uint8_t *at, const char *topic, int partitions);
size_t frame_list_topics(uint8_t *at);

/* An upper bound for the size of a frame with `records` records of the asked-for sizes. */
size_t request_room(const struct options *options, int records);

/* The payload size a header announces; ends the program when it is not a good answer to `opcode`.
 * `available` counts the bytes at `frame`, so that an error's text can be shown as far as it has arrived. */
uint32_t check_header(const uint8_t *frame, size_t available, int opcode);

/* Creates every topic of the run, with the partitions it needs, and waits for the answers. */
void create_topics(const struct options *options);

/* The first eight bytes of a frame. */
void put_header(uint8_t *at, int opcode, size_t payload_bytes);

/* Values and keys are the same in every mode: letters for the value, a serial number at the end of the key. */
void put_value(uint8_t *at, int size);
void put_key(uint8_t *at, int size, uint64_t serial);

#endif
