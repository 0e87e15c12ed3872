"""What a record carries besides key and value: headers, and room for what protocols and features add.

A block is `u32` length of what follows, then entries of `u16` tag, `u32` length, data; little-endian. Unknown tags are
kept and skipped, so an older reader survives a newer writer. Headers keep their order and may repeat.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from braidmq.base.errors import BraidError

TAG_HEADER: Final = 1
"""`u16` name length, name (UTF-8), value."""

# --- dead letters: where a record came from, and why it is there
TAG_ORIGIN_TOPIC: Final = 16
"""Topic name (UTF-8)."""
TAG_ORIGIN_PLACE: Final = 17
"""`i32` partition, `i64` offset; -1 for a record that never got there."""
TAG_REASON: Final = 18
"""One of a few words (UTF-8)."""
TAG_ERROR: Final = 19
"""What happened, for people (UTF-8)."""
TAG_FAILURES: Final = 20
"""`u32` attempts, `i64` time of the first and `i64` of the last failure, in milliseconds."""
TAG_REFUSAL: Final = 21
"""`u8` the code that a subscriber refused it with, `i64` the time of the record that became the letter, in milliseconds."""
TAG_PIPELINE: Final = 22
"""Name of the pipeline that could not use it (UTF-8)."""
DEAD_LETTER_TAGS: Final = frozenset(
    (TAG_ORIGIN_TOPIC, TAG_ORIGIN_PLACE, TAG_REASON, TAG_ERROR, TAG_FAILURES, TAG_REFUSAL, TAG_PIPELINE)
)

# --- staged records: whose they are, and where they will go
TAG_WORK: Final = 32
"""`i64` number of the work that staged the record."""
TAG_TARGET: Final = 33
"""`i32` partition (-1 for any), topic name (UTF-8)."""
STAGING_TAGS: Final = frozenset((TAG_WORK, TAG_TARGET))

# --- BlipMQ: what its messages carry besides topic and payload
TAG_BLIPMQ: Final = 64
"""`u8` QoS, message_id (UTF-8, may be empty)."""
TAG_COMPRESSION: Final = 65
"""How the publisher compressed the payload: `gzip` or `lz4`."""
TAG_FEDERATION: Final = 66
"""Where the message was published first and the brokers it came through: `origin`, a zero byte, `via` (UTF-8)."""

# --- fq: what its messages carry besides route and payload
TAG_FQ: Final = 80
"""16 bytes message id, `u8` length of the sender, sender, `u8` number of hops, 4 bytes each, the most recent first."""

_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<HI")
_NAME = struct.Struct("<H")


def encode_attrs(entries: Iterable[tuple[int, bytes]]) -> bytes:
    """A whole block from (tag, data) pairs; empty without entries."""
    body = b"".join(_ENTRY.pack(tag, len(data)) + data for tag, data in entries)
    return _LENGTH.pack(len(body)) + body if body else b""


def decode_attrs(block: bytes) -> list[tuple[int, bytes]]:
    """The (tag, data) pairs of a block."""
    entries: list[tuple[int, bytes]] = []
    if not block:
        return entries
    if len(block) < 4 or _LENGTH.unpack_from(block)[0] != len(block) - 4:
        raise BraidError("INVALID_BATCH", reason="an attribute block has the wrong length")
    at = 4
    while at < len(block):
        if len(block) - at < _ENTRY.size:
            raise BraidError("INVALID_BATCH", reason="an attribute runs past its block")
        tag, size = _ENTRY.unpack_from(block, at)
        at += _ENTRY.size
        if size > len(block) - at:
            raise BraidError("INVALID_BATCH", reason="an attribute runs past its block")
        entries.append((tag, block[at : at + size]))
        at += size
    return entries


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    """A block that holds only headers."""
    entries = []
    for name, value in headers.items():
        raw = name.encode()
        if len(raw) > 0xFFFF:
            raise BraidError("INVALID_ARGUMENT", reason="a header name is longer than 65535 bytes")
        entries.append((TAG_HEADER, _NAME.pack(len(raw)) + raw + value))
    return encode_attrs(entries)


def decode_headers(block: bytes) -> dict[str, bytes]:
    """The headers of a block; of a repeated name the last."""
    headers: dict[str, bytes] = {}
    for tag, data in decode_attrs(block):
        if tag != TAG_HEADER:
            continue
        size = _NAME.unpack_from(data)[0] if len(data) >= 2 else len(data)
        if size > len(data) - 2:
            raise BraidError("INVALID_BATCH", reason="a header name runs past its attribute")
        headers[data[2 : 2 + size].decode(errors="replace")] = data[2 + size :]
    return headers


def without(block: bytes, tags: frozenset[int]) -> bytes:
    """The block without entries of some tags."""
    return encode_attrs((tag, data) for tag, data in decode_attrs(block) if tag not in tags) if block else b""
