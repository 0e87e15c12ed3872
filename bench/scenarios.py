"""The scenarios of the speed table: each row's work, what it is set beside, and the ratio asked for."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, Literal

from braid import braid, braid_environment, ceiling
from features import FEATURES
from flatness import FLATNESS
from observing import OBSERVING
from peers.mosquitto import mosquitto
from peers.nats import nats
from peers.redis import redis
from processes import BENCH, Server, load, on_generator_core
from push import PUSH
from results import Measured
from scenario import Comparison, Entrant, Scenario, Start
from settings import Settings
from stored import check_stored

GO_FLYMQ_FETCH_PER_S: Final = 900_000
"""FETCH messages a second of the Go FlyMQ server, measured once with the same request shape; it is not run here."""
READ_CONNECTIONS: Final = 4
READ_WINDOW: Final = 8
MANY_TOPICS: Final = 64
IDLE_CONNECTIONS: Final = 10_000
IDLE_SETTLE_S: Final = 2.0

BRAID_OS: Final = "BraidMQ os"
BRAID_FSYNC: Final = "BraidMQ fsync"
BRAID_PURE: Final = "BraidMQ os, plain Python"
NATS_FILE: Final = "NATS JetStream file"
NATS_ALWAYS: Final = "NATS JetStream sync always"
REDIS_EVERYSEC: Final = "Redis XADD everysec"
REDIS_ALWAYS: Final = "Redis XADD always"
REDIS_XRANGE: Final = "Redis XRANGE"
MOSQUITTO: Final = "Mosquitto QoS 1"
C_STORE: Final = "bare C store"
C_ECHO: Final = "bare C echo"


def our_broker(settings: Settings, durability: Literal["os", "fsync"], pure: bool = False) -> Start:
    def start(directory: Path) -> AbstractContextManager[Server]:
        return braid(directory, durability=durability, pure=pure or settings.pure)

    return start


def produce(server: Server, settings: Settings) -> Measured:
    measured = load(server, "produce", **settings.shape())
    check_stored(server, measured["messages_total"], ["bench"])
    return measured


def produce_to_ceiling(server: Server, settings: Settings) -> Measured:
    return load(server, "produce", **settings.shape())


def produce_many_topics(server: Server, settings: Settings) -> Measured:
    measured = load(server, "produce", topics=MANY_TOPICS, **settings.shape())
    check_stored(server, measured["messages_total"], [f"bench{i:05d}" for i in range(MANY_TOPICS)])
    return measured


def xadd(server: Server, settings: Settings) -> Measured:
    return load(server, "redis-xadd", **settings.shape())


def jetstream(server: Server, settings: Settings) -> Measured:
    return load(server, "nats-js", **settings.shape())


def jetstream_synced(server: Server, settings: Settings) -> Measured:
    """A few thousand a second: what is in flight takes seconds to come back, so a short run would see nothing."""
    shape = {**settings.shape(), "warmup": 2.0, "duration": max(4.0, settings.duration_s)}
    return load(server, "nats-js", **shape)


def mqtt(server: Server, settings: Settings) -> Measured:
    return load(server, "mqtt-publish", **settings.shape())


def one_at_a_time(server: Server, settings: Settings) -> Measured:
    measured = load(server, "latency", **settings.timing())
    # The second condition compares two figures of the same run, so the run with the lowest p50 must not borrow another's p99.
    measured["p99_over_p50"] = measured["p99_us"] / measured["p50_us"]
    return measured


def echo_one_at_a_time(server: Server, settings: Settings) -> Measured:
    return load(server, "latency", echo=True, **settings.timing())


def fill(server: Server, settings: Settings) -> int:
    """Records of 100 bytes in partition 0 of `bench`, in batches as pipelined clients cause them."""
    records = 200_000 if settings.quick else 1_000_000
    load(server, "produce", count=records, connections=settings.connections, window=settings.window)
    return records


def fetch(server: Server, settings: Settings, v126: bool = False) -> Measured:
    records = fill(server, settings)
    return load(server, "fetch", end=records, connections=READ_CONNECTIONS, window=READ_WINDOW, v126=v126, **settings.timing())


def xrange(server: Server, settings: Settings) -> Measured:
    return load(
        server, "redis-xrange", end=200_000, connections=READ_CONNECTIONS, window=READ_WINDOW, **settings.timing()
    )  # fmt: skip


def produce_batches(server: Server, settings: Settings) -> Measured:
    measured = load(server, "batch", records=1000, connections=READ_CONNECTIONS, window=READ_WINDOW, **settings.timing())
    check_stored(server, measured["messages_total"], ["bench"])
    return measured


def our_client(server: Server, settings: Settings) -> Measured:
    """The Python client, on the generator's core: it is the slower of the two, and what is measured."""
    seconds = settings.warmup_s + settings.duration_s
    command: list[str | Path] = [
        sys.executable, BENCH / "client_rate.py", "--address", f"127.0.0.1:{server.port}", "--seconds", str(seconds),
    ]  # fmt: skip
    return on_generator_core(command, 2 * seconds + 60, braid_environment(settings.pure))


