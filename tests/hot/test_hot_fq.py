"""fq's hot loops: what they make of messages, the same for both implementations, and against each other on hostile input."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hot_cases import LIES, batch_starts, mutated, outcome_of, random_log, resealed, stored_batch
from toolchain import compiler_exists

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout, pure
from braidmq.log.attrs import TAG_FQ, TAG_HEADER, encode_attrs, encode_headers
from braidmq.wire.fq.messages import Message, MessageReader, decode_origin, encode_message, encode_origin, encode_tail

try:
    from braidmq.hot import _native as native
except ModuleNotFoundError:
    if compiler_exists():
        raise
    native = None

TWINS: list[Any] = [pure] if native is None else [pure, native]
both = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])

OWN, HOST, PEER = bytes((10, 254, 254, 1)), bytes((127, 0, 0, 1)), bytes((10, 0, 0, 2))
TAIL = encode_tail(b"alice", (OWN, HOST))
DEFAULT_TAIL = encode_tail(b"braid", (OWN,))
ID = bytes(range(16))
PAYLOAD_MAX = 100_000
EXCHANGES = {b"ex": (1, 1), b"many": (3, 2), b"": (1, 0), b"closed": (2, 1), b"x" * 127: (2, 2)}


def frame(exchange: bytes, route: bytes, payload: bytes, message_id: bytes = ID) -> bytes:
    return encode_message(Message(exchange, route, message_id, payload), full=False)


class Publisher:
    """One implementation with routes of its own."""

    def __init__(self, twin: ModuleType) -> None:
        self.twin = twin
        self.table = twin.RouteTable()
        self.out = twin.ByteBuffer()
        self.dirty: list[Any] = []
        self.accumulators: dict[bytes, list[Any]] = {}
        for exchange, (partitions, level) in EXCHANGES.items():
            mine = [twin.Accumulator(None, 1 << (4 * number)) for number in range(partitions)]
            self.accumulators[exchange] = mine
            self.table.add(twin.Route(exchange, mine, level))
        self.accumulators[b"closed"][1].writable = False
        self.accumulators[b"many"][2].append(b"k", b"v", 55, None)
        self.accumulators[b"many"][2].append(b"k", b"v", 0, b"\x01\0\0\0x")

    def parse(self, data: bytes, start: int = 0, stop: int | None = None, lane: int = 0) -> tuple[int, int, int, bytes | None]:
        position, count, status, route = self.twin.parse_messages(
            data, start, len(data) if stop is None else stop, self.table, lane, TAIL, PAYLOAD_MAX, self.dirty, self.out
        )
        assert (route is None) == (count == 0)
        return position, count, status, None if route is None else route.topic

    def state(self) -> tuple[object, ...]:
        taken = [a.take(77, 3) for mine in self.accumulators.values() for a in mine if a.count]
        marked = [a.dirty for mine in self.accumulators.values() for a in mine]
        octets = [self.table.get(exchange).counter for exchange in self.accumulators]
        return taken, marked, octets, len(self.dirty), self.out.level, len(self.out)


# --- messages in


@both
def test_a_run_of_messages_becomes_rows(twin: ModuleType) -> None:
    publisher = Publisher(twin)
    run = frame(b"ex", b"a.b", b"hello") + frame(b"ex", b"", b"", b"\xff" * 16)
    assert publisher.parse(run) == (len(run), 2, hot.NEED_MORE, b"ex")
    assert publisher.out.level == 1 and len(publisher.out) == 0
    assert publisher.table.get(b"ex").counter == 5, "bytes of payloads"
    (accumulator,) = publisher.dirty
    records, _ = twin.decode_records(accumulator.take(5, 0), 0, 9, lambda *record: record)
    first = encode_attrs([(TAG_FQ, encode_origin(ID, TAIL))])
    second = encode_attrs([(TAG_FQ, encode_origin(b"\xff" * 16, TAIL))])
    assert records == [(1, 5, b"a.b", b"hello", first), (2, 5, None, b"", second)]
    origin = decode_origin(encode_origin(ID, TAIL))
    assert origin is not None and (origin.sender, origin.hops) == (b"alice", (OWN, HOST))


@both
def test_it_stops_where_the_exchange_changes(twin: ModuleType) -> None:
    publisher = Publisher(twin)
    one, other = frame(b"ex", b"r", b"1"), frame(b"many", b"r", b"2")
    run = one + one + other + one
    assert publisher.parse(run) == (2 * len(one), 2, hot.SWITCH, b"ex")
    assert publisher.parse(run, 2 * len(one), lane=4) == (len(run) - len(one), 1, hot.SWITCH, b"many")
    assert [accumulator.count for accumulator in publisher.accumulators[b"many"]] == [0, 1, 2]
    assert publisher.parse(run, len(run) - len(one)) == (len(run), 1, hot.NEED_MORE, b"ex")
    assert publisher.out.level == 2 and len(publisher.dirty) == 2


@both
def test_any_cut_waits_for_the_rest(twin: ModuleType) -> None:
    whole = frame(b"ex", b"a.b", b"hello")
    for cut in range(len(whole)):
        assert Publisher(twin).parse(whole[:cut]) == (0, 0, hot.NEED_MORE, None)
        assert Publisher(twin).parse(whole + whole, 0, len(whole) + cut) == (len(whole), 1, hot.NEED_MORE, b"ex")


@both
def test_what_it_leaves_to_others(twin: ModuleType) -> None:
    good = frame(b"ex", b"r", b"1")
    over = b"\x02ex\x01r" + ID + struct.pack(">I", PAYLOAD_MAX + 1)
    for strange, alone in (
        (b"\x80", b"\x80"),
        (b"\x02ex\x80", b"\x02ex\x80"),
        (over, over),
        (b"\x02ex\x01r" + ID + b"\xff\xff\xff\xff", over),
    ):
        assert Publisher(twin).parse(alone) == (0, 0, hot.OTHER_FRAME, None)
        assert Publisher(twin).parse(good + strange) == (len(good), 1, hot.OTHER_FRAME, b"ex")
    assert Publisher(twin).parse(frame(b"nosuch", b"", b"")) == (0, 0, hot.OTHER_FRAME, None)
    assert Publisher(twin).parse(frame(b"closed", b"", b""), lane=1) == (0, 0, hot.OTHER_FRAME, None)
    assert Publisher(twin).parse(frame(b"closed", b"", b""), lane=2)[1] == 1
    largest = frame(b"x" * 127, b"r" * 127, b"p" * PAYLOAD_MAX)
    assert Publisher(twin).parse(largest) == (len(largest), 1, hot.NEED_MORE, b"x" * 127)


@both
def test_a_batch_is_full_by_its_rows_and_attributes_together(twin: ModuleType) -> None:
    """Empty messages have ten times more attributes than rows; counting rows alone would outgrow a batch."""
    publisher = Publisher(twin)
    run = frame(b"ex", b"", b"") * 200_000
    position, count, status, _ = publisher.parse(run)
    assert status == hot.FULL
    assert len(publisher.dirty[0].take(1, 1)) < limits.FLUSH_BYTES_TARGET + 5 * 4 * count
    assert publisher.parse(run, position)[2] in (hot.FULL, hot.NEED_MORE)


@both
@pytest.mark.parametrize("tail", [b"", b"\0", b"\x80" + b"s" * 128 + b"\0", b"\0\x21" + bytes(4 * 33), TAIL + b"x", TAIL[:-1]])
def test_a_tail_that_is_none_is_refused(twin: ModuleType, tail: bytes) -> None:
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        twin.parse_messages(b"", 0, 0, twin.RouteTable(), 0, tail, 1, [], twin.ByteBuffer())
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        twin.encode_deliveries([], 0, 1, b"", tail, None, None, twin.ByteBuffer())


# --- messages out


def deliveries(twin: ModuleType, batches: list[bytes], start: int, stop: int, **more: Any) -> tuple[list[Message], int, int]:
    out = twin.ByteBuffer()
    count, next_offset = twin.encode_deliveries(
        batches, start, stop, b"ex", DEFAULT_TAIL, more.get("skip_node"), more.get("wanted"), out
    )
    assert out.frames == count
    reader = MessageReader(full=True, payload_max=1 << 30)
    found = reader.receive(out.take())
    assert len(found) == count and reader.buffered_bytes == 0
    return found, count, next_offset


@both
def test_records_become_frames(twin: ModuleType) -> None:
    origin = encode_attrs([(TAG_HEADER, b"\x01\0nv"), (TAG_FQ, encode_origin(ID, TAIL))])
    attrs = [origin, b"", encode_headers({"h": b"v"})]
    batch = stored_batch(twin, 40, [b"one", b"", b"three"], keys=[b"a.b", None, b"k" * 300], attrs=attrs)
    found, count, next_offset = deliveries(twin, [batch], 40, 43)
    assert (count, next_offset) == (3, 43)
    assert found == [
        Message(b"ex", b"a.b", ID, b"one", b"alice", (OWN, HOST)),
        Message(b"ex", b"", bytes(15) + b"\x29", b"", b"braid", (OWN,)),
        Message(b"ex", b"k" * 127, bytes(15) + b"\x2a", b"three", b"braid", (OWN,)),
    ]


@both
def test_ranges_gaps_and_wishes(twin: ModuleType) -> None:
    one = stored_batch(twin, 10, [b"%d" % n for n in range(10, 15)])
    gap = bytes(layout.HEADER.pack(*layout.read_header(one)._replace(
        length=80, flags=layout.FLAG_CONTROL, base_offset=15, records=5, rows_at=80, attrs_at=80, plain_length=80
    )))  # fmt: skip
    two = stored_batch(twin, 20, [b"%d" % n for n in range(20, 25)])
    batches = [one + gap, two]

    def payloads(start: int, stop: int, **more: Any) -> tuple[list[int], int]:
        found, _, next_offset = deliveries(twin, batches, start, stop, **more)
        return [int(message.payload) for message in found], next_offset

    assert payloads(10, 25) == ([10, 11, 12, 13, 14, 20, 21, 22, 23, 24], 25)
    assert payloads(12, 22) == ([12, 13, 14, 20, 21], 22)
    assert payloads(16, 18) == ([], 18)
    assert payloads(24, 99) == ([24], 25)
    assert payloads(30, 99) == ([], 30)
    assert payloads(5, 8) == ([], 5)
    assert payloads(12, 22, wanted=bytes(n % 2 for n in range(10))) == ([13, 21], 22)
    with pytest.raises(BraidError, match="fewer wanted"):
        payloads(12, 22, wanted=b"\1\1")
    with pytest.raises(BraidError, match="compressed"):
        deliveries(twin, [resealed(one[:14] + b"\x01" + one[15:])], 0, 99)


@both
def test_a_node_gets_nothing_back_that_was_there(twin: ModuleType) -> None:
    origins = [
        encode_attrs([(TAG_FQ, encode_origin(ID, encode_tail(b"s", hops)))])
        for hops in ((OWN,), (OWN, PEER), (PEER,), (), (OWN,) * 31 + (PEER,), (PEER[2:] + PEER[:2], PEER[1:] + b"x"))
    ]
    batch = stored_batch(twin, 0, [b"%d" % n for n in range(7)], attrs=[*origins, b""])
    found, count, next_offset = deliveries(twin, [batch], 0, 7, skip_node=PEER)
    assert [message.payload for message in found] == [b"0", b"3", b"5", b"6"]
    assert (count, next_offset) == (4, 7)
    assert [message.payload for message in deliveries(twin, [batch], 0, 7, skip_node=OWN)[0]] == [b"2", b"3", b"5"]
    with pytest.raises(BraidError, match="4 bytes"):
        deliveries(twin, [batch], 0, 7, skip_node=b"123")


@both
@pytest.mark.parametrize(
    "data",
    [b"", ID, ID + b"\0", ID + b"\x80" + b"s" * 128 + b"\0", ID + b"\x01s\x21" + bytes(132), ID + TAIL + b"x", ID + TAIL[:-1]],
)
def test_an_attribute_that_is_wrong_is_not_there(twin: ModuleType, data: bytes) -> None:
    """Attributes also come from FlyMQ clients, who may write what they like."""
    batch = stored_batch(twin, 3, [b"v"], attrs=[encode_attrs([(TAG_FQ, data)])])
    assert deliveries(twin, [batch], 3, 4)[0] == [Message(b"ex", b"", bytes(15) + b"\x03", b"v", b"braid", (OWN,))]
    assert decode_origin(data) is None


@both
def test_what_failed_wrote_nothing(twin: ModuleType) -> None:
    out = twin.ByteBuffer()
    good = stored_batch(twin, 0, [b"a", b"b"])
    with pytest.raises(BraidError, match="INVALID_BATCH"):
        twin.encode_deliveries([good + good[:79]], 0, 9, b"ex", DEFAULT_TAIL, None, None, out)
    assert len(out) == 0 and out.frames == 0
    with pytest.raises(BraidError, match="the exchange is too long"):
        twin.encode_deliveries([good], 0, 9, b"e" * 128, DEFAULT_TAIL, None, None, out)


# --- against each other


def hostile_frames(rng: random.Random) -> bytes:
    names = (b"ex", b"ex", b"many", b"", b"closed", b"x" * 127, b"nosuch")
    run = bytearray()
    current = rng.choice(names)
    for _ in range(rng.randint(1, 30)):
        if rng.random() < 0.2:
            current = rng.choice(names)
        route, payload = rng.randbytes(rng.choice((0, 3, 127))), rng.randbytes(rng.choice((0, 1, 100, 900)))
        run += frame(current, route, payload, rng.randbytes(16))
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(len(run))
        if rng.random() < 0.5:
            run[at] = rng.choice((0, 1, 127, 128, 255))
        else:
            run[at : at + 4] = struct.pack(">I", rng.choice(LIES))
    return bytes(run)


def fed(twin: Any, data: bytes, rng: random.Random) -> list[object]:
    """All that one implementation does with `data`, given as a session gives it."""
    publisher = Publisher(twin)
    seen: list[object] = []
    start = 0
    for _ in range(60):
        stop = min(len(data) + 3, start + rng.choice((1, 7, 200, 100_000)))
        found = publisher.parse(data, start, stop, rng.randrange(5))
        seen.append(found)
        start = found[0]
        if found[2] == hot.OTHER_FRAME:
            start += 1
        if start >= len(data):
            break
    return [*seen, publisher.state()]


def random_attrs(rng: random.Random) -> bytes:
    match rng.randrange(5):
        case 0:
            return b""
        case 1:
            return encode_attrs([(TAG_FQ, rng.randbytes(rng.choice((0, 16, 18, 20, 300))))])
        case 2:
            return encode_headers({"n": b"v"})
        case _:
            hops = tuple(rng.choice((OWN, PEER, HOST)) for _ in range(rng.choice((0, 1, 2, 32))))
            origin = encode_origin(rng.randbytes(16), encode_tail(b"s" * rng.randrange(9), hops))
            return encode_attrs([(TAG_HEADER, b"\x01\0nv")] * rng.randrange(3) + [(TAG_FQ, origin)])


def hostile_log(rng: random.Random) -> bytes:
    log = bytearray()
    offset = 0
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.3:
            log += random_log(rng, pure, 1, offset)
        else:
            values = [rng.randbytes(rng.choice((0, 5, 200))) for _ in range(rng.choice((1, 2, 9)))]
            keys = [rng.choice((None, b"key", rng.randbytes(200))) for _ in values]
            log += stored_batch(pure, offset, values, keys=keys, attrs=[random_attrs(rng) for _ in values])
        offset = layout.read_header(log, batch_starts(bytes(log))[-1]).next_offset
    return mutated(rng, bytes(log)) if rng.random() < 0.6 else bytes(log)


def delivered(twin: Any, log: bytes, rng: random.Random) -> tuple[object, ...]:
    out = twin.ByteBuffer()
    start = rng.randrange(8)
    stop = start + rng.choice((0, 1, 3, 99))
    wanted = rng.choice((None, bytes(rng.randrange(2) for _ in range(stop - start)), b"\1\0"))
    cut = rng.choice((len(log), len(log), rng.randrange(len(log) + 1)))
    skip = rng.choice((None, None, PEER, OWN))
    found = outcome_of(twin.encode_deliveries, [log[:cut], log[cut:]], start, stop, b"ex", DEFAULT_TAIL, skip, wanted, out)
    return found, out.frames, out.take()


def disagreement(one: Any, other: Any, rounds: int) -> str | None:
    for turn in range(rounds):
        rng = random.Random(turn)
        if turn % 2:
            data = hostile_frames(rng)
            ours, theirs = fed(one, data, random.Random(turn)), fed(other, data, random.Random(turn))
        else:
            data = hostile_log(rng)
            ours, theirs = ([delivered(twin, data, random.Random(turn))] for twin in (one, other))
        if ours != theirs:
            return f"turn {turn}: {ours!r} is not {theirs!r} for {data.hex()}"
    return None


needs_both = pytest.mark.skipif(native is None, reason="no C compiler, so there is one implementation only")


@needs_both
def test_the_twins_agree_on_anything(rounds: Callable[[int, int], int]) -> None:
    assert disagreement(pure, native, rounds(1000, 60_000)) is None


@needs_both
def test_a_twin_that_errs_is_caught() -> None:
    """The canary: small mistakes, of the kind that a hand makes."""

    class Twin:
        def __init__(self, **changed: Callable[..., Any]) -> None:
            self.changed = changed

        def __getattr__(self, name: str) -> Any:
            return self.changed.get(name) or getattr(native, name)

    def skips_too_little(*arguments: Any) -> Any:
        return native.encode_deliveries(*arguments[:5], None if arguments[5] == OWN else arguments[5], *arguments[6:])

    def takes_a_byte_too_many(data: bytes, start: int, stop: int, *rest: Any) -> Any:
        return native.parse_messages(data, start, stop + 1, *rest)

    def allows_more(*arguments: Any) -> Any:
        return native.parse_messages(*arguments[:6], arguments[6] + 40_000_000, *arguments[7:])

    mistakes = {"encode_deliveries": skips_too_little}, {"parse_messages": takes_a_byte_too_many}, {"parse_messages": allows_more}
    for wrong in mistakes:
        assert disagreement(pure, Twin(**wrong), 1500) is not None, wrong
