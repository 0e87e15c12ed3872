"""Inputs for the BlipMQ functions of the hot path: Publish frames in several layouts, and logs whose records came from anywhere."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from braidmq.log import attrs
from braidmq.wire.blipmq import Ack, AnyMessage, Envelope, Metadata, Ping, Publish, Subscribe, encode

TOPIC = b"sensor/temperature"
STEADY_MS = 1_700_000_000_000
REPLY_TIME = 1_700_000_000
PAYLOAD_MAX = 1000


def other_layout(publish: Publish, sequence: int) -> bytes:
    """The same message as builders of the official runtimes lay it out: tables before their texts, fields in another order."""
    frame = bytearray(encode(Envelope(publish, sequence, 0, (("x", "y"),))))
    # The envelope with room for metadata, and none in it: its vtable says that the field is left out.
    frame[4 + 4 + 12 : 4 + 4 + 14] = b"\0\0"
    return bytes(frame)


class Bench:
    """Routes, and a place for what a parser makes of frames."""

    def __init__(self, hot: ModuleType, partitions: int = 1, level: int = 2) -> None:
        self.hot = hot
        self.accumulators = [hot.Accumulator(number, 100 * number) for number in range(partitions)]
        self.routes = hot.RouteTable()
        self.routes.add(hot.Route(TOPIC, self.accumulators, level))
        self.dirty: list[Any] = []
        self.out = hot.ByteBuffer()

    def parse(self, data: bytes, lane: int = 0, payload_max: int = PAYLOAD_MAX, start: int = 0, stop: int = 1 << 40) -> Any:
        return self.hot.parse_publish(
            data, start, stop, self.routes, lane, payload_max, STEADY_MS, REPLY_TIME, self.dirty, self.out
        )

    def state(self) -> tuple[Any, ...]:
        """Everything that was made: answers, which partitions are dirty, their batches."""
        out = (self.out.level, self.out.frames, self.out.take())
        marks = [(part.dirty, part.count, part.next_offset) for part in self.accumulators]
        batches = [part.take(5, 1) if part.count else b"" for part in self.accumulators]
        return out, [part.owner for part in self.dirty], marks, batches


def records_of(hot: ModuleType, batch: bytes) -> list[tuple[int, bytes, list[tuple[int, bytes]]]]:
    """Offset, value and attributes of the records of a batch."""
    found: list[Any] = []

    def note(offset: int, timestamp: int, key: bytes | None, value: bytes, block: bytes) -> None:
        found.append((offset, value, attrs.decode_attrs(block)))

    hot.decode_records(batch, 0, 1 << 30, note)
    return found


def published(qos: int, message_id: str = "") -> bytes:
    """The attributes of a record that came by BlipMQ."""
    return attrs.encode_attrs([(attrs.TAG_BLIPMQ, bytes((qos,)) + message_id.encode())])


FQ = attrs.encode_attrs([(attrs.TAG_FQ, bytes(range(16)) + b"\x04user\x01node")])
OTHER_HEADER = attrs.encode_headers({"trace": b"1", "": b"x-", "x": b"-"})
SPECIAL = {
    "user header": attrs.encode_headers({"x-trace": b"1"}),
    "compression": attrs.encode_attrs([(attrs.TAG_BLIPMQ, b"\0"), (attrs.TAG_COMPRESSION, b"gzip")]),
    "federation": attrs.encode_attrs([(attrs.TAG_FEDERATION, b"a:1\0a")]),
    "dead letter": attrs.encode_attrs([(attrs.TAG_REASON, b"rejected")]),
    "long id": published(1, "i" * 256),
    "foreign letters": published(1, "é"),
    "empty tag": attrs.encode_attrs([(attrs.TAG_BLIPMQ, b"")]),
    "cut": b"\x03\0\0\0abc",
    "past its block": b"\x07\0\0\0\x40\0\x09\0\0\0\x01",
    "short fq id": attrs.encode_attrs([(attrs.TAG_FQ, b"123")]),
    "header without a name": attrs.encode_attrs([(attrs.TAG_HEADER, b"\x01")]),
    "header past its end": attrs.encode_attrs([(attrs.TAG_HEADER, b"\x09\0ab")]),
}


def random_frame(rng: random.Random) -> bytes:
    """A frame that a client may send, most often a plain Publish."""
    text = rng.choice(["", "m", "message-17", "i" * 255, "i" * 256, "é"])
    topic = rng.choice([TOPIC.decode()] * 6 + ["unknown", "a/+", "$SYS/auth", ""])
    payload = rng.randbytes(rng.choice((0, 1, 2, 3, 16, 100, 999, 1001)))
    ttl_ms = rng.choice((0, 0, 1, 60_000, (1 << 53) - 1, 1 << 53, (1 << 64) - 1))
    publish = Publish(topic, payload, rng.choice((0, 0, 1, 1, 1, 2, -1)), ttl_ms, rng.choice((None, text, text)))
    sequence = rng.choice((0, 7, (1 << 64) - 1))
    if rng.random() < 0.3:
        return other_layout(publish, sequence)
    message: AnyMessage = rng.choice([publish] * 12 + [Ping(3), Ack("a"), Subscribe("a")])  # type: ignore[list-item]
    metadata: Metadata = (("x-a", "b"),) if rng.random() < 0.05 else ()
    return encode(Envelope(message, sequence, 9, metadata))


def random_batches(rng: random.Random, hot: ModuleType) -> bytes:
    """Batches one behind the other whose records came by any protocol."""
    log = bytearray()
    offset = rng.choice((0, 3, 1 << 33))
    blocks = [
        None, None, published(0), published(0, "m"), published(1, "message-17"), published(1), published(7, "m"), FQ, OTHER_HEADER,
        attrs.encode_attrs([(9, b"new"), (attrs.TAG_BLIPMQ, b"\1a"), (attrs.TAG_BLIPMQ, b"\0b")]),
        attrs.encode_attrs([(attrs.TAG_FQ, bytes(16)), (attrs.TAG_BLIPMQ, b"\0")]),
    ]  # fmt: skip
    for _ in range(rng.randint(1, 4)):
        accumulator = hot.Accumulator(None, offset)
        for _ in range(rng.choice((1, 2, 5, 30))):
            block = rng.choice(list(SPECIAL.values())) if rng.random() < 0.05 else rng.choice(blocks)
            expiry = rng.choice((0, 0, 0, 1_800_000_000_000))
            accumulator.append(rng.choice((None, b"key")), rng.randbytes(rng.choice((0, 1, 5, 100))), expiry, block)
        offset = accumulator.next_offset
        log += accumulator.take(rng.choice((0, 1, 999, 1_700_000_000_123, (1 << 62))), 1)
    return bytes(log)
