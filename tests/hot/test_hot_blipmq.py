"""The BlipMQ functions of the hot path, on both implementations: what they promise, at their limits and past them."""

from __future__ import annotations

from types import ModuleType

import pytest
from hot_blipmq_cases import FQ, OTHER_HEADER, PAYLOAD_MAX, SPECIAL, STEADY_MS, TOPIC, Bench, other_layout, published, records_of
from hot_cases import stored_batch

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.hot.expiring import expiry_column, gap
from braidmq.log import attrs
from braidmq.wire.blipmq import Ack, Envelope, FrameReader, Message, Ping, Publish, TooLarge, decode, encode

NAME = TOPIC.decode()


def publish(payload: bytes = b"21.5", qos: int = 0, message_id: str | None = None, ttl_ms: int = 0, sequence: int = 1) -> bytes:
    return encode(Envelope(Publish(NAME, payload, qos, ttl_ms, message_id), sequence, 12345))


def decoded(stream: bytes) -> list[Envelope]:
    return [decode(body) for body in FrameReader().receive(stream) if not isinstance(body, TooLarge)]


# --- publishing


def test_publishes_become_rows_and_acks(implementation: ModuleType) -> None:
    bench = Bench(implementation)
    stream = publish() + publish(b"", 0, "id-0") + publish(b"21.6", 1, "id-1", sequence=2**64 - 1) + publish(b"x", 0, "", 0)
    assert bench.parse(stream) == (len(stream), 4, hot.NEED_MORE)
    (level, frames, answers), dirty, marks, (batch,) = bench.state()
    assert (level, frames, dirty, marks) == (2, 1, [0], [(True, 4, 4)])
    assert decoded(answers) == [Envelope(Ack("id-1"), 2**64 - 1, 1_700_000_000)]
    assert records_of(implementation, batch) == [
        (0, b"21.5", [(attrs.TAG_BLIPMQ, b"\0")]),
        (1, b"", [(attrs.TAG_BLIPMQ, b"\0id-0")]),
        (2, b"21.6", [(attrs.TAG_BLIPMQ, b"\1id-1")]),
        (3, b"x", [(attrs.TAG_BLIPMQ, b"\0")]),
    ]
    assert implementation.verify_batches(batch, 0, len(batch)) == (len(batch), "")


def test_qos_0_raises_the_level_too(implementation: ModuleType) -> None:
    bench = Bench(implementation, level=1)
    assert bench.parse(publish())[1:] == (1, hot.NEED_MORE)
    assert (bench.out.level, bench.out.frames, len(bench.out)) == (1, 0, 0)


@pytest.mark.parametrize(
    ("ttl_ms", "expiry"),
    [
        (0, 0),
        (1, STEADY_MS + 1),
        (60_000, STEADY_MS + 60_000),
        (limits.TTL_MS_MAX + 1, STEADY_MS + limits.TTL_MS_MAX),
        ((1 << 53) - 1, STEADY_MS + limits.TTL_MS_MAX),
        (1 << 53, 0),
        ((1 << 64) - 1, 0),
    ],
)
def test_a_time_to_live_ends_in_time(implementation: ModuleType, ttl_ms: int, expiry: int) -> None:
    bench = Bench(implementation)
    bench.parse(publish() + publish(ttl_ms=ttl_ms))
    batch = bench.state()[3][0]
    head = layout.read_header(batch)
    if expiry:
        assert expiry_column(batch, head).tolist() == [0, expiry]
    else:
        assert not head.flags & layout.FLAG_EXPIRY


@pytest.mark.parametrize("lane", [0, 1, 2, 3, 4, 2**63])
def test_a_publisher_keeps_to_its_lane(implementation: ModuleType, lane: int) -> None:
    bench = Bench(implementation, partitions=3)
    bench.parse(publish() + publish(), lane=lane)
    assert [part.count for part in bench.accumulators] == [2 if number == lane % 3 else 0 for number in range(3)]


