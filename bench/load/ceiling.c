/* The bare C server that marks what the machine allows: usage `ceiling store DIRECTORY` or `ceiling echo`.
 *
 * `store` takes FlyMQ PRODUCE, appends what one read brought as one batch in BraidMQ's own format (header, columns, rows,
 * CRC-32C) with one write(), and then answers: the least a broker at durability level `os` must do, with no topics,
 * partitions, limits or readers. `echo` sends every byte back and is the yardstick for latency.
 *
 * Prints {"flymq": "127.0.0.1:PORT"} once it listens, as a broker's ready file would say, and runs until it is terminated.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "batch.h"
#include "bytes.h"
#include "fail.h"
#include "flymq.h"

enum {
    RECEIVE_BYTES = 512 << 10,
    REQUEST_BYTES_LEAST = FRAME_HEADER_BYTES + 14,  /* PRODUCE with empty topic, key and value */
    RECORDS_MAX = RECEIVE_BYTES / REQUEST_BYTES_LEAST + 1,
    ANSWERS_BYTES = 2 * RECEIVE_BYTES + RECORDS_MAX * 16,
    BATCH_BYTES_MAX = 2 * RECEIVE_BYTES + RECORDS_MAX * 12 + 4096,
    BACKLOG = 1024,
    EVENTS_MAX = 128,
};

/* The file begins again here: a benchmark is not to fill the disk. It is this large
 * so that a run does not get there: a file begun again every gigabyte gave twice the rate, and a broker's log only grows. */
static const off_t LOG_BYTES_MAX = (off_t)8 << 30;

struct client {
    int socket;
    size_t held_bytes;
    size_t answer_from, answer_to;
    uint8_t held[RECEIVE_BYTES];
    uint8_t answers[ANSWERS_BYTES];
};

static int log_file = -1;
static off_t log_bytes;
static uint64_t next_offset;

/* One batch in the making; reused for every read. */
static uint8_t batch[BATCH_BYTES_MAX];
static uint32_t positions[RECORDS_MAX], key_lengths[RECORDS_MAX], value_lengths[RECORDS_MAX];
static uint8_t rows[2 * RECEIVE_BYTES];

static int64_t now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static void append_batch(uint32_t count, size_t rows_bytes, int64_t timestamp_ms)
{
    size_t column_bytes = padded_to_8(4 * (size_t)count);
    uint8_t *at = batch + BATCH_HEADER_BYTES;
    memcpy(at, positions, 4 * (size_t)count);
    memcpy(at + column_bytes, key_lengths, 4 * (size_t)count);
    memcpy(at + 2 * column_bytes, value_lengths, 4 * (size_t)count);
    at += 3 * column_bytes;
    memcpy(at, rows, rows_bytes);
    size_t rows_at = (size_t)(at - batch), rows_end = rows_at + rows_bytes, size = padded_to_8(rows_end);
    memset(batch + rows_end, 0, size - rows_end);
    seal_batch(batch, size, count, next_offset - count, timestamp_ms, (uint32_t)rows_at, (uint32_t)rows_end);
    if (write(log_file, batch, size) != (ssize_t)size)
        fail_errno("write");
    log_bytes += (off_t)size;
    if (log_bytes > LOG_BYTES_MAX) {
        if (ftruncate(log_file, 0) != 0 || lseek(log_file, 0, SEEK_SET) != 0)
            fail_errno("ftruncate");
        log_bytes = 0;
    }
}

/* Answers one PRODUCE and moves its record into the batch; false when the frame makes no sense. */
static bool take_produce(struct client *client, const uint8_t *payload, size_t size, int64_t timestamp_ms, uint32_t *count,
                         size_t *rows_bytes)
{
    size_t topic_bytes = size >= 2 ? get_be16(payload) : 0, key_at = 2 + topic_bytes;
    if (size < key_at + 12)
        return false;
    uint32_t key_bytes = get_be32(payload + key_at);
    if (key_bytes > size - key_at - 12)
        return false;
    uint32_t value_bytes = get_be32(payload + key_at + 4 + key_bytes);
    size_t item_bytes = 8 + (size_t)key_bytes + value_bytes;
    if (key_at + item_bytes + 4 != size)
        return false;

    uint8_t *row = rows + *rows_bytes;
    memcpy(row, payload + key_at, item_bytes);
    put_be64(row + item_bytes, next_offset);
    positions[*count] = (uint32_t)*rows_bytes;
    key_lengths[*count] = key_bytes;
    value_lengths[*count] = value_bytes;
    *rows_bytes += item_bytes + 8;
    ++*count;

    uint8_t *answer = client->answers + client->answer_to;
    put_header(answer, OP_PRODUCE, META_FIXED_BYTES + topic_bytes);
    answer += FRAME_HEADER_BYTES;
    memcpy(answer, payload, 2 + topic_bytes);
    answer += 2 + topic_bytes;
    memcpy(answer, payload + size - 4, 4); /* the partition */
    put_be64(answer + 4, next_offset);
    put_be64(answer + 12, (uint64_t)timestamp_ms);
    put_be32(answer + 20, key_bytes > 0 ? key_bytes : UINT32_MAX);
    put_be32(answer + 24, value_bytes);
    client->answer_to += FRAME_HEADER_BYTES + META_FIXED_BYTES + topic_bytes;
    next_offset++;
    return true;
}

