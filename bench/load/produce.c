/* Modes `produce` and `batch`: how many records a second a broker takes in and acknowledges.
 *
 * Answers to both have a fixed size for a fixed topic name, so a check is one comparison of the header and a look at the
 * offset: on one connection the offsets of one partition must rise, and after a batch by at least the batch's size.
 */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "pipeline.h"

/* Single requests share a ring this long, so that one send() has plenty of them; batches are long by themselves. */
enum { RING_REQUESTS_LEAST = 1024, RING_BATCHES_LEAST = 4 };

struct expectation {
    int opcode;
    uint64_t streams;             /* partitions written in turn */
    uint64_t records;             /* in one request */
    bool ordered;                 /* the offsets of a partition can be followed */
    size_t answer_bytes;
    uint64_t header;              /* the eight bytes every good answer begins with */
    size_t offset_at;             /* where the offset stands in the answer */
};

static size_t check_answers(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    const struct expectation *expected = context;
    uint64_t *next_offsets = connection->memory;
    if (next_offsets == NULL)
        next_offsets = connection->memory = allocate(expected->streams, sizeof *next_offsets);
    uint64_t stream = connection->requests % expected->streams;
    size_t used = 0;
    while (size - used >= expected->answer_bytes) {
        const uint8_t *answer = data + used;
        uint64_t header;
        memcpy(&header, answer, sizeof header);
        if (header != expected->header) {
            uint32_t payload_bytes = check_header(answer, size - used, expected->opcode);
            fail("an answer of %u bytes, expected %zu", payload_bytes, expected->answer_bytes - FRAME_HEADER_BYTES);
        }
        if (expected->ordered) {
            uint64_t offset = get_be64(answer + expected->offset_at);
            if (offset < next_offsets[stream])
                fail("offset %lu acknowledged after %lu", (unsigned long)offset, (unsigned long)next_offsets[stream] - 1);
            next_offsets[stream] = offset + expected->records;
            if (++stream == expected->streams)
                stream = 0;
        }
        used += expected->answer_bytes;
        connection->requests++;
        connection->messages += expected->records;
    }
    /* An error is shorter than a good answer and may be all that ever comes. */
    if (size - used >= FRAME_HEADER_BYTES && data[used + 2] == OP_ERROR)
        check_header(data + used, size - used, expected->opcode);
    return used;
}

static void run(const struct options *options, int opcode, int records, uint64_t ring_least, size_t answer_fixed_bytes)
{
    if (options->create && !options->echo)
        create_topics(options);

    uint64_t streams = (uint64_t)options->topics * (uint64_t)options->partitions;
    uint64_t requests = (ring_least + streams - 1) / streams * streams;
    struct ring ring = make_ring(requests, request_room(options, records));
    char name[NAME_BYTES_MAX];
    for (uint64_t i = 0; i < requests; i++) {
        int partition = options->partition;
        if (options->partitions > 1)
            partition = (int)(i / (uint64_t)options->topics % (uint64_t)options->partitions);
        topic_name(options, (int)(i % (uint64_t)options->topics), name);
        uint8_t *at = ring_end(&ring);
        ring_add(&ring, opcode == OP_PRODUCE ? frame_produce(at, options, name, partition, i)
                                             : frame_produce_batch(at, options, name, partition, i));
    }

    size_t payload_bytes = options->echo ? ring.request_bytes - FRAME_HEADER_BYTES : answer_fixed_bytes + strlen(name);
    struct expectation expected = {
        .opcode = opcode,
        .streams = streams,
        .records = (uint64_t)records,
        .ordered = !options->echo && (options->partitions > 1 || options->partition >= 0),
        .answer_bytes = FRAME_HEADER_BYTES + payload_bytes,
        .offset_at = FRAME_HEADER_BYTES + 2 + strlen(name) + 4,
    };
    uint8_t header[FRAME_HEADER_BYTES];
    put_header(header, opcode, payload_bytes);
    memcpy(&expected.header, header, sizeof header);
    if (expected.answer_bytes > HELD_BYTES_MAX)
        fail("answers of %zu bytes are too long to check", expected.answer_bytes);
    run_pipeline(&(struct pipeline){.options = options, .rings = &ring, .rings_count = 1, .check = check_answers, .context = &expected});
    free(ring.data);
}

void run_produce(const struct options *options)
{
    run(options, OP_PRODUCE, 1, RING_REQUESTS_LEAST, META_FIXED_BYTES);
}

void run_batch(const struct options *options)
{
    run(options, OP_PRODUCE_BATCH, options->records, options->records > 64 ? RING_BATCHES_LEAST : RING_REQUESTS_LEAST,
        BATCH_ANSWER_FIXED_BYTES);
}
