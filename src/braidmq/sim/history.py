"""What clients saw, and whether a log that keeps its promises could have shown it to them.

    lost          a record was acknowledged, and is not where it was said to be
    duplicate     a record was sent once, by an idempotent producer, and is there twice
    reordered     records of one producer are not in the order in which they were sent
    phantom       a record is there that nobody sent
    torn          a record is there that is not what was sent
    unsteady      a reader saw another record at an offset than another reader, or than is there now
    apart         two replicas differ below what readers may see

Values carry their producer, their number and a checksum, so each of these can be told from the values alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from braidmq.cluster.partition_state import LogKey


class Sent(NamedTuple):
    producer: int
    number: int


def value_of(sent: Sent, size: int) -> bytes:
    """The value of a record: who sent it, which of theirs it is, and something that shows whether it is whole."""
    text = b"%d %d " % sent
    body = text + b"." * max(0, size - len(text))
    return b"%08x " % zlib.crc32(body) + body


def sent_of(value: bytes) -> Sent | None:
    """Who sent a value; None for one that is not whole."""
    checksum, _, body = value.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    producer, number, _ = body.split(b" ", 2)
    return Sent(int(producer), int(number))


@dataclass(slots=True)
class History:
    sent: dict[LogKey, dict[Sent, None]] = field(default_factory=dict)
    acked: dict[LogKey, dict[int, Sent]] = field(default_factory=dict)
    """By the offset of the acknowledgement."""
    seen: dict[LogKey, dict[int, bytes]] = field(default_factory=dict)
    """What readers saw first at an offset."""
    committed: dict[tuple[str, LogKey], int] = field(default_factory=dict)
    """The last position that a group was told is kept."""
    given_up: dict[tuple[str, LogKey], set[int]] = field(default_factory=dict)
    """Positions of which a group does not know whether they are kept."""
    tried: dict[tuple[str, LogKey], int] = field(default_factory=dict)
    plain: set[int] = field(default_factory=set)
    """Producers without numbers of their own: what they send may be stored again by a network that repeats it, and out of order."""
    complaints: list[str] = field(default_factory=list)
    records_acked: int = 0
    records_seen: int = 0

    def note_sent(self, key: LogKey, sent: Iterable[Sent]) -> None:
        self.sent.setdefault(key, {}).update(dict.fromkeys(sent))

    def note_acked(self, key: LogKey, offset: int, sent: list[Sent]) -> None:
        acked = self.acked.setdefault(key, {})
        for at, one in enumerate(sent, offset):
            self.records_acked += 1
            if acked.setdefault(at, one) != one:
                self.complaints.append(f"lost: {key} offset {at} was acknowledged as {acked[at]} and as {one}")

    def note_seen(self, key: LogKey, reader: str, found: list[tuple[int, bytes]]) -> None:
        seen = self.seen.setdefault(key, {})
        for offset, value in found:
            self.records_seen += 1
            if seen.setdefault(offset, value) != value:
                self.complaints.append(
                    f"unsteady: {key} offset {offset} was {_brief(seen[offset])}, and on {reader} {_brief(value)}"
                )

    def check(self, key: LogKey, final: dict[int, bytes], log_start: int) -> None:
        """Compare everything with what is there in the end; what lay before `log_start` went by retention."""
        say = self.complaints.append
        found: dict[Sent, int] = {}
        latest: dict[int, tuple[int, int]] = {}
        for offset, value in sorted(final.items()):
            sent = sent_of(value)
            if sent is None:
                say(f"torn: {key} offset {offset} is {_brief(value)}")
                continue
            if sent not in self.sent.get(key, {}):
                say(f"phantom: {key} offset {offset} is {sent}")
            if sent.producer in self.plain:
                continue
            if sent in found:
                say(f"duplicate: {key} {sent} is at offsets {found[sent]} and {offset}")
            found[sent] = offset
            number, before = latest.get(sent.producer, (-1, -1))
            if sent.number < number:
                say(f"reordered: {key} {sent} at offset {offset} comes after {number} at {before}")
            latest[sent.producer] = max((number, before), (sent.number, offset))
        for offset, sent in self.acked.get(key, {}).items():
            if offset >= log_start and (offset not in final or sent_of(final[offset]) != sent):
                say(f"lost: {key} {sent} was acknowledged at offset {offset}, and is at {found.get(sent, 'none')}")
        for offset, value in self.seen.get(key, {}).items():
            if offset >= log_start and final.get(offset) != value:
                say(f"unsteady: {key} offset {offset} was read as {_brief(value)}, and is {_brief(final.get(offset, b''))}")


def _brief(value: bytes) -> str:
    return repr(value[:40])
