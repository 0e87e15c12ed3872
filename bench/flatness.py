"""Whether a message costs the same in a full partition as in an empty one, and with a thousand partitions as with one.

The measure is the broker's processor time a message, not the rate: it shows a growing cost before the rate does. Each
broker is warmed up on a topic of its own first, so that the smallest size is not charged for the start.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from braid import braid
from processes import Server, load
from results import Measured, Outcome, Row
from scenario import Entrant, Scenario, Start, Work
from settings import Settings

SIZES: Final = (1_000, 100_000, 10_000_000)
SIZE_HUGE: Final = 100_000_000
SIZE_QUICK_MAX: Final = 100_000
PARTITION_COUNTS: Final = (1, 10, 100, 1000)
MEASURED_RECORDS: Final = 500_000
FILL_BATCH: Final = 1000
SHAPE_RECORDS: Final = 200_000
READ_CONNECTIONS: Final = 4
READ_WINDOW: Final = 8


def _start(settings: Settings) -> Start:
    def start(directory: Path) -> AbstractContextManager[Server]:
        return braid(directory, durability="os", pure=settings.pure)

    return start


def _warm_up(server: Server, settings: Settings) -> None:
    load(server, "produce", topic="warm", connections=settings.connections, window=settings.window, duration=0.5, warmup=0)


def _fill(server: Server, records: int, batch: int) -> None:
    load(server, "batch", topic="flat", records=batch, count=records // batch, connections=READ_CONNECTIONS, window=READ_WINDOW)


def at_size(server: Server, settings: Settings, records: int) -> Measured:
    """The cost of producing to, and of reading the end of, a partition that holds `records` already."""
    _warm_up(server, settings)
    _fill(server, records, FILL_BATCH)
    reading = load(
        server, "fetch", topic="flat", end=records, connections=READ_CONNECTIONS, window=READ_WINDOW, warmup=0.1,
        duration=0.5, **{"from": max(0, records - 50_000)},
    )  # fmt: skip
    measured = load(
        server, "produce", topic="flat", count=MEASURED_RECORDS, connections=settings.connections, window=settings.window
    )
    measured["fetch_cpu_us"] = reading["server_cpu_us_per_message"]
    return measured


def with_partitions(server: Server, settings: Settings, partitions: int) -> Measured:
    """The cost of producing to partitions in turn, one record each."""
    _warm_up(server, settings)
    return load(server, "produce", topic="flat", partitions=partitions, **settings.shape())


def read_shape(server: Server, settings: Settings, batch: int, mode: str) -> Measured:
    """Reading a partition whose batches hold `batch` records each."""
    _fill(server, SHAPE_RECORDS, batch)
    return load(
        server, mode, topic="flat", end=SHAPE_RECORDS, connections=READ_CONNECTIONS, window=READ_WINDOW, **settings.timing()
    )


def _label(count: int, thing: str) -> str:
    return f"{count:,} {thing}"


def _sizes(settings: Settings) -> list[int]:
    sizes = [size for size in SIZES if not settings.quick or size <= SIZE_QUICK_MAX]
    return [*sizes, SIZE_HUGE] if settings.huge else sizes


def _each(settings: Settings, counts: list[int], thing: str, work: Callable[[int], Work]) -> list[Entrant]:
    return [Entrant(_label(count, thing), _start(settings), work(count)) for count in counts]


def _growth(what: str, metric: str, limit: float) -> Callable[[Outcome], list[Row]]:
    """A row for each size, set beside the smallest one's cost."""

    def rows(outcome: Outcome) -> list[Row]:
        labels = [*outcome.runs, *outcome.absent]
        smallest = outcome.best(labels[0], metric) if labels else None
        made = []
        for label in labels:
            value = outcome.best(label, metric)
            made.append(Row(
                scenario=outcome.scenario, what=f"{what}, {label}", value=value, median=outcome.median(label, metric),
                unit="us", cpu_us=value, beside=f"{labels[0]} {smallest:.3f} us" if smallest else labels[0],
                ratio=value / smallest if value and smallest else None, asked=limit, aim=None, rule="at most",
                note=outcome.reason(label) if value is None else "",
            ))  # fmt: skip
        return made

    return rows


def _size_rows(outcome: Outcome) -> list[Row]:
    return _growth("PRODUCE CPU", "server_cpu_us_per_message", 1.5)(outcome) + _growth("FETCH CPU", "fetch_cpu_us", 1.5)(outcome)


def _shape_rows(outcome: Outcome) -> list[Row]:
    """What one record a batch costs against thousands; a comparison, with no ratio asked for."""
    made = []
    labels = list(outcome.runs)
    for label in labels:
        value = outcome.best(label, "messages_per_s")
        full = outcome.best(label.replace("1 record a batch", "1,000 records a batch"), "messages_per_s")
        made.append(Row(
            scenario=outcome.scenario, what=label, value=value, median=outcome.median(label, "messages_per_s"), unit="/s",
            cpu_us=outcome.best(label, "server_cpu_us_per_message"), beside="1,000 records a batch",
            ratio=value / full if value and full else None, asked=None, aim=None, rule="at least",
        ))  # fmt: skip
    return made


def _shape_entrants(settings: Settings) -> list[Entrant]:
    return [
        Entrant(
            f"{name}, {'1 record' if batch == 1 else f'{batch:,} records'} a batch", _start(settings),
            partial(read_shape, batch=batch, mode=mode),
        )
        for name, mode in (("FETCH", "fetch"), ("FETCH_BATCHES", "fetch-batches"))
        for batch in (1, FILL_BATCH)
    ]  # fmt: skip


FLATNESS: Final[tuple[Scenario, ...]] = (
    Scenario(
        "flat-records",
        "processor time a message in partitions of growing size",
        lambda settings: _each(settings, _sizes(settings), "records", lambda count: partial(at_size, records=count)),
        [],
        repeats=2,
        more_rows=_size_rows,
    ),
    Scenario(
        "flat-partitions",
        "processor time a message with growing numbers of partitions written in turn",
        lambda settings: _each(
            settings, list(PARTITION_COUNTS), "partitions", lambda count: partial(with_partitions, partitions=count)
        ),
        [],
        repeats=2,
        more_rows=_growth("PRODUCE CPU", "server_cpu_us_per_message", 2.0),
    ),
    Scenario(
        "batch-shapes",
        "reading one record a batch, and a thousand",
        _shape_entrants,
        [],
        more_rows=_shape_rows,
    ),
)
