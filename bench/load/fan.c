#include "fan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "fail.h"
#include "flymq.h"
#include "json.h"
#include "measurement.h"
#include "network.h"

enum {
    RECEIVE_BYTES = 256 << 10,
    EVENTS_MAX = 256,
    TURN_TIMEOUT_MS = 20,
    SLOW_BUFFER_BYTES = 4096,
    HELD_LARGEST_BYTES = 2 << 20,
    WAITING_BYTES_MAX = 64 << 20,
    SAMPLE_EVERY = 61, /* of so many arrivals one duration is kept; coprime with the usual numbers of subscribers */
};
static const uint64_t DRAIN_NS_MAX = 20ull * 1000000000ull;

struct fan {
    const struct options *options;
    const struct fan_protocol *protocol;
    int epoll;
    struct link *publishers, *subscribers;
    uint32_t readers;          /* subscribers that are not slow */
    bool draining;
    uint64_t turn_ns;          /* when what is being looked at was received */
    uint64_t delivered, acknowledged, settled, bytes_in;
    bool sampling;
    uint64_t to_sample;
    struct durations durations;
};

static uint8_t received[HELD_LARGEST_BYTES + RECEIVE_BYTES];

const struct options *fan_options(const struct fan *fan)
{
    return fan->options;
}

/* --- bytes that wait */

static uint8_t *grow(struct bytes *bytes, size_t size)
{
    if (bytes->size + size > bytes->room) {
        if (bytes->size + size > WAITING_BYTES_MAX)
            fail("%zu bytes wait", bytes->size + size);
        bytes->room = 2 * (bytes->size + size);
        bytes->data = realloc(bytes->data, bytes->room);
        if (bytes->data == NULL)
            fail("no memory for %zu bytes", bytes->room);
    }
    uint8_t *at = bytes->data + bytes->size;
    bytes->size += size;
    return at;
}

static void drop_front(struct bytes *bytes, size_t size)
{
    bytes->size -= size;
    memmove(bytes->data, bytes->data + size, bytes->size);
}

uint8_t *fan_reply(struct link *link, size_t size)
{
    return grow(&link->out, size);
}

/* --- messages */

void fan_payload(uint8_t *at, const struct options *options, int publisher, uint64_t slot)
{
    put_value(at, options->value_bytes);
    put_be32(at, (uint32_t)publisher);
    put_be32(at + 4, (uint32_t)slot);
}

void fan_acknowledged(struct fan *fan, struct link *publisher)
{
    if (publisher->acknowledged * publisher->ring.request_bytes >= publisher->sent_bytes)
        fail("publisher %d got an acknowledgement for a message it has not sent", publisher->number);
    publisher->acknowledged++;
    fan->acknowledged++;
}

void fan_delivered(struct fan *fan, struct link *subscriber, const uint8_t *payload, size_t size)
{
    if (size != (size_t)fan->options->value_bytes)
        fail("subscriber %d got %zu bytes", subscriber->number, size);
    uint32_t number = get_be32(payload), slot = get_be32(payload + 4);
    if (number >= (uint32_t)fan->options->connections)
        fail("subscriber %d got a message of publisher %u", subscriber->number, number);
    struct link *publisher = &fan->publishers[number];
    uint64_t *next = &subscriber->next[number];
    if (slot != *next % publisher->ring.requests)
        fail("subscriber %d got message %u of publisher %u where %lu was due", subscriber->number, slot, number,
             (unsigned long)(*next % publisher->ring.requests));
    if (*next * publisher->ring.request_bytes >= publisher->sent_bytes)
        fail("subscriber %d got a message twice", subscriber->number);
    ++*next;
    fan->delivered++;
    if (++publisher->arrivals[slot] == fan->readers) {
        publisher->arrivals[slot] = 0;
        publisher->settled++;
        fan->settled++;
    }
    if (fan->sampling && fan->to_sample-- == 0) {
        fan->to_sample = fan->options->gap_us > 0 ? 0 : SAMPLE_EVERY - 1;
        add_duration(&fan->durations, fan->turn_ns - publisher->sent_ns[slot]);
    }
}

/* --- connections */

int fan_connect(const struct link *link, const struct options *options)
{
    return connect_with_buffer(options->port, link->slow ? SLOW_BUFFER_BYTES : 0);
}

static void wait_for(struct fan *fan, struct link *link, uint32_t events)
{
    if (link->waits_for == events)
        return;
    struct epoll_event event = {.events = events, .data.ptr = link};
    if (epoll_ctl(fan->epoll, link->waits_for ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, link->socket, &event) != 0)
        fail_errno("epoll_ctl");
    link->waits_for = events;
}

