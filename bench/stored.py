"""Asks a broker what it holds, with a METADATA request of its own making.

A rate means nothing if acknowledged records are not there afterwards, so every produce run ends with this question.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from processes import RunFailed, Server

METADATA: Final = 0x04
_HEADER = struct.Struct(">BBBBI")
_PARTITION = struct.Struct(">iiQQ")


def stored_records(server: Server, topic: str) -> int:
    """How many records the partitions of `topic` hold."""
    name = topic.encode()
    payload = struct.pack(">H", len(name)) + name
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(_HEADER.pack(0xAF, 1, METADATA, 1, len(payload)) + payload)
        stream = connection.makefile("rb")
        _, _, opcode, _, size = _HEADER.unpack(_exactly(stream.read(_HEADER.size), _HEADER.size))
        answer = _exactly(stream.read(size), size)
    if opcode != METADATA:
        raise RunFailed(f"METADATA {topic} was answered with {answer!r}")
    partitions_at = 2 + len(name) + 4
    return sum(newest - oldest for _, _, oldest, newest in _PARTITION.iter_unpack(answer[partitions_at:]))


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise RunFailed("the broker closed the connection within an answer")
    return data


def check_stored(server: Server, acknowledged: int, topics: list[str]) -> None:
    """Fail when fewer records are there than were acknowledged."""
    there = sum(stored_records(server, topic) for topic in topics)
    if there < acknowledged:
        raise RunFailed(f"{server.name} acknowledged {acknowledged} records and holds {there}")
