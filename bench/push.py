"""Push: what subscribers get, how fast, how soon, and whether one that does not read disturbs the others.

Every run of the generator ends only when all that was published has arrived at each subscriber, in order: a lost message is a run
without a figure. Publishers stay a window ahead of the slowest subscriber that reads, for every entrant alike.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, Literal

from braid import braid, braid_environment
from peers.mosquitto import mosquitto
from peers.nats import nats_core
from processes import BENCH, Server, load, on_generator_core
from results import Measured
from scenario import Alone, Comparison, Entrant, Scenario, Start
from settings import Settings
from stored import check_stored

FAN_WINDOWS: Final = {1: 4000, 10: 4000, 100: 1000}
"""Subscribers, and how many messages the publisher may be ahead of the slowest of them."""
QOS1_PUBLISHERS: Final = 4
QOS1_WINDOW: Final = 1000
"""Of each publisher; together less than what a subscriber's queue holds, or publishers would be told that it is full."""
FQ_WINDOW: Final = 16_000
IDLE_GAP_US: Final = 1000
MANY_SUBSCRIBERS: Final = 5000
MANY_WINDOW: Final = 16
SLOW_AMONG: Final = 100

C_FQ_PER_S: Final = 300_000
C_FQ_IDLE_US: Final = 535_000
"""End to end messages a second, and the mean time to an idle consumer, of the C broker: measured once, it is not run here."""

BLIPMQ: Final = "BraidMQ BlipMQ"
FQ: Final = "BraidMQ fq"
FLYMQ: Final = "BraidMQ FETCH_BATCHES"
NATS_CORE: Final = "NATS core"
MOSQUITTO_0: Final = "Mosquitto QoS 0"
MOSQUITTO_1: Final = "Mosquitto QoS 1"
ALL_READ: Final = "BraidMQ BlipMQ, all read"
ONE_SLOW: Final = "BraidMQ BlipMQ, one more is slow"
PROGRAM: Final = "route program"


def our_broker(settings: Settings, protocol: str, durability: Literal["os", "fsync"] = "os") -> Start:
    def start(directory: Path) -> AbstractContextManager[Server]:
        protocols = tuple(dict.fromkeys(("flymq", protocol)))
        return braid(directory, durability=durability, pure=settings.pure, protocols=protocols)

    return start


def fan(server: Server, settings: Settings, mode: str, subscribers: int) -> Measured:
    return load(server, mode, subscribers=subscribers, window=FAN_WINDOWS[subscribers], **settings.timing())


def qos1(server: Server, settings: Settings, mode: str) -> Measured:
    measured = load(server, mode, qos=1, connections=QOS1_PUBLISHERS, window=QOS1_WINDOW, **settings.timing())
    if "flymq" in server.ports:
        check_stored(server, measured["acknowledged_total"], ["bench"])
    return measured


def end_to_end(server: Server, settings: Settings) -> Measured:
    return load(server, "fan-fq", window=FQ_WINDOW, **settings.timing())


def one_by_one(server: Server, settings: Settings, mode: str, gap_us: int) -> Measured:
    return load(server, mode, window=1, gap_us=gap_us, **settings.timing())


def among(server: Server, settings: Settings, subscribers: int, window: int, slow: int) -> Measured:
    return load(server, "fan-blipmq", subscribers=subscribers, slow=slow, window=window, **settings.timing())


def evaluate(settings: Settings) -> Measured:
    seconds = settings.warmup_s + settings.duration_s
    command: list[str | Path] = [sys.executable, BENCH / "program_rate.py", "--seconds", str(seconds)]
    return on_generator_core(command, seconds + 60, braid_environment(settings.pure))


def fan_scenario(subscribers: int, asked_per_s: float) -> Scenario:
    what = f"BlipMQ QoS 0, {subscribers} subscriber{'s' * (subscribers > 1)}"
    return Scenario(
        f"fan-{subscribers}",
        f"BlipMQ QoS 0 of 100 B, one publisher, {subscribers} subscriber{'s' * (subscribers > 1)}: deliveries",
        lambda settings: [
            Entrant(BLIPMQ, our_broker(settings, "blipmq"), partial(fan, mode="fan-blipmq", subscribers=subscribers)),
            Entrant(NATS_CORE, nats_core, partial(fan, mode="fan-nats", subscribers=subscribers)),
            Entrant(MOSQUITTO_0, mosquitto, partial(fan, mode="fan-mqtt", subscribers=subscribers)),
        ],
        [
            Comparison(what, BLIPMQ, "messages_per_s", "/s", f"{asked_per_s / 1e6:g} M/s", number=asked_per_s, asked=1),
            Comparison(what, BLIPMQ, "messages_per_s", "/s", MOSQUITTO_0, asked=3),
            Comparison(what, BLIPMQ, "messages_per_s", "/s", NATS_CORE, aim=1 if subscribers > 1 else None),
        ],
    )


