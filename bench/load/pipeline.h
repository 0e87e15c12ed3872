/* The sliding window that drives every pipelined mode, whatever the protocol.
 *
 * All requests of a run are built beforehand into a ring of equal-sized frames. Sending is then a matter of byte positions:
 * a connection may have sent as many bytes as (answers received + window) frames take. Nothing is built, copied or
 * allocated per message, which is what lets one core of generator outrun one core of broker.
 *
 * What an answer looks like is the mode's business: it gives a `check` that consumes received bytes, counts answers and
 * messages on the connection, and ends the program on anything unexpected.
 */
#ifndef BENCH_PIPELINE_H
#define BENCH_PIPELINE_H

#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* A check may leave this much unconsumed and will see it again together with what follows. */
enum { HELD_BYTES_MAX = 4096 };

struct ring {
    uint8_t *data;
    size_t request_bytes;
    uint64_t requests;
};

struct connection {
    int socket;
    const struct ring *ring;
    uint64_t sent_bytes;
    uint64_t sent_bytes_max;   /* of a counted run */
    uint64_t requests;         /* answered */
    uint64_t messages;         /* in those answers */
    uint64_t bytes_in;
    uint32_t waits_for;        /* the epoll events asked for */
    size_t held_bytes;
    uint8_t held[HELD_BYTES_MAX];
    void *memory;              /* what the mode's check remembers between calls */
};

struct pipeline {
    const struct options *options;
    const struct ring *rings;  /* connection i sends from ring i modulo `rings_count`; all rings hold frames of one size */
    int rings_count;
    /* Does what the protocol wants before the first request, on a blocking socket. May be NULL. */
    void (*greet)(struct connection *connection, void *context);
    /* Consumes answers; returns the number of bytes used. */
    size_t (*check)(struct connection *connection, const uint8_t *data, size_t size, void *context);
    void *context;
};

/* An empty ring for `requests` frames of at most `room` bytes each, to be filled with `ring_add`. */
struct ring make_ring(uint64_t requests, size_t room);

/* Where the next frame is to be built, and that it has been. Frames of different sizes end the program. */
uint8_t *ring_end(const struct ring *ring);
void ring_add(struct ring *ring, size_t request_bytes);

/* Runs to the end and prints the line of JSON. */
void run_pipeline(const struct pipeline *pipeline);

#endif
