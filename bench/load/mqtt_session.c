#include "mqtt_session.h"

#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "network.h"

enum { CONNECT = 0x10, CONNACK = 0x20, SUBSCRIBE = 0x82, SUBACK = 0x90, KEEP_ALIVE_S = 600 };

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

static void send_packet(int handle, int type, const uint8_t *body, size_t size)
{
    uint8_t packet[300];
    packet[0] = (uint8_t)type;
    size_t head = 1 + put_length(packet + 1, size);
    if (head + size > sizeof packet)
        fail("a packet of %zu bytes is too long", size);
    memcpy(packet + head, body, size);
    send_all(handle, packet, head + size);
}

void mqtt_open(int handle, const char *client, int flags)
{
    uint8_t body[256], answer[4];
    size_t size = put_text(body, "MQTT");
    body[size++] = 4; /* protocol level of 3.1.1 */
    body[size++] = (uint8_t)flags;
    put_be16(body + size, KEEP_ALIVE_S);
    size += 2;
    size += put_text(body + size, client);
    send_packet(handle, CONNECT, body, size);
    receive_exactly(handle, answer, sizeof answer);
    if (answer[0] != CONNACK || answer[3] != 0)
        fail("the broker refused the session with code %d", answer[3]);
}

void mqtt_subscribe(int handle, const char *pattern, int qos)
{
    uint8_t body[256], answer[5];
    put_be16(body, 1);
    size_t size = 2 + put_text(body + 2, pattern);
    body[size++] = (uint8_t)qos;
    send_packet(handle, SUBSCRIBE, body, size);
    receive_exactly(handle, answer, sizeof answer);
    if (answer[0] != SUBACK || answer[4] != qos)
        fail("the broker refused the subscription");
}

size_t mqtt_publish(uint8_t *packet, const char *topic, int qos, uint16_t number, size_t payload_bytes, uint8_t **payload)
{
    size_t number_bytes = qos > 0 ? 2 : 0;
    packet[0] = qos > 0 ? MQTT_PUBLISH_QOS1 : MQTT_PUBLISH;
    uint8_t *at = packet + 1 + put_length(packet + 1, 2 + strlen(topic) + number_bytes + payload_bytes);
    at += put_text(at, topic);
    if (qos > 0)
        put_be16(at, number);
    *payload = at + number_bytes;
    return (size_t)(*payload + payload_bytes - packet);
}

size_t mqtt_packet_bytes(const uint8_t *data, size_t size, size_t *body_at)
{
    size_t length = 0;
    for (size_t i = 1; i < size && i <= 4; i++) {
        length |= (size_t)(data[i] & 0x7F) << (7 * (i - 1));
        if ((data[i] & 0x80) == 0) {
            *body_at = i + 1;
            return i + 1 + length <= size ? i + 1 + length : 0;
        }
    }
    return 0;
}