def test_any_sound_layout_is_taken(implementation: ModuleType) -> None:
    one, other = Bench(implementation), Bench(implementation)
    message = Publish(NAME, b"payload", 1, 5000, "id")
    frame = other_layout(message, 8)
    assert frame != encode(Envelope(message, 8)) and decode(frame[4:]) == Envelope(message, 8)
    assert one.parse(frame) == (len(frame), 1, hot.NEED_MORE)
    other.parse(encode(Envelope(message, 8)))
    assert one.state() == other.state()


OTHERS = {
    "another message": encode(Envelope(Ping(1), 1)),
    "metadata": encode(Envelope(Publish(NAME, b"x"), 1, 0, (("x-a", "b"),))),
    "unknown topic": encode(Envelope(Publish("unknown", b"x"), 1)),
    "qos 2": publish(qos=2, message_id="m"),
    "qos -1": publish(qos=-1, message_id="m"),
    "qos 1 without id": publish(qos=1),
    "qos 1 with an empty id": publish(qos=1, message_id=""),
    "long id": publish(message_id="i" * 256),
    "id in other letters": publish(message_id="é"),
    "payload over the limit": publish(bytes(PAYLOAD_MAX + 1)),
    "cut short inside": publish()[:4] + publish()[4:-9] + bytes(9)[:0] + b"\xff" * 9,
    "length 0": bytes(8),
    "length 15": b"\x0f\0\0\0" + bytes(15),
    "length over the limit, body to come": (PAYLOAD_MAX + limits.BLIPMQ_FRAME_SPARE_BYTES + 1).to_bytes(4, "little"),
    "no flatbuffer": b"\x20\0\0\0" + bytes(32),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_what_is_not_plain_is_left_to_others(implementation: ModuleType, name: str) -> None:
    bench = Bench(implementation)
    first = publish(b"", 1, "before")
    assert bench.parse(first + OTHERS[name] + publish()) == (len(first), 1, hot.OTHER_FRAME)
    assert bench.accumulators[0].count == 1
    assert bench.out.frames == 1


@pytest.mark.parametrize("topic", ["a/+", "a/#", "$SYS/x", "/" * limits.BLIPMQ_LEVELS_MAX])
def test_topics_of_others_that_blipmq_may_not_publish_to(implementation: ModuleType, topic: str) -> None:
    bench = Bench(implementation)
    bench.routes.add(implementation.Route(topic.encode(), bench.accumulators, 0))
    assert bench.parse(encode(Envelope(Publish(topic, b"x"), 1))) == (0, 0, hot.OTHER_FRAME)
    fine = topic.replace("+", "b").replace("#", "b").replace("$", "")[: limits.BLIPMQ_LEVELS_MAX - 1]
    bench.routes.add(implementation.Route(fine.encode(), bench.accumulators, 0))
    assert bench.parse(encode(Envelope(Publish(fine, b"x"), 1)))[1] == 1


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 50, 120])
def test_a_frame_that_is_not_all_there_is_waited_for(implementation: ModuleType, size: int) -> None:
    bench = Bench(implementation)
    frame = publish(b"x" * 50)
    assert bench.parse(frame + frame[:size]) == (len(frame), 1, hot.NEED_MORE)
    assert bench.parse(b"zz" + frame + frame, start=2, stop=2 + len(frame)) == (2 + len(frame), 1, hot.NEED_MORE)


def test_a_partition_that_is_closed_is_left_to_others(implementation: ModuleType) -> None:
    bench = Bench(implementation)
    bench.accumulators[0].writable = False
    assert bench.parse(publish()) == (0, 0, hot.OTHER_FRAME)


def test_it_stops_when_a_batch_is_full_and_counts_attributes(implementation: ModuleType) -> None:
    bench = Bench(implementation)
    frame = publish(b"", 0, "i" * 255)
    row = 16 + 11 + 255
    fitting = limits.FLUSH_BYTES_TARGET // row
    stream = frame * (fitting + 1)
    assert bench.parse(stream) == (fitting * len(frame), fitting, hot.FULL)
    batch = bench.accumulators[0].take(1, 1)
    assert limits.FLUSH_BYTES_TARGET < len(batch) < 2 * limits.FLUSH_BYTES_TARGET
    assert bench.parse(stream, start=fitting * len(frame)) == (len(stream), 1, hot.NEED_MORE)


