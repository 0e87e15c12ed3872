"""How a BlipMQ message lies in the log, and how a record of any protocol goes out as one.

| In the log | As a Message |
|---|---|
| value | payload; a compressed one is expanded for subscribers that do not accept its compression |
| partition and offset | sequence_number |
| time of the write | timestamp; of a dead letter, the time of the record that became it |
| BlipMQ's attributes | message_id, QoS |
| fq's message id | message_id, as 32 hexadecimal digits; QoS 1 |
| neither | message_id is the sequence_number in digits; QoS 1 |
| headers named `x-...` | metadata, in order |
| what makes a record a dead letter | metadata `dlq_...` |
| where it began, and the brokers it came through | metadata `origin` and `via`, on links between brokers only |

Most records need no metadata: those are encoded by the compiled part, once for all subscribers at the same place. The rest go
one by one through here.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from braidmq import hot
from braidmq.base import compression, limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.push import Chunk, Feed, PushRecord
from braidmq.broker.push.chunk import OBJECT_BYTES
from braidmq.hot import layout
from braidmq.hot.expiring import expiry_column
from braidmq.log import attrs
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Envelope, Message, Metadata

COMPRESSIONS: Final = ("gzip", "lz4")
_NAME = struct.Struct("<H")
_FAILURES = struct.Struct("<Iqq")
_REFUSAL = struct.Struct("<Bq")
_FQ_ID_BYTES: Final = 16
_CODES: Final = {"expired": 9, "overflow": 4, "rejected": 8}
_REASONS: Final = {"max_retries_exceeded": "max_attempts", "processing_error": "rejected", "validation_failed": "rejected"}
"""What other protocols call the reasons of dead letters."""
_CODE_OTHERWISE: Final = 7
USER_ENTRIES_MAX: Final = limits.BLIPMQ_METADATA_ENTRIES_MAX - 10
USER_BYTES_MAX: Final = limits.BLIPMQ_METADATA_BYTES_MAX - 4 * limits.KIB
"""How much metadata of users a message may have: the broker adds some of its own when it delivers, and a frame has one limit."""

logger = logging.getLogger("braidmq.blipmq")


# --- into the log


def publish_attrs(qos: int, message_id: str, metadata: Metadata, federation: tuple[str, str] | None = None) -> bytes:
    """The attributes of a record from a Publish with `metadata`."""
    block = [(attrs.TAG_BLIPMQ, bytes((qos,)) + message_id.encode())]
    named = ""
    for key, value in metadata:
        if key.startswith(blipmq.USER_PREFIX):
            raw = key.encode()
            block.append((attrs.TAG_HEADER, _NAME.pack(len(raw)) + raw + value.encode()))
        elif key == blipmq.META_COMPRESSION and not named:
            named = value
            block.append((attrs.TAG_COMPRESSION, value.encode()))
    if federation is not None:
        block.append((attrs.TAG_FEDERATION, "\0".join(federation).encode()))
    return attrs.encode_attrs(block)


def check_metadata(metadata: Metadata) -> None:
    """Refuse more metadata of users than a delivery could carry."""
    own = [len(key) + len(value.encode()) for key, value in metadata if key.startswith(blipmq.USER_PREFIX)]
    if len(own) > USER_ENTRIES_MAX or sum(own) > USER_BYTES_MAX:
        reason = f"{len(own)} entries of user metadata with {sum(own)} bytes, more than {USER_ENTRIES_MAX} and {USER_BYTES_MAX}"
        raise BraidError("INVALID_MESSAGE", reason=reason)


def check_compression(payload: bytes, name: str, payload_max: int) -> None:
    """Refuse a compressed payload that not every subscriber could be given."""
    if name not in COMPRESSIONS:
        raise BraidError("UNSUPPORTED_COMPRESSION", name=name)
    expand(payload, name, payload_max)


def expand(payload: bytes, name: str, payload_max: int) -> bytes:
    """A payload as it was before it was compressed."""
    try:
        return compression.decompress(compression.IDS[name], payload, payload_max)
    except compression.TooLarge:
        raise BraidError("RECORD_TOO_LARGE", size=f"more than {payload_max}", limit=payload_max) from None
    except compression.CompressionFault as fault:
        raise BraidError("INVALID_MESSAGE", reason=f"the payload is not {name}: {fault}") from None


# --- out of the log


@dataclass(frozen=True, slots=True)
class Described:
    """What a record is as a message."""

    qos: int
    message_id: str
    timestamp_ms: int
    metadata: Metadata
    compression: str
    origin: str
    """Where it was published first; empty for here."""
    via: str


def describe(record: PushRecord, sequence: int) -> Described:
    """What the attributes of a record say."""
    qos, message_id, timestamp_ms, named, origin, via = 1, "", record.timestamp, "", "", ""
    metadata: list[tuple[str, str]] = []
    letter: dict[int, bytes] = {}
    ours = False
    room = USER_BYTES_MAX
    for tag, data in entries(record.attrs):
        match tag:
            case attrs.TAG_BLIPMQ if data:
                ours, qos, message_id = True, min(data[0], 1), data[1:].decode(errors="replace")
            case attrs.TAG_FQ if not ours and len(data) >= _FQ_ID_BYTES:
                message_id = data[:_FQ_ID_BYTES].hex()
            case attrs.TAG_HEADER if len(data) >= _NAME.size:
                size = _NAME.unpack_from(data)[0]
                name = data[2 : 2 + size].decode(errors="replace")
                room -= len(data)
                if name.startswith(blipmq.USER_PREFIX) and room >= 0 and len(metadata) < USER_ENTRIES_MAX:
                    # A header of another protocol may be of any size; what does not fit stays behind.
                    metadata.append((name, data[2 + size :].decode(errors="replace")))
            case attrs.TAG_COMPRESSION:
                named = data.decode(errors="replace")
            case attrs.TAG_FEDERATION:
                origin, _, via = data.decode(errors="replace").partition("\0")
            case _ if tag in attrs.DEAD_LETTER_TAGS:
                letter[tag] = data
    if letter:
        metadata = [*_letter_metadata(letter), *metadata]
        if len(letter.get(attrs.TAG_REFUSAL, b"")) == _REFUSAL.size:
            timestamp_ms = _REFUSAL.unpack(letter[attrs.TAG_REFUSAL])[1]
    if not message_id and qos:
        message_id = str(sequence)
    return Described(qos, message_id, timestamp_ms, tuple(metadata), named, origin, via)


def entries(block: bytes) -> list[tuple[int, bytes]]:
    """What the attributes of a record are, as far as they are sound."""
    try:
        return attrs.decode_attrs(block)
    except BraidError:
        # A producer of whole batches writes its own attributes; unsound ones say nothing, and the payload still counts.
        return []


def _letter_metadata(letter: dict[int, bytes]) -> Metadata:
    reason = letter.get(attrs.TAG_REASON, b"").decode(errors="replace")
    reason = _REASONS.get(reason, reason)
    failures = letter.get(attrs.TAG_FAILURES, b"")
    refusal = letter.get(attrs.TAG_REFUSAL, b"")
    code = refusal[0] if refusal else _CODES.get(reason, _CODE_OTHERWISE)
    attempts = _FAILURES.unpack(failures)[0] if len(failures) == _FAILURES.size else 0
    return (
        (blipmq.META_DLQ_TOPIC, letter.get(attrs.TAG_ORIGIN_TOPIC, b"").decode(errors="replace")),
        (blipmq.META_DLQ_CODE, str(code)),
        (blipmq.META_DLQ_REASON, reason),
        (blipmq.META_DLQ_ATTEMPTS, str(attempts)),
    )


def refusal_entry(code: int, timestamp_ms: int) -> tuple[int, bytes]:
    """What a dead letter of a subscriber says besides what all letters say."""
    return attrs.TAG_REFUSAL, _REFUSAL.pack(code, timestamp_ms)


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """All that the bytes of a delivery depend on, besides the record. One object for each: it is a key by itself."""

    qos_max: int
    ticks_per_s: int
    accepts: frozenset[str] = frozenset()
    """Compressions that the subscriber understands."""
    broker_id: str = ""
    """Set on links between brokers: messages then carry where they came from."""
    payload_max: int = limits.BLIPMQ_PAYLOAD_BYTES_MAX

    def ticks(self, timestamp_ms: int) -> int:
        return max(0, timestamp_ms) * self.ticks_per_s // 1000


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a run of records."""

    data: bytes
    count: int
    next_offset: int
    offsets: Sequence[int] = ()
    """Those of frames with QoS 1, which have to be acknowledged."""
    ids: Sequence[bytes] = ()
    """Their message_ids."""

    @property
    def weight_bytes(self) -> int:
        return len(self.data) + len(self.ids) * OBJECT_BYTES


