"""JSON text in pieces, for documents that are written beside the event loop.

Python's encoder makes the text of a whole document in one call, and no other thread runs until it is done: for a large one the
loop would stand still, wherever the encoder runs. In pieces it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

_ITEMS: Final = 500
"""So many entries of a long list or dict are one piece."""


class Deferred:
    """A part of a document that is made only when it is written. It sees nothing but what it was given."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def json_pieces(value: Any) -> Iterator[str]:
    """The text of a document whose large parts are lists or dicts, not far below the top. Keys are texts. An iterator is a list
    whose entries are made a few at a time."""
    match value:
        case Deferred():
            yield from json_pieces(value.make())
        case dict() if len(value) <= _ITEMS:
            yield "{"
            for number, (key, part) in enumerate(value.items()):
                yield f"{',' if number else ''}{_text(key)}:"
                yield from json_pieces(part)
            yield "}"
        case dict():
            yield from _long(value.items(), dict, "{}")
        case Iterator():
            yield from _long(value, list, "[]")
        case list() if len(value) > _ITEMS:
            yield from _long(value, list, "[]")
        case _:
            yield _text(value)


def _long(entries: Any, kind: Callable[[Any], Any], marks: str) -> Iterator[str]:
    yield marks[0]
    left = iter(entries)
    before = ""
    while some := kind(islice(left, _ITEMS)):
        yield before + _text(some)[1:-1]
        before = ","
    yield marks[1]


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
