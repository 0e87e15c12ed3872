"""What the features cost: schemas, a million delayed records, ten thousand groups, a large transaction.

The work itself is in `feature_work.py`, on the generator's core. Plain PRODUCE has its own scenarios: features that nobody uses
must not show there.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from braid import braid, braid_environment
from processes import BENCH, Server, on_generator_core
from results import Measured
from scenario import Alone, Comparison, Entrant, Scenario, Start
from settings import Settings

WORK_TIMEOUT_S: Final = 400.0

CHECKS: Final = "JSON Schema, ten fields"
CHECKED: Final = "BraidMQ os, batches for a topic with a schema"
DELAYED: Final = "BraidMQ os, 1,000,000 delayed"
GROUPS: Final = "BraidMQ os, 10,000 groups"
COMMIT: Final = "BraidMQ os, one transaction"


def our_broker(settings: Settings) -> Start:
    def start(directory: Path) -> AbstractContextManager[Server]:
        return braid(directory, durability="os", pure=settings.pure)

    return start


def work(name: str, settings: Settings, server: Server | None = None) -> Measured:
    command: list[str | Path] = [sys.executable, BENCH / "feature_work.py", name]
    if server is not None:
        command += ["--address", f"127.0.0.1:{server.port}"]
    return on_generator_core(command, WORK_TIMEOUT_S, braid_environment(settings.pure))


def json_checks(settings: Settings) -> Measured:
    return work("json-checks", settings)


def checked_produce(server: Server, settings: Settings) -> Measured:
    return work("checked-produce", settings, server)


def a_million_delayed(server: Server, settings: Settings) -> Measured:
    """Fill, in a quick run a tenth of it; look at the memory, kill, start again, and see how late records come that are due."""
    directory = server.log.parent
    measured = work("delay-some" if settings.quick else "delay-many", settings, server)
    measured["server_rss_bytes"] = server.rss_bytes()
    server.process.kill()
    server.process.wait()
    (directory / "ready.json").unlink()
    started = time.monotonic()
    with braid(directory, durability="os", pure=settings.pure) as again:
        measured["restart_s"] = time.monotonic() - started
        measured |= work("lateness", settings, again)
    return measured


def many_groups(server: Server, settings: Settings) -> Measured:
    return work("groups", settings, server)


def one_commit(server: Server, settings: Settings) -> Measured:
    return work("commit", settings, server)


FEATURES: Final[tuple[Scenario, ...]] = (
    Scenario(
        "json-checks",
        "messages checked against a JSON Schema of ten fields: alone, and on their way into a topic",
        lambda settings: [Alone(CHECKS, json_checks), Entrant(CHECKED, our_broker(settings), checked_produce)],
        [
            Comparison("JSON checks a core", CHECKS, "checks_per_s", "/s", "0.2 M/s", number=0.2e6, asked=1),
            Comparison("checked and stored", CHECKED, "checks_per_s", "/s"),
        ],
    ),
    Scenario(
        "delayed",
        "1,000,000 records that wait: memory, the start after a kill, and how late others come meanwhile",
        lambda settings: [Entrant(DELAYED, our_broker(settings), a_million_delayed)],
        [
            Comparison("1,000,000 delayed: RSS", DELAYED, "server_rss_bytes", "MB", "1 GB", number=1e9, asked=1, rule="at most"),
            Comparison("start after a kill", DELAYED, "restart_s", "s", "10 s", number=10, asked=1, rule="at most"),
            Comparison("late by, p99", DELAYED, "late_p99_ms", "ms", "50 ms", number=50, asked=1, rule="at most"),
            Comparison("late by, at most", DELAYED, "late_max_ms", "ms", "50 ms", number=50, rule="at most"),
        ],
        repeats=1,
    ),
    Scenario(
        "groups",
        "10,000 groups: LIST_GROUPS, and the lag of all of them",
        lambda settings: [Entrant(GROUPS, our_broker(settings), many_groups)],
        [
            Comparison("LIST_GROUPS", GROUPS, "list_ms", "ms", "1 s", number=1000, asked=1, rule="at most"),
            Comparison("lag of all", GROUPS, "lag_ms", "ms", "1 s", number=1000, asked=1, rule="at most"),
        ],
    ),
    Scenario(
        "transaction",
        "10,000 records in one commit, while a reader polls without pause: it must see none or all",
        lambda settings: [Entrant(COMMIT, our_broker(settings), one_commit)],
        [Comparison("commit of 10,000", COMMIT, "commit_ms", "ms")],
    ),
)