def encode_run(feed: Feed, topic: str, chunk: Chunk, stop: int, wanted: bytes | None, form: Form) -> Frames:
    """Records of a chunk before `stop`, as Message frames of `topic`."""
    out = hot.ByteBuffer()
    parts: list[bytes] = []
    ids: list[tuple[int, bytes, int]] | None = [] if form.qos_max else None
    count = 0
    position = first = chunk.first
    name = topic.encode()
    while position < stop:
        if form.broker_id:
            status = hot.SPECIAL
        else:
            mask = wanted if wanted is None or position == first else wanted[position - first :]
            frames, position, status = hot.encode_messages(
                chunk.batches, position, stop, name, feed.sequence_base, form.qos_max, form.ticks_per_s, mask, out, ids
            )
            count += frames
        if status == hot.COLLECTED:
            break
        if status == hot.DAMAGED:
            # The log was checked when it was read, so this is a bug of ours; the reader goes on behind it.
            logger.error("%s/%d: records from offset %d on cannot be encoded", feed.topic.name, feed.partition, position)
            position = stop
            break
        record = by_offset(chunk).get(position)
        if record is not None and (wanted is None or wanted[position - first]):
            expiry_ms = chunk.made("expiries", _expiries).get(position) if chunk.expires else None
            ttl_ms = 0 if expiry_ms is None else max(1, expiry_ms - chunk.read_at_ms)
            own, frame = encode_record(feed, topic, record, form, ttl_ms=ttl_ms)
            parts += (out.take(), frame)
            count += 1
            if own and ids is not None:
                ids.append((position, own, len(frame)))
        position += 1
    data = b"".join((*parts, out.take())) if parts else out.take()
    if not ids:
        return Frames(data, count, position)
    offsets, names, _ = zip(*ids, strict=True)
    return Frames(data, count, position, offsets, names)


