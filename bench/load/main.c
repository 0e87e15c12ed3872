/* The load generator: one thread, one mode, one line of JSON. `load --help` lists the options. */
#include <string.h>

#include "fail.h"
#include "modes.h"
#include "options.h"

static const struct {
    const char *name;
    void (*run)(const struct options *options);
} MODES[] = {
    {"produce", run_produce},
    {"batch", run_batch},
    {"latency", run_latency},
    {"fetch", run_fetch},
    {"fetch-batches", run_fetch_batches},
    {"idle", run_idle},
    {"redis-xadd", run_redis_xadd},
    {"redis-xrange", run_redis_xrange},
    {"nats-js", run_nats_jetstream},
    {"mqtt-publish", run_mqtt_publish},
    {"fan-blipmq", run_fan_blipmq},
    {"fan-fq", run_fan_fq},
    {"fan-flymq", run_fan_flymq},
    {"fan-nats", run_fan_nats},
    {"fan-mqtt", run_fan_mqtt},
};

int main(int count, char **words)
{
    struct options options = read_options(count, words);
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
        if (strcmp(options.mode, MODES[i].name) == 0) {
            MODES[i].run(&options);
            return 0;
        }
    }
    fail("no mode %s; see load --help", options.mode);
}
