/* MQTT 3.1.1: what every mode that speaks it needs. */
#ifndef BENCH_MQTT_SESSION_H
#define BENCH_MQTT_SESSION_H

#include <stddef.h>
#include <stdint.h>

enum {
    MQTT_PUBLISH = 0x30, MQTT_PUBLISH_QOS1 = 0x32, MQTT_PUBACK = 0x40, MQTT_DISCONNECT = 0xE0,
    MQTT_CLEAN_SESSION = 0x02,
    MQTT_PUBACK_BYTES = 4,
};

/* CONNECT and SUBSCRIBE with their answers, on a blocking socket. */
void mqtt_open(int socket, const char *client, int flags);
void mqtt_subscribe(int socket, const char *pattern, int qos);

/* A PUBLISH at `at` but for its payload, for which `*payload` is set; at QoS 1 it has the packet identifier `packet`. Returns the
 * whole size. */
size_t mqtt_publish(uint8_t *at, const char *topic, int qos, uint16_t packet, size_t payload_bytes, uint8_t **payload);

/* Reads the length behind a packet's first byte: the bytes of the whole packet and where its body begins, or 0 when it is not
 * all there. */
size_t mqtt_packet_bytes(const uint8_t *data, size_t size, size_t *body_at);

#endif
