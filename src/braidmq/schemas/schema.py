"""What all kinds of schema have in common, and how they complain.

The packages that do the work are an extra, loaded when the first schema of a kind is compiled: a broker that uses no schemas
needs none of them, and one that lacks them says which extra to install.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Protocol

from braidmq.base import limits
from braidmq.base.errors import BraidError

KINDS: Final = ("json", "avro", "protobuf")
ALIASES: Final = {"proto": "protobuf"}


class Schema(Protocol):
    """A compiled schema. It does not change, and may be used from any thread."""

    @property
    def kind(self) -> str: ...

    @property
    def definition(self) -> bytes:
        """As it was registered."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal for definitions that differ only in what has no meaning, such as white space."""
        ...

    def check(self, value: bytes) -> list[str]:
        """What is wrong with a message; nothing when it fits."""
        ...

    def decode(self, value: bytes) -> Any:
        """What a message that fits says, in values that JSON has, as far as it has them."""
        ...

    def reads(self, writer: Schema) -> list[str]:
        """Why a message that fits `writer`, a schema of the same kind, may not fit this one."""
        ...


def enforce(schema: Schema, value: bytes) -> None:
    """Refuse a message that does not fit."""
    errors = schema.check(value)
    if errors:
        raise BraidError("SCHEMA_VALIDATION_FAILED", errors=", ".join(errors))


def canonical_kind(kind: str) -> str:
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS:
        raise BraidError("SCHEMA_KIND", kind=kind)
    return kind


def invalid(kind: str, reason: object) -> BraidError:
    text = str(reason)
    if len(text) > limits.SCHEMA_REASON_CHARS_MAX:
        text = text[: limits.SCHEMA_REASON_CHARS_MAX] + "..."
    return BraidError("SCHEMA_INVALID", kind=kind, reason=text)


def unavailable(kind: str, missing: ImportError) -> BraidError:
    return BraidError("SCHEMA_UNAVAILABLE", kind=kind, package=missing.name or str(missing))


def fingerprint_of(kind: str, canonical: bytes) -> str:
    return hashlib.sha256(kind.encode() + b"\0" + canonical).hexdigest()
