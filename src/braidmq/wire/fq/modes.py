"""How an fq connection begins: four bytes that say what it is, and what a data connection adds to them.

One port takes commands, messages and HTTP. The first four bytes tell them apart; a data connection then names the key that the
command connection got. However the bytes come in pieces, the answer is the same: `read_opening` looks at all that came so far
and answers as soon as it can, which for bytes that begin nothing known is before the fourth.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.base.limits import FQ_KEY_BYTES_MAX
from braidmq.wire.shape import shape


class Mode(Enum):
    """What a connection is for."""

    COMMAND = "command"
    DATA = "data"
    PEER = "peer"
    OLD_PEER = "old peer"
    HTTP = "http"
    OTHER = "other"
    """Nothing this port serves: close without an answer."""


MODE_BYTES: Final = 4
MODE_WORDS: Final = {
    Mode.COMMAND: b"\xcc\x50\xca\xfe",
    Mode.DATA: b"\xcc\x50\xfa\xce",
    Mode.PEER: b"\xcc\x50\xfe\xed",
    Mode.OLD_PEER: b"\xcc\x50\xfa\xde",
}
NODE_ID_BYTES: Final = 4

_FIRST: Final = {word: mode for mode, word in MODE_WORDS.items()} | dict.fromkeys((b"GET ", b"POST", b"PUT ", b"HEAD"), Mode.HTTP)


@shape
class Opening:
    """How a connection began. `size` bytes were used; those of an HTTP verb are not, since they belong to the request."""

    mode: Mode
    size: int
    key: bytes = b""
    node_id: bytes | None = None
    """Of the broker that connects; only the newer peer mode tells it."""


def read_mode(data: bytes | bytearray | memoryview) -> Mode | None:
    """What the first bytes say; None while they may still become one thing or another."""
    first = bytes(data[:MODE_BYTES])
    found = _FIRST.get(first)
    if found is not None:
        return found
    if len(first) < MODE_BYTES and any(word.startswith(first) for word in _FIRST):
        return None
    return Mode.OTHER


def read_opening(data: bytes | bytearray | memoryview) -> Opening | None:
    """The whole opening, or None while more bytes are needed. A key of an impossible length is MALFORMED_FQ."""
    mode = read_mode(data)
    if mode is None:
        return None
    if mode in (Mode.HTTP, Mode.OTHER):
        return Opening(mode, 0)
    if mode is Mode.COMMAND:
        return Opening(mode, MODE_BYTES)
    at = MODE_BYTES + (NODE_ID_BYTES if mode is Mode.PEER else 0)
    if len(data) < at + 2:
        return None
    key_size = data[at] << 8 | data[at + 1]
    if key_size > FQ_KEY_BYTES_MAX:
        raise BraidError("MALFORMED_FQ", reason=f"a key of {key_size} bytes")
    end = at + 2 + key_size
    if len(data) < end:
        return None
    return Opening(mode, end, bytes(data[at + 2 : end]), bytes(data[MODE_BYTES:at]) if mode is Mode.PEER else None)


def encode_opening(mode: Mode, key: bytes = b"", node_id: bytes = b"") -> bytes:
    """What a client sends first. `node_id` belongs to `Mode.PEER` only."""
    if mode is Mode.COMMAND:
        return MODE_WORDS[mode]
    if mode not in MODE_WORDS or len(node_id) != (NODE_ID_BYTES if mode is Mode.PEER else 0) or len(key) > FQ_KEY_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"key of {len(key)}, node id of {len(node_id)} bytes in {mode.value} mode")
    return MODE_WORDS[mode] + node_id + len(key).to_bytes(2, "big") + key
