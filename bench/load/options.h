/* What the command line asks for. Every mode reads the fields it knows and ignores the rest. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { NAME_BYTES_MAX = 200 };

struct options {
    const char *mode;
    const char *topic;         /* name, or the beginning of the names when there are several */
    int port;
    int connections;
    int window;                /* requests in flight on each connection */
    int value_bytes;
    int key_bytes;
    int topics;                /* requests go to this many topics, one by one in turn */
    int partitions;            /* ... and within a topic to this many partitions in turn */
    int partition;             /* the partition when there is one; -1 leaves the choice to the broker */
    int records;               /* records in one batch (mode batch) */
    int max_messages;          /* messages asked for by one read */
    int max_bytes;             /* bytes asked for by one FETCH_BATCHES */
    uint64_t from_offset;      /* reads walk from here ... */
    uint64_t end_offset;       /* ... to here, then start again */
    uint64_t count;            /* stop after this many requests instead of after a time */
    double warmup_s;
    double duration_s;
    int subscribers;           /* that read (modes fan-...); publishers are the connections */
    int slow;                  /* more that never read */
    int qos;
    int gap_us;                /* one message at a time, with everybody idle for so long before each; 0 = as many as the window */
    int wait_ms;               /* how long a read that finds nothing waits */
    bool v126;                 /* speak the dialect of the published clients */
    bool echo;                 /* the server sends every frame back as it came */
    bool create;               /* create the topics first */
    pid_t watch_pid;           /* whose processor time to charge to the messages; 0 = nobody's */
};

/* Reads the command line; prints the usage and exits when it makes no sense. */
struct options read_options(int count, char **words);

/* The name of topic `index`: all names of one run have the same length, so that all requests have the same size. */
void topic_name(const struct options *options, int index, char name[NAME_BYTES_MAX]);

#endif
