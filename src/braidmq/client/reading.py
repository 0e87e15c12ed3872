"""From the bytes of batches to `Record`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client.cipher import ValueCipher
from braidmq.client.models import NO_TIMESTAMP, Record
from braidmq.wire.flymq import FetchedItem

MakeRecord = Callable[[int, int, bytes | None, bytes, bytes], Record]

ALL: Final = 1 << 62
"""A limit that is none."""


def record_maker(topic: str, partition: int, cipher: ValueCipher | None, kind: type[Record] = Record) -> MakeRecord:
    """Builds the records of one partition from what `hot.decode_records` finds."""
    # Going around the class's own constructor saves a third of the cost of a record.
    new = tuple.__new__
    if cipher is None:
        return lambda offset, timestamp, key, value, attrs: new(kind, (topic, partition, offset, timestamp, key, value, attrs))
    decrypt = cipher.decrypt

    def make(offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> Record:
        return new(kind, (topic, partition, offset, timestamp, key, decrypt(value, topic, partition, offset), attrs))

    return make


def read_batches(data: bytes | memoryview, from_offset: int, make: MakeRecord, limit: int = ALL) -> tuple[list[Record], int]:
    """The records of whole batches from an offset on, and the offset that comes next.

    Records before one that does not decrypt are returned; asked to begin with that one, the call raises.
    """
    try:
        return hot.decode_records(data, from_offset, limit, make)
    except BraidError as fault:
        offset = fault.fields.get("offset")
        if fault.code != "DECRYPTION_FAILED" or not isinstance(offset, int) or offset <= from_offset:
            raise
        return hot.decode_records(data, from_offset, min(limit, offset - from_offset), make)


def read_items(items: Iterable[FetchedItem], make: MakeRecord) -> list[Record]:
    """The records of a documented FETCH answer, which carries no timestamps."""
    return [make(item.offset, NO_TIMESTAMP, item.key or None, item.value, b"") for item in items]