/* Sends as much as the connection takes; returns that. */
static size_t send_some(const struct link *link, const uint8_t *data, size_t size)
{
    ssize_t sent = send(link->socket, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        fail_errno("send");
    return sent > 0 ? (size_t)sent : 0;
}

static void send_replies(struct fan *fan, struct link *link)
{
    if (link->out.size > 0)
        drop_front(&link->out, send_some(link, link->out.data, link->out.size));
    wait_for(fan, link, link->out.size > 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void be_idle(const struct options *options)
{
    struct timespec gap = {.tv_sec = options->gap_us / 1000000, .tv_nsec = options->gap_us % 1000000 * 1000l};
    nanosleep(&gap, NULL);
}

/* Notes when the frames that begin within the bytes just sent were sent. */
static void note_sending(struct link *link, uint64_t from_bytes, uint64_t to_bytes, uint64_t now)
{
    uint64_t frame_bytes = link->ring.request_bytes;
    for (uint64_t serial = (from_bytes + frame_bytes - 1) / frame_bytes; serial * frame_bytes < to_bytes; serial++)
        link->sent_ns[serial % link->ring.requests] = now;
}

/* Sends what the window allows, once a quarter of it is free: small sends would cost the server a wake-up each. */
static void publish_more(struct fan *fan, struct link *link)
{
    const struct options *options = fan->options;
    uint64_t frame_bytes = link->ring.request_bytes, window = (uint64_t)options->window;
    uint64_t done = link->settled;
    if (fan->protocol->acknowledged && link->acknowledged < done)
        done = link->acknowledged;
    uint64_t allowed_to = (done + window) * frame_bytes;
    if (options->count > 0 && allowed_to > options->count * frame_bytes)
        allowed_to = options->count * frame_bytes;
    if (fan->draining) /* only what is needed to end a frame */
        allowed_to = (link->sent_bytes + frame_bytes - 1) / frame_bytes * frame_bytes;
    uint64_t left = allowed_to - link->sent_bytes;
    if (left == 0 || (left < window / 4 * frame_bytes && !fan->draining && options->count == 0 && link->waits_for == EPOLLIN))
        return wait_for(fan, link, EPOLLIN);
    if (options->gap_us > 0)
        be_idle(options);

    bool blocked = false;
    uint64_t ring_bytes = link->ring.requests * frame_bytes;
    while (left > 0 && !blocked) {
        uint64_t position = link->sent_bytes % ring_bytes;
        size_t piece = (size_t)(left < ring_bytes - position ? left : ring_bytes - position);
        uint64_t now = now_ns();
        size_t sent = send_some(link, link->ring.data + position, piece);
        note_sending(link, link->sent_bytes, link->sent_bytes + sent, now);
        link->sent_bytes += sent;
        left -= sent;
        blocked = sent < piece;
    }
    wait_for(fan, link, blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static size_t understand(struct fan *fan, struct link *link, const uint8_t *data, size_t size)
{
    return (link->publishes ? fan->protocol->publisher_received : fan->protocol->subscriber_received)(fan, link, data, size);
}

static void receive_some(struct fan *fan, struct link *link)
{
    /* What was held goes in front of what comes, in the one buffer that stays in the processor's cache. */
    size_t held = link->held.size;
    if (held > HELD_LARGEST_BYTES)
        fail("%zu bytes make no sense yet", held);
    memcpy(received, link->held.data, held);
    ssize_t size = recv(link->socket, received + held, RECEIVE_BYTES, MSG_DONTWAIT);
    if (size == 0)
        fail("the server closed the connection of %s %d", link->publishes ? "publisher" : "subscriber", link->number);
    if (size < 0) {
        if (errno != EAGAIN && errno != EINTR)
            fail_errno("recv");
        return;
    }
    fan->turn_ns = now_ns();
    fan->bytes_in += (uint64_t)size;
    size_t available = held + (size_t)size, used = understand(fan, link, received, available);
    link->held.size = 0;
    memcpy(grow(&link->held, available - used), received + used, available - used);
}

/* --- the run */

static struct ring build_ring(const struct fan *fan, int publisher)
{
    const struct options *options = fan->options;
    struct ring ring = make_ring(fan->protocol->ring_requests, request_room(options, 1));
    for (uint64_t slot = 0; slot < fan->protocol->ring_requests; slot++)
        ring_add(&ring, fan->protocol->build(ring_end(&ring), options, publisher, slot));
    return ring;
}

static void open_links(struct fan *fan)
{
    const struct options *options = fan->options;
    int subscribers = options->subscribers + options->slow;
    fan->readers = (uint32_t)options->subscribers;
    fan->subscribers = allocate((size_t)subscribers, sizeof *fan->subscribers);
    for (int i = 0; i < subscribers; i++) {
        struct link *link = &fan->subscribers[i];
        link->number = i;
        link->slow = i >= options->subscribers;
        link->next = allocate((size_t)options->connections, sizeof *link->next);
        fan->protocol->open_subscriber(link, options);
        stop_blocking(link->socket);
        if (!link->slow)
            send_replies(fan, link);
    }
    fan->publishers = allocate((size_t)options->connections, sizeof *fan->publishers);
    for (int i = 0; i < options->connections; i++) {
        struct link *link = &fan->publishers[i];
        link->number = i;
        link->publishes = true;
        link->ring = build_ring(fan, i);
        link->arrivals = allocate(link->ring.requests, sizeof *link->arrivals);
        link->sent_ns = allocate(link->ring.requests, sizeof *link->sent_ns);
        fan->protocol->open_publisher(link, options);
        stop_blocking(link->socket);
        wait_for(fan, link, EPOLLIN | EPOLLOUT);
    }
}

static void turn(struct fan *fan)
{
    struct epoll_event events[EVENTS_MAX];
    int ready = epoll_wait(fan->epoll, events, EVENTS_MAX, TURN_TIMEOUT_MS);
    if (ready < 0 && errno != EINTR)
        fail_errno("epoll_wait");
    for (int i = 0; i < ready; i++) {
        struct link *link = events[i].data.ptr;
        if (events[i].events & ~(uint32_t)EPOLLOUT)
            receive_some(fan, link);
        if (!link->publishes)
            send_replies(fan, link);
    }
    for (int i = 0; i < fan->options->connections; i++)
        publish_more(fan, &fan->publishers[i]);
}

static uint64_t published(const struct fan *fan)
{
    uint64_t messages = 0;
    for (int i = 0; i < fan->options->connections; i++)
        messages += fan->publishers[i].sent_bytes / fan->publishers[i].ring.request_bytes;
    return messages;
}

static bool all_arrived(const struct fan *fan)
{
    for (int i = 0; i < fan->options->connections; i++) {
        const struct link *link = &fan->publishers[i];
        if (link->settled * link->ring.request_bytes != link->sent_bytes)
            return false;
        if (fan->protocol->acknowledged && link->acknowledged != link->settled)
            return false;
    }
    return true;
}

static void drain(struct fan *fan)
{
    fan->draining = true;
    for (uint64_t started_ns = now_ns(); !all_arrived(fan); turn(fan))
        if (now_ns() - started_ns > DRAIN_NS_MAX)
            fail("%lu messages were published, %lu of them are with all subscribers, %lu acknowledged",
                 (unsigned long)published(fan), (unsigned long)fan->settled, (unsigned long)fan->acknowledged);
}

/* What lies in the receive buffers of slow subscribers: all that they cost the machine outside the broker. */
static uint64_t unread_bytes(const struct fan *fan)
{
    uint64_t unread = 0;
    for (int i = 0; i < fan->options->slow; i++) {
        int bytes = 0;
        if (ioctl(fan->subscribers[fan->options->subscribers + i].socket, FIONREAD, &bytes) != 0)
            fail_errno("ioctl");
        unread += (uint64_t)bytes;
    }
    return unread;
}

static void report(struct fan *fan, const struct measurement *measurement, uint64_t rss_before)
{
    const struct options *options = fan->options;
    json_begin();
    json_text("mode", options->mode);
    json_integer("publishers", (uint64_t)options->connections);
    json_integer("subscribers", (uint64_t)options->subscribers);
    json_integer("slow", (uint64_t)options->slow);
    json_integer("qos", (uint64_t)options->qos);
    json_integer("window", (uint64_t)options->window);
    json_integer("value_bytes", (uint64_t)options->value_bytes);
    json_integer("published_total", published(fan));
    json_integer("acknowledged_total", fan->acknowledged);
    if (fan->durations.count > 0)
        report_durations(&fan->durations);
    report_measurement(measurement);
    if (options->slow > 0)
        json_integer("slow_unread_bytes", unread_bytes(fan));
    if (options->watch_pid != 0) {
        uint64_t rss_after = resident_bytes(options->watch_pid);
        json_integer("server_rss_growth_bytes", rss_after > rss_before ? rss_after - rss_before : 0);
    }
    json_end();
}

void run_fan(const struct options *given, const struct fan_protocol *protocol)
{
    struct options options = *given;
    if (options.gap_us > 0)
        options.window = 1;
    if ((uint64_t)options.window > protocol->ring_requests)
        fail("at most %lu messages can be in flight", (unsigned long)protocol->ring_requests);
    if (options.value_bytes < STAMP_BYTES)
        fail("payloads say who sent them: they are at least %d bytes", STAMP_BYTES);
    allow_descriptors(2 * (options.subscribers + options.slow + options.connections));
    struct fan fan = {.options = &options, .protocol = protocol, .epoll = epoll_create1(EPOLL_CLOEXEC)};
    uint64_t rss_before = options.watch_pid ? resident_bytes(options.watch_pid) : 0;
    if (protocol->prepare != NULL && options.create)
        protocol->prepare(&options);
    open_links(&fan);

    struct measurement measurement = start_measuring(&options);
    uint64_t expected = options.count * (uint64_t)options.connections;
    do {
        fan.sampling = measurement.open;
        turn(&fan);
    } while (!measure(&measurement, fan.settled, fan.delivered, fan.bytes_in, fan.settled >= expected));
    fan.sampling = false;
    drain(&fan);
    report(&fan, &measurement, rss_before);
}