/* Handles every whole frame that is there; false when the connection is to be closed. */
static bool take_frames(struct client *client)
{
    int64_t timestamp_ms = now_ms();
    uint32_t count = 0;
    size_t rows_bytes = 0, used = 0;
    while (client->held_bytes - used >= FRAME_HEADER_BYTES) {
        const uint8_t *frame = client->held + used;
        size_t payload_bytes = get_be32(frame + 4);
        if (payload_bytes > RECEIVE_BYTES - FRAME_HEADER_BYTES)
            return false;
        if (client->held_bytes - used < FRAME_HEADER_BYTES + payload_bytes)
            break;
        if (frame[2] == OP_PRODUCE) {
            if (!take_produce(client, frame + FRAME_HEADER_BYTES, payload_bytes, timestamp_ms, &count, &rows_bytes))
                return false;
        } else if (frame[2] == OP_CREATE_TOPIC) {
            static const uint8_t OK[] = {1, 0, 2, 'O', 'K'};
            put_header(client->answers + client->answer_to, OP_CREATE_TOPIC, sizeof OK);
            memcpy(client->answers + client->answer_to + FRAME_HEADER_BYTES, OK, sizeof OK);
            client->answer_to += FRAME_HEADER_BYTES + sizeof OK;
        } else {
            return false;
        }
        used += FRAME_HEADER_BYTES + payload_bytes;
    }
    client->held_bytes -= used;
    memmove(client->held, client->held + used, client->held_bytes);
    if (count > 0)
        append_batch(count, rows_bytes, timestamp_ms);
    return true;
}

static void take_echo(struct client *client)
{
    memcpy(client->answers, client->held, client->held_bytes);
    client->answer_to = client->held_bytes;
    client->held_bytes = 0;
}

/* Sends what is due and waits for room or for more requests, never for both: a client that does not read its answers is
 * not read from either. False when the connection broke. */
static bool send_answers(int epoll, struct client *client)
{
    bool was_waiting = client->answer_from > 0;
    while (client->answer_from < client->answer_to) {
        ssize_t sent = send(client->socket, client->answers + client->answer_from, client->answer_to - client->answer_from,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return false;
        if (sent < 0)
            break;
        client->answer_from += (size_t)sent;
    }
    bool waits = client->answer_from < client->answer_to;
    if (!waits)
        client->answer_from = client->answer_to = 0;
    if (waits || was_waiting) {
        struct epoll_event event = {.events = waits ? EPOLLOUT : EPOLLIN, .data.ptr = client};
        epoll_ctl(epoll, EPOLL_CTL_MOD, client->socket, &event);
    }
    return true;
}

/* One read, one batch, one answer. False when the connection is over. */
static bool serve(int epoll, struct client *client)
{
    if (client->answer_from == client->answer_to) {
        ssize_t received = recv(client->socket, client->held + client->held_bytes, RECEIVE_BYTES - client->held_bytes, MSG_DONTWAIT);
        if (received == 0 || (received < 0 && errno != EAGAIN))
            return false;
        if (received < 0)
            return true;
        client->held_bytes += (size_t)received;
        if (log_file < 0)
            take_echo(client);
        else if (!take_frames(client))
            return false;
    }
    return send_answers(epoll, client);
}

static int listen_anywhere(void)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, BACKLOG) != 0
        || getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        fail_errno("listen");
    printf("{\"flymq\": \"127.0.0.1:%d\"}\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static void accept_client(int epoll, int listener)
{
    int handle = accept4(listener, NULL, NULL, SOCK_CLOEXEC), on = 1;
    if (handle < 0)
        return;
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct client *client = allocate(1, sizeof *client);
    client->socket = handle;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, handle, &event) != 0)
        fail_errno("epoll_ctl");
}

int main(int count, char **words)
{
    if (count == 3 && strcmp(words[1], "store") == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/ceiling.log", words[2]);
        log_file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (log_file < 0)
            fail_errno(path);
    } else if (count != 2 || strcmp(words[1], "echo") != 0) {
        fail("usage: ceiling store DIRECTORY | ceiling echo");
    }
    int listener = listen_anywhere(), epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        fail_errno("epoll");
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            struct client *client = events[i].data.ptr;
            if (client == NULL) {
                accept_client(epoll, listener);
            } else if (!serve(epoll, client)) {
                close(client->socket);
                free(client);
            }
        }
    }
}
