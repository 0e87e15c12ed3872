/* Mode `fan-mqtt`: MQTT 3.1.1 (Mosquitto) at QoS 0 or 1, for comparison. At QoS 1 publishers count acknowledgements and subscribers
 * acknowledge every message. */
#include <stdio.h>
#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "fan.h"
#include "modes.h"
#include "mqtt_session.h"

/* Each frame has a packet identifier of its own, of 16 bits and not 0. */
enum { RING_REQUESTS = 1 << 15, TYPE_AND_QOS = 0xF6 };

static void open_link(struct link *link, const struct options *options, const char *kind)
{
    char client[64];
    snprintf(client, sizeof client, "bench-%s-%d", kind, link->number);
    link->socket = fan_connect(link, options);
    mqtt_open(link->socket, client, MQTT_CLEAN_SESSION);
}

static void open_publisher(struct link *link, const struct options *options)
{
    open_link(link, options, "from");
}

static void open_subscriber(struct link *link, const struct options *options)
{
    open_link(link, options, "to");
    mqtt_subscribe(link->socket, options->topic, options->qos);
}

static size_t build(uint8_t *at, const struct options *options, int publisher, uint64_t slot)
{
    uint8_t *payload;
    size_t size =
        mqtt_publish(at, options->topic, options->qos, (uint16_t)(slot + 1), (size_t)options->value_bytes, &payload);
    fan_payload(payload, options, publisher, slot);
    return size;
}

static size_t publisher_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    size_t used = 0;
    for (; size - used >= MQTT_PUBACK_BYTES; used += MQTT_PUBACK_BYTES) {
        uint64_t due = link->acknowledged % link->ring.requests + 1;
        if (data[used] != MQTT_PUBACK || get_be16(data + used + 2) != due)
            fail("publisher %d got a packet of type %02x", link->number, data[used]);
        fan_acknowledged(fan, link);
    }
    return used;
}

static size_t subscriber_received(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    const struct options *options = fan_options(fan);
    int type = options->qos > 0 ? MQTT_PUBLISH_QOS1 : MQTT_PUBLISH;
    size_t used = 0, body_at, whole;
    while ((whole = mqtt_packet_bytes(data + used, size - used, &body_at)) > 0) {
        const uint8_t *packet = data + used;
        if ((packet[0] & TYPE_AND_QOS) != type)
            fail("subscriber %d got a packet of type %02x", link->number, packet[0]);
        size_t payload_at = body_at + 2 + get_be16(packet + body_at);
        if (options->qos > 0) {
            uint8_t *answer = fan_reply(link, MQTT_PUBACK_BYTES);
            answer[0] = MQTT_PUBACK;
            answer[1] = 2;
            memcpy(answer + 2, packet + payload_at, 2);
            payload_at += 2;
        }
        if (payload_at > whole)
            fail("subscriber %d got a packet of %zu bytes", link->number, whole);
        fan_delivered(fan, link, packet + payload_at, whole - payload_at);
        used += whole;
    }
    return used;
}

void run_fan_mqtt(const struct options *options)
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
