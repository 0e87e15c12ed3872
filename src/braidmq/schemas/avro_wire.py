"""Walks one Avro message as its schema says, without building the values.

A schema becomes a tree of small functions that each step over one value. Reading to check needs no values, and fastavro's
reader cannot be given a message from a stranger: it recurses in C without a limit, and an array of nulls costs it memory that
the message does not pay for. Here depth is counted, and what takes no bytes is not walked: each step pays with a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from braidmq.base import limits

Step = Callable[[bytes, int, int], int]
"""(message, position, depth) -> position after the value."""


class Mismatch(ValueError):
    """The message does not fit; the path is added on the way out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{self.reason} at {'.'.join(reversed(self.path)) or '$'}"


def compile_steps(schema: Any, named: dict[str, Any]) -> Step:
    """`schema` as fastavro parsed it; `named` are its named types, by full name."""
    return _Builder(named).build(schema)


def walk(step: Step, message: bytes) -> str:
    """What is wrong with the message, or nothing."""
    try:
        end = step(message, 0, 0)
    except Mismatch as mismatch:
        return str(mismatch)
    except IndexError:
        return "the message ends too early"
    except UnicodeDecodeError as error:
        return f"text is not UTF-8: {error.reason}"
    if end > len(message):
        return "the message ends too early"
    return f"{len(message) - end} bytes are left over" if end < len(message) else ""


def _long(message: bytes, at: int) -> tuple[int, int]:
    byte = message[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 127, 7
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise Mismatch("a number is longer than 64 bits")
    if value >> 64:
        raise Mismatch("a number is longer than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _skip_null(_message: bytes, at: int, _depth: int) -> int:
    return at


def _skip_boolean(message: bytes, at: int, _depth: int) -> int:
    if message[at] > 1:
        raise Mismatch(f"a boolean is 0 or 1, not {message[at]}")
    return at + 1


def _skip_int(message: bytes, at: int, _depth: int) -> int:
    if message[at] < 128:
        return at + 1
    value, at = _long(message, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise Mismatch(f"{value} does not fit an int")
    return at


def _skip_long(message: bytes, at: int, _depth: int) -> int:
    return at + 1 if message[at] < 128 else _long(message, at)[1]


def _skip_float(_message: bytes, at: int, _depth: int) -> int:
    return at + 4


def _skip_double(_message: bytes, at: int, _depth: int) -> int:
    return at + 8


def _skip_bytes(message: bytes, at: int, _depth: int) -> int:
    size, at = _long(message, at)
    if size < 0:
        raise Mismatch("a length is negative")
    if size > len(message) - at:
        raise Mismatch("the message ends too early")
    return at + size


def _skip_string(message: bytes, at: int, _depth: int) -> int:
    size, at = _long(message, at)
    if size < 0:
        raise Mismatch("a length is negative")
    text = message[at : at + size]
    if len(text) < size:
        raise Mismatch("the message ends too early")
    if not text.isascii():
        text.decode()
    return at + size


_PRIMITIVES: Final[dict[str, Step]] = {
    "null": _skip_null, "boolean": _skip_boolean, "int": _skip_int, "long": _skip_long, "float": _skip_float,
    "double": _skip_double, "bytes": _skip_bytes, "string": _skip_string,
}  # fmt: skip


class _Builder:
    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._steps: dict[str, Step] = {}

    def build(self, schema: Any) -> Step:
        if isinstance(schema, list):
            return _union([self.build(branch) for branch in schema])
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.build(kind)
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind == "array":
            return _blocks(None, self.build(schema["items"]))
        if kind == "map":
            return _blocks(_skip_string, self.build(schema["values"]))
        name = schema if isinstance(schema, str) else schema["name"]
        return self._named_step(name)

    def _named_step(self, name: str) -> Step:
        if name not in self._steps:
            schema = self._named[name]
            # A record may hold itself, so its step must exist before those of its fields.
            names: list[str] = []
            steps: list[Step] = []
            if schema["type"] in ("record", "error"):
                self._steps[name] = _record(names, steps)
                for field in schema["fields"]:
                    step = self.build(field["type"])
                    if step is not _skip_null:
                        names.append(field["name"])
                        steps.append(step)
                if not steps:
                    self._steps[name] = _skip_null
            elif schema["type"] == "enum":
                self._steps[name] = _enum(len(schema["symbols"]))
            else:
                self._steps[name] = _fixed(schema["size"]) if schema["size"] else _skip_null
        return self._steps[name]


def _record(names: list[str], steps: list[Step]) -> Step:
    def skip(message: bytes, at: int, depth: int) -> int:
        if depth >= limits.SCHEMA_DEPTH_MAX:
            raise Mismatch(f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels")
        number = 0
        try:
            for step in steps:
                at = step(message, at, depth + 1)
                number += 1
        except Mismatch as mismatch:
            mismatch.path.append(names[number])
            raise
        except IndexError:
            early = Mismatch("the message ends too early")
            early.path.append(names[number])
            raise early from None
        return at

    return skip


def _enum(symbols: int) -> Step:
    def skip(message: bytes, at: int, _depth: int) -> int:
        index, at = _long(message, at)
        if not 0 <= index < symbols:
            raise Mismatch(f"the enum has no symbol {index}")
        return at

    return skip


def _fixed(size: int) -> Step:
    def skip(_message: bytes, at: int, _depth: int) -> int:
        return at + size

    return skip


def _union(branches: list[Step]) -> Step:
    def skip(message: bytes, at: int, depth: int) -> int:
        index, at = _long(message, at)
        if not 0 <= index < len(branches):
            raise Mismatch(f"the union has no branch {index}")
        if depth >= limits.SCHEMA_DEPTH_MAX:
            raise Mismatch(f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels")
        return branches[index](message, at, depth + 1)

    return skip


def _blocks(key: Step | None, item: Step) -> Step:
    def skip(message: bytes, at: int, depth: int) -> int:
        if depth >= limits.SCHEMA_DEPTH_MAX:
            raise Mismatch(f"nested deeper than {limits.SCHEMA_DEPTH_MAX} levels")
        while True:
            count, at = _long(message, at)
            if count == 0:
                return at
            end = -1
            if count < 0:
                count = -count
                size, at = _long(message, at)
                end = at + size
            if key is None and item is _skip_null:
                count = 0
            if count > len(message) - at:
                raise Mismatch(f"{count} items cannot be in {len(message) - at} bytes")
            for _ in range(count):
                if key is not None:
                    at = key(message, at, depth)
                at = item(message, at, depth + 1)
            if end not in (-1, at):
                raise Mismatch("a block is not as long as it says")

    return skip
