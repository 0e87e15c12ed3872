"""Which framing a connection speaks, told by its first bytes.

Asked once a connection, with all bytes received so far, until it answers; at most eight are looked at, in this order:

| First bytes | Framing |
|---|---|
| 16 03 00..04 .. .. 01 | TLS: a ClientHello |
| read little-endian, at most 16 MiB | FlatBuffers |
| 00 00 00 0B 01 | binary 1: its HELLO, with which every such connection begins |
| a big-endian length of a frame, then the offset of a root table | legacy |
| anything else | unknown |

The second test cannot take a HELLO: 00 00 00 0B read little-endian is 176 MiB. It takes a legacy frame whose length is a
multiple of 256, which is then refused; clients of that kind begin with shorter ones.
"""

from __future__ import annotations

from enum import Enum

from braidmq.base import limits
from braidmq.wire.blipmq.faults import Malformed
from braidmq.wire.blipmq.frames import FRAME_BYTES_MAX, Buffer

_HELLO = b"\0\0\0\x0b\x01"


class Framing(Enum):
    TLS = "tls"
    FLATBUFFERS = "flatbuffers"
    BINARY1 = "binary1"
    LEGACY = "legacy"
    UNKNOWN = "unknown"
    """Answer with `unknown_framing`, then close."""


def detect(first: Buffer, *, legacy: bool = False, frame_max: int = FRAME_BYTES_MAX) -> Framing | None:
    """The framing that a connection beginning with these bytes speaks; None when more bytes are needed to tell."""
    head = bytes(first[:8])
    if len(head) < 3:
        return None
    if head[0] == 0x16 and head[1] == 3 and head[2] <= 4:
        if len(head) < 6:
            return None
        if head[5] == 1:
            return Framing.TLS
    if len(head) < 4:
        return None
    if int.from_bytes(head[:4], "little") <= limits.BLIPMQ_SKIPPED_BYTES_MAX:
        return Framing.FLATBUFFERS
    if head[:4] == _HELLO[:4]:
        if len(head) < 5:
            return None
        if head[4] == _HELLO[4]:
            return Framing.BINARY1
    if legacy and head[3] and limits.BLIPMQ_FRAME_BYTES_MIN <= int.from_bytes(head[:4]) <= frame_max:
        if len(head) < 8:
            return None
        root = int.from_bytes(head[4:8], "little")
        if root % 4 == 0 and 4 <= root <= 255:
            return Framing.LEGACY
    return Framing.UNKNOWN


def unknown_framing(first: Buffer, frame_max: int = FRAME_BYTES_MAX) -> Malformed:
    """What to tell a peer whose first bytes no framing begins with."""
    head = bytes(first[:4])
    if int.from_bytes(head) <= limits.BLIPMQ_SKIPPED_BYTES_MAX:
        # Short when it is read big-endian: another framing, which does not begin as it has to or is not served.
        return Malformed("MALFORMED_MESSAGE", reason=f"no framing that is served here begins with {head.hex(' ')}")
    return Malformed("FRAME_TOO_LARGE", size=int.from_bytes(head, "little"), limit=frame_max)