def test_a_first_message_fits_however_large_it_is(implementation: ModuleType) -> None:
    bench = Bench(implementation)
    size = limits.FLUSH_BYTES_TARGET + 1
    assert bench.parse(publish(bytes(size)), payload_max=size)[1:] == (1, hot.NEED_MORE)
    assert bench.parse(publish(), payload_max=size) == (0, 0, hot.FULL)


# --- delivering


Ids = list[tuple[int, bytes, int]]


def encoded(
    implementation: ModuleType, batches: list[bytes], start: int, stop: int, **more: object
) -> tuple[list[Envelope], Ids, tuple[int, int, int]]:
    out = implementation.ByteBuffer()
    ids: Ids = []
    wanted = more.get("wanted")
    result = implementation.encode_messages(
        batches, start, stop, TOPIC, more.get("base", 1000), more.get("qos_max", 1), more.get("ticks", 1), wanted, out, ids
    )
    assert out.frames == result[0]
    return decoded(out.take()), ids, result


def mixed_batch(implementation: ModuleType, base_offset: int = 10) -> bytes:
    accumulator = implementation.Accumulator(None, base_offset)
    accumulator.append(b"key", b"by FlyMQ")
    accumulator.append(None, b"by fq", 0, FQ)
    accumulator.append(None, b"qos 0", 0, published(0))
    accumulator.append(None, b"qos 0 with id", 0, published(0, "a"))
    accumulator.append(None, b"qos 1", 1_900_000_000_000, published(1, "b"))
    accumulator.append(None, b"", 0, OTHER_HEADER)
    accumulator.append(None, b"qos 1 without id", 0, published(1))
    batch: bytes = accumulator.take(1_700_000_000_999, 1)
    return batch


def test_records_of_any_protocol_become_messages(implementation: ModuleType) -> None:
    batch = mixed_batch(implementation)
    found, ids, result = encoded(implementation, [batch], 10, 17)
    assert result == (7, 17, hot.COLLECTED)
    at = 1_700_000_000
    assert found == [
        Envelope(Message(NAME, b"by FlyMQ", "1010", at, 1), 1010, at),
        Envelope(Message(NAME, b"by fq", bytes(range(16)).hex(), at, 1), 1011, at),
        Envelope(Message(NAME, b"qos 0", None, at, 0), 1012, at),
        Envelope(Message(NAME, b"qos 0 with id", "a", at, 0), 1013, at),
        Envelope(Message(NAME, b"qos 1", "b", at, 1), 1014, at),
        Envelope(Message(NAME, b"", "1015", at, 1), 1015, at),
        Envelope(Message(NAME, b"qos 1 without id", "1016", at, 1), 1016, at),
    ]
    assert [(offset, raw) for offset, raw, _ in ids] == [
        (10, b"1010"),
        (11, bytes(range(16)).hex().encode()),
        (14, b"b"),
        (15, b"1015"),
        (16, b"1016"),
    ]
    assert [size for _, _, size in ids] == [len(encode(envelope)) for envelope in found if envelope.message.qos]  # type: ignore[union-attr]


def test_a_subscriber_of_qos_0_gets_no_more(implementation: ModuleType) -> None:
    found, ids, result = encoded(implementation, [mixed_batch(implementation)], 10, 17, qos_max=0)
    assert [envelope.message.qos for envelope in found] == [0] * 7  # type: ignore[union-attr]
    assert ids == []
    out = implementation.ByteBuffer()
    assert implementation.encode_messages([mixed_batch(implementation)], 10, 17, TOPIC, 0, 1, 1, None, out, None) == result


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [(1, 1_700_000_000), (1000, 1_700_000_000_999), (10**6, 1_700_000_000_999_000), (10**9, 1_700_000_000_999_000_000)],
)
def test_timestamps_have_the_unit_that_was_asked_for(implementation: ModuleType, ticks: int, expected: int) -> None:
    found, _, _ = encoded(implementation, [mixed_batch(implementation)], 10, 11, ticks=ticks)
    assert found[0].timestamp == found[0].message.timestamp == expected  # type: ignore[union-attr]


@pytest.mark.parametrize("ticks", [0, 10**9 + 1])
def test_other_units_are_refused(implementation: ModuleType, ticks: int) -> None:
    with pytest.raises(BraidError, match="ticks a second"):
        encoded(implementation, [], 0, 1, ticks=ticks)


