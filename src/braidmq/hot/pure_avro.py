"""Flat Avro records to columns, in plain Python.

A field has a kind: `i` int, `l` long, `f` float, `d` double, `b` boolean, `s` string or bytes; and where it is a union of that kind
and null, the number of the branch that is null (255 says that there is no union).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from braidmq.base.errors import BraidError
from braidmq.hot.pure_columns import _cells, _joined

NO_UNION: Final = 255
_SINGLE: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


class _Short(ValueError):
    """A row that is not what its schema says."""


class _Row:
    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.octets) - self.at:
            raise _Short
        self.at += size
        return self.octets[self.at - size : self.at]

    def long(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            if shift == 63 and byte > 1:
                raise _Short
            number |= (byte & 127) << shift
            if byte < 128:
                break
        return (number >> 1) ^ -(number & 1)

    def cell(self, kind: str) -> Any:
        match kind:
            case "i" | "l":
                number = self.long()
                if kind == "i" and not -(1 << 31) <= number < 1 << 31:
                    raise _Short
                return number
            case "d":
                return _DOUBLE.unpack(self.take(8))[0]
            case "f":
                return _SINGLE.unpack(self.take(4))[0]
            case "b":
                found = self.take(1)[0]
                if found > 1:
                    raise _Short
                return found
        return self.take(self.long())


def avro_columns(kinds: bytes, nulls: bytes, ends: Any, data: Any) -> list[tuple[bytes, bytes, bytes]] | None:
    """A column for each field of Avro records without headers; None where a row is not whole, or longer than its fields.

    A column is: a byte for each row that says whether it is there (none at all where the field is no union), the ends of cells of
    bytes (nothing for other kinds), and the cells: `int64`, `float64`, or a byte for a boolean. A null has a zero or nothing.
    """
    if not kinds or len(nulls) != len(kinds):
        raise BraidError("INVALID_ARGUMENT", reason="every field has a kind and says which branch of it is null")
    for letter in kinds:
        if letter not in b"ildfbs":
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no kind {letter}")
    places, octets = _cells(ends, data)
    valid: list[list[bool]] = [[] for _ in kinds]
    cells: list[list[Any]] = [[] for _ in kinds]
    try:
        for i in range(len(places) - 1):
            row = _Row(bytes(octets[places[i] : places[i + 1]]))
            for field, (kind, null) in enumerate(zip(kinds.decode(), nulls, strict=True)):
                there = True
                if null != NO_UNION:
                    branch = row.long()
                    if branch not in (0, 1):
                        raise _Short
                    there = branch != null
                    valid[field].append(there)
                cells[field].append(row.cell(kind) if there else b"" if kind == "s" else 0)
            if row.at != len(row.octets):
                raise _Short
    except _Short:
        return None
    return [(bytes(there), *_column(kind, found)) for kind, there, found in zip(kinds.decode(), valid, cells, strict=True)]


def _column(kind: str, cells: list[Any]) -> tuple[bytes, bytes]:
    if kind == "s":
        return _joined(cells)
    return b"", np.array(cells, {"b": "u1", "d": "<f8", "f": "<f8"}.get(kind, "<i8")).tobytes()
