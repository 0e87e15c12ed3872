#include "options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

enum letter {
    OPT_PORT = 1, OPT_CONNECTIONS, OPT_WINDOW, OPT_VALUE_BYTES, OPT_KEY_BYTES, OPT_TOPICS, OPT_PARTITIONS, OPT_PARTITION,
    OPT_SUBSCRIBERS, OPT_SLOW, OPT_QOS, OPT_GAP_US, OPT_WAIT_MS, OPT_RECORDS, OPT_MAX_MESSAGES, OPT_MAX_BYTES, OPT_FROM, OPT_END, OPT_COUNT, OPT_WARMUP, OPT_DURATION, OPT_V126, OPT_ECHO,
    OPT_NO_CREATE, OPT_WATCH_PID, OPT_TOPIC, OPT_HELP,
};

static const struct option KNOWN[] = {
    {"port", required_argument, NULL, OPT_PORT},
    {"connections", required_argument, NULL, OPT_CONNECTIONS},
    {"window", required_argument, NULL, OPT_WINDOW},
    {"value-bytes", required_argument, NULL, OPT_VALUE_BYTES},
    {"key-bytes", required_argument, NULL, OPT_KEY_BYTES},
    {"topic", required_argument, NULL, OPT_TOPIC},
    {"topics", required_argument, NULL, OPT_TOPICS},
    {"partitions", required_argument, NULL, OPT_PARTITIONS},
    {"partition", required_argument, NULL, OPT_PARTITION},
    {"records", required_argument, NULL, OPT_RECORDS},
    {"max-messages", required_argument, NULL, OPT_MAX_MESSAGES},
    {"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
    {"from", required_argument, NULL, OPT_FROM},
    {"end", required_argument, NULL, OPT_END},
    {"count", required_argument, NULL, OPT_COUNT},
    {"warmup", required_argument, NULL, OPT_WARMUP},
    {"duration", required_argument, NULL, OPT_DURATION},
    {"subscribers", required_argument, NULL, OPT_SUBSCRIBERS},
    {"slow", required_argument, NULL, OPT_SLOW},
    {"qos", required_argument, NULL, OPT_QOS},
    {"gap-us", required_argument, NULL, OPT_GAP_US},
    {"wait-ms", required_argument, NULL, OPT_WAIT_MS},
    {"v126", no_argument, NULL, OPT_V126},
    {"echo", no_argument, NULL, OPT_ECHO},
    {"no-create", no_argument, NULL, OPT_NO_CREATE},
    {"watch-pid", required_argument, NULL, OPT_WATCH_PID},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static const char USAGE[] =
    "usage: load MODE --port N [options]        prints one line of JSON\n"
    "\n"
    "  produce        pipelined PRODUCE              latency        one PRODUCE at a time on each connection\n"
    "  batch          pipelined PRODUCE_BATCH        fetch          pipelined FETCH over a range of offsets\n"
    "  idle           open connections and hold      fetch-batches  FETCH_BATCHES, one at a time on each connection\n"
    "  redis-xadd     pipelined XADD                 redis-xrange   fill a stream, then pipelined XRANGE\n"
    "  nats-js        JetStream publish with acks    mqtt-publish   QoS 1 PUBLISH for an absent subscriber\n"
    "\n"
    "  fan-blipmq, fan-fq, fan-flymq, fan-nats, fan-mqtt\n"
    "                 publishers to subscribers; every message must arrive at each of them, in order\n"
    "\n"
    "  --connections N (1)   --window N (1000)       requests in flight on each connection\n"
    "  --value-bytes N (100) --key-bytes N (0)\n"
    "  --topic NAME (bench)  --topics N (1)          requests go to the topics one by one in turn\n"
    "  --partitions N (1)    --partition N (0)       several in turn, or one; -1 leaves the choice to the broker\n"
    "  --records N (1000)                            records in one batch\n"
    "  --max-messages N (500) --max-bytes N (1 MiB)  size of one read\n"
    "  --from N (0)          --end N                 the offsets that reads walk over\n"
    "  --warmup S (1)        --duration S (3)        time; or --count N requests\n"
    "  --subscribers N (1)   --slow N (0)            of modes fan-...: those who read, and more who never do\n"
    "  --qos 0|1 (0)         --gap-us N (0)          one message at a time, N us after the last one arrived\n"
    "  --wait-ms N (0)                               how long a read that finds nothing waits\n"
    "  --v126                                        the dialect of the published clients\n"
    "  --echo                                        the server sends each frame back as it came\n"
    "  --no-create                                   the topics exist already\n"
    "  --watch-pid PID                               charge this process's processor time to the messages\n";

static double number(const char *name, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= least && value <= most))
        fail("--%s %s: expected a number from %.0f to %.0f", name, text, least, most);
    return value;
}

