"""Packets of gossip: a proof of sixteen bytes, then JSON.

    {"c": cluster, "k": kind, "f": sender, "t": receiver or "", "n": number, "x": node asked about or "", "u": [rumour, ...]}
    rumour   [node, address, status, incarnation, who said so, about]

The proof is an HMAC with the join token, so that strangers can neither read a cluster's mind nor change it. An old packet may be
sent again by whoever heard it; incarnations make it mean little, and nothing is decided by gossip. What cannot be read is None.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from braidmq.base import limits

_PROOF_BYTES: Final = 16
_NAME_CHARACTERS_MAX: Final = 255
_ROW_BYTES: Final = 32
"""Of a rumour, beside its texts."""
KINDS: Final = ("ping", "ack", "ask", "nack", "sync", "answer", "rumours")


class Status(IntEnum):
    """What is said of a node. At one incarnation a later one of these counts more."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


@dataclass(frozen=True, slots=True)
class Rumour:
    node: str
    address: str
    status: Status
    incarnation: int
    by: str
    """Who suspects it, first hand: whoever only passes it on is no further witness."""
    about: str

    def row(self) -> list[Any]:
        return [self.node, self.address, int(self.status), self.incarnation, self.by, self.about]


@dataclass(frozen=True, slots=True)
class Packet:
    kind: str
    sender: str
    receiver: str
    number: int
    asked: str
    rumours: tuple[Rumour, ...]


def encode(packet: Packet, cluster: str, key: bytes) -> bytes:
    document = {
        "c": cluster, "k": packet.kind, "f": packet.sender, "t": packet.receiver, "n": packet.number, "x": packet.asked,
        "u": [rumour.row() for rumour in packet.rumours],
    }  # fmt: skip
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _proof(body, key) + body


def room_for(rumours: Sequence[Rumour]) -> int:
    """How many of them fit a packet: one in any case."""
    used = 0
    for count, rumour in enumerate(rumours):
        used += len(rumour.node) + len(rumour.address) + len(rumour.by) + len(rumour.about) + _ROW_BYTES
        if used > limits.GOSSIP_RUMOURS_BYTES_MAX:
            return max(1, count)
    return len(rumours)


def decode(data: bytes, cluster: str, key: bytes) -> Packet | None:
    body = data[_PROOF_BYTES:]
    if len(data) > limits.GOSSIP_PACKET_BYTES_MAX or not hmac.compare_digest(data[:_PROOF_BYTES], _proof(body, key)):
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match document:
        case {
            "c": str(heard), "k": str(kind), "f": str(sender), "t": str(receiver), "n": int(number), "x": str(asked),
            "u": [*rows],
        } if heard == cluster and kind in KINDS and _is_name(sender):  # fmt: skip
            rumours = [_rumour(row) for row in rows]
            if None in rumours:
                return None
            return Packet(kind, sender, receiver, number, asked, tuple(rumour for rumour in rumours if rumour is not None))
        case _:
            return None


def _rumour(row: object) -> Rumour | None:
    match row:
        case [str(node), str(address), int(status), int(incarnation), str(by), str(about)]:
            if 0 <= status <= Status.LEFT and incarnation >= 0 and _is_name(node) and _is_address(address) and len(about) <= 255:
                return Rumour(node, address, Status(status), incarnation, by, about)
    return None


def _is_name(text: str) -> bool:
    return 0 < len(text) <= _NAME_CHARACTERS_MAX and text.isprintable()


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isdigit() and port.isascii() and 0 < int(port) < 65536 and len(text) <= 255


def _proof(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)[:_PROOF_BYTES]