@pytest.mark.parametrize(("start", "stop"), [(10, 10), (10, 12), (12, 15), (16, 17), (0, 11), (16, 30), (17, 20)])
def test_only_what_lies_in_the_range(implementation: ModuleType, start: int, stop: int) -> None:
    found, _, result = encoded(implementation, [mixed_batch(implementation)], start, stop)
    expected = [1000 + offset for offset in range(max(start, 10), min(stop, 17))]
    assert [envelope.sequence for envelope in found] == expected
    assert result == (len(expected), max(stop, start), hot.COLLECTED)


def test_only_what_is_wanted(implementation: ModuleType) -> None:
    found, ids, result = encoded(implementation, [mixed_batch(implementation)], 11, 17, wanted=b"\0\1\0\1\0\0")
    assert [envelope.sequence for envelope in found] == [1012, 1014]
    assert [offset for offset, _, _ in ids] == [14]
    assert result == (2, 17, hot.COLLECTED)
    assert encoded(implementation, [mixed_batch(implementation)], 11, 17, wanted=b"\1")[2] == (1, 17, hot.COLLECTED), "short is 0"


def test_several_pieces_of_several_batches(implementation: ModuleType) -> None:
    pieces = [
        mixed_batch(implementation, 0) + stored_batch(implementation, 7, [b"a", b"b"]),
        memoryview(stored_batch(implementation, 9, [b"c"])),
        gap(10, 5, layout.read_header(mixed_batch(implementation, 0))) + stored_batch(implementation, 15, [b"d"]),
    ]
    found, _, result = encoded(implementation, pieces, 6, 40)  # type: ignore[arg-type]
    assert [(envelope.sequence, envelope.message.payload) for envelope in found] == [  # type: ignore[union-attr]
        (1006, b"qos 1 without id"), (1007, b"a"), (1008, b"b"), (1009, b"c"), (1015, b"d"),
    ]  # fmt: skip
    assert result == (5, 40, hot.COLLECTED)


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_it_stops_at_a_record_that_needs_more(implementation: ModuleType, name: str) -> None:
    accumulator = implementation.Accumulator(None, 5)
    accumulator.append(None, b"before", 0, published(0))
    accumulator.append(None, b"special", 0, SPECIAL[name])
    accumulator.append(None, b"after", 0, published(0))
    batch = accumulator.take(1000, 1)
    found, _, result = encoded(implementation, [batch], 5, 8)
    assert result == (1, 6, hot.SPECIAL)
    assert len(found) == 1
    assert encoded(implementation, [batch], 7, 8)[2] == (1, 8, hot.COLLECTED)
    assert encoded(implementation, [batch], 5, 8, wanted=b"\1\0\1")[2] == (2, 8, hot.COLLECTED), "unwanted, it stops nobody"


def test_what_is_no_plain_batch_stops_it(implementation: ModuleType) -> None:
    good = stored_batch(implementation, 0, [b"a"])
    sealed = bytearray(stored_batch(implementation, 1, [b"b"]))
    sealed[14] |= layout.FLAG_COMPRESSED
    assert encoded(implementation, [good + bytes(sealed)], 0, 9)[2] == (1, 1, hot.DAMAGED)
    assert encoded(implementation, [good, good[:-8]], 0, 9)[2] == (1, 1, hot.DAMAGED)
    assert encoded(implementation, [good + b"rest"], 0, 1)[2] == (1, 1, hot.COLLECTED), "what lies behind is not looked at"


def test_what_was_published_comes_out_again(implementation: ModuleType) -> None:
    bench = Bench(implementation)
    sent = [(b"%d" % number, number % 2, f"id-{number}") for number in range(50)]
    bench.parse(b"".join(publish(*each) for each in sent))
    found, ids, _ = encoded(implementation, [bench.state()[3][0]], 0, 50)
    got = [(one.message.payload, one.message.qos, one.message.message_id) for one in found]  # type: ignore[union-attr]
    assert got == sent
    assert [raw.decode() for _, raw, _ in ids] == [name for _, qos, name in sent if qos]
