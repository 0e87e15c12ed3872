#include "blipmq.h"

#include <string.h>

#include "bytes.h"
#include "fail.h"

/* Offsets from the first FlatBuffer byte, which follows the length. */
enum {
    ENVELOPE_TABLE = 16,
    BODY_OFFSET_AT = 20,
    SEQUENCE_AT = 24,
    KIND_AT = 40,
    BODY_VTABLE_AT = 42,
    ENVELOPE_SLOTS_AT = 4,
};

/* --- writing */

static void put_envelope(uint8_t *buffer, int kind, uint32_t body_offset, uint64_t sequence)
{
    static const uint16_t VTABLE[] = {12, 28, 24, 4, 8, 16};
    put_le32(buffer, ENVELOPE_TABLE);
    for (size_t i = 0; i < sizeof VTABLE / sizeof *VTABLE; i++)
        put_le16(buffer + ENVELOPE_SLOTS_AT + 2 * i, VTABLE[i]);
    put_le32(buffer + ENVELOPE_TABLE, 12);
    put_le32(buffer + BODY_OFFSET_AT, body_offset);
    put_le64(buffer + SEQUENCE_AT, sequence);
    put_le64(buffer + 32, 0); /* timestamp */
    buffer[KIND_AT] = (uint8_t)kind;
    buffer[KIND_AT + 1] = 0;
}

static void put_vtable(uint8_t *at, const uint16_t *slots, size_t count)
{
    for (size_t i = 0; i < count; i++)
        put_le16(at + 2 * i, slots[i]);
}

static uint8_t *put_string(uint8_t *at, const void *text, size_t size)
{
    put_le32(at, (uint32_t)size);
    memcpy(at + 4, text, size);
    size_t padded = (size + 4) & ~(size_t)3; /* at least one zero byte ends it */
    memset(at + 4 + size, 0, padded - size);
    return at + 4 + padded;
}

static size_t finish(uint8_t *frame, const uint8_t *end)
{
    size_t size = (size_t)(end - frame);
    put_le32(frame, (uint32_t)(size - BLIPMQ_LENGTH_BYTES));
    return size;
}

size_t blipmq_subscribe(uint8_t *frame, const char *topic, int qos, uint64_t sequence)
{
    static const uint16_t VTABLE[] = {8, 12, 4, 8, 0};
    uint8_t *buffer = frame + BLIPMQ_LENGTH_BYTES;
    put_envelope(buffer, BLIPMQ_SUBSCRIBE, 32, sequence);
    put_vtable(buffer + BODY_VTABLE_AT, VTABLE, 5);
    put_le32(buffer + 52, 10);
    put_le32(buffer + 56, 8);
    put_le32(buffer + 60, (uint32_t)qos);
    return finish(frame, put_string(buffer + 64, topic, strlen(topic)));
}

size_t blipmq_ack_room(struct blipmq_text message_id)
{
    return BLIPMQ_LENGTH_BYTES + 64 + 4 + message_id.size + 4;
}

size_t blipmq_ack(uint8_t *frame, struct blipmq_text message_id, uint64_t sequence)
{
    static const uint16_t VTABLE[] = {8, 12, 4, 8, 0};
    uint8_t *buffer = frame + BLIPMQ_LENGTH_BYTES;
    put_envelope(buffer, BLIPMQ_ACK, 32, sequence);
    put_vtable(buffer + BODY_VTABLE_AT, VTABLE, 5);
    put_le32(buffer + 52, 10);
    put_le32(buffer + 56, 8);
    put_le32(buffer + 60, 0); /* error code */
    return finish(frame, put_string(buffer + 64, message_id.data, message_id.size));
}

size_t blipmq_publish(uint8_t *frame, const char *topic, const char *message_id, int qos, uint64_t sequence, size_t payload_bytes,
                      uint8_t **payload)
{
    uint16_t id_slot = message_id[0] != '\0' ? 20 : 0;
    const uint16_t vtable[] = {14, 28, 4, 16, 24, 8, id_slot};
    uint8_t *buffer = frame + BLIPMQ_LENGTH_BYTES;
    put_envelope(buffer, BLIPMQ_PUBLISH, 36, sequence);
    put_vtable(buffer + BODY_VTABLE_AT, vtable, 7);
    put_le32(buffer + 56, 14);
    put_le32(buffer + 60, 24);
    put_le64(buffer + 64, 0); /* ttl_ms */
    put_le32(buffer + 80, (uint32_t)qos);
    uint8_t *at = put_string(buffer + 84, topic, strlen(topic));
    put_le32(buffer + 76, 0);
    if (id_slot != 0) {
        put_le32(buffer + 76, (uint32_t)(at - (buffer + 76)));
        at = put_string(at, message_id, strlen(message_id));
    }
    put_le32(buffer + 72, (uint32_t)(at - (buffer + 72)));
    put_le32(at, (uint32_t)payload_bytes);
    *payload = at + 4;
    return finish(frame, at + 4 + payload_bytes);
}