def _expiries(chunk: Chunk) -> dict[int, int]:
    return expiries(chunk.batches, chunk.first, chunk.next_offset)


def by_offset(chunk: Chunk) -> dict[int, PushRecord]:
    """The living records of a chunk."""
    return chunk.made("by offset", lambda whole: {record.offset: record for record in whole.records()})


def encode_record(
    feed: Feed, topic: str, record: PushRecord, form: Form, *, attempt: int = 1, now_ms: int | None = None, ttl_ms: int = 0
) -> tuple[bytes, bytes]:
    """One record as a Message frame, and its message_id if it has to be acknowledged.

    A delivery that is repeated says so, and carries the time of its sending. `ttl_ms` is what is left of the record's life.
    """
    sequence = feed.sequence_base + record.offset
    described = describe(record, sequence)
    qos = min(described.qos, form.qos_max)
    payload = record.value
    metadata = list(described.metadata)
    if described.compression in form.accepts:
        metadata.insert(0, (blipmq.META_COMPRESSION, described.compression))
    else:
        payload = expanded(payload, described.compression, form.payload_max)
    if form.broker_id:
        metadata += _link_metadata(described, sequence, form.broker_id, ttl_ms)
    if attempt > 1:
        metadata.insert(0, (blipmq.META_ATTEMPT, str(attempt)))
    timestamp = form.ticks(described.timestamp_ms)
    sent = timestamp if now_ms is None else form.ticks(now_ms)
    message = Message(topic, payload, described.message_id or None, timestamp, qos)
    frame = blipmq.encode(Envelope(message, sequence, sent, tuple(metadata)))
    return described.message_id.encode() if qos else b"", frame


def expanded(payload: bytes, name: str, payload_max: int) -> bytes:
    """A payload for who takes no compressed ones; `name` says how it is compressed, if it is."""
    if not name:
        return payload
    try:
        return expand(payload, name, payload_max)
    except (BraidError, KeyError):
        # It was whole when it came; if this broker lost the means to expand it, the bytes are still the publisher's.
        return payload


def _link_metadata(described: Described, sequence: int, broker_id: str, ttl_ms: int) -> Metadata:
    origin = described.origin or f"{broker_id}:{sequence}"
    via = f"{described.via},{broker_id}" if described.via else broker_id
    ttl: Metadata = ((blipmq.META_TTL, str(ttl_ms)),) if ttl_ms else ()
    return ((blipmq.META_ORIGIN, origin), (blipmq.META_VIA, via), *ttl)


def expiries(batches: Sequence[Buffer], first: int, stop: int) -> dict[int, int]:
    """When records of some batches expire, of those that do and lie from `first` up to `stop`."""
    found: dict[int, int] = {}
    for data in batches:
        at = 0
        while at < len(data):
            head = layout.read_header(data, at)
            if head.flags & layout.FLAG_EXPIRY and not head.flags & layout.FLAG_CONTROL:
                column = enumerate(expiry_column(data, head, at).tolist(), head.base_offset)
                found.update({offset: expiry for offset, expiry in column if expiry and first <= offset < stop})
            at += head.length
    return found


# --- what filters are asked about


def candidates(chunk: Chunk, feed: Feed, topic: str, payload_max: int) -> dict[int, blipmq.Candidate]:
    """Each record as content filters see it: its payload expanded, its JSON parsed at most once for all of them."""

    def make(source: Chunk) -> dict[int, blipmq.Candidate]:
        found = {}
        for record in source.records():
            described = describe(record, feed.sequence_base + record.offset)
            payload = expanded(record.value, described.compression, payload_max)
            found[record.offset] = blipmq.Candidate(topic, payload, described.qos, dict(reversed(described.metadata)))
        return found

    return chunk.made("blipmq candidates", make)
