/* Publishers and subscribers of any protocol that pushes: what goes in at one side must come out at every other.
 *
 * Publishers send from rings of frames built beforehand, as in pipeline.h. The window is not about answers but about arrivals: a
 * publisher may be `window` messages ahead of the slowest subscriber (and of its acknowledgements, where the protocol has
 * them), so nothing is measured that a broker dropped. Every payload says who published it and which frame of the ring it was;
 * each subscriber must see all of them, in order, and when the time is up the run goes on until everything sent has arrived
 * everywhere.
 *
 * With `--gap-us` a message is only sent when the one before has arrived everywhere and everybody was idle for that long: what
 * is measured then is how long a message takes to somebody who waits.
 *
 * Slow subscribers (`--slow`) subscribe and never read. The window does not wait for them.
 */
#ifndef BENCH_FAN_H
#define BENCH_FAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"
#include "pipeline.h"

/* Who sent a message and which frame of the ring it was: the first bytes of a payload. */
enum { STAMP_BYTES = 8 };

struct bytes {
    uint8_t *data;
    size_t size;
    size_t room;
};

struct link {
    int socket;
    int number;                /* among those of its kind */
    bool publishes;
    bool slow;
    uint32_t waits_for;        /* the epoll events asked for */
    struct bytes held;         /* received and not yet understood */
    struct bytes out;          /* to be sent before anything else */
    /* a publisher's */
    struct ring ring;
    uint64_t sent_bytes;
    uint64_t acknowledged;
    uint64_t settled;          /* messages that are with all subscribers */
    uint32_t *arrivals;        /* of each frame in the ring: with how many subscribers it is */
    uint64_t *sent_ns;
    /* a subscriber's */
    uint64_t *next;            /* the message due next, by publisher */
    uint64_t position;         /* where a protocol that asks for more goes on */
    bool seen;                 /* for what is looked at closely once */
};

struct fan;

struct fan_protocol {
    bool acknowledged;         /* publishers are told of every message */
    uint64_t ring_requests;    /* frames of a ring; also the widest window */
    /* Before anybody connects. May be NULL. */
    void (*prepare)(const struct options *options);
    /* Each connects with `fan_connect` and leaves a blocking socket that is ready for messages. */
    void (*open_publisher)(struct link *link, const struct options *options);
    void (*open_subscriber)(struct link *link, const struct options *options);
    /* Builds the frame of one message, whose payload is `fan_payload`; all frames of a run have one size. */
    size_t (*build)(uint8_t *at, const struct options *options, int publisher, uint64_t slot);
    /* Consume received bytes; return how many were used. */
    size_t (*publisher_received)(struct fan *fan, struct link *link, const uint8_t *data, size_t size);
    size_t (*subscriber_received)(struct fan *fan, struct link *link, const uint8_t *data, size_t size);
};

/* Runs to the end and prints the line of JSON. */
void run_fan(const struct options *options, const struct fan_protocol *protocol);

/* Connects; a slow subscriber gets a receive buffer of a few kilobytes, so that it is soon full. */
int fan_connect(const struct link *link, const struct options *options);

void fan_payload(uint8_t *at, const struct options *options, int publisher, uint64_t slot);

/* For `subscriber_received`: a message came; ends the program when it is not the one that is due. */
void fan_delivered(struct fan *fan, struct link *subscriber, const uint8_t *payload, size_t size);

/* For `publisher_received`: the broker took the next message. */
void fan_acknowledged(struct fan *fan, struct link *publisher);

/* Room for `size` bytes that go out on this connection as soon as it takes them. */
uint8_t *fan_reply(struct link *link, size_t size);

const struct options *fan_options(const struct fan *fan);

#endif
