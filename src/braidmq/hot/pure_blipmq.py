"""BlipMQ in plain Python: Publish frames into rows and Acks, and stored records into Message frames."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.flatbuffer import (
    ENVELOPE,
    PUBLISH,
    TYPE_PUBLISH,
    Damaged,
    ack_frame,
    follow,
    message_frame,
    octets,
    string,
)
from braidmq.hot.pure_batch import Buffer, shape_fault
from braidmq.hot.pure_produce import FULL, NEED_MORE, OTHER_FRAME, Accumulator, ByteBuffer, Route, RouteTable
from braidmq.hot.pure_walk import COLLECTED, DAMAGED, SPECIAL

_TAG_HEADER: Final = 1
_TAG_BLIPMQ: Final = 64
_TAG_FQ: Final = 80
_TAGS_TOLD: Final = frozenset((16, 17, 18, 19, 20, 65, 66))
"""Attributes that a Message carries as metadata: dead letters, compression, federation. `braidmq.log.attrs` describes them."""
_FQ_ID_BYTES: Final = 16
_ID_BYTES_PLAIN_MAX: Final = 255
"""An id of so many ASCII characters is sound; what else there may be is looked at by the general path."""
_TTL_FOR_EVER: Final = 1 << 53
_U64_MASK: Final = (1 << 64) - 1

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BE32 = struct.Struct(">I")
_ATTRS = struct.Struct("<IHIB")
_OWN_LAYOUT: Final = struct.pack("<I6HiI", 16, 12, 28, 24, 4, 8, 16, 12, 36)
_OWN_PUBLISH: Final = {
    struct.pack("<BB7HiI", TYPE_PUBLISH, 0, 14, 28, 4, 16, 24, 8, id_place, 14, 24): bool(id_place) for id_place in (0, 20)
}
"""Envelope and table of a Publish as `publish_frame` writes them, and whether it has a message_id."""
_OWN_FIELDS = struct.Struct("<QIIB3xI")
_ENTRY = struct.Struct("<HI")


def parse_publish(
    buffer: Buffer, start: int, stop: int, routes: RouteTable, lane: int, payload_max: int, steady_ms: int, reply_time: int,
    dirty: list[Accumulator], out: ByteBuffer,
) -> tuple[int, int, int]:
    """Turn a run of plain Publish frames into rows and Acks.

    Takes whole frames from `buffer[start:stop]`, in any layout that is sound, as long as they have no metadata, a topic with a
    route that BlipMQ may publish to, a payload of at most `payload_max` bytes, and either QoS 0 or QoS 1 with a message_id. Each
    record goes to the partition `lane` modulo the topic's partitions, expiring `ttl_ms` after `steady_ms`, with QoS and
    message_id in its attributes; a frame with QoS 1 gets an Ack, stamped `reply_time`, in `out`. Returns where it stopped, how many
    records it took, and why it stopped.
    """
    # Slices of bytes are cheaper than slices of a view, so one copy of the run pays for itself.
    data = bytes(memoryview(buffer)[start:stop])
    end = len(data)
    frame_max = payload_max + limits.BLIPMQ_FRAME_SPARE_BYTES
    position = count = acks = 0
    status = NEED_MORE
    route: Route | None = None
    name = b""
    answers: list[bytes] = []
    while end - position >= 4:
        (size,) = _U32.unpack_from(data, position)
        if not limits.BLIPMQ_FRAME_BYTES_MIN <= size <= frame_max:
            status = OTHER_FRAME
            break
        frame_end = position + 4 + size
        if frame_end > end:
            status = NEED_MORE
            break
        status = OTHER_FRAME
        try:
            plain = _plain_publish(data[position + 4 : frame_end])
        except Damaged:
            break
        if plain is None:
            break
        topic, payload, qos, ttl_ms, message_id, sequence = plain
        if len(payload) > payload_max:
            break
        if route is None or topic != name:
            route = routes.get(topic) if _may_publish(topic) else None
            if route is None:
                break
            name = topic
        accumulator = route.accumulators[lane % len(route.accumulators)]
        if not accumulator.writable:
            break
        if accumulator.count and (
            accumulator.rows_bytes + len(accumulator.attrs) + 27 + len(message_id) + len(payload) > limits.FLUSH_BYTES_TARGET
            or accumulator.count >= limits.BATCH_RECORDS_MAX
        ):
            status = FULL
            break
        if not accumulator.dirty:
            accumulator.dirty = True
            dirty.append(accumulator)
        expiry = steady_ms + min(ttl_ms, limits.TTL_MS_MAX) if 0 < ttl_ms < _TTL_FOR_EVER else 0
        attrs = _ATTRS.pack(7 + len(message_id), _TAG_BLIPMQ, 1 + len(message_id), qos) + message_id
        accumulator.append(None, payload, expiry, attrs)
        if route.level > out.level:
            out.level = route.level
        if qos:
            answers.append(ack_frame(message_id, sequence, reply_time))
            acks += 1
        count += 1
        position = frame_end
        status = NEED_MORE
    out.data += b"".join(answers)
    out.frames += acks
    return start + position, count, status


def _plain_publish(body: bytes) -> tuple[bytes, bytes, int, int, bytes, int] | None:
    """Topic, payload, QoS, ttl_ms, message_id and sequence number, or None for a frame that is something else or special."""
    with_id = _OWN_PUBLISH.get(body[40:64]) if body[:24] == _OWN_LAYOUT else None
    if with_id is None or len(body) < 88:
        return _plain_publish_anyhow(body)
    # Laid out as we do it: all places are known, and only what lengths and offsets lead to is left to check.
    ttl_ms, payload_at, id_at, qos, topic_size = _OWN_FIELDS.unpack_from(body, 64)
    end = len(body)
    payload_at += 72
    id_at += 76
    message_id = b""
    if with_id:
        if not 80 <= id_at <= end - 4:
            return None
        message_id = body[id_at + 4 : id_at + 4 + _U32.unpack_from(body, id_at)[0]]
        if id_at + 4 + _U32.unpack_from(body, id_at)[0] > end:
            return None
    if 88 + topic_size > end or not 76 <= payload_at <= end - 4:
        return None
    payload_end = payload_at + 4 + _U32.unpack_from(body, payload_at)[0]
    if payload_end > end or not _is_plain(qos, message_id):
        return None
    sequence = _U64.unpack_from(body, 24)[0]
    return body[88 : 88 + topic_size], body[payload_at + 4 : payload_end], qos, ttl_ms, message_id, sequence


def _is_plain(qos: int, message_id: bytes) -> bool:
    return qos <= 1 and (bool(message_id) or not qos) and len(message_id) <= _ID_BYTES_PLAIN_MAX and message_id.isascii()


def _plain_publish_anyhow(body: bytes) -> tuple[bytes, bytes, int, int, bytes, int] | None:
    """The same for any other layout."""
    root = _U32.unpack_from(body)[0]
    _, kind_at, message_at, sequence_at, _, metadata_at = ENVELOPE.places(body, root)
    if not kind_at or not message_at or metadata_at or body[root + kind_at] != TYPE_PUBLISH:
        return None
    table = follow(body, root + message_at)
    _, topic_at, payload_at, qos_at, ttl_at, id_at = PUBLISH.places(body, table)
    if not topic_at or not payload_at:
        return None
    topic = octets(body, table + topic_at)
    payload = octets(body, table + payload_at)
    qos = body[table + qos_at] if qos_at else 0
    message_id = octets(body, table + id_at) if id_at else b""
    if not _is_plain(qos, message_id):
        return None
    ttl_ms = _U64.unpack_from(body, table + ttl_at)[0] if ttl_at else 0
    sequence = _U64.unpack_from(body, root + sequence_at)[0] if sequence_at else 0
    return topic, payload, qos, ttl_ms, message_id, sequence


def _may_publish(topic: bytes) -> bool:
    """Whether BlipMQ's own rules let a topic of the broker be published to."""
    return b"+" not in topic and b"#" not in topic and topic[:1] != b"$" and topic.count(b"/") < limits.BLIPMQ_LEVELS_MAX


