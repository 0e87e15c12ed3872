#include "measurement.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "fail.h"
#include "json.h"

/* A server that answers nothing for this long has failed. Creating thousands of files may take a while, hence not less. */
static const uint64_t SILENCE_NS_MAX = 30ull * 1000000000ull;

static uint64_t read_clock_ns(clockid_t clock)
{
    struct timespec time;
    if (clock_gettime(clock, &time) != 0)
        fail_errno("clock_gettime");
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

uint64_t now_ns(void)
{
    return read_clock_ns(CLOCK_MONOTONIC);
}

static uint64_t cpu_ns_of(pid_t pid)
{
    if (pid == 0)
        return 0;
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) != 0)
        fail("no process %d to watch", (int)pid);
    return read_clock_ns(clock);
}

static struct edge edge_at(const struct options *options, uint64_t requests, uint64_t messages, uint64_t bytes_in)
{
    return (struct edge){
        .wall_ns = now_ns(),
        .server_cpu_ns = cpu_ns_of(options->watch_pid),
        .own_cpu_ns = read_clock_ns(CLOCK_PROCESS_CPUTIME_ID),
        .requests = requests,
        .messages = messages,
        .bytes_in = bytes_in,
    };
}

struct measurement start_measuring(const struct options *options)
{
    uint64_t now = now_ns();
    struct measurement measurement = {.options = options, .started_ns = now, .last_progress_ns = now};
    if (options->count > 0) {
        measurement.open = true; /* a counted run has no warm-up: all of it counts */
        measurement.begin = edge_at(options, 0, 0, 0);
    }
    return measurement;
}

bool measure(struct measurement *measurement, uint64_t requests, uint64_t messages, uint64_t bytes_in, bool complete)
{
    const struct options *options = measurement->options;
    uint64_t now = now_ns();
    if (requests != measurement->last_requests) {
        measurement->last_requests = requests;
        measurement->last_progress_ns = now;
    } else if (now - measurement->last_progress_ns > SILENCE_NS_MAX) {
        fail("no answer for %d s after %lu requests", (int)(SILENCE_NS_MAX / 1000000000ull), (unsigned long)requests);
    }
    if (!measurement->open) {
        if (now - measurement->started_ns < (uint64_t)(options->warmup_s * 1e9))
            return false;
        measurement->open = true;
        measurement->begin = edge_at(options, requests, messages, bytes_in);
        return false;
    }
    bool over = options->count > 0 ? complete : now - measurement->begin.wall_ns >= (uint64_t)(options->duration_s * 1e9);
    if (over) {
        measurement->end = edge_at(options, requests, messages, bytes_in);
        if (measurement->end.messages == measurement->begin.messages)
            fail("no message was answered within the measured time");
    }
    return over;
}

void report_measurement(const struct measurement *measurement)
{
    const struct edge *begin = &measurement->begin, *end = &measurement->end;
    double seconds = (double)(end->wall_ns - begin->wall_ns) / 1e9;
    uint64_t messages = end->messages - begin->messages;
    json_real("seconds", seconds);
    json_integer("messages", messages);
    json_integer("messages_total", end->messages);
    json_real("messages_per_s", (double)messages / seconds);
    json_real("requests_per_s", (double)(end->requests - begin->requests) / seconds);
    json_real("megabytes_in_per_s", (double)(end->bytes_in - begin->bytes_in) / seconds / 1e6);
    json_real("generator_cpu_share", (double)(end->own_cpu_ns - begin->own_cpu_ns) / 1e9 / seconds);
    if (measurement->options->watch_pid != 0) {
        double cpu_ns = (double)(end->server_cpu_ns - begin->server_cpu_ns);
        json_real("server_cpu_share", cpu_ns / 1e9 / seconds);
        json_real("server_cpu_us_per_message", cpu_ns / 1e3 / (double)messages);
        json_integer("server_rss_bytes", resident_bytes(measurement->options->watch_pid));
    }
}

uint64_t resident_bytes(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    unsigned long all_pages, resident_pages;
    if (file == NULL || fscanf(file, "%lu %lu", &all_pages, &resident_pages) != 2)
        fail("cannot read %s", path);
    fclose(file);
    return (uint64_t)resident_pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

void add_duration(struct durations *durations, uint64_t ns)
{
    if (durations->count == durations->room) {
        durations->room = durations->room ? 2 * durations->room : 1 << 16;
        durations->ns = realloc(durations->ns, durations->room * sizeof *durations->ns);
        if (durations->ns == NULL)
            fail("no memory for %lu durations", (unsigned long)durations->room);
    }
    durations->ns[durations->count++] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static int by_size(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

void report_durations(struct durations *durations)
{
    static const struct { const char *name; double part; } PERCENTILES[] = {
        {"p50_us", 0.5}, {"p90_us", 0.9}, {"p99_us", 0.99}, {"p999_us", 0.999},
    };
    qsort(durations->ns, durations->count, sizeof *durations->ns, by_size);
    for (size_t i = 0; i < sizeof PERCENTILES / sizeof *PERCENTILES; i++)
        json_real(PERCENTILES[i].name, durations->ns[(uint64_t)((double)durations->count * PERCENTILES[i].part)] / 1e3);
    json_real("max_us", durations->ns[durations->count - 1] / 1e3);
}
