/* Mode `fan-nats`: NATS core, publish and subscribe without a stream, for comparison. */
#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "fan.h"
#include "modes.h"
#include "nats_session.h"

enum { RING_REQUESTS = 1 << 14 };

/* The line before every payload: all messages of a run have the same. */
static char message_line[NAME_BYTES_MAX + 64];
static size_t message_line_bytes;

static void prepare(const struct options *options)
{
    message_line_bytes =
        (size_t)snprintf(message_line, sizeof message_line, "MSG %s 1 %d\r\n", options->topic, options->value_bytes);
}

static void open_publisher(struct link *link, const struct options *options)
{
    link->socket = fan_connect(link, options);
    nats_greet(link->socket, NULL);
}

static void open_subscriber(struct link *link, const struct options *options)
{
    link->socket = fan_connect(link, options);
    nats_greet(link->socket, options->topic);
}

static size_t build(uint8_t *at, const struct options *options, int publisher, uint64_t slot)
{
    int head = sprintf((char *)at, "PUB %s %d\r\n", options->topic, options->value_bytes);
    fan_payload(at + head, options, publisher, slot);
    memcpy(at + head + options->value_bytes, "\r\n", 2);
    return (size_t)head + (size_t)options->value_bytes + 2;
}

static size_t publisher_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    (void)fan;
    size_t used = 0, other;
    while ((other = nats_other(link->socket, data + used, size - used)) > 0)
        used += other;
    return used;
}

static size_t subscriber_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    size_t value_bytes = (size_t)fan_options(fan)->value_bytes, whole = message_line_bytes + value_bytes + 2, used = 0;
    while (size - used >= message_line_bytes) {
        if (memcmp(data + used, message_line, message_line_bytes) == 0) {
            if (size - used < whole)
                return used;
            fan_delivered(fan, link, data + used + message_line_bytes, value_bytes);
            used += whole;
            continue;
        }
        size_t other = nats_other(link->socket, data + used, size - used);
        if (other == 0)
            return used;
        used += other;
    }
    return used;
}

void run_fan_nats(const struct options *options)
{
    run_fan(options, &(struct fan_protocol){
        .ring_requests = RING_REQUESTS,
        .prepare = prepare,
        .open_publisher = open_publisher,
        .open_subscriber = open_subscriber,
        .build = build,
        .publisher_received = publisher_received,
        .subscriber_received = subscriber_received,
    });
}