def encode_messages(
    batches: Sequence[Buffer], from_offset: int, to_offset: int, topic: bytes, sequence_base: int, qos_max: int, ticks_per_s: int,
    wanted: bytes | None, out: ByteBuffer, ids: list[tuple[int, bytes, int]] | None,
) -> tuple[int, int, int]:
    """Records from `from_offset` up to `to_offset` as Message frames of `topic` in `out`.

    `batches` are pieces of whole, plain batches, in order. A frame's sequence number is `sequence_base` plus the record's offset,
    its QoS that of the record, at most `qos_max`; a record that did not come by BlipMQ has QoS 1, and its sequence number or fq's
    id for a message_id. Timestamps are counted in `ticks_per_s` (1, 1000, 1000000 or 1000000000). `wanted` has a byte for each
    offset from `from_offset` on; records with a 0 are passed over. For a frame with QoS 1 the offset, the message_id and the
    length of the frame are added to `ids`.

    Returns the number of frames, the next offset, and why it stopped: at the end, at a record that needs metadata (SPECIAL: the
    next offset is its own), or at bytes that are no batch.
    """
    if not 1 <= ticks_per_s <= 1_000_000_000:
        raise BraidError("INVALID_ARGUMENT", reason=f"{ticks_per_s} ticks a second")
    encoded = string(topic)
    frames: list[bytes] = []
    next_offset = from_offset
    status = COLLECTED
    for piece in batches:
        if next_offset >= to_offset:
            break
        data = bytes(piece)
        at = 0
        while at < len(data) and next_offset < to_offset and status == COLLECTED:
            if shape_fault(data, at, len(data)):
                status = DAMAGED
                break
            head = layout.read_header(data, at)
            if head.base_offset >= to_offset:
                break
            if head.next_offset > next_offset:
                if head.flags & layout.FLAGS_OPAQUE:
                    status = DAMAGED
                    break
                if head.flags & layout.FLAG_CONTROL:
                    next_offset = min(head.next_offset, to_offset)
                else:
                    next_offset, status = _encode_batch(
                        data, at, head, from_offset, next_offset, to_offset, encoded, sequence_base, qos_max, ticks_per_s, wanted,
                        frames, ids,
                    )  # fmt: skip
            at += head.length
        if status != COLLECTED:
            break
    if status == COLLECTED:
        # Offsets behind the last record hold nothing.
        next_offset = max(next_offset, to_offset)
    out.data += b"".join(frames)
    out.frames += len(frames)
    return len(frames), next_offset, status


