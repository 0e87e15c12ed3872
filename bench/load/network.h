/* Loopback connections, and the few blocking steps (handshakes, creating topics) that precede a measurement. */
#ifndef BENCH_NETWORK_H
#define BENCH_NETWORK_H

#include <stddef.h>
#include <stdint.h>

/* A connected TCP socket to 127.0.0.1 with Nagle's algorithm off. Blocking until `stop_blocking`. */
int connect_to(int port);

/* The same with a receive buffer of about so many bytes; 0 leaves that to the system. */
int connect_with_buffer(int port, int receive_bytes);

/* Raises the limit on open descriptors, or ends the program when `count` connections are more than the system allows. */
void allow_descriptors(int count);

void stop_blocking(int socket);

/* Sends or receives exactly `size` bytes on a blocking socket, or ends the program. */
void send_all(int socket, const void *data, size_t size);
void receive_exactly(int socket, void *data, size_t size);

/* One line up to and with "\n" from a blocking socket, 0-terminated and without its line end. */
void receive_line(int socket, char *line, size_t size);

#endif
