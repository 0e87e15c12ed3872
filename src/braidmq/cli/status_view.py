"""What the broker's `status` document means: rates between two of them, and whether something needs a person.

Used by `braid status`, `braid top` and `braid debug bundle`. Nothing here prints or asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base.figures import quantile

FREE_BYTES_LOW: Final = 1 << 30
CONNECTIONS_HIGH: Final = 0.9
LAG_MS_HIGH: Final = 300_000


@dataclass(frozen=True, slots=True)
class Finding:
    level: str
    """`unhealthy`, `degraded` or `note`."""
    text: str
    advice: str


@dataclass(slots=True)
class Rates:
    """Between two documents."""

    seconds: float = 0.0
    topics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Records and bytes a second, written."""
    groups: dict[tuple[str, str], float] = field(default_factory=dict)
    """Records a second, committed."""
    latency_s: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """By protocol and way (`in`, `out`): p50 and p99 of what happened; nothing where nothing did."""

    @property
    def records(self) -> float:
        return sum(records for records, _ in self.topics.values())

    @property
    def bytes(self) -> float:
        return sum(size for _, size in self.topics.values())


def rates_between(before: dict[str, Any] | None, after: dict[str, Any]) -> Rates:
    """What happened a second. Retention makes a log smaller, which is no negative rate."""
    if before is None or after["uptime_s"] <= before["uptime_s"]:
        return Rates()
    seconds = after["uptime_s"] - before["uptime_s"]
    rates = Rates(seconds)
    known = {row["topic"]: row for row in before["topics"]}
    for row in after["topics"]:
        old = known.get(row["topic"], {"written": 0, "bytes": 0})
        written = max(0, row["written"] - old["written"]) / seconds
        rates.topics[row["topic"]] = (written, max(0, row["bytes"] - old["bytes"]) / seconds)
    committed = {(row["topic"], row["group"]): row["committed"] for row in before["groups"]}
    for row in after["groups"]:
        name = (row["topic"], row["group"])
        rates.groups[name] = max(0, row["committed"] - committed.get(name, row["committed"])) / seconds
    for protocol, ways in after["latency"].items():
        for way, counts in ways.items():
            recent = [new - old for new, old in zip(counts, before["latency"][protocol][way], strict=True)]
            if any(recent):
                rates.latency_s[protocol, way] = quantile(recent, 0.5), quantile(recent, 0.99)
    return rates


def latency_text(rates: Rates) -> str:
    """p50/p99 by protocol: how long records took to come in, and to be pushed."""
    shown: dict[str, list[str]] = {}
    for (protocol, way), (half, most) in rates.latency_s.items():
        shown.setdefault(protocol, []).append(f"{way} {half * 1000:g}/{most * 1000:g}")
    return "   ".join(f"{protocol} {' '.join(ways)}" for protocol, ways in shown.items()) or "nothing happened"


def findings(status: dict[str, Any]) -> list[Finding]:
    """What a person should know, the worst first."""
    found = [
        Finding(
            "unhealthy", f"{row['topic']}/{row['partition']} is read-only: {row['reason']}",
            "look at the disk and the log; a restart recovers the partition, `braid log verify` checks it",
        )
        for row in status["read_only"]
    ]  # fmt: skip
    if status["free_bytes"] < FREE_BYTES_LOW:
        text = f"{sized(status['free_bytes'])} are left on the disk of {status['data_dir']}"
        found.append(Finding("degraded", text, "remove topics, shorten retention (`braid topic`), or give it more space"))
    connected = sum(status["connections"].values())
    if connected >= CONNECTIONS_HIGH * status["connections_max"]:
        text = f"{connected} of {status['connections_max']} connections are open"
        found.append(Finding("degraded", text, "raise `max_connections`, or find out who holds them: `braid top`, key c"))
    late = [row for row in status["groups"] if row["lag_ms"] >= LAG_MS_HIGH and row["lag"]]
    found += [
        Finding(
            "degraded", f"group {row['group']} is {shown_ms(row['lag_ms'])} behind on {row['topic']} ({row['lag']:,} records)",
            f"`braid group lag {row['group']}` shows where; {'nobody reads' if not row['members'] else 'it reads too slowly'}",
        )
        for row in sorted(late, key=lambda row: -row["lag_ms"])[:5]
    ]  # fmt: skip
    unknown = [row for row in status["groups"] if row.get("unknown")]
    if unknown:
        text = f"how far {len(unknown)} groups are behind is not known: leaders do not answer, as for group {unknown[0]['group']}"
        found.append(Finding("degraded", f"{text} on {unknown[0]['topic']}", "`braid cluster status` shows which nodes are away"))
    dropping = [row for row in status["queues"] if row["dropped"]]
    found += [
        Finding("note", f"fq queue {row['queue']} dropped {row['dropped']:,} messages", "its consumers are too slow")
        for row in dropping[:5]
    ]
    recovery = status["recovery"]
    if recovery["bytes_truncated"]:
        text = f"the last start cut {recovery['bytes_truncated']:,} bytes off {recovery['partitions_cut']} partitions"
        found.append(Finding("note", text, "they were never acknowledged at level `fsync`; `braid status -o json` has the report"))
    if recovery["unexplained"]:
        text = f"{len(recovery['unexplained'])} directories belong to no topic: {', '.join(recovery['unexplained'][:3])}"
        found.append(Finding("note", text, "they are kept; look at them and remove them by hand"))
    if status["hot_path"] != "compiled":
        found.append(Finding("note", "the hot path is not compiled", "install a C compiler and BraidMQ again: it is far faster"))
    return found


def health_of(found: list[Finding]) -> str:
    levels = {finding.level for finding in found}
    return "unhealthy" if "unhealthy" in levels else "degraded" if "degraded" in levels else "healthy"


def sized(count: float) -> str:
    """Bytes as people say them."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def counted(number: float) -> str:
    """A figure in at most six characters or so: 950, 12.3k, 4.5M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1000 if unit == 'k' else limit):.1f}{unit}"
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def lag_text(row: dict[str, Any]) -> str:
    """Records that a group has not read; with a plus where leaders did not say of all partitions."""
    return f"{row['lag']:,}{'+' if row.get('unknown') else ''}"


def shown_ms(ms: float) -> str:
    return shown_seconds(ms / 1000)


def shown_seconds(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = int(seconds)
    if seconds < 60:
        return f"{seconds:.1f}s"
    for unit, size, lower, small in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small}{lower}"
    raise AssertionError
