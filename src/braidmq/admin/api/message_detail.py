"""One record in full: its bytes, and what its schema makes of them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Annotated, Any

from braidmq import hot
from braidmq.admin.api.messages import Message, message_of
from braidmq.admin.call import Call, Nothing
from braidmq.admin.masking import Mask, mask_of
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.log.partition import PartitionLog
from braidmq.schemas.schema import Schema

_SHOWN_BYTES = 256 * limits.KIB
_DECODED_BYTES_MAX = 1 * limits.MIB
Record = tuple[int, int, bytes | None, bytes, bytes]


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A record with all that is known about it."""

    message: Message
    data: Annotated[str, "the bytes of its value in base64, up to 256 KiB"]
    decoded: Annotated[Any, "what the value says, where it is JSON or its topic has a schema that reads it"]
    decoded_as: Annotated[str, "what it was read as; empty where it was not"]
    schema_errors: Annotated[list[str], "why it does not fit the schema of its topic"]
    masked: Annotated[list[str], "fields that the caller does not see"]


async def get_message(call: Call[Nothing, Nothing]) -> MessageDetail:
    """One record of a topic, decoded by the schema of its topic where it has one."""
    broker = call.broker
    topic = broker.topic(call.path["topic"])
    log = broker.partition(topic.name, _number(call, "partition"), "PARTITION_NOT_FOUND")
    offset, timestamp, key, value, attrs = await _record(broker, log, _number(call, "offset"))
    mask = mask_of(call, topic)
    name = topic.properties.get("schema", "")
    schema = await broker.schemas.find(name) if name else None
    known = broker.schemas.table.find(name) if name else None
    title = f"{name}, version {known.version}" if known is not None else ""

    def look() -> MessageDetail:
        decoded, decoded_as, errors = _decoded(schema, title, value)
        if mask is not None:
            decoded = mask.document(decoded)
        return _detail(log.partition, (offset, timestamp, key, value, attrs), mask, decoded, decoded_as, errors)

    # Decoding a megabyte takes milliseconds, so it is done beside the loop.
    found: MessageDetail = await broker.compute(look)
    return found


def _detail(partition: int, record: Record, mask: Mask | None, decoded: Any, decoded_as: str, errors: list[str]) -> MessageDetail:
    offset, timestamp, key, value, attrs = record
    if mask is not None:
        key, value = mask.key(key), mask.value(value)
    message = message_of(partition, offset, timestamp, key, value, attrs, _SHOWN_BYTES, mask)
    data = base64.b64encode(value[:_SHOWN_BYTES]).decode()
    return MessageDetail(message, data, decoded, decoded_as, errors, sorted(mask.fields) if mask is not None else [])


def _decoded(schema: Schema | None, title: str, value: bytes) -> tuple[Any, str, list[str]]:
    if len(value) > _DECODED_BYTES_MAX:
        return None, "", []
    errors = schema.check(value) if schema is not None else []
    if schema is not None and not errors:
        # What JSON has no words for, such as bytes and times, is shown as text.
        return json.loads(json.dumps(schema.decode(value), default=_as_text)), f"{schema.kind}: {title}", []
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None, "", errors
    return (document, "JSON", errors) if isinstance(document, (dict, list)) else (None, "", errors)


def _as_text(value: object) -> str:
    return value.hex(" ") if isinstance(value, bytes) else str(value)


async def _record(broker: Broker, log: PartitionLog, offset: int) -> Record:
    """A record; OFFSET_OUT_OF_RANGE where there is none any more, or not yet."""
    found: list[Record] = []
    if log.log_start <= offset < log.high_watermark:
        read = await broker.read_batches(log, offset, 1, 1, 0)

        def take(at: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> Record:
            return at, timestamp, key, value, attrs

        found, _ = hot.decode_records(b"".join(read.slices), offset, 1, take)
    if not found or found[0][0] != offset:
        raise BraidError(
            "OFFSET_OUT_OF_RANGE", offset=offset, topic=log.topic, partition=log.partition, oldest=log.log_start,
            newest=log.high_watermark,
        )  # fmt: skip
    return found[0]


def _number(call: Call[Nothing, Nothing], name: str) -> int:
    text = call.path[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is a number from 0 on")
    return int(text)
