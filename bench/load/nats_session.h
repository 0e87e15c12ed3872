/* How a NATS connection begins, for every mode that speaks to one. */
#ifndef BENCH_NATS_SESSION_H
#define BENCH_NATS_SESSION_H

#include <stddef.h>
#include <stdint.h>

enum { NATS_LINE_BYTES_MAX = 65536 };

/* Introduces a connection on a blocking socket, with one subscription (number 1) where `subject` is not NULL, and waits until the
 * server has read all of it. */
void nats_greet(int socket, const char *subject);

/* A server sends more than messages: PING (answered here), PONG and INFO. The bytes of one of these at `data`, 0 when more have to
 * come; ends the program when it is something else. */
size_t nats_other(int socket, const uint8_t *data, size_t size);

#endif
