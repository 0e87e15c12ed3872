"""Which names topics and groups may have.

A name is never a path: directories are named after numbers, so any text is safe there. What is refused is refused
for people: names that cannot be typed, told apart or shown.
"""

from __future__ import annotations

from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.naming import name_fault

INTERNAL_PREFIX: Final = "__"
"""Topics of the broker itself; clients neither see nor reach them."""


def check_topic(name: str) -> None:
    reason = name_fault(name, limits.TOPIC_NAME_BYTES_MAX)
    if not reason and name in (".", ".."):
        reason = "`.` and `..` are reserved"
    if not reason and name.startswith(INTERNAL_PREFIX):
        reason = f"names that begin with {INTERNAL_PREFIX} are internal"
    if reason:
        raise BraidError("INVALID_TOPIC", reason=reason)


def check_group(name: str) -> None:
    reason = name_fault(name, limits.GROUP_NAME_BYTES_MAX)
    if reason:
        raise BraidError("INVALID_GROUP", reason=reason)
