"""Records of a topic: looking at them, following them, and adding one."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

from braidmq import hot
from braidmq.admin.api.places import ends_of, read_from
from braidmq.admin.call import Call, Nothing, read_cursor, write_cursor
from braidmq.admin.decoding import Decoder, decoder_of
from braidmq.admin.live import Event, LiveStream
from braidmq.admin.masking import Mask, mask_of
from braidmq.admin.shapes import Bounds
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.record_filter import compile_filter
from braidmq.broker.topics import Topic
from braidmq.log.attrs import decode_headers, encode_headers
from braidmq.security.rules import Rule

Encoding = Literal["text", "base64"]
Start = Literal["earliest", "latest", "offset", "timestamp"]
_READ_BYTES = 1 * limits.MIB
_LIVE_SECONDS = 0.25
_LIVE_MESSAGES = 200
_INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Message:
    """A record."""

    partition: int
    offset: int
    timestamp_ms: int
    value: str
    value_encoding: Annotated[Encoding, "base64 where the bytes are no UTF-8"]
    size_bytes: Annotated[int, "of the whole value"]
    truncated: Annotated[bool, "whether `value` is only its beginning"]
    headers: dict[str, str]
    key: str | None = None
    key_encoding: Encoding | None = None
    decoded: Annotated[Any | None, "what the value says by the schema of its topic, or as JSON; with `decode`"] = None
    decoded_as: Annotated[str | None, "what it was read as; empty where it was not"] = None
    schema_errors: Annotated[list[str] | None, "why it does not fit the schema of its topic"] = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Records, the oldest first, and where to go on."""

    messages: list[Message]
    oldest_offsets: Annotated[list[int], "of every partition"]
    newest_offsets: Annotated[list[int], "of every partition; the offset that the next record gets"]
    next_cursor: Annotated[str | None, "where the next page begins; none at the end of the log"] = None


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """Which records."""

    partition: Annotated[int, Bounds(-1, limits.PARTITIONS_MAX), "-1 is all of them"] = -1
    start: Annotated[Start, "`latest` is the last records before the end"] = "earliest"
    offset: Annotated[int, Bounds(0, _INT64_MAX), "for `start=offset`"] = 0
    timestamp_ms: Annotated[int, Bounds(0, 1 << 52), "for `start=timestamp`"] = 0
    limit: Annotated[int, Bounds(1, 1000), "how many records at most"] = 100
    filter: Annotated[
        str, Bounds(0, 4096), "as FETCH takes it: a part of key or value, an expression, or `$.a.b` for JSON that has the path"
    ] = ""
    value_bytes: Annotated[int, Bounds(0, limits.HTTP_BODY_BYTES_MAX), "how much of each value is shown"] = 64 * limits.KIB
    decode: Annotated[bool, "whether values are decoded by the schema of the topic, too"] = False
    cursor: Annotated[str, Bounds(0, 65536), "where to go on; `start` does not matter then"] = ""


