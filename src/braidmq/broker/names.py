"""Which names topics and groups may have.

A name is never a path: directories are named after numbers, so any text is safe there. What is refused is refused
for people: names that cannot be typed, told apart or shown.
"""

from __future__ import annotations

from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError

INTERNAL_PREFIX: Final = "__"
"""Topics of the broker itself; clients neither see nor reach them."""


def check_topic(name: str) -> None:
    reason = _fault(name, limits.TOPIC_NAME_BYTES_MAX)
    if not reason and name in (".", ".."):
        reason = "`.` and `..` are reserved"
    if not reason and name.startswith(INTERNAL_PREFIX):
        reason = f"names that begin with {INTERNAL_PREFIX} are internal"
    if reason:
        raise BraidError("INVALID_TOPIC", reason=reason)


def check_group(name: str) -> None:
    reason = _fault(name, limits.GROUP_NAME_BYTES_MAX)
    if reason:
        raise BraidError("INVALID_GROUP", reason=reason)


def _fault(name: str, bytes_max: int) -> str:
    if not name:
        return "empty"
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        return f"{size} bytes are more than {bytes_max}"
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "control characters are not allowed"
    return ""
