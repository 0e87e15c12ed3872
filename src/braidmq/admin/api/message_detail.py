"""One record in full: its bytes, and what its schema makes of them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any

from braidmq import hot
from braidmq.admin.api.messages import Message, message_of
from braidmq.admin.api.places import read_from
from braidmq.admin.call import Call, Nothing
from braidmq.admin.decoding import Decoder, decoder_of
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.topics import Topic

_SHOWN_BYTES = 256 * limits.KIB
Record = tuple[int, int, bytes | None, bytes, bytes]


@dataclass(frozen=True, slots=True)
class MessageDetail:
    """A record with all that is known about it."""

    message: Message
    data: Annotated[str, "the bytes of its value in base64, up to 256 KiB"]
    decoded: Annotated[Any, "what the value says, where it is JSON or its topic has a schema that reads it"]
    decoded_as: Annotated[str, "what it was read as; empty where it was not"]
    schema_errors: Annotated[list[str], "why it does not fit the schema of its topic, or is not decoded"]
    masked: Annotated[list[str], "fields that the caller does not see"]


async def get_message(call: Call[Nothing, Nothing]) -> MessageDetail:
    """One record of a topic, decoded by the schema of its topic where it has one."""
    broker = call.broker
    topic = broker.topic(call.path["topic"])
    partition = _number(call, "partition")
    if partition >= topic.partitions:
        raise BraidError("PARTITION_NOT_FOUND", partition=partition)
    record = await _record(broker, topic, partition, _number(call, "offset"))
    decoder = await decoder_of(call, topic)
    # Decoding a megabyte takes milliseconds, so it is done beside the loop.
    found: MessageDetail = await broker.compute(lambda: _detail(partition, record, decoder))
    return found


def _detail(partition: int, record: Record, decoder: Decoder) -> MessageDetail:
    offset, timestamp, key, value, attrs = record
    mask, reading = decoder.mask, decoder.read(value)
    if mask is not None:
        key, value = mask.key(key), mask.value(value)
    message = message_of(partition, offset, timestamp, key, value, attrs, _SHOWN_BYTES, mask)
    data = base64.b64encode(value[:_SHOWN_BYTES]).decode()
    masked = sorted(mask.fields) if mask is not None else []
    return MessageDetail(message, data, reading.document, reading.read_as, list(reading.errors), masked)


async def _record(broker: Broker, topic: Topic, partition: int, offset: int) -> Record:
    """A record; OFFSET_OUT_OF_RANGE where there is none any more, or not yet."""
    read = await read_from(broker, topic, partition, offset, 1)

    def take(at: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> Record:
        return at, timestamp, key, value, attrs

    found = hot.decode_records(read.data, offset, 1, take)[0] if read.data else []
    if not found or found[0][0] != offset:
        oldest, newest = read.ends
        raise BraidError("OFFSET_OUT_OF_RANGE", offset=offset, topic=topic.name, partition=partition, oldest=oldest, newest=newest)
    record: Record = found[0]
    return record


def _number(call: Call[Nothing, Nothing], name: str) -> int:
    text = call.path[name]
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is a number from 0 on")
    return int(text)
