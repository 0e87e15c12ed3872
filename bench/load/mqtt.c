/* MQTT 3.1.1 (Mosquitto), for comparison: mode `mqtt-publish` counts PUBACKs of QoS 1 messages.
 *
 * A broker that has nobody to deliver to acknowledges and forgets, which compares with nothing here. So a session with a
 * subscription is made first and its client leaves: the broker must then keep every message for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "mqtt_session.h"
#include "network.h"
#include "pipeline.h"

enum { RING_REQUESTS = 1 << 15 }; /* each has a packet identifier of its own, so this is also the widest window */

static void leave_subscription(const struct options *options)
{
    int handle = connect_to(options->port);
    char pattern[NAME_BYTES_MAX];
    snprintf(pattern, sizeof pattern, "%.150s/#", options->topic);
    mqtt_open(handle, "bench-absent", 0);
    mqtt_subscribe(handle, pattern, 1);
    send_all(handle, (const uint8_t[]){MQTT_DISCONNECT, 0}, 2);
    close(handle);
}

static void greet(struct connection *connection, void *context)
{
    int *serial = context;
    char client[32];
    snprintf(client, sizeof client, "bench-%d", (*serial)++);
    mqtt_open(connection->socket, client, MQTT_CLEAN_SESSION);
}

static size_t check_acknowledgements(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    (void)context;
    size_t used = 0;
    for (; size - used >= MQTT_PUBACK_BYTES; used += MQTT_PUBACK_BYTES) {
        if (data[used] != MQTT_PUBACK || data[used + 1] != 2)
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
        uint8_t *payload;
        size_t size = mqtt_publish(ring_end(&ring), name, 1, (uint16_t)(i + 1), (size_t)options->value_bytes, &payload);
        put_value(payload, options->value_bytes);
        ring_add(&ring, size);
    }
    int serial = 0;
    run_pipeline(&(struct pipeline){
        .options = options, .rings = &ring, .rings_count = 1, .greet = greet, .check = check_acknowledgements, .context = &serial});
    free(ring.data);
}
