"""Hex dumps of frames, for people who debug a protocol. They cost one flag test a frame while the level is off."""

from __future__ import annotations

import logging
from typing import Final

from braidmq.wire.flymq.opcodes import Op

log: Final = logging.getLogger("braidmq.client")

DUMP_BYTES_MAX: Final = 512
"""Of a longer frame only the beginning is shown; a megabyte of hexadecimal helps nobody."""
_ROW_BYTES: Final = 16
_SECRET: Final = frozenset({Op.AUTH, Op.USER_CREATE, Op.USER_UPDATE, Op.PASSWORD_CHANGE})
"""Requests that carry passwords, which no log may hold."""


def dump_frame(direction: str, server: object, op: int, payload: bytes | bytearray | memoryview) -> None:
    """Log one frame. Callers ask `log.isEnabledFor(DEBUG)` first."""
    name = Op(op).name if op in Op._value2member_map_ else "?"
    rows = "  (not shown: it may hold a password)" if op in _SECRET else hex_rows(payload)
    log.debug("%s %s %s (%02x), %d bytes of payload\n%s", direction, server, name, op, len(payload), rows)


def hex_rows(data: bytes | bytearray | memoryview) -> str:
    """Offset, hexadecimal and text columns, 16 bytes a row."""
    shown = bytes(data[:DUMP_BYTES_MAX])
    rows = []
    for start in range(0, len(shown), _ROW_BYTES):
        row = shown[start : start + _ROW_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"  {start:04x}  {row.hex(' '):<47}  {text}")
    if len(data) > DUMP_BYTES_MAX:
        rows.append(f"  ... {len(data) - DUMP_BYTES_MAX} more bytes")
    return "\n".join(rows)
