/* Mode `fetch`: how many messages a second a broker hands out, in either dialect.
 *
 * Requests walk a range of offsets that is known to be filled with records of one size. Each answer is checked for its
 * count, its size to the byte, the first record's sizes and the next offset; the records in between are received and
 * passed over, as a client that only counts would do.
 */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "pipeline.h"

enum {
    RING_REQUESTS_MAX = 1 << 16,
    ITEM_FIXED_BYTES = 16,            /* key length, value length, offset */
    DOCUMENTED_HEAD_BYTES = 8 + 4 + 4,     /* frame header, count, first key length */
    V126_HEAD_BYTES = 8 + 4 + 8 + 8 + 4,   /* frame header, count, next offset, first offset, first key length */
};

struct walk {
    uint64_t from_offset;
    uint64_t requests;
    uint64_t max_messages;
    uint64_t item_bytes;
    uint32_t key_bytes;
    bool v126;
};

/* How far a connection is within the current answer. */
struct reading {
    uint64_t bytes_to_pass;      /* records still to come */
    uint64_t count;
    bool in_answer;
};

static uint64_t asked_offset(const struct walk *walk, uint64_t request)
{
    return walk->from_offset + request % walk->requests * walk->max_messages;
}

static void check_next_offset(const struct walk *walk, uint64_t request, uint64_t count, uint64_t next_offset)
{
    uint64_t offset = asked_offset(walk, request);
    if (next_offset != offset + count)
        fail("FETCH at %lu returned %lu messages and next offset %lu", (unsigned long)offset, (unsigned long)count,
             (unsigned long)next_offset);
}

/* Reads what stands before the records of an answer; returns its size. */
static size_t begin_answer(const struct walk *walk, struct connection *connection, struct reading *reading,
                           const uint8_t *data, size_t size)
{
    uint32_t payload_bytes = check_header(data, size, OP_FETCH);
    uint64_t count = get_be32(data + 8);
    if (count == 0 || count > walk->max_messages)
        fail("FETCH at %lu returned %lu messages of at most %lu", (unsigned long)asked_offset(walk, connection->requests),
             (unsigned long)count, (unsigned long)walk->max_messages);
    if (payload_bytes != 4 + 8 + count * walk->item_bytes)
        fail("%lu messages in an answer of %u bytes", (unsigned long)count, payload_bytes);
    size_t head_bytes = walk->v126 ? V126_HEAD_BYTES : DOCUMENTED_HEAD_BYTES;
    if (walk->v126) {
        check_next_offset(walk, connection->requests, count, get_be64(data + 12));
        if (get_be64(data + 20) != asked_offset(walk, connection->requests))
            fail("FETCH begins with offset %lu", (unsigned long)get_be64(data + 20));
    }
    if (get_be32(data + head_bytes - 4) != walk->key_bytes)
        fail("the first message has a key of %u bytes", get_be32(data + head_bytes - 4));
    reading->in_answer = true;
    reading->count = count;
    reading->bytes_to_pass = FRAME_HEADER_BYTES + payload_bytes - head_bytes - (walk->v126 ? 0 : 8);
    return head_bytes;
}

static size_t check_answers(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    const struct walk *walk = context;
    struct reading *reading = connection->memory;
    if (reading == NULL)
        reading = connection->memory = allocate(1, sizeof *reading);
    size_t head_bytes = walk->v126 ? V126_HEAD_BYTES : DOCUMENTED_HEAD_BYTES, tail_bytes = walk->v126 ? 0 : 8;
    size_t used = 0;
    for (;;) {
        if (!reading->in_answer) {
            if (size - used < head_bytes) {
                if (size - used >= FRAME_HEADER_BYTES)
                    check_header(data + used, size - used, OP_FETCH); /* an error may be shorter than a head */
                return used;
            }
            used += begin_answer(walk, connection, reading, data + used, size - used);
        }
        size_t passed = size - used < reading->bytes_to_pass ? size - used : (size_t)reading->bytes_to_pass;
        reading->bytes_to_pass -= passed;
        used += passed;
        if (reading->bytes_to_pass > 0 || size - used < tail_bytes)
            return used;
        if (!walk->v126)
            check_next_offset(walk, connection->requests, reading->count, get_be64(data + used));
        used += tail_bytes;
        reading->in_answer = false;
        connection->requests++;
        connection->messages += reading->count;
    }
}

void run_fetch(const struct options *options)
{
    uint64_t max = (uint64_t)options->max_messages;
    if (options->end_offset < options->from_offset + max)
        fail("--end must be at least %lu beyond --from", (unsigned long)max);
    struct walk walk = {
        .from_offset = options->from_offset,
        .requests = (options->end_offset - options->from_offset) / max,
        .max_messages = max,
        .item_bytes = ITEM_FIXED_BYTES + (uint64_t)options->key_bytes + (uint64_t)options->value_bytes,
        .key_bytes = (uint32_t)options->key_bytes,
        .v126 = options->v126,
    };
    if (walk.requests > RING_REQUESTS_MAX)
        walk.requests = RING_REQUESTS_MAX;
    char name[NAME_BYTES_MAX];
    topic_name(options, 0, name);
    struct ring ring = make_ring(walk.requests, 2 * NAME_BYTES_MAX);
    for (uint64_t i = 0; i < walk.requests; i++)
        ring_add(&ring, frame_fetch(ring_end(&ring), options, name, options->partition, asked_offset(&walk, i)));
    run_pipeline(&(struct pipeline){.options = options, .rings = &ring, .rings_count = 1, .check = check_answers, .context = &walk});
    free(ring.data);
}
