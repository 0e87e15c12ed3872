"""What a message says, in values that JSON has: by the newest version of its schema that it fits, or why it fits none.

A topic holds messages of all versions that its schema ever had, and a message does not say which is its own. Versions are
therefore tried from the newest on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from braidmq.schemas.schema import Schema

VERSIONS_TRIED: Final = 8
"""Whoever looks at a message waits for all that are tried."""


@dataclass(frozen=True, slots=True)
class Reading:
    document: Any = None
    read_as: str = ""
    """The kind of schema, its name and version; empty where the message fits none."""
    errors: tuple[str, ...] = ()
    """Why it does not fit the newest version, where it fits none."""


def title_of(kind: str, name: str, version: int) -> str:
    return f"{kind}: {name}, version {version}"


def read_message(versions: Iterable[tuple[str, Schema]], value: bytes) -> Reading:
    """What a message says by the first of some versions, each with its title, that it fits."""
    errors: list[str] = []
    for title, schema in versions:
        found = schema.check(value)
        if not found:
            return Reading(as_json(schema.decode(value)), title)
        errors = errors or found
    return Reading(errors=tuple(errors))


def as_json(value: Any) -> Any:
    """A value with only what JSON has words for: bytes in hexadecimal, times and what is no number as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): as_json(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value.hex(" ") if isinstance(value, bytes) else str(value)
