#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "fail.h"

/* A server that does not answer for this long has failed the benchmark. */
enum { HANDSHAKE_TIMEOUT_S = 20, SPARE_DESCRIPTORS = 64 };

void allow_descriptors(int count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail_errno("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail_errno("setrlimit");
    if (limit.rlim_cur < (rlim_t)(count + SPARE_DESCRIPTORS))
        fail("%d connections need more descriptors than the %lu allowed", count, (unsigned long)limit.rlim_cur);
}

int connect_to(int port)
{
    return connect_with_buffer(port, 0);
}

int connect_with_buffer(int port, int receive_bytes)
{
    int handle = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (handle < 0)
        fail_errno("socket");
    struct timeval patience = {.tv_sec = HANDSHAKE_TIMEOUT_S};
    int on = 1;
    if (setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0
        || setsockopt(handle, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0
        || setsockopt(handle, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience) != 0)
        fail_errno("setsockopt");
    if (receive_bytes > 0 && setsockopt(handle, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes) != 0)
        fail_errno("setsockopt");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(handle, (struct sockaddr *)&address, sizeof address) != 0)
        fail_errno("connect");
    return handle;
}

void stop_blocking(int handle)
{
    int flags = fcntl(handle, F_GETFL);
    if (flags < 0 || fcntl(handle, F_SETFL, flags | O_NONBLOCK) != 0)
        fail_errno("fcntl");
}

void send_all(int handle, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size > 0) {
        ssize_t sent = send(handle, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            fail_errno("send");
        if (sent > 0) {
            at += sent;
            size -= (size_t)sent;
        }
    }
}

void receive_exactly(int handle, void *data, size_t size)
{
    uint8_t *at = data;
    while (size > 0) {
        ssize_t received = recv(handle, at, size, 0);
        if (received == 0)
            fail("the server closed the connection");
        if (received < 0 && errno != EINTR)
            fail_errno("recv");
        if (received > 0) {
            at += received;
            size -= (size_t)received;
        }
    }
}

void receive_line(int handle, char *line, size_t size)
{
    size_t length = 0;
    for (;;) {
        char byte;
        receive_exactly(handle, &byte, 1);
        if (byte == '\n')
            break;
        if (length + 1 >= size)
            fail("a line of the server is longer than %zu bytes", size);
        line[length++] = byte;
    }
    if (length > 0 && line[length - 1] == '\r')
        length--;
    line[length] = '\0';
}