/* --- reading */

struct table {
    const uint8_t *buffer;
    size_t size;     /* of the buffer */
    size_t at;       /* where the table begins */
    size_t vtable;
    uint16_t slots_end;
    uint16_t table_bytes;
};

static void malformed(void)
{
    fail("the broker sent a frame that points outside itself");
}

static struct table open_table(const uint8_t *buffer, size_t size, size_t at)
{
    if (at < 4 || at + 4 > size)
        malformed();
    int64_t vtable = (int64_t)at - (int32_t)get_le32(buffer + at);
    if (vtable < 0 || vtable + 4 > (int64_t)size)
        malformed();
    struct table table = {.buffer = buffer, .size = size, .at = at, .vtable = (size_t)vtable};
    table.slots_end = get_le16(buffer + vtable);
    table.table_bytes = get_le16(buffer + vtable + 2);
    if (table.slots_end < 4 || (size_t)vtable + table.slots_end > size || at + table.table_bytes > size)
        malformed();
    return table;
}

/* Where a field is, or 0 when the table does not have it. */
static inline size_t field_at(const struct table *table, int slot, size_t field_bytes)
{
    unsigned entry = 4 + 2 * (unsigned)slot;
    if (entry + 2 > table->slots_end)
        return 0;
    uint16_t offset = get_le16(table->buffer + table->vtable + entry);
    if (offset == 0)
        return 0;
    if (offset < 4 || offset + field_bytes > table->table_bytes)
        malformed();
    return table->at + offset;
}

/* A string or a vector of bytes. */
static inline struct blipmq_text text_of(const struct table *table, int slot)
{
    size_t at = field_at(table, slot, 4);
    if (at == 0)
        return (struct blipmq_text){0};
    at += get_le32(table->buffer + at);
    if (at + 4 > table->size)
        malformed();
    uint32_t size = get_le32(table->buffer + at);
    if (size > table->size - at - 4)
        malformed();
    return (struct blipmq_text){.data = table->buffer + at + 4, .size = size};
}

static inline int octet_of(const struct table *table, int slot)
{
    size_t at = field_at(table, slot, 1);
    return at == 0 ? 0 : table->buffer[at];
}

size_t blipmq_frame_bytes(const uint8_t *data, size_t size)
{
    if (size < BLIPMQ_LENGTH_BYTES)
        return 0;
    uint32_t length = get_le32(data);
    if (length < 16 || length > BLIPMQ_FRAME_BYTES_MAX)
        fail("the broker announces a frame of %u bytes", length);
    return length <= size - BLIPMQ_LENGTH_BYTES ? BLIPMQ_LENGTH_BYTES + (size_t)length : 0;
}

struct blipmq_frame blipmq_read(const uint8_t *data, size_t frame_bytes)
{
    const uint8_t *buffer = data + BLIPMQ_LENGTH_BYTES;
    size_t size = frame_bytes - BLIPMQ_LENGTH_BYTES;
    struct table envelope = open_table(buffer, size, get_le32(buffer));
    struct blipmq_frame frame = {.kind = octet_of(&envelope, 0)};
    size_t body_at = field_at(&envelope, 1, 4), sequence_at = field_at(&envelope, 2, 8);
    if (body_at == 0)
        malformed();
    if (sequence_at != 0)
        frame.sequence = get_le64(buffer + sequence_at);
    struct table body = open_table(buffer, size, body_at + get_le32(buffer + body_at));
    switch (frame.kind) {
    case BLIPMQ_MESSAGE:
        frame.topic = text_of(&body, 0);
        frame.payload = text_of(&body, 1);
        frame.message_id = text_of(&body, 2);
        frame.qos = octet_of(&body, 4);
        break;
    case BLIPMQ_ACK:
        frame.message_id = text_of(&body, 0);
        frame.error_code = octet_of(&body, 1);
        break;
    case BLIPMQ_ERROR:
        frame.error_code = octet_of(&body, 0);
        frame.message_id = text_of(&body, 1);
        break;
    default:
        break;
    }
    return frame;
}
