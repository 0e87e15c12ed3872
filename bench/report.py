"""Results as text: the table of asked-for and measured ratios, and the comparison with an earlier run."""

from __future__ import annotations

from typing import Any, Final

from results import Outcome, Row

NOTABLE: Final = 0.10
"""Differences between two runs below this are noise on most machines."""


def figure(value: float | None, unit: str) -> str:
    """A value in the size people read: 3.42 M/s, 51.8 us, 87 MB."""
    if value is None:
        return "-"
    if unit == "/s":
        for size, letter in ((1e6, "M"), (1e3, "k")):
            if value >= size:
                return f"{value / size:.2f} {letter}/s"
        return f"{value:.0f}/s"
    if unit == "MB":
        return f"{value / 1e6:.0f} MB"
    if unit == "us" and value >= 1000:
        return f"{value / 1000:.3g} ms"
    return f"{value:.3g} {unit}"


def _ratio(value: float | None, rule: str = "") -> str:
    if value is None:
        return "-"
    sign = {"at least": ">= ", "at most": "<= "}.get(rule, "")
    return f"{sign}{value:.2f}"


def _busy(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%} busy"


def _columns(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def table(rows: list[Row]) -> str:
    lines = [["what", "best", "median", "CPU us/msg", "beside", "ratio", "asked", "aim", ""]]
    for row in rows:
        lines.append([
            row.what, figure(row.value, row.unit), figure(row.median, row.unit),
            "-" if row.cpu_us is None else f"{row.cpu_us:.3f}", row.beside, _ratio(row.ratio), _ratio(row.asked, row.rule),
            _ratio(row.aim, row.rule), row.verdict,
        ])  # fmt: skip
    return "\n".join(_columns(lines))


def entrants(outcomes: list[Outcome]) -> str:
    """Everybody who took part, peers too, with their own figures."""
    metrics = (("messages_per_s", "/s"), ("p50_us", "us"), ("p99_us", "us"))
    lines = [["scenario", "entrant", "best", "median", "p50", "p99", "CPU us/msg", "server", "generator", "RSS"]]
    for outcome in outcomes:
        for label in outcome.runs:
            best = {metric: figure(outcome.best(label, metric), unit) for metric, unit in metrics}
            cpu = outcome.best(label, "server_cpu_us_per_message")
            lines.append([
                outcome.scenario, label, best["messages_per_s"], figure(outcome.median(label, "messages_per_s"), "/s"),
                best["p50_us"], best["p99_us"], "-" if cpu is None else f"{cpu:.3f}",
                _busy(outcome.median(label, "server_cpu_share")), _busy(outcome.median(label, "generator_cpu_share")),
                figure(outcome.median(label, "server_rss_bytes"), "MB"),
            ])  # fmt: skip
    return "\n".join(_columns(lines))


def comparison(now: dict[str, Any], before: dict[str, Any]) -> str:
    """Each row beside the same row of an earlier run; figures that moved notably are marked."""
    earlier = {(row["scenario"], row["what"]): row for row in before["rows"]}
    lines = [["what", "before", "now", "change", ""]]
    seen = set()
    for row in now["rows"]:
        key = (row["scenario"], row["what"])
        old = earlier.get(key)
        if old is None or key in seen or not row["value"] or not old["value"]:
            continue
        seen.add(key)
        change = row["value"] / old["value"] - 1
        gain = change if row["unit"] == "/s" else -change
        mark = "" if abs(change) < NOTABLE else ("better" if gain > 0 else "WORSE")
        lines.append([row["what"], figure(old["value"], row["unit"]), figure(row["value"], row["unit"]), f"{change:+.1%}", mark])
    if before["machine"] != now["machine"]:
        lines.append(["(the earlier run was made on another machine or Python)", "", "", "", ""])
    return "\n".join(_columns(lines))
