/* Mode `latency`: how long one PRODUCE takes when a client waits for each answer before it asks again. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "json.h"
#include "measurement.h"
#include "modes.h"
#include "network.h"

enum { EVENTS_MAX = 256, TURN_TIMEOUT_MS = 20, ANSWER_BYTES_MAX = 65536 };

struct caller {
    int socket;
    uint64_t asked_ns;
    size_t answered_bytes;
    uint8_t answer[ANSWER_BYTES_MAX];
};

static void ask(struct caller *caller, const uint8_t *frame, size_t size)
{
    caller->answered_bytes = 0;
    caller->asked_ns = now_ns();
    if (send(caller->socket, frame, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("a single request did not fit the socket's buffer");
}

/* True when the answer is complete. */
static bool receive_answer(struct caller *caller, size_t answer_bytes)
{
    ssize_t received = recv(caller->socket, caller->answer + caller->answered_bytes,
                            sizeof caller->answer - caller->answered_bytes, MSG_DONTWAIT);
    if (received == 0)
        fail("the server closed the connection");
    if (received < 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail_errno("recv");
        return false;
    }
    caller->answered_bytes += (size_t)received;
    if (caller->answered_bytes < FRAME_HEADER_BYTES)
        return false;
    uint32_t payload_bytes = check_header(caller->answer, caller->answered_bytes, OP_PRODUCE);
    if (FRAME_HEADER_BYTES + payload_bytes != answer_bytes || caller->answered_bytes > answer_bytes)
        fail("an answer of %u bytes, expected %zu", payload_bytes, answer_bytes - FRAME_HEADER_BYTES);
    return caller->answered_bytes == answer_bytes;
}

void run_latency(const struct options *options)
{
    if (options->create && !options->echo)
        create_topics(options);
    char name[NAME_BYTES_MAX];
    topic_name(options, 0, name);
    uint8_t *frame = allocate(1, request_room(options, 1));
    size_t frame_bytes = frame_produce(frame, options, name, options->partition, 0);
    size_t answer_bytes = options->echo ? frame_bytes : FRAME_HEADER_BYTES + META_FIXED_BYTES + strlen(name);
    if (answer_bytes > ANSWER_BYTES_MAX)
        fail("answers of %zu bytes are too long", answer_bytes);

    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct caller *callers = allocate((size_t)options->connections, sizeof *callers);
    for (int i = 0; i < options->connections; i++) {
        callers[i].socket = connect_to(options->port);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &callers[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, callers[i].socket, &event) != 0)
            fail_errno("epoll_ctl");
    }

    struct measurement measurement = start_measuring(options);
    struct durations durations = {0};
    uint64_t answers = 0;
    for (int i = 0; i < options->connections; i++)
        ask(&callers[i], frame, frame_bytes);
    while (!measure(&measurement, answers, answers, answers * answer_bytes, answers >= options->count)) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, TURN_TIMEOUT_MS);
        for (int i = 0; i < ready; i++) {
            struct caller *caller = events[i].data.ptr;
            if (!receive_answer(caller, answer_bytes))
                continue;
            answers++;
            if (measurement.open)
                add_duration(&durations, now_ns() - caller->asked_ns);
            ask(caller, frame, frame_bytes);
        }
    }

    json_begin();
    json_text("mode", options->mode);
    json_integer("connections", (uint64_t)options->connections);
    json_integer("value_bytes", (uint64_t)options->value_bytes);
    report_durations(&durations);
    report_measurement(&measurement);
    json_end();
}
