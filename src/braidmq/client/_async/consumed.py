"""A record in the hands of an application that reads with a consumer: it can be reported as failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from braidmq.client.models import Failure, Record

if TYPE_CHECKING:
    from .consumer import Consumer


class ConsumedRecord(Record):
    """Each consumer has a kind of its own, so that a record knows its consumer and is not a byte larger for it."""

    __slots__ = ()
    _consumer: ClassVar[Consumer]

    async def fail(self, reason: str = "processing_error", error: str = "") -> Failure:
        """Say that it could not be processed. It comes again later, or, after its last attempt, is a dead letter.

        The consumer reads on meanwhile, and commits nothing at or past this record until it is settled.
        """
        return await self._consumer.fail(self, reason, error)

    def __reduce__(self) -> tuple[object, ...]:
        # A copy in another process has no consumer there.
        return Record, tuple(self)


def kind_for(consumer: Consumer) -> type[ConsumedRecord]:
    """The kind of a consumer's records."""
    return type("Record", (ConsumedRecord,), {"__slots__": (), "_consumer": consumer, "__doc__": ConsumedRecord.__doc__})
