#include "nats_session.h"

#include <stdio.h>
#include <string.h>

#include "fail.h"
#include "network.h"

/* Waits for the server's answer to PING: everything sent before has then been read. */
static void wait_for_pong(int handle, char *line)
{
    do {
        receive_line(handle, line, NATS_LINE_BYTES_MAX);
        if (line[0] == '-')
            fail("the server answered: %s", line);
    } while (strcmp(line, "PONG") != 0);
}

void nats_greet(int handle, const char *subject)
{
    static char line[NATS_LINE_BYTES_MAX];
    char hello[512], subscription[256] = "";
    receive_line(handle, line, sizeof line);
    if (strncmp(line, "INFO ", 5) != 0)
        fail("the server began with: %s", line);
    if (subject != NULL)
        snprintf(subscription, sizeof subscription, "SUB %.200s 1\r\n", subject);
    int size = snprintf(hello, sizeof hello,
                        "CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":false,\"name\":\"bench\",\"lang\":\"c\","
                        "\"version\":\"1\",\"protocol\":1}\r\n%sPING\r\n", subscription);
    send_all(handle, hello, (size_t)size);
    wait_for_pong(handle, line);
}

size_t nats_other(int handle, const uint8_t *data, size_t size)
{
    if (size < 6)
        return 0;
    if (memcmp(data, "PING\r\n", 6) == 0) {
        send_all(handle, "PONG\r\n", 6);
        return 6;
    }
    if (memcmp(data, "PONG\r\n", 6) == 0)
        return 6;
    if (memcmp(data, "INFO ", 5) != 0)
        fail("the server answered: %.*s", (int)(size < 200 ? size : 200), data);
    const uint8_t *line_end = memchr(data, '\n', size);
    return line_end == NULL ? 0 : (size_t)(line_end + 1 - data);
}