QOS1 = Scenario(
    "qos1",
    "BlipMQ QoS 1 of 100 B, acknowledged after fsync, one subscriber acknowledging",
    lambda settings: [
        Entrant(BLIPMQ, our_broker(settings, "blipmq", "fsync"), partial(qos1, mode="fan-blipmq")),
        Entrant(MOSQUITTO_1, mosquitto, partial(qos1, mode="fan-mqtt")),
    ],
    [
        Comparison("BlipMQ QoS 1, fsync", BLIPMQ, "messages_per_s", "/s", "0.15 M/s", number=0.15e6, asked=1, aim=2),
        Comparison("BlipMQ QoS 1, fsync", BLIPMQ, "messages_per_s", "/s", MOSQUITTO_1),
    ],
)

END_TO_END = Scenario(
    "fq",
    "fq of 100 B through a memory queue, one sender, one receiver: end to end",
    lambda settings: [Entrant(FQ, our_broker(settings, "fq"), end_to_end)],
    [
        Comparison(
            "fq end to end", FQ, "messages_per_s", "/s", "C fq broker 0.30 M/s (recorded)", number=C_FQ_PER_S, asked=1, aim=2
        ),
    ],
)

def waiting_scenario(name: str, about: str, gap_us: int) -> Scenario:
    """How soon a message is with somebody who waits for it, whichever protocol is spoken."""
    ours = (("BlipMQ", BLIPMQ), ("fq", FQ), ("FETCH_BATCHES", FLYMQ))
    return Scenario(
        name,
        about,
        lambda settings: [
            Entrant(BLIPMQ, our_broker(settings, "blipmq"), partial(one_by_one, mode="fan-blipmq", gap_us=gap_us)),
            Entrant(FQ, our_broker(settings, "fq"), partial(one_by_one, mode="fan-fq", gap_us=gap_us)),
            Entrant(FLYMQ, our_broker(settings, "flymq"), partial(one_by_one, mode="fan-flymq", gap_us=gap_us)),
            Entrant(NATS_CORE, nats_core, partial(one_by_one, mode="fan-nats", gap_us=gap_us)),
            Entrant(MOSQUITTO_0, mosquitto, partial(one_by_one, mode="fan-mqtt", gap_us=gap_us)),
        ],
        [
            *(
                Comparison(f"{what}, {name} p50", label, "p50_us", "us", "1 ms", number=1000, asked=1, aim=0.2, rule="at most")
                for what, label in ours
            ),
            *(Comparison(f"{what}, {name} p99", label, "p99_us", "us", NATS_CORE) for what, label in ours),
            Comparison(f"fq, {name} p50", FQ, "p50_us", "us", "C fq broker 535 ms (recorded)", number=C_FQ_IDLE_US),
        ],
    )


def slow_scenario(name: str, subscribers: int, window: int, rss_bytes: float | None) -> Scenario:
    what = f"{subscribers:,} subscribers, one more slow"
    comparisons = [
        Comparison(f"{what}: rate", ONE_SLOW, "messages_per_s", "/s", ALL_READ, asked=0.9),
        Comparison(f"{what}: p99", ONE_SLOW, "p99_us", "us", ALL_READ, asked=1.2, rule="at most"),
        Comparison(f"{what}: CPU", ONE_SLOW, "server_cpu_us_per_message", "us", ALL_READ),
    ]
    if rss_bytes is not None:
        comparisons.append(Comparison(
            f"{what}: RSS growth", ONE_SLOW, "server_rss_growth_bytes", "MB", f"{rss_bytes / 1e6:.0f} MB", number=rss_bytes,
            asked=1, rule="at most",
        ))  # fmt: skip
    return Scenario(
        name,
        f"BlipMQ QoS 0, {subscribers:,} subscribers of one topic, without and with one more that never reads",
        lambda settings: [
            Entrant(label, our_broker(settings, "blipmq"), partial(among, subscribers=subscribers, window=window, slow=slow))
            for label, slow in ((ALL_READ, 0), (ONE_SLOW, 1))
        ],
        comparisons,
    )


ROUTE_PROGRAM = Scenario(
    "route-program",
    'evaluations of prefix:foo (payload_prefix("M") && route_contains("bar"))',
    lambda settings: [Alone(PROGRAM, evaluate)],
    [Comparison("route program", PROGRAM, "evaluations_per_s", "/s", "1 M/s", number=1e6, asked=1, aim=3)],
)

PUSH: Final[tuple[Scenario, ...]] = (
    fan_scenario(1, 0.5e6), fan_scenario(10, 2e6), fan_scenario(100, 3e6), QOS1, END_TO_END,
    waiting_scenario("to-idle", "to a consumer that waits: a message one millisecond after the last has arrived", IDLE_GAP_US),
    waiting_scenario("one-by-one", "to a consumer that waits: a message as soon as the last has arrived", 0),
    slow_scenario("slow-100", SLOW_AMONG, FAN_WINDOWS[SLOW_AMONG], None),
    slow_scenario("slow-5000", MANY_SUBSCRIBERS, MANY_WINDOW, 200e6),
    ROUTE_PROGRAM,
)  # fmt: skip
