/* MQTT 3.1.1 (Mosquitto), for comparison: mode `mqtt-publish` counts PUBACKs of QoS 1 messages.
 *
 * A broker that has nobody to deliver to acknowledges and forgets, which compares with nothing here. So a session with a
 * subscription is made first and its client leaves: the broker must then keep every message for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "network.h"
#include "pipeline.h"

enum {
    CONNECT = 0x10, CONNACK = 0x20, PUBLISH_QOS1 = 0x32, PUBACK = 0x40, SUBSCRIBE = 0x82, SUBACK = 0x90, DISCONNECT = 0xE0,
    CLEAN_SESSION = 0x02,
    KEEP_ALIVE_S = 600,
    PUBACK_BYTES = 4,
    RING_REQUESTS = 1 << 15, /* each has a packet identifier of its own, so this is also the widest window */
};

static size_t put_text(uint8_t *at, const char *text)
{
    size_t length = strlen(text);
    put_be16(at, (uint16_t)length);
    memcpy(at + 2, text, length);
    return 2 + length;
}

/* Lengths take seven bits a byte, lowest first. */
static size_t put_length(uint8_t *at, size_t length)
{
    size_t size = 0;
    do {
        at[size] = length & 0x7F;
        length >>= 7;
        if (length > 0)
            at[size] |= 0x80;
        size++;
    } while (length > 0);
    return size;
}

static void open_session(int handle, const char *client, int flags)
{
    uint8_t body[256], packet[300], answer[4];
    size_t size = put_text(body, "MQTT");
    body[size++] = 4; /* protocol level of 3.1.1 */
    body[size++] = (uint8_t)flags;
    put_be16(body + size, KEEP_ALIVE_S);
    size += 2;
    size += put_text(body + size, client);
    packet[0] = CONNECT;
    size_t head = 1 + put_length(packet + 1, size);
    memcpy(packet + head, body, size);
    send_all(handle, packet, head + size);
    receive_exactly(handle, answer, sizeof answer);
    if (answer[0] != CONNACK || answer[3] != 0)
        fail("the broker refused the session with code %d", answer[3]);
}

static void leave_subscription(const struct options *options)
{
    int handle = connect_to(options->port);
    char pattern[NAME_BYTES_MAX];
    uint8_t body[256], packet[300], answer[5];
    open_session(handle, "bench-absent", 0);
    snprintf(pattern, sizeof pattern, "%.150s/#", options->topic);
    put_be16(body, 1);
    size_t size = 2 + put_text(body + 2, pattern);
    body[size++] = 1; /* QoS */
    packet[0] = SUBSCRIBE;
    size_t head = 1 + put_length(packet + 1, size);
    memcpy(packet + head, body, size);
    send_all(handle, packet, head + size);
    receive_exactly(handle, answer, sizeof answer);
    if (answer[0] != SUBACK || answer[4] > 1)
        fail("the broker refused the subscription");
    send_all(handle, (const uint8_t[]){DISCONNECT, 0}, 2);
    close(handle);
}

static void greet(struct connection *connection, void *context)
{
    int *serial = context;
    char client[32];
    snprintf(client, sizeof client, "bench-%d", (*serial)++);
    open_session(connection->socket, client, CLEAN_SESSION);
}

static size_t check_acknowledgements(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    (void)context;
    size_t used = 0;
    for (; size - used >= PUBACK_BYTES; used += PUBACK_BYTES) {
        if (data[used] != PUBACK || data[used + 1] != 2)
            fail("the broker answered with packet type %02x", data[used]);
        connection->requests++;
        connection->messages++;
    }
    return used;
}

void run_mqtt_publish(const struct options *options)
{
    if (options->window > RING_REQUESTS)
        fail("at most %d messages can be in flight", RING_REQUESTS);
    if (options->create)
        leave_subscription(options);
    struct ring ring = make_ring(RING_REQUESTS, request_room(options, 1));
    for (int i = 0; i < RING_REQUESTS; i++) {
        char name[NAME_BYTES_MAX];
        snprintf(name, sizeof name, "%.150s/%05d", options->topic, i % options->topics);
        uint8_t *packet = ring_end(&ring);
        packet[0] = PUBLISH_QOS1;
        uint8_t *at = packet + 1 + put_length(packet + 1, 2 + strlen(name) + 2 + (size_t)options->value_bytes);
        at += put_text(at, name);
        put_be16(at, (uint16_t)(i + 1));
        put_value(at + 2, options->value_bytes);
        at += 2 + options->value_bytes;
        ring_add(&ring, (size_t)(at - packet));
    }
    int serial = 0;
    run_pipeline(&(struct pipeline){
        .options = options, .rings = &ring, .rings_count = 1, .greet = greet, .check = check_acknowledgements, .context = &serial});
    free(ring.data);
}
