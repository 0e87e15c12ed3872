"""Where `braid consume` begins: `--from earliest|latest|OFFSET|@TIME`, turned into an offset for each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from braidmq.client.models import PartitionInfo
    from braidmq.client.sync import Client


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What `--from` says. `value` is the offset, or the time in milliseconds since the epoch."""

    kind: Literal["earliest", "latest", "committed", "offset", "time"]
    value: int = 0

    def offset_in(self, client: Client, topic: str, part: PartitionInfo) -> int:
        """The first offset to read of a partition, for a start at an offset or a time."""
        if self.kind == "time":
            return client.offset_for_time(topic, part.partition, self.value)
        return max(self.value, part.oldest)


def parse_start(text: str | None, *, group: bool, follow: bool) -> StartingPoint:
    """The starting point that a command line asks for, or the one it gets without asking."""
    if text is None:
        return StartingPoint("committed" if group else "latest" if follow else "earliest")
    return parse_point(text, "--from")


def parse_point(text: str, option: str) -> StartingPoint:
    """`earliest`, `latest`, an offset, or `@` and a time."""
    if text in ("earliest", "latest"):
        return StartingPoint("earliest" if text == "earliest" else "latest")
    if text.isascii() and text.isdigit():
        return StartingPoint("offset", int(text))
    if text.startswith("@"):
        try:
            return StartingPoint("time", parse_time(text[1:]))
        except ValueError as fault:
            raise BraidError("INVALID_ARGUMENT", reason=f"{option}: {fault}") from None
    raise BraidError("INVALID_ARGUMENT", reason=f"{option} takes earliest, latest, an offset or @TIME, not `{text}`")


def parse_time(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time (local when it names no zone) or of a number of milliseconds."""
    if text.isascii() and text.isdigit():
        return int(text)
    from datetime import datetime

    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"`{text}` is neither an ISO 8601 time, as 2026-01-31T08:00:00Z, nor milliseconds since the epoch"
        ) from None
