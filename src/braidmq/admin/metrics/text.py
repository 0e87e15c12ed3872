"""The text of a scrape (version 0.0.4), made in the HTTP thread."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Final

from braidmq.admin.metrics.snapshot import Labels, Snapshot
from braidmq.admin.metrics.table import BY_NAME, METRICS
from braidmq.base import limits
from braidmq.base.figures import Histogram

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
_SERIES_REMEMBERED: Final = 5 * (limits.METRIC_TOPICS_MAX + limits.METRIC_GROUPS_MAX)
"""The names of a scrape are those of the one before it."""
_LINES_AT_ONCE: Final = 2000
"""After so many lines other requests of the thread have their turn."""


async def scrape_text(snapshot: Snapshot) -> str:
    lines: list[str] = []
    paused = 0
    for metric in METRICS:
        values = snapshot.values.get(metric.name)
        if not values:
            continue
        lines.append(f"# HELP {metric.name} {metric.doc}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        name = metric.name
        for labels, value in values.items():
            if isinstance(value, Histogram):
                _write(lines, name, labels, value)
            else:
                lines.append(f"{_series(name, labels)} {value if type(value) is int else _number(value)}")
            if len(lines) - paused > _LINES_AT_ONCE:
                paused = len(lines)
                await asyncio.sleep(0)
    lines.append("")
    return "\n".join(lines)


@lru_cache(_SERIES_REMEMBERED)
def _series(name: str, labels: Labels) -> str:
    return f"{name}{{{','.join(_pairs(name, labels))}}}" if labels else name


def _pairs(name: str, labels: Labels) -> list[str]:
    return [f'{label}="{_escaped(text)}"' for label, text in zip(BY_NAME[name].labels, labels, strict=True)]


def _write(lines: list[str], name: str, labels: Labels, value: Histogram) -> None:
    pairs = _pairs(name, labels)
    seen = 0
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        seen += count
        le = "+Inf" if bound == float("inf") else _number(bound)
        inside = ",".join([*pairs, f'le="{le}"'])
        lines.append(f"{name}_bucket{{{inside}}} {seen}")
    tail = f"{{{','.join(pairs)}}}" if pairs else ""
    lines.append(f"{name}_sum{tail} {_number(value.total)}")
    lines.append(f"{name}_count{tail} {seen}")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
