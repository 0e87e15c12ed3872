"""Flat JSON objects to columns, in plain Python.

A property has a name and a kind: `l` whole number, `d` number, `b` boolean, `s` string. Columns are made only of rows that every
reader of JSON understands alike: strict JSON, each property at most once, names without escapes, whole numbers of 64 bits, numbers
that are finite and neither smaller than doubles are precise nor longer than `_NUMBER_BYTES_MAX`, no value that is too long or too
deep. Of anything else nothing is said, and another decoder has to look.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import pairwise
from typing import Any, Final

import numpy as np

from braidmq.base.errors import BraidError
from braidmq.base.limits import SCHEMA_MESSAGE_BYTES_MAX
from braidmq.hot.pure_columns import _cells, _joined

_NUMBER_BYTES_MAX: Final = 127
_DEPTH_MAX: Final = 60
"""Of a value that is skipped."""
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_STRING: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"')
_WHOLE: Final = re.compile(rb"-?(?:0(?![0-9])|[1-9][0-9]*)")
_NUMBER: Final = re.compile(rb"-?(?:0(?![0-9])|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final = re.compile(rb"true|false|null")


class _Doubtful(ValueError):
    """A row that another decoder has to look at."""


class _Row:
    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self.at = 0

    def properties(self, kinds: dict[str, str]) -> dict[str, Any]:
        """The properties that are there, null for a null."""
        found: dict[str, Any] = {}
        self._mark(b"{")
        if self._next() == b"}":
            self._mark(b"}")
        else:
            while True:
                name = self._name(escapes=False)
                if name not in kinds:
                    self._skip(0)
                elif name in found:
                    raise _Doubtful
                else:
                    found[name] = self._cell(kinds[name])
                if self._mark(b",}") == b"}":
                    break
        self._space()
        if self.at != len(self.octets):
            raise _Doubtful
        return found

    def _cell(self, kind: str) -> Any:
        if self._next() == b"n":
            return self._word("null")
        match kind:
            case "s":
                return self._string().encode()
            case "b":
                return self._word("true", "false")
            case "l":
                number = int(self._number(_WHOLE))
                if not -(1 << 63) <= number < 1 << 63:
                    raise _Doubtful
                return number
        text = self._number(_NUMBER)
        real = float(text)
        # Readers differ about the sign of the integer -0.
        if text == "-0" or real in (float("inf"), float("-inf")):
            raise _Doubtful
        if abs(real) < sys.float_info.min and text.lower().partition("e")[0].strip("-.0"):
            raise _Doubtful
        return real

    def _number(self, pattern: re.Pattern[bytes]) -> str:
        text = self._token(pattern)
        if len(text) > _NUMBER_BYTES_MAX:
            raise _Doubtful
        return text.decode()

    def _string(self) -> str:
        try:
            found: str = json.loads(self._token(_STRING))
            # Half of a surrogate pair is no text.
            found.encode()
        except UnicodeError:
            raise _Doubtful from None
        return found

    def _name(self, escapes: bool = True) -> str:
        self._space()
        begin = self.at
        found = self._string()
        if not escapes and b"\\" in self.octets[begin : self.at]:
            raise _Doubtful
        self._mark(b":")
        return found

    def _word(self, *allowed: str) -> bool | None:
        text = self._token(_WORDS).decode()
        if text not in allowed:
            raise _Doubtful
        return {"true": True, "false": False, "null": None}[text]

    def _skip(self, depth: int) -> None:
        first = self._next()
        if first == b'"':
            self._string()
        elif first in (b"t", b"f", b"n"):
            self._word("true", "false", "null")
        elif first not in (b"[", b"{"):
            self._token(_NUMBER)
        elif depth == _DEPTH_MAX:
            raise _Doubtful
        else:
            self._mark(first)
            last = b"]" if first == b"[" else b"}"
            if self._next() == last:
                self._mark(last)
                return
            while True:
                if first == b"{":
                    self._name()
                self._skip(depth + 1)
                if self._mark(b"," + last) == last:
                    return

    def _space(self) -> None:
        found = _SPACE.match(self.octets, self.at)
        if found is not None:
            self.at = found.end()

    def _next(self) -> bytes:
        self._space()
        return self.octets[self.at : self.at + 1]

    def _mark(self, allowed: bytes) -> bytes:
        found = self._next()
        if not found or found not in allowed:
            raise _Doubtful
        self.at += 1
        return found

    def _token(self, pattern: re.Pattern[bytes]) -> bytes:
        self._space()
        found = pattern.match(self.octets, self.at)
        if found is None:
            raise _Doubtful
        self.at = found.end()
        return found[0]


def json_columns(kinds: bytes, names: list[bytes], ends: Any, data: Any) -> list[tuple[bytes, bytes, bytes]] | None:
    """A column for each property of JSON objects; None where a row is doubtful.

    A column is: a byte for each row that says whether it is there (none at all where all are), the ends of strings (nothing for
    other kinds), and the cells: `int64`, `float64`, a byte for a boolean, or UTF-8. What is null or missing has a zero or nothing.
    """
    if not kinds or len(names) != len(kinds) or len(set(names)) != len(kinds):
        raise BraidError("INVALID_ARGUMENT", reason="every field has a kind and a name of its own")
    for letter in kinds:
        if letter not in b"ldbs":
            raise BraidError("INVALID_ARGUMENT", reason=f"there is no kind {letter}")
    places, octets = _cells(ends, data)
    wanted = {name.decode(): chr(kind) for name, kind in zip(names, kinds, strict=True)}
    rows = []
    try:
        for begin, end in pairwise(places):
            if end - begin > SCHEMA_MESSAGE_BYTES_MAX:
                raise _Doubtful
            rows.append(_Row(bytes(octets[begin:end])).properties(wanted))
    except _Doubtful:
        return None
    return [_column(kind, [row.get(name) for row in rows]) for name, kind in wanted.items()]


def _column(kind: str, cells: list[Any]) -> tuple[bytes, bytes, bytes]:
    there = bytes(cell is not None for cell in cells)
    if kind == "s":
        return (b"" if all(there) else there, *_joined([cell or b"" for cell in cells]))
    numbers = np.array([0 if cell is None else cell for cell in cells], {"b": "u1", "d": "<f8"}.get(kind, "<i8"))
    return b"" if all(there) else there, b"", numbers.tobytes()
