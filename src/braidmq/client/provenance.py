"""Reads what the broker writes into the attributes of a dead letter."""

from __future__ import annotations

import struct
from typing import Final

from braidmq.client.models import Provenance, Record
from braidmq.log.attrs import TAG_ERROR, TAG_FAILURES, TAG_ORIGIN_PLACE, TAG_ORIGIN_TOPIC, TAG_REASON, decode_attrs

_PLACE: Final = struct.Struct("<iq")
_FAILURES: Final = struct.Struct("<Iqq")


def provenance(record: Record) -> Provenance | None:
    """The story of a record of a dead-letter topic; None when it has none, as one that was written there by hand."""
    found = dict(decode_attrs(record.attrs))
    place, failures = found.get(TAG_ORIGIN_PLACE, b""), found.get(TAG_FAILURES, b"")
    if len(place) != _PLACE.size or len(failures) != _FAILURES.size:
        return None
    partition, offset = _PLACE.unpack(place)
    attempts, first_ms, last_ms = _FAILURES.unpack(failures)
    topic, reason, error = (
        found.get(tag, b"").decode("utf-8", "replace") for tag in (TAG_ORIGIN_TOPIC, TAG_REASON, TAG_ERROR)
    )
    return Provenance(topic, partition, offset, reason, error, attempts, first_ms, last_ms)
