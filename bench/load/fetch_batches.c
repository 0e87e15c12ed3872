/* Mode `fetch-batches`: the bulk read path, whole batches as they are stored.
 *
 * How many records an answer holds is only known when it is there, so each connection asks for the next offset when it
 * has walked over the headers of the batches it got. Several connections keep the broker busy meanwhile.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "batch.h"
#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "json.h"
#include "measurement.h"
#include "modes.h"
#include "network.h"

enum { EVENTS_MAX = 64, TURN_TIMEOUT_MS = 20, ANSWER_OVERHEAD_BYTES = 1024 };

struct reader {
    int socket;
    uint64_t offset;
    bool checked_thoroughly;
    uint8_t *answer;
    size_t answered_bytes;
};

struct totals {
    uint64_t answers, batches, records, bytes_in;
};

static void ask(const struct options *options, struct reader *reader, const char *name)
{
    uint8_t frame[2 * NAME_BYTES_MAX];
    size_t size = frame_fetch_batches(frame, options, name, options->partition, reader->offset);
    reader->answered_bytes = 0;
    if (send(reader->socket, frame, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("a single request did not fit the socket's buffer");
}

static void take_answer(const struct options *options, struct reader *reader, const char *name, struct totals *totals)
{
    size_t fixed_bytes = 2 + strlen(name) + 4 + 8 + 8 + 4;
    const uint8_t *payload = reader->answer + FRAME_HEADER_BYTES;
    size_t payload_bytes = reader->answered_bytes - FRAME_HEADER_BYTES;
    if (payload_bytes < fixed_bytes || payload_bytes - fixed_bytes != get_be32(payload + fixed_bytes - 4))
        fail("an answer of %zu bytes does not hold what it announces", payload_bytes);
    struct batch_span span =
        walk_batches(payload + fixed_bytes, payload_bytes - fixed_bytes, reader->offset, !reader->checked_thoroughly);
    if (span.batches == 0)
        fail("FETCH_BATCHES at %lu returned nothing", (unsigned long)reader->offset);
    reader->checked_thoroughly = true;
    reader->offset = span.next_offset < options->end_offset ? span.next_offset : options->from_offset;
    totals->answers++;
    totals->batches += span.batches;
    totals->records += span.records;
}

/* Receives; true when an answer is complete. */
static bool receive_answer(struct reader *reader, size_t room, struct totals *totals)
{
    ssize_t received = recv(reader->socket, reader->answer + reader->answered_bytes, room - reader->answered_bytes, MSG_DONTWAIT);
    if (received == 0)
        fail("the server closed the connection");
    if (received < 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail_errno("recv");
        return false;
    }
    reader->answered_bytes += (size_t)received;
    totals->bytes_in += (uint64_t)received;
    if (reader->answered_bytes < FRAME_HEADER_BYTES)
        return false;
    size_t frame_bytes = FRAME_HEADER_BYTES + check_header(reader->answer, reader->answered_bytes, OP_FETCH_BATCHES);
    if (frame_bytes > room)
        fail("an answer of %zu bytes", frame_bytes);
    return reader->answered_bytes >= frame_bytes;
}

void run_fetch_batches(const struct options *options)
{
    if (options->end_offset <= options->from_offset)
        fail("--end must be beyond --from");
    char name[NAME_BYTES_MAX];
    topic_name(options, 0, name);
    /* A broker answers with at least one whole batch, which may be longer than what was asked for. */
    size_t room = FRAME_BYTES_MAX + ANSWER_OVERHEAD_BYTES;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct reader *readers = allocate((size_t)options->connections, sizeof *readers);
    for (int i = 0; i < options->connections; i++) {
        struct reader *reader = &readers[i];
        uint64_t span = options->end_offset - options->from_offset;
        reader->offset = options->from_offset + span * (uint64_t)i / (uint64_t)options->connections;
        reader->answer = allocate(1, room);
        reader->socket = connect_to(options->port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = reader};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, reader->socket, &event) != 0)
            fail_errno("epoll_ctl");
        ask(options, reader, name);
    }

    struct measurement measurement = start_measuring(options);
    struct totals totals = {0};
    while (!measure(&measurement, totals.answers, totals.records, totals.bytes_in, totals.answers >= options->count)) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, TURN_TIMEOUT_MS);
        for (int i = 0; i < ready; i++) {
            struct reader *reader = events[i].data.ptr;
            if (!receive_answer(reader, room, &totals))
                continue;
            take_answer(options, reader, name, &totals);
            ask(options, reader, name);
        }
    }

    json_begin();
    json_text("mode", options->mode);
    json_integer("connections", (uint64_t)options->connections);
    json_integer("max_bytes", (uint64_t)options->max_bytes);
    json_real("records_per_batch", (double)totals.records / (double)totals.batches);
    report_measurement(&measurement);
    json_end();
}
