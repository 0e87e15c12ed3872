/* NATS JetStream, for comparison: mode `nats-js` publishes to a stream on file and counts the stream's acknowledgements.
 *
 * Every publish of a connection names the connection's own inbox for its acknowledgement, so the requests never change and
 * the window is a count of acknowledgements, as for the other brokers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "flymq.h"
#include "modes.h"
#include "nats_session.h"
#include "network.h"
#include "pipeline.h"

enum { RING_REQUESTS_LEAST = 1024, INBOX_BYTES = 32 };

static const char STREAM[] = "BENCH";

static void inbox_name(int serial, char inbox[INBOX_BYTES])
{
    snprintf(inbox, INBOX_BYTES, "_INBOX.bench.%05d", serial);
}

/* `context` counts the connections greeted so far, which is also the number of the next one's inbox. */
static void greet(struct connection *connection, void *context)
{
    int *serial = context;
    char inbox[INBOX_BYTES];
    inbox_name((*serial)++, inbox);
    nats_greet(connection->socket, inbox);
}

static void create_stream(const struct options *options)
{
    struct connection connection = {.socket = connect_to(options->port)};
    int serial = 0;
    char inbox[INBOX_BYTES];
    inbox_name(serial, inbox);
    greet(&connection, &serial);
    char description[512], request[1024], line[NATS_LINE_BYTES_MAX];
    int described = snprintf(description, sizeof description,
                             "{\"name\":\"%s\",\"subjects\":[\"%s.>\"],\"storage\":\"file\",\"retention\":\"limits\","
                             "\"discard\":\"old\",\"num_replicas\":1,\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0,"
                             "\"max_consumers\":-1,\"duplicate_window\":0}", STREAM, options->topic);
    int size = snprintf(request, sizeof request, "PUB $JS.API.STREAM.CREATE.%s %s %d\r\n%s\r\n", STREAM, inbox, described,
                        description);
    send_all(connection.socket, request, (size_t)size);
    do
        receive_line(connection.socket, line, sizeof line);
    while (strncmp(line, "MSG ", 4) != 0);
    receive_line(connection.socket, line, sizeof line);
    if (strstr(line, "\"error\"") != NULL)
        fail("the stream was refused: %s", line);
    close(connection.socket);
}

/* Where a message's payload begins and how long the whole of it is; 0 when its first line is not complete. */
static size_t message_bytes(const uint8_t *data, size_t size, size_t *payload_at)
{
    const uint8_t *line_end = memchr(data, '\n', size);
    if (line_end == NULL)
        return 0;
    const uint8_t *number = line_end - 1; /* "MSG subject id size\r\n": the size is the last word */
    while (number > data && number[-1] != ' ')
        number--;
    *payload_at = (size_t)(line_end + 1 - data);
    return *payload_at + strtoul((const char *)number, NULL, 10) + 2;
}

static size_t check_acknowledgements(struct connection *connection, const uint8_t *data, size_t size, void *context)
{
    (void)context;
    size_t used = 0;
    while (size - used >= 6) {
        const uint8_t *answer = data + used;
        if (memcmp(answer, "MSG ", 4) == 0) {
            size_t payload_at, whole = message_bytes(answer, size - used, &payload_at);
            if (whole == 0 || whole > size - used)
                break;
            /* A good one is {"stream":"BENCH", "seq":1}; errors come in the same place. */
            if (whole - payload_at < 12 || memcmp(answer + payload_at, "{\"stream\":", 10) != 0)
                fail("the stream answered: %.*s", (int)(whole - payload_at), answer + payload_at);
            used += whole;
            connection->requests++;
            connection->messages++;
        } else {
            size_t other = nats_other(connection->socket, answer, size - used);
            if (other == 0)
                break;
            used += other;
        }
    }
    return used;
}

static struct ring make_requests(const struct options *options, int serial)
{
    uint64_t topics = (uint64_t)options->topics;
    uint64_t requests = (RING_REQUESTS_LEAST + topics - 1) / topics * topics;
    struct ring ring = make_ring(requests, request_room(options, 1));
    char inbox[INBOX_BYTES];
    inbox_name(serial, inbox);
    for (uint64_t i = 0; i < requests; i++) {
        uint8_t *request = ring_end(&ring);
        int head = sprintf((char *)request, "PUB %s.%05lu %s %d\r\n", options->topic, (unsigned long)(i % topics), inbox,
                           options->value_bytes);
        put_value(request + head, options->value_bytes);
        memcpy(request + head + options->value_bytes, "\r\n", 2);
        ring_add(&ring, (size_t)head + (size_t)options->value_bytes + 2);
    }
    return ring;
}

void run_nats_jetstream(const struct options *options)
{
    if (options->create)
        create_stream(options);
    struct ring *rings = allocate((size_t)options->connections, sizeof *rings);
    for (int i = 0; i < options->connections; i++)
        rings[i] = make_requests(options, i);
    int serial = 0;
    run_pipeline(&(struct pipeline){.options = options, .rings = rings, .rings_count = options->connections, .greet = greet,
                                    .check = check_acknowledgements, .context = &serial});
    for (int i = 0; i < options->connections; i++)
        free(rings[i].data);
    free(rings);
}
