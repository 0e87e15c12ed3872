/* Mode `fan-blipmq`: FlatBuffers in, FlatBuffers pushed out. At QoS 1 publishers count acknowledgements, each of which must be for
 * the frame that is due, and subscribers acknowledge every message. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "blipmq.h"
#include "fail.h"
#include "fan.h"
#include "modes.h"
#include "network.h"

/* Each frame has an id of its own: a broker never has two messages with one id in flight to a subscriber. */
enum { RING_REQUESTS = 1 << 14, HANDSHAKE_BYTES_MAX = 4096 };

static void open_publisher(struct link *link, const struct options *options)
{
    link->socket = fan_connect(link, options);
}

static void open_subscriber(struct link *link, const struct options *options)
{
    uint8_t frame[HANDSHAKE_BYTES_MAX];
    link->socket = fan_connect(link, options);
    send_all(link->socket, frame, blipmq_subscribe(frame, options->topic, options->qos, 1));
    receive_exactly(link->socket, frame, BLIPMQ_LENGTH_BYTES);
    size_t length = frame[0] + ((size_t)frame[1] << 8);
    if (length > sizeof frame - BLIPMQ_LENGTH_BYTES || frame[2] != 0 || frame[3] != 0)
        fail("the broker answers Subscribe with a frame of more than %zu bytes", sizeof frame);
    receive_exactly(link->socket, frame + BLIPMQ_LENGTH_BYTES, length);
    struct blipmq_frame answer = blipmq_read(frame, BLIPMQ_LENGTH_BYTES + length);
    if (answer.kind != BLIPMQ_ACK || answer.error_code != 0 || answer.sequence != 1)
        fail("the broker answers Subscribe with kind %d, code %d: %.*s", answer.kind, answer.error_code,
             (int)answer.message_id.size, answer.message_id.data);
}

static size_t build(uint8_t *at, const struct options *options, int publisher, uint64_t slot)
{
    char id[16] = "";
    uint8_t *payload;
    if (options->qos > 0)
        snprintf(id, sizeof id, "%03d-%05lu", publisher % 1000, (unsigned long)slot % 100000);
    size_t size = blipmq_publish(at, options->topic, id, options->qos, slot + 1, (size_t)options->value_bytes, &payload);
    fan_payload(payload, options, publisher, slot);
    return size;
}

static void refuse(const struct link *link, const struct blipmq_frame *frame)
{
    fail("%s %d got a frame of kind %d, code %d: %.*s", link->publishes ? "publisher" : "subscriber", link->number, frame->kind,
         frame->error_code, (int)frame->message_id.size, frame->message_id.data);
}

static size_t publisher_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    size_t used = 0, frame_bytes;
    while ((frame_bytes = blipmq_frame_bytes(data + used, size - used)) > 0) {
        struct blipmq_frame frame = blipmq_read(data + used, frame_bytes);
        if (frame.kind != BLIPMQ_ACK || frame.error_code != 0)
            refuse(link, &frame);
        if (frame.sequence != link->acknowledged % link->ring.requests + 1)
            fail("publisher %d got the acknowledgement of frame %lu where %lu was due", link->number, (unsigned long)frame.sequence,
                 (unsigned long)(link->acknowledged % link->ring.requests + 1));
        fan_acknowledged(fan, link);
        used += frame_bytes;
    }
    return used;
}

static size_t subscriber_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    size_t used = 0, frame_bytes;
    while ((frame_bytes = blipmq_frame_bytes(data + used, size - used)) > 0) {
        struct blipmq_frame frame = blipmq_read(data + used, frame_bytes);
        if (frame.kind != BLIPMQ_MESSAGE)
            refuse(link, &frame);
        if (frame.qos != fan_options(fan)->qos)
            fail("subscriber %d got a message at QoS %d", link->number, frame.qos);
        fan_delivered(fan, link, frame.payload.data, frame.payload.size);
        if (frame.qos > 0) {
            size_t room = blipmq_ack_room(frame.message_id);
            uint8_t *at = fan_reply(link, room);
            link->out.size -= room - blipmq_ack(at, frame.message_id, ++link->position);
        }
        used += frame_bytes;
    }
    return used;
}

void run_fan_blipmq(const struct options *options)
{
    run_fan(options, &(struct fan_protocol){
        .acknowledged = options->qos > 0,
        .ring_requests = RING_REQUESTS,
        .open_publisher = open_publisher,
        .open_subscriber = open_subscriber,
        .build = build,
        .publisher_received = publisher_received,
        .subscriber_received = subscriber_received,
    });
}
