"""Answers that several operations share, with their layouts."""

from __future__ import annotations

from typing import Final

from braidmq.wire.flymq.layout import BOOL, I32, I64, STR, TRAILING_STR, U64, Layout
from braidmq.wire.shape import shape


@shape
class RecordMetadata:
    """Where a record was written."""

    topic: str
    partition: int
    offset: int
    """0 for a record that has no place yet: a delayed one, or one in an open transaction."""
    timestamp: int
    """Milliseconds since the Unix epoch, by the broker's clock."""
    key_size: int
    """-1 without a key."""
    value_size: int


@shape
class Ok:
    """Done; failures are ERROR frames."""

    success: bool = True
    message: str = "OK"
    """Operations on users and ACLs answer with the user's or topic's name instead."""


@shape
class Offset:
    offset: int


RECORD_METADATA: Final = Layout(
    RecordMetadata, topic=STR, partition=I32, offset=U64, timestamp=I64, key_size=I32, value_size=I32
)
# The published server answers with the first byte alone, so the text may be missing when our client reads it.
OK: Final = Layout(Ok, success=BOOL, message=TRAILING_STR)
OFFSET: Final = Layout(Offset, offset=U64)