def _encode_batch(
    data: bytes, at: int, head: layout.BatchHeader, from_offset: int, next_offset: int, to_offset: int, topic: bytes,
    sequence_base: int, qos_max: int, ticks_per_s: int, wanted: bytes | None, frames: list[bytes],
    ids: list[tuple[int, bytes, int]] | None,
) -> tuple[int, int]:  # fmt: skip
    """The frames of one batch; returns the next offset and a status."""
    column = layout.padded(4 * head.records)
    first = max(0, next_offset - head.base_offset)
    last = min(head.records, to_offset - head.base_offset)
    stamp = head.base_timestamp
    stamps = at + layout.HEADER_BYTES + 3 * column if head.flags & layout.FLAG_TIMESTAMPS else 0
    attrs_column = at + head.rows_at - column if head.flags & layout.FLAG_ATTRS else 0
    rows_end = at + head.attrs_at
    skipped = int.from_bytes(data[at + layout.HEADER_BYTES + 4 * first : at + layout.HEADER_BYTES + 4 * first + 4], "little")
    row = at + head.rows_at + skipped
    for index in range(first, last):
        offset = head.base_offset + index
        left = rows_end - row
        if left < 16:
            return offset, DAMAGED
        key_size = _BE32.unpack_from(data, row)[0]
        if key_size > left - 16:
            return offset, DAMAGED
        value_at = row + 8 + key_size
        value_size = _BE32.unpack_from(data, value_at - 4)[0]
        if value_size > left - 16 - key_size:
            return offset, DAMAGED
        row = value_at + value_size + 8
        if wanted is not None and not (offset - from_offset < len(wanted) and wanted[offset - from_offset]):
            continue
        block = b""
        if attrs_column:
            place = _U32.unpack_from(data, attrs_column + 4 * index)[0]
            if place != layout.NO_ATTRS:
                room = head.length - head.attrs_at
                if place + 4 > room:
                    return offset, DAMAGED
                size = _U32.unpack_from(data, rows_end + place)[0]
                if place + 4 + size > room:
                    return offset, DAMAGED
                block = data[rows_end + place + 4 : rows_end + place + 4 + size]
        sequence = (sequence_base + offset) & _U64_MASK
        known = _identity(block, sequence)
        if known is None:
            return offset, SPECIAL
        qos, message_id = known
        qos = min(qos, qos_max)
        if stamps:
            stamp = int.from_bytes(data[stamps + 8 * index : stamps + 8 * index + 8], "little", signed=True)
        ticks = _ticks(stamp, ticks_per_s)
        frame = message_frame(topic, data[value_at : value_at + value_size], message_id or None, sequence, ticks, ticks, qos)
        frames.append(frame)
        if qos and ids is not None:
            ids.append((offset, message_id, len(frame)))
    return head.base_offset + last, COLLECTED


def _ticks(timestamp_ms: int, ticks_per_s: int) -> int:
    if timestamp_ms < 0:
        return 0
    if ticks_per_s <= 1000:
        return timestamp_ms // (1000 // ticks_per_s)
    return timestamp_ms * (ticks_per_s // 1000) & _U64_MASK


def _identity(block: bytes, sequence: int) -> tuple[int, bytes] | None:
    """QoS and message_id of a record with these attributes; None when a Message needs more than these, or they are unsound."""
    qos, message_id, ours = 1, b"", False
    at = 0
    # A record that came by BlipMQ, and nothing else.
    if block[:2] == b"\x40\0" and 7 <= len(block) <= 7 + _ID_BYTES_PLAIN_MAX and block[2:6] == _U32.pack(len(block) - 6):
        message_id = block[7:]
        if message_id.isascii() and (message_id or not block[6]):
            return min(block[6], 1), message_id
    while at < len(block):
        if len(block) - at < 6:
            return None
        tag, size = _ENTRY.unpack_from(block, at)
        at += 6
        if size > len(block) - at:
            return None
        if tag == _TAG_BLIPMQ:
            if not 1 <= size <= 1 + _ID_BYTES_PLAIN_MAX:
                return None
            message_id = block[at + 1 : at + size]
            if not message_id.isascii():
                return None
            qos = min(block[at], 1)
            ours = True
        elif tag == _TAG_FQ and not ours:
            if size < _FQ_ID_BYTES:
                return None
            message_id = block[at : at + _FQ_ID_BYTES].hex().encode()
        elif tag == _TAG_HEADER:
            name_size = block[at] | block[at + 1] << 8 if size >= 2 else size
            if name_size > size - 2 or block[at + 2 : at + 2 + name_size].startswith(b"x-"):
                return None
        elif tag in _TAGS_TOLD:
            return None
        at += size
    if not message_id and qos:
        message_id = b"%d" % sequence
    return qos, message_id
