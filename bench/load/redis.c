/* Redis streams, for comparison: modes `redis-xadd` and `redis-xrange`.
 *
 * XADD is the nearest Redis has to an acknowledged append, XRANGE to a fetch of consecutive messages. Identifiers given by
 * the server vary in length only with the clock, but nothing promises it, so XADD answers are read line by line. For
 * XRANGE the stream is filled first, with identifiers of one length, so that every good answer has the same known size.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "network.h"
#include "pipeline.h"

enum { RING_REQUESTS_LEAST = 1024, FILL_CHUNK = 1000, IDENTIFIER_FIRST = 1000000000, IDENTIFIER_BYTES = 12 };

static size_t put_bulk(uint8_t *at, const void *data, size_t size)
{
    int head = sprintf((char *)at, "$%zu\r\n", size);
    memcpy(at + head, data, size);
    memcpy(at + head + size, "\r\n", 2);
    return (size_t)head + size + 2;
}

static size_t put_word(uint8_t *at, const char *word)
{
    return put_bulk(at, word, strlen(word));
}

static size_t command_xadd(uint8_t *command, const struct options *options, const char *stream, const char *identifier,
                           const uint8_t *value)
{
    uint8_t *at = command + sprintf((char *)command, "*5\r\n");
    at += put_word(at, "XADD");
    at += put_word(at, stream);
    at += put_word(at, identifier);
    at += put_word(at, "v");
    at += put_bulk(at, value, (size_t)options->value_bytes);
    return (size_t)(at - command);
}

static uint8_t *a_value(const struct options *options)
{
    uint8_t *value = allocate(1, (size_t)options->value_bytes);
    put_value(value, options->value_bytes);
    return value;
}

/* An answer to XADD is "$15\r\n1700000000000-0\r\n": two lines, the first of which begins with a dollar sign. */
static size_t check_identifiers(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    (void)context;
    size_t used = 0;
    while (size - used > 0) {
        const uint8_t *answer = data + used, *end = data + size;
        const uint8_t *line_end = memchr(answer, '\n', (size_t)(end - answer));
        if (line_end == NULL)
            break;
        if (*answer != '$')
            fail("the server answered: %.*s", (int)(line_end - answer), answer);
        size_t identifier_bytes = strtoul((const char *)answer + 1, NULL, 10);
        size_t answer_bytes = (size_t)(line_end + 1 - answer) + identifier_bytes + 2;
        if (identifier_bytes < 3 || identifier_bytes > 41)
            fail("an identifier of %zu bytes", identifier_bytes);
        if (answer_bytes > size - used)
            break;
        used += answer_bytes;
        connection->requests++;
        connection->messages++;
    }
    return used;
}

void run_redis_xadd(const struct options *options)
{
    uint64_t topics = (uint64_t)options->topics;
    uint64_t requests = (RING_REQUESTS_LEAST + topics - 1) / topics * topics;
    struct ring ring = make_ring(requests, request_room(options, 1));
    uint8_t *value = a_value(options);
    for (uint64_t i = 0; i < requests; i++) {
        char name[NAME_BYTES_MAX];
        topic_name(options, (int)(i % topics), name);
        ring_add(&ring, command_xadd(ring_end(&ring), options, name, "*", value));
    }
    run_pipeline(&(struct pipeline){.options = options, .rings = &ring, .rings_count = 1, .check = check_identifiers});
    free(ring.data);
    free(value);
}

/* Adds entries 1000000000-1, 1000000001-1, ... and waits for each chunk's answers. */
static void fill_stream(const struct options *options, const char *stream, uint64_t entries)
{
    int handle = connect_to(options->port);
    uint8_t *value = a_value(options), *commands = allocate(FILL_CHUNK, request_room(options, 1));
    for (uint64_t done = 0; done < entries;) {
        int chunk = entries - done < FILL_CHUNK ? (int)(entries - done) : FILL_CHUNK;
        uint8_t *at = commands;
        for (int i = 0; i < chunk; i++) {
            char identifier[32];
            snprintf(identifier, sizeof identifier, "%lu-1", (unsigned long)(IDENTIFIER_FIRST + done + (uint64_t)i));
            at += command_xadd(at, options, stream, identifier, value);
        }
        send_all(handle, commands, (size_t)(at - commands));
        for (int i = 0; i < chunk; i++) {
            char line[256];
            receive_line(handle, line, sizeof line);
            if (line[0] != '$')
                fail("the server answered: %s", line);
            receive_line(handle, line, sizeof line);
        }
        done += (uint64_t)chunk;
    }
    free(commands);
    free(value);
    close(handle);
}

struct range_answers {
    size_t answer_bytes;
    uint64_t entries;
    char head[32];
    size_t head_bytes;
};

static size_t check_ranges(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    const struct range_answers *expected = context;
    /* The bytes of the current answer that are still to come; 0 between answers. */
    uint64_t *to_come = connection->memory;
    if (to_come == NULL)
        to_come = connection->memory = allocate(1, sizeof *to_come);
    size_t used = 0;
    for (;;) {
        if (*to_come == 0) {
            if (size - used < expected->head_bytes)
                return used;
            if (memcmp(data + used, expected->head, expected->head_bytes) != 0)
                fail("the server answered: %.*s", (int)expected->head_bytes, data + used);
            *to_come = expected->answer_bytes;
        }
        size_t passed = size - used < *to_come ? size - used : (size_t)*to_come;
        *to_come -= passed;
        used += passed;
        if (*to_come > 0)
            return used;
        connection->requests++;
        connection->messages += expected->entries;
    }
}

void run_redis_xrange(const struct options *options)
{
    uint64_t entries = (uint64_t)options->max_messages;
    if (options->end_offset < entries)
        fail("--end must be at least %lu", (unsigned long)entries);
    fill_stream(options, options->topic, options->end_offset);

    uint64_t requests = options->end_offset / entries;
    struct ring ring = make_ring(requests, 2 * NAME_BYTES_MAX);
    for (uint64_t i = 0; i < requests; i++) {
        char from[32], count[32];
        snprintf(from, sizeof from, "%lu-0", (unsigned long)(IDENTIFIER_FIRST + i * entries));
        snprintf(count, sizeof count, "%lu", (unsigned long)entries);
        uint8_t *command = ring_end(&ring), *at = command + sprintf((char *)command, "*6\r\n");
        at += put_word(at, "XRANGE");
        at += put_word(at, options->topic);
        at += put_word(at, from);
        at += put_word(at, "+");
        at += put_word(at, "COUNT");
        at += put_word(at, count);
        ring_add(&ring, (size_t)(at - command));
    }

    struct range_answers expected = {.entries = entries};
    char number[32];
    size_t value_head_bytes = (size_t)snprintf(number, sizeof number, "$%d\r\n", options->value_bytes);
    /* Each entry: an array of its identifier and of an array of field name and value. */
    size_t entry_bytes = strlen("*2\r\n$12\r\n") + IDENTIFIER_BYTES + strlen("\r\n*2\r\n$1\r\nv\r\n") + value_head_bytes
                         + (size_t)options->value_bytes + strlen("\r\n");
    expected.head_bytes = (size_t)snprintf(expected.head, sizeof expected.head, "*%lu\r\n*2\r\n$%d\r\n", (unsigned long)entries,
                                           IDENTIFIER_BYTES);
    expected.answer_bytes = (size_t)snprintf(number, sizeof number, "*%lu\r\n", (unsigned long)entries) + entries * entry_bytes;
    run_pipeline(&(struct pipeline){.options = options, .rings = &ring, .rings_count = 1, .check = check_ranges, .context = &expected});
    free(ring.data);
}