static void apply(struct options *options, const char *name, int letter, const char *text)
{
    switch (letter) {
    case OPT_PORT: options->port = (int)number(name, text, 1, 65535); break;
    case OPT_CONNECTIONS: options->connections = (int)number(name, text, 1, 60000); break;
    case OPT_WINDOW: options->window = (int)number(name, text, 1, 1e6); break;
    case OPT_VALUE_BYTES: options->value_bytes = (int)number(name, text, 0, 30e6); break;
    case OPT_KEY_BYTES: options->key_bytes = (int)number(name, text, 0, 65535); break;
    case OPT_TOPIC: options->topic = text; break;
    case OPT_TOPICS: options->topics = (int)number(name, text, 1, 10000); break;
    case OPT_PARTITIONS: options->partitions = (int)number(name, text, 1, 10000); break;
    case OPT_PARTITION: options->partition = (int)number(name, text, -1, 1e6); break;
    case OPT_RECORDS: options->records = (int)number(name, text, 1, 1e6); break;
    case OPT_MAX_MESSAGES: options->max_messages = (int)number(name, text, 1, 1e6); break;
    case OPT_MAX_BYTES: options->max_bytes = (int)number(name, text, 1, 32e6); break;
    case OPT_FROM: options->from_offset = (uint64_t)number(name, text, 0, 1e15); break;
    case OPT_END: options->end_offset = (uint64_t)number(name, text, 1, 1e15); break;
    case OPT_COUNT: options->count = (uint64_t)number(name, text, 1, 1e15); break;
    case OPT_WARMUP: options->warmup_s = number(name, text, 0, 3600); break;
    case OPT_DURATION: options->duration_s = number(name, text, 0.01, 3600); break;
    case OPT_SUBSCRIBERS: options->subscribers = (int)number(name, text, 1, 60000); break;
    case OPT_SLOW: options->slow = (int)number(name, text, 0, 60000); break;
    case OPT_QOS: options->qos = (int)number(name, text, 0, 1); break;
    case OPT_GAP_US: options->gap_us = (int)number(name, text, 0, 1e9); break;
    case OPT_WAIT_MS: options->wait_ms = (int)number(name, text, 0, 60000); break;
    case OPT_V126: options->v126 = true; break;
    case OPT_ECHO: options->echo = true; break;
    case OPT_NO_CREATE: options->create = false; break;
    case OPT_WATCH_PID: options->watch_pid = (pid_t)number(name, text, 1, 1e9); break;
    case OPT_HELP: fputs(USAGE, stdout); exit(0);
    default: fputs(USAGE, stderr); exit(2);
    }
}

struct options read_options(int count, char **words)
{
    struct options options = {
        .topic = "bench", .connections = 1, .window = 1000, .value_bytes = 100, .topics = 1, .partitions = 1, .records = 1000,
        .max_messages = 500, .max_bytes = 1 << 20, .warmup_s = 1, .duration_s = 3, .create = true,
        .subscribers = 1,
    };
    int letter, index = 0;
    while ((letter = getopt_long(count, words, "", KNOWN, &index)) != -1)
        apply(&options, KNOWN[index].name, letter, optarg);
    if (optind != count - 1) {
        fputs(USAGE, stderr);
        exit(2);
    }
    options.mode = words[optind];
    if (options.port == 0)
        fail("--port is needed");
    if (strlen(options.topic) + 8 > NAME_BYTES_MAX)
        fail("the topic name is too long");
    return options;
}

void topic_name(const struct options *options, int index, char name[NAME_BYTES_MAX])
{
    if (options->topics == 1)
        snprintf(name, NAME_BYTES_MAX, "%s", options->topic);
    else
        snprintf(name, NAME_BYTES_MAX, "%s%05d", options->topic, index);
}
