"""The figures of `braid dev`: read from the broker, drawn on a terminal, or printed as lines where there is none."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.dev_traffic import TOPICS, Sender
from braidmq.cli.output import printable
from braidmq.cli.terminal import is_terminal, paint

if TYPE_CHECKING:
    from braidmq.client.sync import Client

DRAW_S: Final = 0.5
LINE_S: Final = 5.0


@dataclass(frozen=True)
class Sample:
    """What the broker says at one moment."""

    at: float
    orders: dict[str, int]
    """Records by protocol, as the topics hold them."""
    lag: int | None = None
    letters: int = 0
    results: int = 0
    newest: str = ""
    """The last result, for people."""
    commits: int = 0


@dataclass
class Watcher:
    """Asks the broker for figures."""

    client: Client
    group: str
    results_topic: str
    table: Path
    with_pipeline: bool
    samples: list[Sample] = field(default_factory=list)

    def look(self) -> Sample:
        orders = {protocol: self._records(topic) for protocol, topic in TOPICS.items()}
        sample = Sample(time.monotonic(), orders)
        if self.with_pipeline:
            letters = sum(self._records(f"{topic}.dlq") for topic in TOPICS.values())
            results, newest = self._results()
            commits = len(list((self.table / "_delta_log").glob("*.json"))) if self.table.exists() else 0
            sample = Sample(sample.at, orders, self._lag(), letters, results, newest, commits)
        self.samples = [*self.samples[-20:], sample]
        return sample

    def rate(self, protocol: str) -> float:
        first, last = self.samples[0], self.samples[-1]
        elapsed = last.at - first.at
        return (last.orders[protocol] - first.orders[protocol]) / elapsed if elapsed > 0 else 0.0

    def _records(self, topic: str) -> int:
        try:
            return sum(part.newest for part in self.client.metadata(topic).partitions)
        except BraidError as fault:
            if fault.code != "TOPIC_NOT_FOUND":
                raise
            return 0

    def _lag(self) -> int | None:
        try:
            return self.client.group.show(self.group).lag
        except BraidError as fault:
            if fault.code != "GROUP_NOT_FOUND":
                raise
            return None

    def _results(self) -> tuple[int, str]:
        """How many results there are, and the last of them."""
        try:
            parts = self.client.metadata(self.results_topic).partitions
        except BraidError as fault:
            if fault.code != "TOPIC_NOT_FOUND":
                raise
            return 0, ""
        count = sum(part.newest for part in parts)
        full = [part for part in parts if part.newest > part.oldest]
        if not full:
            return count, ""
        part = full[0]
        found = json.loads(self.client.consume(self.results_topic, part.partition, part.newest - 1).value)
        return count, ", ".join(f"{name} {value}" for name, value in found.items() if not isinstance(value, dict))


class Display:
    """Redraws a few lines on a terminal; elsewhere prints one line now and then."""

    def __init__(self) -> None:
        self._terminal = is_terminal(sys.stdout)
        self._lines = 0
        self._printed_at = float("-inf")
        self._began = time.monotonic()

    @property
    def pause_s(self) -> float:
        return DRAW_S if self._terminal else LINE_S

    def show(self, watcher: Watcher, sample: Sample, senders: Sequence[Sender], state: str) -> None:
        if self._terminal:
            self._draw(self._block(watcher, sample, senders, state))
            return
        parts = [f"{protocol} {sample.orders[protocol]:,} ({watcher.rate(protocol):.0f}/s)" for protocol in TOPICS]
        if watcher.with_pipeline:
            parts.append(f"pipeline {state}: {_pipeline_line(sample)}")
        print(f"{time.monotonic() - self._began:5.0f} s  " + "  ".join(parts), flush=True)

    def _block(self, watcher: Watcher, sample: Sample, senders: Sequence[Sender], state: str) -> list[str]:
        def label(text: str) -> str:
            return "  " + paint(f"{text:<12}", "dim", sys.stdout)

        faults = {sender.protocol: sender.fault for sender in senders}
        lines = [
            label(protocol)
            + f"{sample.orders[protocol]:>10,} orders  {watcher.rate(protocol):>5.0f}/s  {topic:<14}"
            + (paint(printable(faults[protocol] or ""), "red", sys.stdout) if faults.get(protocol) else "")
            for protocol, topic in TOPICS.items()
        ]
        if watcher.with_pipeline:
            lines.append(label("pipeline") + f"{state}: {_pipeline_line(sample)}")
            if sample.newest:
                lines.append(label("newest") + printable(sample.newest))
        return lines

    def _draw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._lines}A" if self._lines else ""
        sys.stdout.write(up + "".join(f"\r\x1b[K{line}\n" for line in lines))
        sys.stdout.flush()
        self._lines = len(lines)


def _pipeline_line(sample: Sample) -> str:
    lag = "not there yet" if sample.lag is None else f"{sample.lag:,}"
    return f"lag {lag}, {sample.results:,} results, {sample.letters:,} dead letters, table at commit {sample.commits}"
