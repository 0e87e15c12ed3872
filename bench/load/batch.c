#include "batch.h"

#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "fail.h"
#include "flymq.h"

enum {
    BATCH_MAGIC = 0x31445242, /* "BRD1" */
    BATCH_VERSION = 1,
    CHECKSUM_CRC32C = 1,
    CHECKSUM_FROM = 12,
    LENGTH_AT = 4,
    CHECKSUM_AT = 8,
    BASE_OFFSET_AT = 16,
    COUNT_AT = 24,
};

void seal_batch(uint8_t *batch, size_t size, uint32_t count, uint64_t base_offset, int64_t timestamp_ms, uint32_t rows_at,
                uint32_t attrs_at)
{
    put_le32(batch, BATCH_MAGIC);
    put_le32(batch + LENGTH_AT, (uint32_t)size);
    batch[12] = BATCH_VERSION;
    batch[13] = CHECKSUM_CRC32C;
    put_le16(batch + 14, 0); /* flags: no optional column, nothing compressed */
    put_le64(batch + BASE_OFFSET_AT, base_offset);
    put_le32(batch + COUNT_AT, count);
    put_le32(batch + 28, 0); /* leader epoch */
    put_le64(batch + 32, (uint64_t)timestamp_ms);
    put_le64(batch + 40, (uint64_t)timestamp_ms);
    put_le64(batch + 48, UINT64_MAX); /* no producer id, sequence or epoch */
    put_le32(batch + 56, UINT32_MAX);
    put_le16(batch + 60, UINT16_MAX);
    put_le16(batch + 62, 0);
    put_le32(batch + 64, 0); /* key id */
    put_le32(batch + 68, rows_at);
    put_le32(batch + 72, attrs_at);
    put_le32(batch + 76, (uint32_t)size);
    put_le32(batch + CHECKSUM_AT, crc32c(batch + CHECKSUM_FROM, size - CHECKSUM_FROM));
}

size_t build_batch(uint8_t *batch, const struct options *options, uint64_t serial)
{
    uint32_t count = (uint32_t)options->records;
    size_t column_bytes = padded_to_8(4 * (size_t)count);
    uint8_t *positions = batch + BATCH_HEADER_BYTES;
    uint8_t *key_lengths = positions + column_bytes;
    uint8_t *value_lengths = key_lengths + column_bytes;
    uint8_t *rows = value_lengths + column_bytes;
    memset(positions, 0, 3 * column_bytes);

    uint8_t *at = rows;
    for (uint32_t i = 0; i < count; i++) {
        put_le32(positions + 4 * i, (uint32_t)(at - rows));
        put_le32(key_lengths + 4 * i, (uint32_t)options->key_bytes);
        put_le32(value_lengths + 4 * i, (uint32_t)options->value_bytes);
        put_be32(at, (uint32_t)options->key_bytes);
        put_key(at + 4, options->key_bytes, serial * count + i);
        at += 4 + options->key_bytes;
        put_be32(at, (uint32_t)options->value_bytes);
        put_value(at + 4, options->value_bytes);
        at += 4 + options->value_bytes;
        put_be64(at, i);
        at += 8;
    }

    size_t attrs_at = (size_t)(at - batch);
    size_t size = padded_to_8(attrs_at);
    memset(at, 0, size - attrs_at);
    seal_batch(batch, size, count, 0, 0, (uint32_t)(rows - batch), (uint32_t)attrs_at);
    return size;
}

struct batch_span walk_batches(const uint8_t *data, size_t size, uint64_t from_offset, int thorough)
{
    struct batch_span span = {.next_offset = from_offset};
    while (size > 0) {
        if (size < BATCH_HEADER_BYTES || get_le32(data) != BATCH_MAGIC)
            fail("batch %lu of an answer has no header", (unsigned long)span.batches);
        uint32_t length = get_le32(data + LENGTH_AT), count = get_le32(data + COUNT_AT);
        uint64_t base_offset = get_le64(data + BASE_OFFSET_AT), next_offset = base_offset + count;
        if (length < BATCH_HEADER_BYTES || length > size)
            fail("batch %lu of an answer is %u bytes long, %zu are there", (unsigned long)span.batches, length, size);
        if (thorough && crc32c(data + CHECKSUM_FROM, length - CHECKSUM_FROM) != get_le32(data + CHECKSUM_AT))
            fail("the batch at offset %lu has a wrong checksum", (unsigned long)base_offset);
        /* The first batch may begin before the offset asked for; from there on there must be no gap. */
        if (next_offset <= span.next_offset || (span.batches > 0 ? base_offset != span.next_offset : base_offset > from_offset))
            fail("batch with offsets %lu to %lu where %lu was due", (unsigned long)base_offset, (unsigned long)next_offset,
                 (unsigned long)span.next_offset);
        span.records += next_offset - span.next_offset;
        span.next_offset = next_offset;
        span.batches++;
        data += length;
        size -= length;
    }
    return span;
}
