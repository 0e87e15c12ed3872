#include "flymq.h"

#include <string.h>

#include "batch.h"
#include "bytes.h"
#include "fail.h"

enum { FRAME_MAGIC = 0xAF, FRAME_VERSION = 1, FLAG_BINARY = 1 };

void put_header(uint8_t *at, int opcode, size_t payload_bytes)
{
    at[0] = FRAME_MAGIC;
    at[1] = FRAME_VERSION;
    at[2] = (uint8_t)opcode;
    at[3] = FLAG_BINARY;
    put_be32(at + 4, (uint32_t)payload_bytes);
}

void put_value(uint8_t *at, int size)
{
    for (int i = 0; i < size; i++)
        at[i] = (uint8_t)('a' + i * 7 % 26);
}

void put_key(uint8_t *at, int size, uint64_t serial)
{
    for (int i = size - 1; i >= 0; i--) {
        at[i] = (uint8_t)('0' + serial % 10);
        serial /= 10;
    }
}

static uint8_t *put_topic(uint8_t *at, const char *topic)
{
    size_t length = strlen(topic);
    put_be16(at, (uint16_t)length);
    memcpy(at + 2, topic, length);
    return at + 2 + length;
}

/* Writes the header once the payload's end is known. */
static size_t finish(uint8_t *frame, const uint8_t *end, int opcode)
{
    size_t payload_bytes = (size_t)(end - frame) - FRAME_HEADER_BYTES;
    if (payload_bytes > FRAME_BYTES_MAX)
        fail("a request of %zu bytes is over the protocol's limit", payload_bytes);
    put_header(frame, opcode, payload_bytes);
    return (size_t)(end - frame);
}

size_t request_room(const struct options *options, int records)
{
    size_t record_bytes = (size_t)options->key_bytes + (size_t)options->value_bytes + 64;
    return 2 * NAME_BYTES_MAX + (size_t)records * record_bytes;
}

size_t frame_produce(uint8_t *frame, const struct options *options, const char *topic, int partition, uint64_t serial)
{
    uint8_t *at = put_topic(frame + FRAME_HEADER_BYTES, topic);
    put_be32(at, (uint32_t)options->key_bytes);
    put_key(at + 4, options->key_bytes, serial);
    at += 4 + options->key_bytes;
    put_be32(at, (uint32_t)options->value_bytes);
    put_value(at + 4, options->value_bytes);
    at += 4 + options->value_bytes;
    put_be32(at, (uint32_t)partition);
    return finish(frame, at + 4, OP_PRODUCE);
}

size_t frame_produce_batch(uint8_t *frame, const struct options *options, const char *topic, int partition, uint64_t serial)
{
    uint8_t *at = put_topic(frame + FRAME_HEADER_BYTES, topic);
    put_be32(at, (uint32_t)partition);
    size_t batch_bytes = build_batch(at + 8, options, serial);
    put_be32(at + 4, (uint32_t)batch_bytes);
    return finish(frame, at + 8 + batch_bytes, OP_PRODUCE_BATCH);
}

size_t frame_fetch(uint8_t *frame, const struct options *options, const char *topic, int partition, uint64_t offset)
{
    uint8_t *at = put_topic(frame + FRAME_HEADER_BYTES, topic);
    put_be32(at, (uint32_t)partition);
    put_be64(at + 4, offset);
    put_be32(at + 12, (uint32_t)options->max_messages);
    at += 16;
    if (options->v126) {
        /* Only the published clients send a filter, even an empty one: that is how a broker recognises them. */
        put_be16(at, 0);
        at += 2;
    }
    return finish(frame, at, OP_FETCH);
}

size_t frame_fetch_batches(uint8_t *frame, const struct options *options, const char *topic, int partition, uint64_t offset)
{
    uint8_t *at = put_topic(frame + FRAME_HEADER_BYTES, topic);
    put_be32(at, (uint32_t)partition);
    put_be64(at + 4, offset);
    put_be32(at + 12, (uint32_t)options->max_bytes);
    put_be32(at + 16, options->wait_ms > 0); /* min_bytes: any record will do, or none has to be there */
    put_be32(at + 20, (uint32_t)options->wait_ms);
    return finish(frame, at + 24, OP_FETCH_BATCHES);
}

size_t frame_create_topic(uint8_t *frame, const char *topic, int partitions)
{
    uint8_t *at = put_topic(frame + FRAME_HEADER_BYTES, topic);
    put_be32(at, (uint32_t)partitions);
    return finish(frame, at + 4, OP_CREATE_TOPIC);
}

size_t frame_list_topics(uint8_t *frame)
{
    return finish(frame, frame + FRAME_HEADER_BYTES, OP_LIST_TOPICS);
}

uint32_t check_header(const uint8_t *frame, size_t available, int opcode)
{
    uint32_t payload_bytes = get_be32(frame + 4);
    if (frame[0] != FRAME_MAGIC || frame[1] != FRAME_VERSION)
        fail("the answer is not a FlyMQ frame (it begins with %02x %02x)", frame[0], frame[1]);
    if (frame[2] == OP_ERROR) {
        size_t shown = available - FRAME_HEADER_BYTES < payload_bytes ? available - FRAME_HEADER_BYTES : payload_bytes;
        fail("the server answered with an error: %.*s", shown > 3 ? (int)shown - 3 : 0, frame + FRAME_HEADER_BYTES + 3);
    }
    if (frame[2] != opcode)
        fail("the answer has opcode %02x, expected %02x", frame[2], opcode);
    if (payload_bytes > FRAME_BYTES_MAX)
        fail("the answer announces %u bytes", payload_bytes);
    return payload_bytes;
}