def idle(server: Server, settings: Settings) -> Measured:
    return load(server, "idle", connections=1, duration=IDLE_SETTLE_S)


def idle_with_connections(server: Server, settings: Settings) -> Measured:
    return load(server, "idle", connections=IDLE_CONNECTIONS, duration=IDLE_SETTLE_S)


PRODUCE_OS = Scenario(
    "produce-os",
    "pipelined PRODUCE of 100 B, level os, one topic",
    lambda settings: [
        Entrant(BRAID_OS, our_broker(settings, "os"), produce),
        Entrant(NATS_FILE, nats, jetstream),
        Entrant(REDIS_EVERYSEC, partial(redis, fsync="everysec"), xadd),
        Entrant(MOSQUITTO, mosquitto, mqtt),
        Entrant(C_STORE, ceiling, produce_to_ceiling),
    ],
    [
        Comparison("PRODUCE os", BRAID_OS, "messages_per_s", "/s", NATS_FILE, asked=5),
        Comparison("PRODUCE os", BRAID_OS, "messages_per_s", "/s", C_STORE, aim=0.7),
        Comparison("PRODUCE os", BRAID_OS, "messages_per_s", "/s", REDIS_EVERYSEC),
        Comparison("PRODUCE os", BRAID_OS, "messages_per_s", "/s", MOSQUITTO),
    ],
)

PRODUCE_FSYNC = Scenario(
    "produce-fsync",
    "pipelined PRODUCE of 100 B, level fsync, one topic",
    lambda settings: [
        Entrant(BRAID_FSYNC, our_broker(settings, "fsync"), produce),
        Entrant(BRAID_OS, our_broker(settings, "os"), produce),
        Entrant(REDIS_ALWAYS, partial(redis, fsync="always"), xadd),
        Entrant(NATS_ALWAYS, partial(nats, sync_always=True), jetstream_synced),
    ],
    [
        Comparison("PRODUCE fsync", BRAID_FSYNC, "messages_per_s", "/s", REDIS_ALWAYS, asked=5),
        Comparison("PRODUCE fsync", BRAID_FSYNC, "messages_per_s", "/s", BRAID_OS, aim=0.8),
        Comparison("PRODUCE fsync", BRAID_FSYNC, "messages_per_s", "/s", NATS_ALWAYS),
    ],
)

TOPICS_64 = Scenario(
    "topics-64",
    "the same at level os with 64 topics one by one in turn",
    lambda settings: [
        Entrant("BraidMQ os, 64 topics", our_broker(settings, "os"), produce_many_topics),
        Entrant(BRAID_OS, our_broker(settings, "os"), produce),
    ],
    [Comparison("PRODUCE os, 64 topics", "BraidMQ os, 64 topics", "messages_per_s", "/s", BRAID_OS, asked=0.5, aim=0.7)],
)

PRODUCE_PURE = Scenario(
    "produce-pure",
    "the same at level os on the plain-Python hot path",
    lambda settings: [
        Entrant(BRAID_PURE, our_broker(settings, "os", pure=True), produce),
        Entrant(NATS_FILE, nats, jetstream),
    ],
    [Comparison("PRODUCE os, plain Python", BRAID_PURE, "messages_per_s", "/s", NATS_FILE, asked=1)],
)

