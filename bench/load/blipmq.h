/* BlipMQ frames: a little-endian length and a FlatBuffer.
 *
 * What is sent is laid out with fixed offsets, as the broker's own codec does it. What comes is read the way any FlatBuffer
 * has to be read, through its tables, and every offset is checked: a frame that points outside itself ends the program.
 */
#ifndef BENCH_BLIPMQ_H
#define BENCH_BLIPMQ_H

#include <stddef.h>
#include <stdint.h>

enum { BLIPMQ_LENGTH_BYTES = 4, BLIPMQ_FRAME_BYTES_MAX = 2 << 20 };

enum blipmq_kind { BLIPMQ_SUBSCRIBE = 1, BLIPMQ_PUBLISH = 3, BLIPMQ_MESSAGE = 4, BLIPMQ_ACK = 5, BLIPMQ_ERROR = 8 };

struct blipmq_text {
    const uint8_t *data;
    uint32_t size;
};

/* What any of the received kinds has; fields that a kind does not have are empty. */
struct blipmq_frame {
    int kind;
    uint64_t sequence;
    struct blipmq_text topic, payload, message_id; /* the text of an error is in `message_id` */
    int qos;
    int error_code;
};

/* Each builds one whole frame at `at` and returns its size. */
size_t blipmq_subscribe(uint8_t *at, const char *topic, int qos, uint64_t sequence);
size_t blipmq_ack(uint8_t *at, struct blipmq_text message_id, uint64_t sequence);

/* The same for Publish, but for the payload, which the caller writes to `*payload`. An empty id is left out. */
size_t blipmq_publish(uint8_t *at, const char *topic, const char *message_id, int qos, uint64_t sequence, size_t payload_bytes,
                      uint8_t **payload);

/* The bytes of the whole frame at `data`, or 0 when `size` bytes do not hold it yet. */
size_t blipmq_frame_bytes(const uint8_t *data, size_t size);

/* Reads a whole frame. */
struct blipmq_frame blipmq_read(const uint8_t *frame, size_t frame_bytes);

/* The upper bound of what `blipmq_ack` writes. */
size_t blipmq_ack_room(struct blipmq_text message_id);

#endif
