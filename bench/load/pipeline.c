#include "pipeline.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fail.h"
#include "json.h"
#include "measurement.h"
#include "network.h"

enum { RECEIVE_BYTES = 256 << 10, EVENTS_MAX = 256, TURN_TIMEOUT_MS = 20 };

/* One buffer for all connections stays in the processor's cache; what a check leaves over moves into the connection. */
static uint8_t received[HELD_BYTES_MAX + RECEIVE_BYTES];

struct ring make_ring(uint64_t requests, size_t room)
{
    return (struct ring){.data = allocate(requests, room)};
}

uint8_t *ring_end(const struct ring *ring)
{
    return ring->data + ring->requests * ring->request_bytes;
}

void ring_add(struct ring *ring, size_t request_bytes)
{
    if (ring->requests > 0 && request_bytes != ring->request_bytes)
        fail("request %lu is %zu bytes long, the ones before it %zu", (unsigned long)ring->requests, request_bytes,
             ring->request_bytes);
    ring->request_bytes = request_bytes;
    ring->requests++;
}

static void wait_for(int epoll, struct connection *connection, uint32_t events)
{
    if (connection->waits_for == events)
        return;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(epoll, connection->waits_for ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, connection->socket, &event) != 0)
        fail_errno("epoll_ctl");
    connection->waits_for = events;
}

/* Sends what the window allows, once a quarter of it is free: small sends would cost the server a wake-up each. */
static void send_more(const struct pipeline *pipeline, int epoll, struct connection *connection)
{
    const struct ring *ring = connection->ring;
    uint64_t window = (uint64_t)pipeline->options->window;
    uint64_t allowed_to = (connection->requests + window) * ring->request_bytes;
    if (allowed_to > connection->sent_bytes_max)
        allowed_to = connection->sent_bytes_max;
    uint64_t left = allowed_to - connection->sent_bytes;
    if (left < window / 4 * ring->request_bytes && allowed_to < connection->sent_bytes_max && connection->waits_for == EPOLLIN)
        return;

    bool blocked = false;
    uint64_t ring_bytes = ring->requests * ring->request_bytes;
    while (left > 0 && !blocked) {
        uint64_t position = connection->sent_bytes % ring_bytes;
        size_t piece = (size_t)(left < ring_bytes - position ? left : ring_bytes - position);
        ssize_t sent = send(connection->socket, ring->data + position, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            fail_errno("send");
        blocked = sent < (ssize_t)piece;
        if (sent > 0) {
            connection->sent_bytes += (uint64_t)sent;
            left -= (uint64_t)sent;
        }
    }
    wait_for(epoll, connection, blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void receive_some(const struct pipeline *pipeline, struct connection *connection)
{
    size_t held = connection->held_bytes;
    memcpy(received, connection->held, held);
    ssize_t size = recv(connection->socket, received + held, RECEIVE_BYTES, MSG_DONTWAIT);
    if (size == 0)
        fail("the server closed the connection after %lu answers", (unsigned long)connection->requests);
    if (size < 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail_errno("recv");
        return;
    }
    connection->bytes_in += (uint64_t)size;
    size_t available = held + (size_t)size;
    size_t used = pipeline->check(connection, received, available, pipeline->context);
    connection->held_bytes = available - used;
    if (connection->held_bytes > HELD_BYTES_MAX)
        fail("%zu bytes of an answer make no sense yet", connection->held_bytes);
    memcpy(connection->held, received + used, connection->held_bytes);
}

static struct connection *open_connections(const struct pipeline *pipeline, int epoll)
{
    const struct options *options = pipeline->options;
    uint64_t count = (uint64_t)options->connections;
    struct connection *connections = allocate(count, sizeof *connections);
    for (uint64_t i = 0; i < count; i++) {
        struct connection *connection = &connections[i];
        connection->ring = &pipeline->rings[i % (uint64_t)pipeline->rings_count];
        connection->sent_bytes_max = UINT64_MAX;
        if (options->count > 0) {
            uint64_t share = options->count / count + (i < options->count % count);
            connection->sent_bytes_max = share * connection->ring->request_bytes;
        }
        connection->socket = connect_to(options->port);
        if (pipeline->greet != NULL)
            pipeline->greet(connection, pipeline->context);
        stop_blocking(connection->socket);
        wait_for(epoll, connection, EPOLLIN | EPOLLOUT);
    }
    return connections;
}

void run_pipeline(const struct pipeline *pipeline)
{
    const struct options *options = pipeline->options;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        fail_errno("epoll_create1");
    struct connection *connections = open_connections(pipeline, epoll);
    struct measurement measurement = start_measuring(options);
    for (;;) {
        uint64_t requests = 0, messages = 0, bytes_in = 0;
        for (int i = 0; i < options->connections; i++) {
            requests += connections[i].requests;
            messages += connections[i].messages;
            bytes_in += connections[i].bytes_in;
        }
        if (measure(&measurement, requests, messages, bytes_in, requests == options->count))
            break;
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, TURN_TIMEOUT_MS);
        if (ready < 0 && errno != EINTR)
            fail_errno("epoll_wait");
        for (int i = 0; i < ready; i++) {
            struct connection *connection = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                receive_some(pipeline, connection);
            send_more(pipeline, epoll, connection);
        }
    }

    json_begin();
    json_text("mode", options->mode);
    json_integer("connections", (uint64_t)options->connections);
    json_integer("window", (uint64_t)options->window);
    json_integer("value_bytes", (uint64_t)options->value_bytes);
    json_integer("key_bytes", (uint64_t)options->key_bytes);
    json_integer("topics", (uint64_t)options->topics);
    json_integer("partitions", (uint64_t)options->partitions);
    report_measurement(&measurement);
    json_end();
    for (int i = 0; i < options->connections; i++)
        close(connections[i].socket);
    close(epoll);
    free(connections);
}
