"""Figures and times as people read them. Filters of the templates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def number(value: float | None) -> str:
    """`1,234,567`; a dash for what is not known."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(value: float | None) -> str:
    """`1.2 MiB`."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in _UNITS:
        if abs(amount) < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def rate(value: float | None) -> str:
    """`1,234/s`, with a digit more where there is little."""
    if value is None:
        return "–"
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def span(seconds: float | None) -> str:
    """`2.5 min`; below a second in milliseconds."""
    if seconds is None:
        return "–"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for length, unit in _SPANS:
        if seconds >= length:
            amount = seconds / length
            return f"{amount:.0f} {unit}" if amount >= 10 or amount == int(amount) else f"{amount:.1f} {unit}"
    return "0 s"


def span_ms(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else span(milliseconds / 1000)


def moment(text: str | None) -> str:
    """`2026-01-02 03:04:05` of an RFC 3339 time."""
    return "–" if not text else text.replace("T", " ").replace("Z", "").partition(".")[0]


def exact_moment(text: str | None) -> str:
    """The same with milliseconds."""
    return "–" if not text else text.replace("T", " ").replace("Z", "")


def in_path(text: str) -> str:
    """A name as a part of a path: `/` is `%2F` there."""
    return quote(str(text), safe="")


def in_query(given: dict[str, Any]) -> str:
    """A query without what is empty."""
    return urlencode({name: value for name, value in given.items() if value not in (None, "")})


def pretty(value: Any) -> str:
    """JSON with one field a line."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "number": number, "size": size, "rate": rate, "span": span, "span_ms": span_ms, "moment": moment, "exact_moment": exact_moment,
    "in_path": in_path, "in_query": in_query, "pretty": pretty,
}  # fmt: skip
