"""The text of a scrape (version 0.0.4), made in the HTTP thread."""

from __future__ import annotations

import asyncio
from typing import Final

from braidmq.admin.metrics.snapshot import Labels, Snapshot, Value
from braidmq.admin.metrics.table import BY_NAME, METRICS
from braidmq.base.figures import Histogram

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
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
        for labels, value in values.items():
            _write(lines, metric.name, labels, value)
            if len(lines) - paused > _LINES_AT_ONCE:
                paused = len(lines)
                await asyncio.sleep(0)
    lines.append("")
    return "\n".join(lines)


def _write(lines: list[str], name: str, labels: Labels, value: Value) -> None:
    pairs = [f'{label}="{_escaped(text)}"' for label, text in zip(BY_NAME[name].labels, labels, strict=True)]
    if not isinstance(value, Histogram):
        lines.append(f"{name}{{{','.join(pairs)}}} {_number(value)}" if pairs else f"{name} {_number(value)}")
        return
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
