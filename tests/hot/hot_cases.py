"""Inputs for the hot path: frames, batches valid and broken, and a way to say what a function made of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

from braidmq.base.errors import BraidError
from braidmq.hot import layout

Outcome = tuple[object, ...]

LIES = (
    0,
    1,
    7,
    8,
    79,
    80,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x02000000,
    0x02000001,
    0x04000001,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFF8,
    0xFFFFFFFF,
)


def crc32c_bit_by_bit(data: bytes, value: int = 0) -> int:
    """CRC-32C as its definition has it."""
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def produce_frame(topic: bytes, key: bytes, value: bytes, partition: int = -1) -> bytes:
    body = struct.pack(">H", len(topic)) + topic + struct.pack(">I", len(key)) + key + struct.pack(">I", len(value)) + value
    body += struct.pack(">i", partition)
    return b"\xaf\x01\x01\x01" + struct.pack(">I", len(body)) + body


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with a checksum that fits, so that what a checksum cannot catch is put to the test."""
    sealed = bytearray(batch)
    length = min(len(sealed), max(layout.CHECKSUM_FROM, int.from_bytes(sealed[4:8], "little")))
    struct.pack_into("<I", sealed, 8, _crc(bytes(sealed[layout.CHECKSUM_FROM : length])))
    return bytes(sealed)


def _crc(data: bytes) -> int:
    from braidmq.hot import pure

    return pure.crc32c(data)


def stored_batch(hot: ModuleType, base_offset: int, values: list[bytes], **more: Any) -> bytes:
    """A batch as it lies in a log."""
    keys = more.pop("keys", [None] * len(values))
    timestamp = more.pop("timestamp", 1_700_000_000_000)
    return bytes(hot.stamp_batch(hot.encode_batch(keys, values, **more), base_offset, 3, timestamp))


def expiring_batch(hot: ModuleType, base_offset: int, records: int) -> bytes:
    """A batch that FETCH must not serve as it lies."""
    accumulator = hot.Accumulator(None, base_offset)
    for number in range(records):
        accumulator.append(b"k", b"v%d" % number, 1_800_000_000_000 + number, b"\x02\0\0\0ab" if number % 2 else None)
    return bytes(accumulator.take(1_700_000_000_000, 0))


def random_log(rng: random.Random, hot: ModuleType, batches: int, base_offset: int = 0) -> bytes:
    """Batches one behind the other, of many shapes."""
    log = bytearray()
    offset = base_offset
    for _ in range(batches):
        records = rng.choice((1, 1, 2, 3, 7, 40))
        if rng.random() < 0.08:
            log += expiring_batch(hot, offset, records)
        else:
            values = [rng.randbytes(rng.choice((0, 1, 9, 100, 700))) for _ in range(records)]
            keys = [rng.choice((None, b"", b"key", rng.randbytes(20))) for _ in range(records)]
            attrs = [rng.choice((b"", b"\x03\0\0\0abc")) for _ in range(records)] if rng.random() < 0.3 else None
            producer = {"producer_id": 5, "producer_epoch": 1, "base_sequence": offset % 1000} if rng.random() < 0.3 else {}
            log += stored_batch(hot, offset, values, keys=keys, attrs=attrs, timestamp=1_000 + rng.randrange(5_000), **producer)
        offset += records
    return bytes(log)


def batch_starts(log: bytes) -> list[int]:
    """Where the batches of an undamaged log begin."""
    starts, at = [], 0
    while at < len(log):
        starts.append(at)
        at += layout.read_header(log, at).length
    return starts


def mutated(rng: random.Random, log: bytes) -> bytes:
    """`log` with a few changes that break readers; often sealed anew, since a checksum hides what lies behind it."""
    starts = batch_starts(log)
    broken = bytearray(log)
    for _ in range(rng.randint(1, 3)):
        start = rng.choice(starts)
        match rng.randrange(7):
            case 0:
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
            case 1:
                # A header field, or an entry of the columns behind it.
                at = start + 4 * rng.randrange(3, 20 + 3 * 4)
                if at + 4 <= len(broken):
                    struct.pack_into("<I", broken, at, rng.choice(LIES))
            case 2:
                at = start + 80 + 4 * rng.randrange(40)
                if at + 4 <= len(broken):
                    struct.pack_into("<I", broken, at, rng.randrange(2000))
            case 3:
                struct.pack_into("<H", broken, start + 14, rng.choice((0, 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0xFFFF)))
            case 4:
                struct.pack_into("<Q", broken, start + 16, rng.choice((0, 5, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)))
            case 5:
                del broken[rng.randrange(start, len(broken)) :]
                break
            case _:
                at = rng.randrange(start, len(broken))
                broken[at : at + 4] = struct.pack(">I", rng.choice(LIES))[: len(broken) - at]
    if rng.random() < 0.7:
        for start in starts:
            if start + 80 <= len(broken):
                broken[start:] = resealed(broken[start:])
    return bytes(broken)


def outcome_of(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """What a call returned, in a form that compares, or how it was refused. Only a BraidError may refuse."""
    try:
        return "returned", _plain(function(*arguments))
    except BraidError as error:
        return "refused", str(error)


def _plain(value: Any) -> Any:
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value
