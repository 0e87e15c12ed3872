/* What the generator can do; one function and one file a mode or protocol. */
#ifndef BENCH_MODES_H
#define BENCH_MODES_H

#include "options.h"

void run_produce(const struct options *options);
void run_batch(const struct options *options);
void run_latency(const struct options *options);
void run_fetch(const struct options *options);
void run_fetch_batches(const struct options *options);
void run_idle(const struct options *options);
void run_redis_xadd(const struct options *options);
void run_redis_xrange(const struct options *options);
void run_nats_jetstream(const struct options *options);
void run_mqtt_publish(const struct options *options);
void run_fan_blipmq(const struct options *options);
void run_fan_fq(const struct options *options);
void run_fan_flymq(const struct options *options);
void run_fan_nats(const struct options *options);
void run_fan_mqtt(const struct options *options);

#endif