@dataclass(frozen=True, slots=True)
class TailQuery:
    """Which records to follow."""

    partition: Annotated[int, Bounds(-1, limits.PARTITIONS_MAX), "-1 is all of them"] = -1
    filter: Annotated[str, Bounds(0, 4096), "as in a query of records"] = ""
    value_bytes: Annotated[int, Bounds(0, limits.HTTP_BODY_BYTES_MAX), "how much of each value is shown"] = 4 * limits.KIB
    decode: Annotated[bool, "whether values are decoded by the schema of the topic, too"] = False


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A record to be added."""

    value: str
    value_encoding: Encoding = "text"
    key: str | None = None
    key_encoding: Encoding = "text"
    headers: dict[str, str] = field(default_factory=dict)
    partition: Annotated[int, Bounds(-1, limits.PARTITIONS_MAX), "-1 chooses by key, or in turn"] = -1
    ttl_ms: Annotated[int, Bounds(0, limits.TTL_MS_MAX), "time to live; 0 is the topic's"] = 0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Where a record is now; `topic` is that of the dead letters where it did not fit the schema of its topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


async def list_messages(call: Call[MessageQuery, Nothing]) -> MessagePage:
    """Records of a topic from an offset, a time, the beginning or the end on, with the filter of FETCH, without moving anybody."""
    broker, query = call.broker, call.query
    topic = broker.topic(call.path["topic"])
    places = _cursor_places(query.cursor, topic) if query.cursor else await _first_places(broker, topic, query)
    found = await _read(broker, topic, places, query.limit, await _look_of(call, topic))
    ends = await asyncio.gather(*(ends_of(broker, topic, number) for number in range(topic.partitions)))
    more = any(offset < ends[number].newest for number, offset in places.items())
    following = write_cursor(sorted(places.items())) if more else None
    return MessagePage(found, [each.oldest for each in ends], [each.newest for each in ends], following)


async def tail_messages(call: Call[TailQuery, Nothing]) -> LiveStream:
    """Follow a topic: server-sent events, one `message` a record from now on."""
    broker, query = call.broker, call.query
    topic = broker.topic(call.path["topic"])
    places = {number: (await ends_of(broker, topic, number)).newest for number in _partitions(topic, query.partition)}

    async def step() -> list[Event]:
        call.require(Rule.READ_TOPIC, topic.name, what="tail_messages")
        if broker.topics.by_id(topic.id) is None:
            raise BraidError("TOPIC_NOT_FOUND", topic=topic.name)
        found = await _read(broker, topic, places, _LIVE_MESSAGES, await _look_of(call, topic))
        return [Event("message", message) for message in found]

    return LiveStream(step, _LIVE_SECONDS)


async def produce_message(call: Call[Nothing, NewMessage]) -> StoredMessage:
    """Add a record to a topic, as PRODUCE does; durable when the answer comes."""
    body = call.body
    key = b"" if body.key is None else bytes_of(body.key, body.key_encoding, "key")
    value = bytes_of(body.value, body.value_encoding, "value")
    attrs = encode_headers({name: text.encode() for name, text in body.headers.items()})
    broker = call.broker
    topic = broker.topics.get(call.path["topic"]) or await broker.auto_create(call.path["topic"], by=call.account)
    stored = await broker.admission.produce(topic, body.partition, key, value, ttl_ms=body.ttl_ms, attrs=attrs)
    return StoredMessage(stored.topic, stored.partition, stored.offset, stored.timestamp)


# --- where to begin


def _partitions(topic: Topic, wanted: int) -> range:
    if wanted >= topic.partitions:
        raise BraidError("PARTITION_NOT_FOUND", partition=wanted)
    return range(topic.partitions) if wanted < 0 else range(wanted, wanted + 1)


async def _first_places(broker: Broker, topic: Topic, query: MessageQuery) -> dict[int, int]:
    places = {}
    numbers = _partitions(topic, query.partition)
    for number in numbers:
        oldest, newest = await ends_of(broker, topic, number)
        match query.start:
            case "latest":
                places[number] = max(oldest, newest - max(1, query.limit // len(numbers)))
            case "offset":
                places[number] = max(query.offset, oldest)
            case "timestamp":
                places[number] = await broker.coordinator.offset_for_time(topic.name, number, query.timestamp_ms)
            case _:
                places[number] = oldest
    return places


def _cursor_places(cursor: str, topic: Topic) -> dict[int, int]:
    places = read_cursor(cursor)
    try:
        found = {number: offset for number, offset in places}
    except (TypeError, ValueError):
        found = {}
    fine = all(type(part) is int and 0 <= part <= _INT64_MAX for pair in found.items() for part in pair)
    if not found or not fine or max(found) >= topic.partitions:
        raise BraidError("INVALID_ARGUMENT", reason="`cursor` is none of this topic")
    return found


# --- reading


@dataclass(frozen=True, slots=True)
class _Look:
    """How records are looked at."""

    filter: str
    value_bytes: int
    mask: Mask | None
    decoder: Decoder | None


async def _look_of(call: Call[MessageQuery, Nothing] | Call[TailQuery, Nothing], topic: Topic) -> _Look:
    query = call.query
    return _Look(query.filter, query.value_bytes, mask_of(call, topic), await decoder_of(call, topic) if query.decode else None)


async def _read(broker: Broker, topic: Topic, places: dict[int, int], limit: int, look: _Look) -> list[Message]:
    """Records from `places` on, which are moved behind what was looked at."""
    found: list[Message] = []
    left = limit
    for turn, number in enumerate(list(places)):
        share = max(1, left // (len(places) - turn)) if left else 0
        if share:
            some, places[number] = await _read_partition(broker, topic, number, places[number], share, look)
            found += some
            left -= len(some)
    found.sort(key=lambda message: (message.timestamp_ms, message.partition, message.offset))
    return found


async def _read_partition(
    broker: Broker, topic: Topic, partition: int, offset: int, limit: int, look: _Look
) -> tuple[list[Message], int]:
    found: list[Message] = []
    deadline = broker.clock.monotonic() + limits.FILTER_SCAN_SECONDS_MAX
    while len(found) < limit and broker.clock.monotonic() < deadline:
        read = await read_from(broker, topic, partition, offset, _READ_BYTES)
        if offset < read.ends.oldest:
            offset = read.ends.oldest
            continue
        if not read.data:
            offset = max(offset, read.next_offset)
            break
        # Decoding and searching a megabyte takes milliseconds, so it is done beside the loop.
        take = partial(_chosen, read.data, partition, offset, limit - len(found), read.next_offset, look)
        some, following = await broker.compute(take)
        if following <= offset:
            break
        found += some
        offset = following
    return found, offset


def _chosen(data: bytes, partition: int, offset: int, limit: int, end: int, look: _Look) -> tuple[list[Message], int]:
    """Up to `limit` messages that match, as they are or as they are decoded, and the offset behind the last one looked at."""
    matches = compile_filter(look.filter) if look.filter else None
    wanted = limits.BATCH_RECORDS_MAX if matches is not None else limit

    def take(at: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> tuple[int, int, bytes | None, bytes, bytes]:
        return at, timestamp, key, value, attrs

    records, following = hot.decode_records(data, offset, wanted, take)
    found = []
    for at, timestamp, key, raw, attrs in records:
        value = raw
        if look.mask is not None:
            key, value = look.mask.key(key), look.mask.value(value)
        fits = matches is None or matches(key, value)
        reading = None if look.decoder is None else look.decoder.read(raw)
        if not fits and matches is not None and reading is not None and reading.read_as:
            fits = matches(key, json.dumps(reading.document, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if fits:
            message = message_of(partition, at, timestamp, key, value, attrs, look.value_bytes, look.mask)
            if reading is not None:
                message = replace(message, decoded=reading.document, decoded_as=reading.read_as, schema_errors=list(reading.errors))
            found.append(message)
            if len(found) >= limit:
                return found, at + 1
    return found, max(following, end if len(records) < wanted else following)


def message_of(
    partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes, value_bytes: int, mask: Mask | None
) -> Message:
    """A record as it is shown; its key and value are masked already."""
    text, encoding = shown(value[:value_bytes], cut=len(value) > value_bytes)
    headers = {name: shown(raw)[0] for name, raw in decode_headers(attrs).items()} if attrs else {}
    headers = headers if mask is None else mask.headers(headers)
    key_text, key_encoding = (None, None) if key is None else shown(key)
    return Message(
        partition, offset, timestamp, text, encoding, len(value), len(value) > value_bytes, headers, key_text, key_encoding
    )


def shown(raw: bytes, *, cut: bool = False) -> tuple[str, Encoding]:
    """Bytes as text where they are text; a character that was cut in two at the end does not count."""
    try:
        return raw.decode(), "text"
    except UnicodeDecodeError as fault:
        if cut and fault.reason == "unexpected end of data":
            return raw[: fault.start].decode(), "text"
    return base64.b64encode(raw).decode(), "base64"


def bytes_of(text: str, encoding: Encoding, name: str) -> bytes:
    """The bytes that a caller means."""
    if encoding == "text":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is not base64") from None
