/* Mode `fan-flymq`: PRODUCE on one side, FETCH_BATCHES that waits for records on the other (`--wait-ms`). */
#include <string.h>
#include <sys/socket.h>

#include "batch.h"
#include "bytes.h"
#include "fail.h"
#include "fan.h"
#include "flymq.h"
#include "modes.h"
#include "network.h"

enum { RING_REQUESTS = 1 << 14, ROWS_AT = 68, COUNT_AT = 24, LENGTH_AT = 4 };

static void ask(struct link *link, const struct options *options)
{
    uint8_t frame[2 * NAME_BYTES_MAX];
    size_t size = frame_fetch_batches(frame, options, options->topic, options->partition, link->position);
    memcpy(fan_reply(link, size), frame, size);
}

static void open_publisher(struct link *link, const struct options *options)
{
    link->socket = fan_connect(link, options);
}

static void open_subscriber(struct link *link, const struct options *options)
{
    link->socket = fan_connect(link, options);
    ask(link, options);
}

static size_t build(uint8_t *at, const struct options *options, int publisher, uint64_t slot)
{
    size_t size = frame_produce(at, options, options->topic, options->partition, slot);
    fan_payload(at + size - 4 - options->value_bytes, options, publisher, slot);
    return size;
}

static size_t whole_frame(const uint8_t *data, size_t size, int opcode)
{
    if (size < FRAME_HEADER_BYTES)
        return 0;
    size_t frame_bytes = FRAME_HEADER_BYTES + check_header(data, size, opcode);
    return frame_bytes <= size ? frame_bytes : 0;
}

static size_t publisher_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    size_t used = 0, frame_bytes;
    for (; (frame_bytes = whole_frame(data + used, size - used, OP_PRODUCE)) > 0; used += frame_bytes)
        fan_acknowledged(fan, link);
    return used;
}

static void take_batches(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    struct batch_span span = walk_batches(data, size, link->position, !link->seen);
    link->seen = true;
    for (size_t at = 0; at < size; at += get_le32(data + at + LENGTH_AT)) {
        const uint8_t *batch = data + at, *rows = batch + get_le32(batch + ROWS_AT);
        uint64_t base_offset = get_le64(batch + 16);
        for (uint32_t i = 0; i < get_le32(batch + COUNT_AT); i++) {
            if (base_offset + i < link->position)
                continue;
            const uint8_t *row = rows + get_le32(batch + BATCH_HEADER_BYTES + 4 * i);
            const uint8_t *value = row + 4 + get_be32(row);
            fan_delivered(fan, link, value + 4, get_be32(value));
        }
    }
    link->position = span.next_offset;
}

static size_t subscriber_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    const struct options *options = fan_options(fan);
    size_t frame_bytes = whole_frame(data, size, OP_FETCH_BATCHES);
    if (frame_bytes == 0)
        return 0;
    size_t fixed_bytes = FRAME_HEADER_BYTES + 2 + strlen(options->topic) + 4 + 8 + 8 + 4;
    if (frame_bytes < fixed_bytes || frame_bytes - fixed_bytes != get_be32(data + fixed_bytes - 4))
        fail("an answer of %zu bytes does not hold what it announces", frame_bytes);
    take_batches(fan, link, data + fixed_bytes, frame_bytes - fixed_bytes);
    ask(link, options);
    return frame_bytes;
}

void run_fan_flymq(const struct options *given)
{
    struct options options = *given;
    if (options.wait_ms == 0)
        options.wait_ms = 1000;
    run_fan(&options, &(struct fan_protocol){
        .acknowledged = true,
        .ring_requests = RING_REQUESTS,
        .prepare = create_topics,
        .open_publisher = open_publisher,
        .open_subscriber = open_subscriber,
        .build = build,
        .publisher_received = publisher_received,
        .subscriber_received = subscriber_received,
    });
}
