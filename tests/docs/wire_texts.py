"""How the protocol's page writes a layout down, made from the layout itself.

A table of the page and a table of the codec that say the same thing cannot drift apart when one can be made from the other.
Forms that the bytes themselves decide have classes of their own in the codec; those are described by hand, and `described`
says so with None.
"""

from __future__ import annotations

from typing import Any, Final

from braidmq.wire.flymq import answers, audit, groups, layout, requests, responses, users

NOTATIONS: Final[dict[str, Any]] = {
    "META": answers.RECORD_METADATA,
    "USER": users._USER,
    "GROUP": groups._GROUP,
    "FILTER": audit._FILTER,
    "EVENT": audit._EVENT,
}
"""Layouts that the page names once and then uses by their name."""
_FIXED: Final = {"?": "bool", "H": "u16", "i": "i32", "I": "u32", "q": "i64", "Q": "u64"}


class ByHand(Exception):
    """The layout depends on more than the order of its fields."""


def fields(kind: Any) -> str:
    """The fields of a layout in wire order."""
    parts = [text for step in kind._steps for text in _step(step)]
    if isinstance(kind, layout.Extended):
        parts.append("own: " + ", ".join(text for step in kind._extension for text in _step(step)))
    return ", ".join(parts) or "empty"


def _step(step: Any) -> list[str]:
    if isinstance(step, layout._Run):
        return [f"`{_FIXED[kind.letter]}` {name}" for name, kind in step._members]
    return [_typed(step._kind, step._name)]


def _typed(kind: Any, name: str) -> str:
    for notation, known in NOTATIONS.items():
        if kind is known:
            return f"`{notation}`"
    match kind:
        case layout.TrailingText():
            return f"optional `str` {name}"
        case layout.TrailingBool():
            return f"optional `bool` {name}"
        case layout.Prefixed():
            return f"`u32` length, {_typed(kind._item, name)}"
        case layout.Layout():
            return fields(kind)
        case layout.Many():
            start = "`list` of" if kind.count is layout.U32 else f"`{_FIXED[kind.count.letter]}` count and as many"
            if isinstance(kind.item, layout.Text) and kind.count is layout.U32:
                return f"`list<str>` {name}"
            item = "`str`, `str`" if isinstance(kind.item, layout.Pair) else _typed(kind.item, name)
            return f"{start} ({item})"
    return f"`{_simple(kind)}` {name}"


def _simple(kind: Any) -> str:
    match kind:
        case layout.Fixed():
            return _FIXED[kind.letter]
        case layout.Text():
            return "str" if kind.prefix.size == 2 else "str8"
        case layout.Blob():
            return "bytes"
    raise ByHand(type(kind).__name__)


def described(kind: Any) -> str | None:
    """A message as the page has to describe it; None for one that is described by hand."""
    if isinstance(kind, layout.OnlyV126):
        kind = kind._item
    if kind is answers.OK:
        return "`OK`"
    try:
        return _typed(kind, "")
    except ByHand:
        return None


REQUESTS: Final = requests.REQUESTS
RESPONSES: Final = responses.RESPONSES
