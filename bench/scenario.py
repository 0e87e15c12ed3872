"""What a scenario is: entrants that do the same work, and the rows that come of it.

Entrants of one scenario take turns (A, B, C, A, B, C), each with a fresh server and fresh data every time, so that a slow
minute of the machine does not fall on one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from peers.programs import PeerMissing
from processes import RunFailed, Server, scratch_directory, touch_memory
from results import Measured, Outcome, Row
from settings import Settings

Start = Callable[[Path], AbstractContextManager[Server]]
Work = Callable[[Server, Settings], Measured]


@dataclass(frozen=True, slots=True)
class Entrant:
    """Somebody who takes part: how to start it, and what to do with it."""

    label: str
    start: Start
    work: Work

    def run(self, settings: Settings) -> Measured:
        """One run, with a fresh server and fresh data."""
        with scratch_directory(settings.data_root) as directory, self.start(directory) as server:
            touch_memory(directory, settings.touched_bytes)
            return self.work(server, settings)


@dataclass(frozen=True, slots=True)
class Alone:
    """Work that needs no server."""

    label: str
    work: Callable[[Settings], Measured]

    def run(self, settings: Settings) -> Measured:
        return self.work(settings)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row to be: a figure of one entrant against another's, or against a number.

    `beside` is an entrant's label with `beside_metric`, or the text that goes with `number`.
    """

    what: str
    of: str
    metric: str
    unit: str
    beside: str = ""
    beside_metric: str = ""
    number: float | None = None
    asked: float | None = None
    aim: float | None = None
    rule: Literal["at least", "at most"] = "at least"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named measurement; `braid bench`-style names are what `--only` takes."""

    name: str
    about: str
    entrants: Callable[[Settings], Sequence[Entrant | Alone]]
    comparisons: list[Comparison]
    repeats: int | None = None
    """Fewer than the settings say, where one run takes long and varies little."""
    more_rows: Callable[[Outcome], list[Row]] = field(default=lambda _: [])


def run(scenario: Scenario, settings: Settings, say: Callable[[str], None]) -> Outcome:
    """All repeats of all entrants."""
    outcome = Outcome(scenario.name)
    entrants = scenario.entrants(settings)
    repeats = min(settings.repeats, scenario.repeats or settings.repeats)
    for repeat in range(repeats):
        for entrant in entrants:
            if entrant.label in outcome.absent:
                continue
            try:
                measured = entrant.run(settings)
            except PeerMissing as missing:
                outcome.absent[entrant.label] = str(missing)
                say(f"  {entrant.label}: skipped, {missing}")
                continue
            except RunFailed as failure:
                outcome.absent[entrant.label] = f"failed: {failure}"
                outcome.failures += 1
                say(f"  {entrant.label}: FAILED, {failure}")
                continue
            outcome.add(entrant.label, measured)
            say(f"  {entrant.label} [{repeat + 1}/{repeats}]: {summary(measured)}")
    return outcome


def summary(measured: Measured) -> str:
    """The figures of one run that a person wants to see go by."""
    shown = {
        "messages_per_s": "{:,.0f} messages/s", "produce_per_s": "{:,.0f} produced/s", "consume_per_s": "{:,.0f} consumed/s",
        "p50_us": "p50 {:.1f} us", "p99_us": "p99 {:.1f} us", "fetch_cpu_us": "fetch {:.3f} us CPU/message",
        "server_cpu_us_per_message": "{:.3f} us CPU/message", "server_cpu_share": "server {:.0%} busy",
        "generator_cpu_share": "generator {:.0%} busy",
        "server_rss_bytes": "{:,.0f} bytes RSS", "server_rss_growth_bytes": "{:,.0f} of them new",
        "evaluations_per_s": "{:,.0f} evaluations/s", "checks_per_s": "{:,.0f} checks/s", "restart_s": "start {:.2f} s",
        "delayed_per_s": "{:,.0f} delayed/s", "late_p99_ms": "late by p99 {:.0f} ms", "late_max_ms": "at most {:.0f} ms",
        "list_ms": "list {:.0f} ms", "lag_ms": "lag {:.0f} ms", "commit_ms": "commit {:.0f} ms", "polls": "{:,.0f} polls",
    }  # fmt: skip
    return ", ".join(text.format(measured[name]) for name, text in shown.items() if name in measured)


def rows(scenario: Scenario, outcome: Outcome) -> list[Row]:
    """The comparisons of a scenario with their figures filled in."""
    return [_row(comparison, outcome) for comparison in scenario.comparisons] + scenario.more_rows(outcome)


def _row(comparison: Comparison, outcome: Outcome) -> Row:
    from report import figure

    value = outcome.best(comparison.of, comparison.metric)
    note = "" if value is not None else "no figure: " + outcome.reason(comparison.of)
    reference, beside = comparison.number, comparison.beside
    if comparison.number is None and comparison.beside:
        metric = comparison.beside_metric or comparison.metric
        reference = outcome.best(comparison.beside, metric)
        beside = f"{comparison.beside} {figure(reference, comparison.unit)}"
        if reference is None and not note:
            note = "no comparison: " + outcome.reason(comparison.beside)
    return Row(
        scenario=outcome.scenario,
        what=comparison.what,
        value=value,
        median=outcome.median(comparison.of, comparison.metric),
        unit=comparison.unit,
        cpu_us=outcome.best(comparison.of, "server_cpu_us_per_message"),
        beside=beside,
        ratio=value / reference if value is not None and reference else None,
        asked=comparison.asked,
        aim=comparison.aim,
        rule=comparison.rule,
        note=note,
    )