LATENCY = Scenario(
    "latency",
    "one client, one PRODUCE at a time, level os",
    lambda settings: [
        Entrant(BRAID_OS, our_broker(settings, "os"), one_at_a_time),
        Entrant(C_ECHO, partial(ceiling, echo=True), echo_one_at_a_time),
        Entrant(BRAID_FSYNC, our_broker(settings, "fsync"), one_at_a_time),
    ],
    [
        Comparison("latency p50", BRAID_OS, "p50_us", "us", C_ECHO, asked=1.5, aim=1.2, rule="at most"),
        Comparison("latency p99 / p50", BRAID_OS, "p99_over_p50", "x", "its own p50", number=1, asked=3, rule="at most"),
        Comparison("latency p99", BRAID_OS, "p99_us", "us", C_ECHO),
        Comparison("latency p50 fsync", BRAID_FSYNC, "p50_us", "us"),
    ],
)

FETCH = Scenario(
    "fetch",
    "FETCH of 500 x 100 B",
    lambda settings: [
        Entrant(BRAID_OS, our_broker(settings, "os"), fetch),
        Entrant(REDIS_XRANGE, partial(redis, fsync="everysec"), xrange),
    ],
    [
        Comparison(
            "FETCH 500", BRAID_OS, "messages_per_s", "/s", "Go FlyMQ 0.90 M/s (recorded)", number=GO_FLYMQ_FETCH_PER_S, asked=10
        ),
        Comparison("FETCH 500", BRAID_OS, "messages_per_s", "/s", REDIS_XRANGE, asked=4),
        Comparison("FETCH 500", BRAID_OS, "messages_per_s", "/s", "25 M/s", number=25e6, aim=1),
    ],
)

FETCH_V126 = Scenario(
    "fetch-v126",
    "FETCH of 500 x 100 B in the dialect of the published clients",
    lambda settings: [Entrant(BRAID_OS, our_broker(settings, "os"), partial(fetch, v126=True))],
    [Comparison("FETCH 500, v126", BRAID_OS, "messages_per_s", "/s", "1.5 M/s", number=1.5e6, asked=1)],
)

PRODUCE_BATCH = Scenario(
    "produce-batch",
    "PRODUCE_BATCH of 1,000 x 100 B, level os",
    lambda settings: [Entrant(BRAID_OS, our_broker(settings, "os"), produce_batches)],
    [Comparison("PRODUCE_BATCH 1,000", BRAID_OS, "messages_per_s", "/s", "3 M/s", number=3e6, asked=1)],
)

CLIENT = Scenario(
    "client",
    "our client: Producer and Consumer, 100 B",
    lambda settings: [Entrant(BRAID_OS, our_broker(settings, "os"), our_client)],
    [
        Comparison("Producer", BRAID_OS, "produce_per_s", "/s", "0.3 M/s", number=0.3e6, asked=1, aim=5 / 3),
        Comparison("Consumer", BRAID_OS, "consume_per_s", "/s", "1 M/s", number=1e6, asked=1, aim=2),
    ],
)

IDLE = Scenario(
    "idle",
    "memory of an idle broker, and with 10,000 idle connections",
    lambda settings: [
        Entrant("BraidMQ idle", our_broker(settings, "fsync"), idle),
        Entrant("BraidMQ with 10,000 connections", our_broker(settings, "fsync"), idle_with_connections),
    ],
    [
        Comparison("RSS idle", "BraidMQ idle", "server_rss_bytes", "MB", "100 MB", number=100e6, asked=1, rule="at most"),
        Comparison(
            "RSS 10,000 connections", "BraidMQ with 10,000 connections", "server_rss_bytes", "MB", "400 MB", number=400e6,
            asked=1, rule="at most",
        ),
    ],
    repeats=1,
)  # fmt: skip

SCENARIOS: Final[tuple[Scenario, ...]] = (
    PRODUCE_OS, PRODUCE_FSYNC, TOPICS_64, PRODUCE_PURE, LATENCY, FETCH, FETCH_V126, PRODUCE_BATCH, CLIENT, IDLE, *FLATNESS, *PUSH,
    *FEATURES,
    *OBSERVING,
)  # fmt: skip
