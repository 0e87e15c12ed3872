"""What runs gave: the best and the median of the repeats, rows that set them beside what was asked for, and files of both."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from processes import BENCH

RESULTS: Final = BENCH / "results"

Measured = dict[str, Any]
"""The fields of the generator's line of JSON."""


@dataclass(slots=True)
class Outcome:
    """All runs of one scenario, by entrant, and why an entrant has none."""

    scenario: str
    runs: dict[str, list[Measured]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failures: int = 0

    def reason(self, label: str) -> str:
        """Why there is no figure, in a few words; a failure's text was shown when it happened."""
        text = self.absent.get(label, "not run")
        return "it failed, see above" if text.startswith("failed") else text

    def add(self, label: str, measured: Measured) -> None:
        self.runs.setdefault(label, []).append(measured)

    def values(self, label: str, metric: str) -> list[float]:
        return [float(run[metric]) for run in self.runs.get(label, []) if metric in run]

    def best(self, label: str, metric: str) -> float | None:
        """The largest rate, or the smallest of anything else: noise only ever takes from a rate and adds to a cost."""
        found = self.values(label, metric)
        if not found:
            return None
        return max(found) if metric.endswith("_per_s") else min(found)

    def median(self, label: str, metric: str) -> float | None:
        found = self.values(label, metric)
        return statistics.median(found) if found else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a figure, what it is set beside, and the ratio asked for."""

    scenario: str
    what: str
    value: float | None
    median: float | None
    unit: str
    cpu_us: float | None
    beside: str
    """What the value is compared with, and its value."""
    ratio: float | None
    asked: float | None
    aim: float | None
    rule: Literal["at least", "at most"]
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.note:
            return self.note
        if self.ratio is None or (self.asked is None and self.aim is None):
            return ""
        if self.aim is not None and self._meets(self.aim):
            return "meets the aim"
        if self.asked is None:
            return "short of the aim"
        return "meets what is asked" if self._meets(self.asked) else "MISSES what is asked"

    def _meets(self, target: float) -> bool:
        assert self.ratio is not None
        return self.ratio >= target if self.rule == "at least" else self.ratio <= target


def machine() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
    }


def document(outcomes: list[Outcome], rows: list[Row], choices: dict[str, Any]) -> dict[str, Any]:
    """Everything a later run wants to compare with."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "choices": choices,
        "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        "runs": {outcome.scenario: outcome.runs for outcome in outcomes},
        "absent": {outcome.scenario: outcome.absent for outcome in outcomes if outcome.absent},
    }


def write(results: dict[str, Any], path: Path | None) -> Path:
    """Keep results in `path`, or in a file named by the time."""
    if path is None:
        path = RESULTS / f"{results['when'].replace(':', '').replace('+0000', 'Z')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found
