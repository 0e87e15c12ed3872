/* Mode `fan-fq`: messages through an exchange into one memory queue a subscriber, with room for all that is in flight.
 *
 * A client of fq is a pair of connections: commands on one, messages on the other, opened with the key that the first one got. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "fail.h"
#include "fan.h"
#include "modes.h"
#include "network.h"

enum {
    MODE_COMMAND = (int)0xCC50CAFE, MODE_DATA = (int)0xCC50FACE,
    COMMAND_AUTH = 0xAAAA, ANSWER_AUTH = 0xAA00, ANSWER_ERROR = 0xEEEE, COMMAND_BIND = 0xB170, ANSWER_BIND = 0xB171,
    HEARTBEAT = 0xBEA7,
    BINDING_TRANSIENT = 0x0100,
    KEY_BYTES_MAX = 127, ID_BYTES = 16, ROUTE_REFUSED = -1,
    RING_REQUESTS = 1 << 16,
};

static const char USER[] = "bench", PASSWORD[] = "bench", ROUTE[] = "bench.route", PROGRAM[] = "prefix:bench.";

static uint8_t *put_text16(uint8_t *at, const void *text, size_t size)
{
    put_be16(at, (uint16_t)size);
    memcpy(at + 2, text, size);
    return at + 2 + size;
}

static uint8_t *put_text8(uint8_t *at, const char *text)
{
    size_t size = strlen(text);
    at[0] = (uint8_t)size;
    memcpy(at + 1, text, size);
    return at + 1 + size;
}

/* The code of the next answer, past any heartbeats. */
static int next_answer(int command)
{
    uint8_t code[2], text[512];
    do
        receive_exactly(command, code, sizeof code);
    while (get_be16(code) == HEARTBEAT);
    if (get_be16(code) == ANSWER_ERROR) {
        receive_exactly(command, text, 2);
        size_t size = get_be16(text) < sizeof text ? get_be16(text) : sizeof text;
        receive_exactly(command, text, size);
        fail("the broker refused a command: %.*s", (int)size, text);
    }
    return get_be16(code);
}

/* Opens a client's two connections; returns that for commands, which has to stay open. */
static int open_client(struct link *link, const struct options *options, const char *queue, const char *type)
{
    uint8_t frame[1024], key[2 + KEY_BYTES_MAX];
    char detail[256];
    int command = connect_to(options->port);
    size_t name_bytes = strlen(queue), detail_bytes = name_bytes + 1 + strlen(type);
    memcpy(detail, queue, name_bytes + 1);
    memcpy(detail + name_bytes + 1, type, strlen(type));
    put_be32(frame, (uint32_t)MODE_COMMAND);
    put_be16(frame + 4, COMMAND_AUTH);
    put_be16(frame + 6, 0);
    uint8_t *at = put_text16(frame + 8, USER, strlen(USER));
    at = put_text16(at, detail, detail_bytes);
    at = put_text16(at, PASSWORD, strlen(PASSWORD));
    send_all(command, frame, (size_t)(at - frame));
    if (next_answer(command) != ANSWER_AUTH)
        fail("the broker did not accept the client");
    receive_exactly(command, key, 2);
    size_t key_bytes = get_be16(key);
    if (key_bytes < 1 || key_bytes > KEY_BYTES_MAX)
        fail("the broker gave a key of %zu bytes", key_bytes);
    receive_exactly(command, key + 2, key_bytes);

    link->socket = fan_connect(link, options);
    put_be32(frame, (uint32_t)MODE_DATA);
    memcpy(frame + 4, key, 2 + key_bytes);
    send_all(link->socket, frame, 4 + 2 + key_bytes);
    return command;
}

static void open_publisher(struct link *link, const struct options *options)
{
    char queue[64];
    snprintf(queue, sizeof queue, "bench-from-%d", link->number);
    open_client(link, options, queue, "mem:private,drop");
}

static void open_subscriber(struct link *link, const struct options *options)
{
    char queue[64], type[64];
    snprintf(queue, sizeof queue, "bench-to-%d", link->number);
    snprintf(type, sizeof type, "mem:private,drop,backlog=%d", RING_REQUESTS);
    int command = open_client(link, options, queue, type);
    uint8_t frame[1024];
    put_be16(frame, COMMAND_BIND);
    put_be16(frame + 2, BINDING_TRANSIENT);
    uint8_t *at = put_text16(frame + 4, options->topic, strlen(options->topic));
    at = put_text16(at, PROGRAM, strlen(PROGRAM));
    send_all(command, frame, (size_t)(at - frame));
    if (next_answer(command) != ANSWER_BIND)
        fail("the broker did not answer to a binding");
    receive_exactly(command, frame, 4);
    if ((int32_t)get_be32(frame) == ROUTE_REFUSED)
        fail("the broker refused the binding");
}

static size_t build(uint8_t *frame, const struct options *options, int publisher, uint64_t slot)
{
    uint8_t *at = put_text8(frame, options->topic);
    at = put_text8(at, ROUTE);
    put_be64(at, (uint64_t)publisher);
    put_be64(at + 8, slot);
    at += ID_BYTES;
    put_be32(at, (uint32_t)options->value_bytes);
    fan_payload(at + 4, options, publisher, slot);
    return (size_t)(at + 4 + options->value_bytes - frame);
}

static size_t publisher_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    (void)fan, (void)data;
    fail("publisher %d got %zu bytes", link->number, size);
}

/* The bytes before the payload's length, or 0 when they are not all there. */
static size_t head_bytes(const uint8_t *data, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < 2; i++) { /* exchange, route */
        if (at >= size)
            return 0;
        at += 1u + data[at];
    }
    at += ID_BYTES;
    if (at >= size)
        return 0;
    at += 1u + data[at]; /* sender */
    if (at >= size)
        return 0;
    return at + 1u + 4u * data[at]; /* hops */
}

static size_t subscriber_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    const struct options *options = fan_options(fan);
    size_t used = 0, topic_bytes = strlen(options->topic);
    for (;;) {
        const uint8_t *frame = data + used;
        size_t head = head_bytes(frame, size - used);
        if (head == 0 || head + 4 > size - used)
            return used;
        uint32_t payload_bytes = get_be32(frame + head);
        if (payload_bytes != (uint32_t)options->value_bytes || frame[0] != topic_bytes
            || memcmp(frame + 1, options->topic, topic_bytes) != 0)
            fail("subscriber %d got something else: a payload of %u bytes", link->number, payload_bytes);
        if (head + 4 + payload_bytes > size - used)
            return used;
        fan_delivered(fan, link, frame + head + 4, payload_bytes);
        used += head + 4 + payload_bytes;
    }
}

void run_fan_fq(const struct options *options)
{
    run_fan(options, &(struct fan_protocol){
        .ring_requests = RING_REQUESTS,
        .open_publisher = open_publisher,
        .open_subscriber = open_subscriber,
        .build = build,
        .publisher_received = publisher_received,
        .subscriber_received = subscriber_received,
    });
}
