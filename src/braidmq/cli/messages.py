"""Where `braid produce` takes its messages from: arguments, lines, whole files.

Lines are read as they come, so `tail -f | braid produce` sends each one when it appears. A line is what stands before a
newline; a last line without one counts as well. Nothing is decoded: values are bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from braidmq.base.errors import BraidError


class Message(NamedTuple):
    key: bytes | None
    value: bytes


def from_arguments(values: Iterable[str]) -> Iterator[bytes]:
    # Arguments that are not UTF-8 come as surrogates, and go back to the bytes they were.
    return (os.fsencode(value) for value in values)


def from_lines(stream: BinaryIO) -> Iterator[bytes]:
    return (line.removesuffix(b"\n") for line in stream)


def from_line_files(paths: Iterable[str]) -> Iterator[bytes]:
    for path in paths:
        if path == "-":
            yield from from_lines(sys.stdin.buffer)
        else:
            with open(path, "rb") as stream:
                yield from from_lines(stream)


def from_whole_files(paths: Iterable[str]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as stream:
            yield stream.read()


def with_keys(values: Iterable[bytes], key: bytes | None, separator: bytes | None) -> Iterator[Message]:
    """Messages with one key for all, or with the key that stands before the first `separator` of each."""
    for number, value in enumerate(values, 1):
        if separator is None:
            yield Message(key, value)
            continue
        before, found, after = value.partition(separator)
        if not found:
            shown = separator.decode("utf-8", "backslashreplace")
            raise BraidError("INVALID_ARGUMENT", reason=f"message {number} has no key separator `{shown}`")
        yield Message(before or None, after)


def parse_headers(pairs: Iterable[str]) -> dict[str, bytes]:
    """Headers of `name=value` arguments."""
    headers: dict[str, bytes] = {}
    for pair in pairs:
        name, found, value = pair.partition("=")
        if not found or not name:
            raise BraidError("INVALID_ARGUMENT", reason=f"--header takes name=value, not `{pair}`")
        headers[name] = os.fsencode(value)
    return headers


def total_of(args_values: list[str], whole_files: list[str]) -> int | None:
    """How many messages there will be, where that is known before reading."""
    return len(args_values) or len(whole_files) or None


def parse_rate(text: str) -> float:
    """Messages a second of `1000`, `1000/s`, `60/m` or `10/h`."""
    number, _, unit = text.partition("/")
    seconds = {"": 1, "s": 1, "m": 60, "h": 3600}.get(unit.strip())
    try:
        rate = float(number) / seconds if seconds else 0.0
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise BraidError("INVALID_ARGUMENT", reason=f"--rate takes messages a second, as 1000 or 60/m, not `{text}`")
    return rate
