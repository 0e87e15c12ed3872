"""Which names users, roles and ACLs may have: what a person can type, read and tell apart, and what answers have room for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.naming import name_fault

INTERNAL_PREFIX: Final = "__"
"""Topics of the broker itself; no right reaches them."""


def check_user(name: str) -> None:
    _check("user name", name, limits.USER_NAME_BYTES_MAX)


def check_role(name: str) -> None:
    _check("role name", name, limits.ROLE_NAME_BYTES_MAX)


def check_acl_topic(topic: str) -> None:
    """A topic's name or a pattern; internal topics have no ACL because nobody reaches them."""
    reason = name_fault(topic, limits.TOPIC_NAME_BYTES_MAX)
    if not reason and topic.startswith(INTERNAL_PREFIX):
        reason = f"names that begin with {INTERNAL_PREFIX} are internal"
    if reason:
        raise BraidError("INVALID_TOPIC", reason=reason)


def distinct(what: str, names: Iterable[str], most: int) -> list[str]:
    """`names` without repetitions, in their order; refused when they are more than `most`."""
    found = list(dict.fromkeys(names))
    if len(found) > most:
        raise BraidError("INVALID_ARGUMENT", reason=f"{len(found)} {what} are more than {most}")
    return found


def _check(what: str, name: str, bytes_max: int) -> None:
    reason = name_fault(name, bytes_max)
    if reason:
        raise BraidError("INVALID_ARGUMENT", reason=f"{what}: {reason}")
