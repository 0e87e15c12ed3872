/* When a run counts, and what it cost.
 *
 * A run warms up, then a window opens, then it closes. Rates and processor time are differences between the two edges of
 * the window, both read in the same turn of the loop: processor time is the watched process's own clock (all its threads,
 * in nanoseconds), so that even a window of a tenth of a second gives a usable cost per message.
 */
#ifndef BENCH_MEASUREMENT_H
#define BENCH_MEASUREMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

struct edge {
    uint64_t wall_ns;
    uint64_t server_cpu_ns;
    uint64_t own_cpu_ns;
    uint64_t requests;
    uint64_t messages;
    uint64_t bytes_in;
};

struct measurement {
    const struct options *options;
    uint64_t started_ns;
    uint64_t last_progress_ns;
    uint64_t last_requests;
    bool open;
    struct edge begin, end;
};

uint64_t now_ns(void);

struct measurement start_measuring(const struct options *options);

/* Told the totals once a loop turn. True when the run is over: the time is up, or `complete` says that all requests of a
 * counted run are answered. Ends the program when nothing has been answered for a long time. */
bool measure(struct measurement *measurement, uint64_t requests, uint64_t messages, uint64_t bytes_in, bool complete);

/* Adds rates and costs to the line of JSON. */
void report_measurement(const struct measurement *measurement);

/* Resident memory of a process in bytes. */
uint64_t resident_bytes(pid_t pid);

/* Durations kept one by one for percentiles. */
struct durations {
    uint32_t *ns;
    uint64_t count;
    uint64_t room;
};

void add_duration(struct durations *durations, uint64_t ns);

/* Sorts them and adds p50, p90, p99, p999 and the maximum, in microseconds, to the line of JSON. */
void report_durations(struct durations *durations);

#endif
