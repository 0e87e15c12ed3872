"""fq's messages in plain Python: frames of a data connection into rows, and rows into frames for consumers.

    exchange    u8 length, bytes            at most 127
    route       u8 length, bytes            at most 127; the key of the record
    message id  16 bytes
    sender      u8 length, bytes            not in what clients send in data mode
    hops        u8 count, 4 bytes each      not in what clients send in data mode
    payload     u32 length, bytes

Message id, sender and hops are kept in a record's attributes, one behind the other, as they stand in a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.pure_batch import Buffer, shape_fault
from braidmq.hot.pure_produce import FULL, NEED_MORE, OTHER_FRAME, Accumulator, ByteBuffer, Route, RouteTable

SWITCH: Final = 3

_TAG: Final = 80
"""Of the attribute; `braidmq.log.attrs` has the table of them."""
_ID_BYTES: Final = 16
_HOP_BYTES: Final = 4
_TAIL_BYTES_MAX: Final = 2 + limits.FQ_NAME_BYTES_MAX + _HOP_BYTES * limits.FQ_HOPS_MAX
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_ATTRS_HEAD = struct.Struct("<IHI")
_ENTRY = struct.Struct("<HI")


def parse_messages(
    buffer: Buffer, start: int, stop: int, routes: RouteTable, lane: int, sender_and_hops: bytes, payload_max: int,
    dirty: list[Accumulator], out: ByteBuffer,
) -> tuple[int, int, int, Route | None]:
    """Turn a run of data-mode frames of one exchange into rows.

    Takes whole frames from `buffer[start:stop]` as long as they name the exchange of the first one, which has a route, and
    adds them to the accumulator of `lane` (marked and put into `dirty` when it is not yet). `sender_and_hops` is the end of the
    attribute that every record gets. The route's durability level is noted in `out`, and its `counter`, which has no other use
    where the lane decides about the partition, grows by the bytes of payload. Returns where it stopped, how many records it
    took, why it stopped, and the route if it took any. A payload over `payload_max` stops it as soon as its length can be seen,
    and so does an impossible length.
    """
    if not _is_tail(sender_and_hops):
        raise BraidError("INVALID_ARGUMENT", reason="sender and hops are not as a frame has them")
    data = bytes(memoryview(buffer)[start:stop])
    end = len(data)
    attrs_head = _ATTRS_HEAD.pack(6 + _ID_BYTES + len(sender_and_hops), _TAG, _ID_BYTES + len(sender_and_hops))
    attrs_bytes = len(attrs_head) + _ID_BYTES + len(sender_and_hops)
    position = count = 0
    status = NEED_MORE
    route: Route | None = None
    accumulator: Accumulator | None = None
    while position < end:
        exchange_size = data[position]
        route_at = position + 1 + exchange_size
        if exchange_size > limits.FQ_NAME_BYTES_MAX:
            status = OTHER_FRAME
            break
        if route_at >= end:
            break
        route_size = data[route_at]
        if route_size > limits.FQ_NAME_BYTES_MAX:
            status = OTHER_FRAME
            break
        id_at = route_at + 1 + route_size
        payload_at = id_at + _ID_BYTES + 4
        if payload_at > end:
            break
        (size,) = _U32.unpack_from(data, payload_at - 4)
        if size > payload_max or route_size + size > limits.RECORD_BYTES_MAX:
            status = OTHER_FRAME
            break
        frame_end = payload_at + size
        if frame_end > end:
            break
        exchange = data[position + 1 : route_at]
        if accumulator is None:
            route = routes.get(exchange)
            if route is None:
                status = OTHER_FRAME
                break
            accumulator = route.accumulators[lane % len(route.accumulators)]
            out.level = max(out.level, route.level)
        elif route is None or exchange != route.topic:
            status = SWITCH
            break
        if not accumulator.writable:
            status = OTHER_FRAME
            break
        row_bytes = layout.ROW_OVERHEAD_BYTES + route_size + size
        if accumulator.count and (
            accumulator.rows_bytes + len(accumulator.attrs) + row_bytes + attrs_bytes > limits.FLUSH_BYTES_TARGET
            or accumulator.count >= limits.BATCH_RECORDS_MAX
        ):
            status = FULL
            break
        if not accumulator.dirty:
            accumulator.dirty = True
            dirty.append(accumulator)
        attrs = attrs_head + data[id_at : payload_at - 4] + sender_and_hops
        accumulator.append(data[route_at + 1 : id_at], data[payload_at:frame_end], 0, attrs)
        assert route is not None
        route.counter += size
        count += 1
        position = frame_end
    return start + position, count, status, route if count else None


def _is_tail(raw: bytes) -> bool:
    """Whether `raw` is a sender and hops, as they stand in a frame."""
    if not 2 <= len(raw) <= _TAIL_BYTES_MAX or raw[0] > limits.FQ_NAME_BYTES_MAX or raw[0] + 1 >= len(raw):
        return False
    hops = raw[raw[0] + 1]
    return hops <= limits.FQ_HOPS_MAX and len(raw) == 2 + raw[0] + _HOP_BYTES * hops


def encode_deliveries(
    batches: Sequence[Buffer], from_offset: int, to_offset: int, exchange: bytes, default_tail: bytes, skip_node: bytes | None,
    wanted: bytes | None, out: ByteBuffer,
) -> tuple[int, int]:
    """Write a frame for a consumer for each record in `[from_offset, to_offset)`.

    `batches` are slices of whole, plain batches. Id, sender and hops come from the record's attributes; a record without them has
    `default_tail` and an id made of its offset. A key that is too long for a route is cut. With `skip_node` records that were
    there already are left out, with `wanted` those whose byte, counted from `from_offset`, is 0. Returns how many frames were
    written, and the offset behind the last record that was looked at.
    """
    if len(exchange) > limits.FQ_NAME_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason="the exchange is too long")
    if not _is_tail(default_tail):
        raise BraidError("INVALID_ARGUMENT", reason="sender and hops are not as a frame has them")
    if skip_node is not None and len(skip_node) != _HOP_BYTES:
        raise BraidError("INVALID_ARGUMENT", reason="a node id has 4 bytes")
    head_bytes = bytes((len(exchange),)) + exchange
    count = 0
    next_offset = from_offset
    pieces: list[bytes] = []
    for data in batches:
        view = memoryview(data)
        position = 0
        while position < len(view):
            fault = shape_fault(view, position, len(view))
            if fault:
                raise BraidError("INVALID_BATCH", reason=fault)
            head = layout.read_header(view, position)
            if head.flags & layout.FLAGS_OPAQUE:
                raise BraidError("INVALID_BATCH", reason="compressed or encrypted batches are for the broker")
            if head.base_offset >= to_offset:
                break
            if not head.flags & layout.FLAG_CONTROL and head.next_offset > next_offset:
                body = bytes(view[position : position + head.length])
                for index, key_at, value_at, value_end in _rows(body, head, next_offset, to_offset):
                    offset = head.base_offset + index
                    if wanted is not None:
                        if offset - from_offset >= len(wanted):
                            raise BraidError("INVALID_ARGUMENT", reason="fewer wanted records than asked for")
                        if not wanted[offset - from_offset]:
                            continue
                    origin = _origin(body, head, index)
                    tail = origin[_ID_BYTES:] if origin else default_tail
                    if skip_node is not None and _passed(tail, skip_node):
                        continue
                    key = body[key_at : min(value_at - 4, key_at + limits.FQ_NAME_BYTES_MAX)]
                    message_id = origin[:_ID_BYTES] if origin else bytes(8) + _U64.pack(offset)
                    pieces += (head_bytes, bytes((len(key),)), key, message_id, tail, body[value_at - 4 : value_end])
                    count += 1
            next_offset = max(next_offset, min(head.next_offset, to_offset))
            position += head.length
    out.data += b"".join(pieces)
    out.frames += count
    return count, next_offset


def _rows(body: bytes, head: layout.BatchHeader, from_offset: int, to_offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Index, where the key begins, where the value begins and ends, of each row in the range."""
    at = head.rows_at
    for index in range(min(head.records, to_offset - head.base_offset)):
        left = head.attrs_at - at
        key_size = _U32.unpack_from(body, at)[0] if left >= layout.ROW_OVERHEAD_BYTES else left
        if key_size > left - layout.ROW_OVERHEAD_BYTES:
            raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
        value_at = at + 8 + key_size
        (value_size,) = _U32.unpack_from(body, value_at - 4)
        if value_size > left - layout.ROW_OVERHEAD_BYTES - key_size:
            raise BraidError("INVALID_BATCH", reason="a row runs past its batch")
        if head.base_offset + index >= from_offset:
            yield index, at + 4, value_at, value_at + value_size
        at = value_at + value_size + 8


def _origin(body: bytes, head: layout.BatchHeader, index: int) -> bytes:
    """Id, sender and hops of a record, or nothing. Attributes come from many writers; what is not as it should be is not there."""
    if not head.flags & layout.FLAG_ATTRS:
        return b""
    entry = head.rows_at - layout.padded(4 * head.records) + 4 * index
    at = int.from_bytes(body[entry : entry + 4], "little")
    size = head.length - head.attrs_at
    if at == layout.NO_ATTRS or at + 4 > size:
        return b""
    at += head.attrs_at
    end = at + 4 + int.from_bytes(body[at : at + 4], "little")
    at += 4
    if end > head.length:
        return b""
    while end - at >= _ENTRY.size:
        tag, length = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        if length > end - at:
            return b""
        if tag == _TAG:
            found = body[at : at + length]
            return found if length > _ID_BYTES and _is_tail(found[_ID_BYTES:]) else b""
        at += length
    return b""


def _passed(tail: bytes, node: bytes) -> bool:
    hops_at = 2 + tail[0]
    return any(tail[at : at + _HOP_BYTES] == node for at in range(hops_at, len(tail), _HOP_BYTES))
