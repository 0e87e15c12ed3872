/* Mode `idle`: what open connections that do nothing cost.
 *
 * Each connection makes one request, so that the broker has really set up a session for it, and is then left alone. The
 * broker's memory is read before and after, and every connection must still be open at the end.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "json.h"
#include "measurement.h"
#include "modes.h"
#include "network.h"

enum { ANSWER_BYTES_MAX = 1 << 20 };

static void ask_once(int socket, uint8_t *answer)
{
    uint8_t frame[FRAME_HEADER_BYTES];
    send_all(socket, frame, frame_list_topics(frame));
    receive_exactly(socket, answer, FRAME_HEADER_BYTES);
    uint32_t payload_bytes = get_be32(answer + 4);
    if (payload_bytes > ANSWER_BYTES_MAX - FRAME_HEADER_BYTES)
        fail("the answer to LIST_TOPICS announces %u bytes", payload_bytes);
    receive_exactly(socket, answer + FRAME_HEADER_BYTES, payload_bytes);
    check_header(answer, FRAME_HEADER_BYTES + payload_bytes, OP_LIST_TOPICS);
}

static bool still_open(int socket)
{
    char byte;
    ssize_t received = recv(socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

void run_idle(const struct options *options)
{
    allow_descriptors(options->connections);
    uint8_t *answer = allocate(1, ANSWER_BYTES_MAX);
    int *sockets = allocate((size_t)options->connections, sizeof *sockets);
    uint64_t before = options->watch_pid ? resident_bytes(options->watch_pid) : 0;
    uint64_t started_ns = now_ns();
    for (int i = 0; i < options->connections; i++) {
        sockets[i] = connect_to(options->port);
        ask_once(sockets[i], answer);
    }
    double opening_s = (double)(now_ns() - started_ns) / 1e9;

    struct timespec hold = {.tv_sec = (time_t)options->duration_s};
    hold.tv_nsec = (long)((options->duration_s - (double)hold.tv_sec) * 1e9);
    nanosleep(&hold, NULL);
    for (int i = 0; i < options->connections; i++)
        if (!still_open(sockets[i]))
            fail("connection %d of %d did not stay open", i, options->connections);

    json_begin();
    json_text("mode", options->mode);
    json_integer("connections", (uint64_t)options->connections);
    json_real("opening_s", opening_s);
    if (options->watch_pid != 0) {
        json_integer("rss_before_bytes", before);
        json_integer("server_rss_bytes", resident_bytes(options->watch_pid));
    }
    json_end();
}
