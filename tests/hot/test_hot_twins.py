"""Every function of the hot path, on both implementations: what it promises, at its limits and past them."""

from __future__ import annotations

import random
import struct
from types import ModuleType

import pytest
from hot_cases import crc32c_bit_by_bit, expiring_batch, produce_frame, resealed, stored_batch
from toolchain import compiler_exists

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.hot import layout

GOLDEN = bytes.fromhex(
    # header: magic, length 168, checksum, version 1, CRC-32C, flags "attrs"
    "42524431" "a8000000" "d4de798d" "01" "01" "0800"
    # base offset 258, 2 records, leader epoch 3, both timestamps 1700000000000
    "0201000000000000" "02000000" "03000000" "0068e5cf8b010000" "0068e5cf8b010000"
    # producer 7, sequence 9, epoch 1, no compression, no key, rows at 112, attrs at 156, plain length 168
    "0700000000000000" "09000000" "0100" "00" "00" "00000000" "70000000" "9c000000" "a8000000"
    # columns: row position, key length, value length, attrs position
    "0000000018000000" "0300000000000000" "0500000004000000" "ffffffff00000000"
    # rows as FETCH items; the second has no key
    "00000003" "6b6579" "00000005" "76616c7565" "0000000000000102"
    "00000000" "00000004" "6d6f7265" "0000000000000103"
    # attrs of the second record, then padding
    "03000000" "616263" "0000000000"
)  # fmt: skip


def test_the_compiled_path_is_there_where_it_can_be() -> None:
    """An optional extension that fails to build fails silently; this is where it is noticed."""
    if not compiler_exists():
        pytest.skip("no C compiler")
    from braidmq.hot import _native

    assert _native.__file__.endswith(".so")
    assert hot.IMPLEMENTATION in ("compiled", "pure")


def test_the_twins_offer_the_same(implementation: ModuleType) -> None:
    names = [name for name in hot.__all__ if name != "IMPLEMENTATION"]
    for name in names:
        assert hasattr(implementation, name) or name in (
            "COLLECTED",
            "SPECIAL",
            "DAMAGED",
            "LIMITED",
            "NEED_MORE",
            "OTHER_FRAME",
            "FULL",
        )
    assert len(names) > 15


# --- checksums and hashes


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_gives_the_published_values(implementation: ModuleType, data: bytes, expected: int) -> None:
    assert implementation.crc32c(data) == expected == crc32c_bit_by_bit(data)


def test_crc32c_is_right_at_every_length_around_its_block_sizes(implementation: ModuleType) -> None:
    data = random.Random(1).randbytes(13_000)
    lengths = [*range(70), *range(760, 790), *range(1530, 1545), 4096, 12_280, 12_288, 12_289, 12_300, 13_000]
    running, at = 0, 0
    for length in lengths:
        running = crc32c_bit_by_bit(data[at:length], running) if length >= at else crc32c_bit_by_bit(data[:length])
        at = length
        for start in (0, 1, 3):
            assert implementation.crc32c(memoryview(data)[start : start + length]) == _native_software(data[start : start + length])
        assert implementation.crc32c(data[:length]) == running
        cut = length // 3
        assert implementation.crc32c(data[cut:length], implementation.crc32c(data[:cut])) == running


def _native_software(data: bytes) -> int:
    """The table form, for processors without the instruction, where it is built."""
    try:
        from braidmq.hot import _native
    except ModuleNotFoundError:
        return crc32c_bit_by_bit(data)
    return int(_native.crc32c_software(data))


def test_fnv1a_gives_the_published_values(implementation: ModuleType) -> None:
    assert implementation.fnv1a(b"") == 0x811C9DC5
    assert implementation.fnv1a(b"a") == 0xE40C292C
    assert implementation.fnv1a(b"foobar") == 0xBF9CF968


# --- building batches


def test_a_batch_is_the_same_bytes_for_ever(implementation: ModuleType) -> None:
    plain = implementation.encode_batch([b"key", None], [b"value", b"more"], [b"", b"\x03\0\0\0abc"], 7, 1, 9)
    assert implementation.stamp_batch(plain, 258, 3, 1_700_000_000_000) == GOLDEN
    assert crc32c_bit_by_bit(GOLDEN[12:]) == int.from_bytes(GOLDEN[8:12], "little")


def test_an_accumulator_makes_the_batch_that_encoding_makes(implementation: ModuleType) -> None:
    accumulator = implementation.Accumulator("owner", 258)
    assert accumulator.append(b"key", b"value") == 258
    assert accumulator.append(None, memoryview(b"more"), 0, b"\x03\0\0\0abc") == 259
    assert (accumulator.owner, accumulator.count, accumulator.next_offset) == ("owner", 2, 260)
    assert accumulator.rows_bytes == 16 + 8 + 16 + 4
    buffers, length = accumulator.seal(1_700_000_000_000, 3)
    sealed = b"".join(buffers)
    del buffers
    assert length == len(sealed) == len(GOLDEN)
    plain = implementation.encode_batch([b"key", None], [b"value", b"more"], [b"", b"\x03\0\0\0abc"])
    assert sealed == implementation.stamp_batch(plain, 258, 3, 1_700_000_000_000)
    assert accumulator.take(1_700_000_000_000, 3) == sealed
    assert (accumulator.count, accumulator.rows_bytes, accumulator.next_offset) == (0, 0, 260)


def test_an_accumulator_is_as_new_after_each_batch(implementation: ModuleType) -> None:
    rng = random.Random(5)
    accumulator = implementation.Accumulator(None, 0)
    for _ in range(30):
        base, records = accumulator.next_offset, rng.choice((1, 2, 600, 1500))
        values = [rng.randbytes(rng.choice((0, 5, 300))) for _ in range(records)]
        expiry = [rng.choice((0, 0, 77)) for _ in range(records)] if rng.random() < 0.4 else [0] * records
        attrs = [rng.choice((b"", b"\x01\0\0\0x")) for _ in range(records)] if rng.random() < 0.4 else [b""] * records
        for value, due, block in zip(values, expiry, attrs, strict=True):
            accumulator.append(None, value, due, block or None)
        batch = accumulator.take(9, 0)
        head = layout.read_header(batch)
        assert bool(head.flags & layout.FLAG_EXPIRY) == any(expiry)
        assert bool(head.flags & layout.FLAG_ATTRS) == any(attrs)
        found, following = implementation.decode_records(batch, 0, records, lambda *record: record)
        assert [(offset, value, block) for offset, _, _, value, block in found] == [
            (base + number, value, block) for number, (value, block) in enumerate(zip(values, attrs, strict=True))
        ]
        assert following == base + records
        if any(expiry):
            at = layout.HEADER_BYTES + 3 * layout.padded(4 * records)
            assert list(struct.unpack_from(f"<{records}q", batch, at)) == expiry


def test_rows_cannot_be_forgotten_while_they_are_written(implementation: ModuleType) -> None:
    accumulator = implementation.Accumulator(None, 0)
    accumulator.append(None, b"value")
    buffers, _ = accumulator.seal(1, 0)
    held = b"".join(buffers)
    try:
        accumulator.reset()
    except BufferError:
        del buffers
        accumulator.reset()
    else:
        # Where the rows are copies, what was sealed stays as it was.
        assert b"".join(buffers) == held


@pytest.mark.parametrize(
    ("keys", "values", "attrs"),
    [([], [], None), ([None], [], None), ([None], [b"", b""], None), ([None], [b""], []), ([None, None], [b"", b""], [b""])],
)
def test_a_batch_needs_records_and_columns_of_one_length(
    implementation: ModuleType, keys: list[None], values: list[bytes], attrs: list[bytes] | None
) -> None:
    with pytest.raises(BraidError, match="impossible record count"):
        implementation.encode_batch(keys, values, attrs)


@pytest.mark.parametrize("producer", [(-2, 0, 0), (1, -2, 0), (1, 0x8000, 0), (1, 0, -2), (1, 0, 1 << 31)])
def test_producer_numbers_must_fit_their_fields(implementation: ModuleType, producer: tuple[int, int, int]) -> None:
    with pytest.raises(BraidError, match="impossible producer"):
        implementation.encode_batch([None], [b""], None, *producer)
    assert implementation.encode_batch([None], [b""], None, (1 << 63) - 1, 0x7FFF, 0x7FFFFFFF)


def test_a_batch_has_a_record_limit(implementation: ModuleType) -> None:
    most = limits.BATCH_RECORDS_MAX
    with pytest.raises(BraidError, match="impossible record count"):
        implementation.encode_batch([None] * (most + 1), [b""] * (most + 1))


def test_a_batch_has_a_byte_limit(implementation: ModuleType) -> None:
    half = bytes(limits.BATCH_BYTES_MAX // 2)
    with pytest.raises(BraidError, match="over the limit"):
        implementation.encode_batch([None, None], [half, half])
    accumulator = implementation.Accumulator(None, 0)
    accumulator.append(None, half)
    accumulator.append(None, half)
    with pytest.raises(BraidError, match="over the limit"):
        accumulator.seal(1, 0)


# --- stamping


def test_every_flipped_bit_of_a_batch_is_noticed(implementation: ModuleType) -> None:
    """No bit of a batch is outside what is checked, on its way in and on disk."""
    for bit in range(8 * len(GOLDEN)):
        flipped = bytearray(GOLDEN)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            implementation.stamp_batch(flipped, 0, 0, 0)
        position, reason = implementation.verify_batches(GOLDEN + bytes(flipped), 0, 2 * len(GOLDEN))
        assert (position, bool(reason)) == (len(GOLDEN), True)
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            implementation.decode_records(flipped, 0, 9, lambda *record: record)


@pytest.mark.parametrize(
    ("at", "form", "value", "reason"),
    [
        (4, "<I", 0, "impossible length"),
        (4, "<I", 169, "impossible length"),
        (4, "<I", 176, "batch cut short"),
        (12, "<B", 2, "unknown version"),
        (13, "<B", 2, "unknown checksum kind"),
        (14, "<H", 0x0088, "unknown flags"),
        (14, "<H", 0x0028, "flags 0x0028 are not for producers"),
        (16, "<Q", 1 << 63, "impossible offset"),
        (24, "<I", 0, "impossible record count"),
        (24, "<I", limits.BATCH_RECORDS_MAX + 1, "impossible record count"),
        (24, "<I", 3, "columns do not fit"),
        (68, "<I", 104, "columns do not fit"),
        (72, "<I", 108, "rows do not fit the batch"),
        (72, "<I", 154, "row 1 does not fit its columns"),
        (72, "<I", 157, "rows do not fit the batch"),
        (76, "<I", 160, "rows do not fit the batch"),
        (80, "<I", 1, "row 0 does not fit its columns"),
        (84, "<I", 25, "row 1 does not fit its columns"),
        (88, "<I", 0xFFFFFFFF, "row 0 does not fit its columns"),
        (96, "<I", 6, "row 0 does not fit its columns"),
        (112, ">I", 4, "row 0 does not fit its columns"),
        (136, ">I", 1, "row 1 does not fit its columns"),
        (140, ">I", 5, "row 1 does not fit its columns"),
        (108, "<I", 9, "attributes of record 1 lie outside"),
        (156, "<I", 9, "attributes of record 1 lie outside"),
    ],
)
def test_a_lie_behind_a_good_checksum_is_refused(implementation: ModuleType, at: int, form: str, value: int, reason: str) -> None:
    lie = bytearray(GOLDEN)
    struct.pack_into(form, lie, at, value)
    with pytest.raises(BraidError, match=reason):
        implementation.stamp_batch(resealed(lie), 0, 0, 0)


def test_a_producer_sends_one_batch_at_a_time(implementation: ModuleType) -> None:
    with pytest.raises(BraidError, match="more than one batch"):
        implementation.stamp_batch(GOLDEN + GOLDEN, 0, 0, 0)
    with pytest.raises(BraidError, match="header cut short"):
        implementation.stamp_batch(b"", 0, 0, 0)


# --- reading batches


def test_decoding_starts_and_stops_where_asked(implementation: ModuleType) -> None:
    log = b"".join(stored_batch(implementation, base, [b"%d" % n for n in range(base, base + 4)]) for base in (10, 14, 18))
    take = lambda offset, *_: offset  # noqa: E731
    assert implementation.decode_records(log, 0, 99, take) == (list(range(10, 22)), 22)
    assert implementation.decode_records(log, 12, 3, take) == ([12, 13, 14], 15)
    assert implementation.decode_records(log, 12, 2, take) == ([12, 13], 14)
    assert implementation.decode_records(log, 22, 5, take) == ([], 22)
    assert implementation.decode_records(log, 99, 5, take) == ([], 99)
    assert implementation.decode_records(log, 12, 0, take) == ([], 12)
    assert implementation.decode_records(b"", 7, 5, take) == ([], 7)


def test_what_a_maker_raises_comes_through(implementation: ModuleType) -> None:
    def refuse(*_: object) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        implementation.decode_records(GOLDEN, 0, 5, refuse)


def test_collecting_obeys_both_limits_at_every_boundary(implementation: ModuleType) -> None:
    """Against a model that knows each row: any start, any record limit, any byte limit."""
    rng = random.Random(11)
    rows: list[bytes] = []
    log = b""
    for records in (1, 3, 1, 5, 2):
        values = [rng.randbytes(rng.randrange(40)) for _ in range(records)]
        log += stored_batch(implementation, len(rows), values)
        rows += [bytes(8 - 4) + struct.pack(">I", len(v)) + v + struct.pack(">Q", len(rows) + n) for n, v in enumerate(values)]
    for offset in range(len(rows) + 1):
        for records_max in range(1, len(rows) + 2):
            for bytes_max in (0, 16, 17, 40, 60, 100, 150, 10_000):
                wanted: list[bytes] = []
                for row in rows[offset : offset + records_max]:
                    if wanted and sum(map(len, wanted)) + len(row) > bytes_max:
                        break
                    wanted.append(row)
                slices, size, count, following, _, status = implementation.collect_rows(
                    log, 0, len(log), offset, records_max, bytes_max
                )
                assert b"".join(slices) == b"".join(wanted)
                assert (size, count, following) == (sum(map(len, wanted)), len(wanted), offset + len(wanted))
                all_taken = offset + len(wanted) == len(rows)
                assert status == (hot.COLLECTED if all_taken and len(wanted) < records_max else hot.LIMITED)


def test_large_rows_are_served_where_they_lie(implementation: ModuleType) -> None:
    log = (
        stored_batch(implementation, 0, [b"s"])
        + stored_batch(implementation, 1, [b"L" * 5000])
        + stored_batch(implementation, 2, [b"s"])
    )
    slices, *_ = implementation.collect_rows(log, 0, len(log), 0, 9, 1 << 20)
    assert [len(part) for part in slices] == [17, 5016, 17]
    assert isinstance(slices[1], memoryview) and slices[1].obj is log


def test_columns_that_lie_behind_a_good_checksum_harm_nobody(implementation: ModuleType) -> None:
    """A row without a single byte cannot be, but a file may say so."""
    lie = bytearray(stored_batch(implementation, 0, [b"a", b"b", b"c"]))
    struct.pack_into("<III", lie, layout.HEADER_BYTES, 0, 0, 0xFFFFFF00)
    log = resealed(lie)
    slices, size, count, following, _, status = implementation.collect_rows(log, 0, len(log), 0, 1, 1000)
    assert (b"".join(slices), size, count, following, status) == (b"", 0, 1, 1, hot.LIMITED)
    assert implementation.collect_rows(log, 0, len(log), 1, 1, 1000)[2:] == (0, 1, 0, hot.DAMAGED)


def test_rows_that_may_not_be_served_as_they_lie_stop_the_walk(implementation: ModuleType) -> None:
    log = stored_batch(implementation, 0, [b"a"]) + expiring_batch(implementation, 1, 2) + stored_batch(implementation, 3, [b"b"])
    first = len(stored_batch(implementation, 0, [b"a"]))
    *_, count, following, end, status = implementation.collect_rows(log, 0, len(log), 0, 9, 1000)
    assert (count, following, end, status) == (1, 1, first, hot.SPECIAL)
    *_, count, following, _, status = implementation.collect_rows(log, 0, len(log), 3, 9, 1000)
    assert (count, following, status) == (1, 4, hot.COLLECTED)


def test_spanning_gives_whole_batches_and_at_least_one(implementation: ModuleType) -> None:
    parts = [stored_batch(implementation, 2 * n, [bytes(20), bytes(30)]) for n in range(4)]
    log, size = b"".join(parts), len(parts[0])
    assert implementation.span_batches(log, 0, len(log), 3, 1) == (size, 2 * size, 4, hot.LIMITED)
    assert implementation.span_batches(log, 0, len(log), 2, 2 * size) == (size, 3 * size, 6, hot.LIMITED)
    assert implementation.span_batches(log, 0, len(log), 2, 2 * size - 1) == (size, 2 * size, 4, hot.LIMITED)
    assert implementation.span_batches(log, 0, len(log), 0, 9999) == (0, 4 * size, 8, hot.COLLECTED)
    assert implementation.span_batches(log, 0, len(log), 8, 9999) == (4 * size, 4 * size, 8, hot.COLLECTED)
    assert implementation.span_batches(log[:-1], 0, len(log), 0, 9999) == (0, 3 * size, 6, hot.DAMAGED)


def test_scanning_tells_what_recovery_needs(implementation: ModuleType) -> None:
    first = stored_batch(implementation, 5, [b"a", b"b"], timestamp=50, producer_id=9, producer_epoch=2, base_sequence=7)
    second = stored_batch(implementation, 7, [b"c"], timestamp=40)
    third = stored_batch(implementation, 8, [b"d"], timestamp=60)
    log = first + second + third
    end, following, reason, index, first_ms, max_ms, producers, batches = implementation.scan_batches(log, 0, len(log), 5, 1)
    assert (end, following, reason, first_ms, max_ms, batches) == (len(log), 9, "", 50, 60, 3)
    entries = list(struct.iter_unpack("<QQq", index))
    assert entries == [(5, 0, 50), (7, len(first), 50), (8, len(first) + len(second), 60)], "timestamps are a running maximum"
    assert producers == [(9, 2, 7, 2, 5, 50)]
    sparse = implementation.scan_batches(log, 0, len(log), 5, len(first) + 1)[3]
    assert list(struct.iter_unpack("<QQq", sparse)) == [(5, 0, 50), (8, len(first) + len(second), 60)]
    assert implementation.scan_batches(log, 0, len(log), -1, 1)[:3] == (len(log), 9, "")
    end, following, reason, *_ = implementation.scan_batches(first + third, 0, 9999, 5, 1)
    assert (end, following, reason) == (len(first), 7, "offset 8 where 7 comes next")
    assert implementation.scan_batches(b"", 0, 0, 5, 1) == (0, 5, "", b"", -1, -1, [], 0)


def test_verifying_stops_where_asked_or_where_it_must(implementation: ModuleType) -> None:
    log, size = GOLDEN * 3, len(GOLDEN)
    assert implementation.verify_batches(log, 0, len(log)) == (3 * size, "")
    assert implementation.verify_batches(log, size, len(log), size + 1) == (2 * size, "")
    assert implementation.verify_batches(log, size, len(log), size) == (size, "")
    assert implementation.verify_batches(log, 0, len(log) - 1) == (2 * size, "batch cut short")
    assert implementation.verify_batches(log, 0, 2 * size + 79) == (2 * size, "header cut short")
    assert implementation.verify_batches(log, 8, len(log)) == (8, "no batch here")


def test_reordering_moves_the_offset_to_the_front(implementation: ModuleType) -> None:
    row = b"\0\0\0\3key\0\0\0\5value" + struct.pack(">Q", 77)
    bare = bytes(8) + struct.pack(">Q", 78)
    wanted = row[-8:] + row[:-8] + bare[-8:] + bare[:-8]
    assert implementation.reorder_rows([row + bare], len(wanted)) == wanted
    assert implementation.reorder_rows([memoryview(row), bare], len(wanted)) == wanted
    assert implementation.reorder_rows([], 0) == b""
    for part, size, reason in (
        (row, len(row) - 1, "larger than announced"),
        (row, len(row) + 1, "smaller than announced"),
        (row[:-1], len(row), "runs past"),
        (b"\xff\xff\xff\xff" + row[4:], len(row), "runs past"),
        (bytes(4) + b"\xff\xff\xff\xff" + bytes(8), 16, "runs past"),
    ):
        with pytest.raises(BraidError, match=reason):
            implementation.reorder_rows([part], size)


# --- parsing PRODUCE


def _table(implementation: ModuleType, **topics: int) -> tuple[object, dict[str, list[object]]]:
    table = implementation.RouteTable()
    accumulators: dict[str, list[object]] = {}
    for name, partitions in topics.items():
        accumulators[name] = [implementation.Accumulator((name, number), 100 * number) for number in range(partitions)]
        table.add(implementation.Route(name.encode(), accumulators[name], 1))
    return table, accumulators


def test_routes_are_found_added_and_removed(implementation: ModuleType) -> None:
    table = implementation.RouteTable()
    routes = {b"topic-%d" % n: implementation.Route(b"topic-%d" % n, [implementation.Accumulator(None, 0)], 0) for n in range(300)}
    for number, (name, route) in enumerate(routes.items()):
        table.add(route)
        assert len(table) == number + 1 and table.get(name) is route
    frames = b"".join(produce_frame(name, b"", b"v") for name in routes)
    out = implementation.ByteBuffer()
    assert implementation.parse_produce(frames, 0, len(frames), table, 1, [], out)[1:] == (300, hot.NEED_MORE)
    for name in list(routes)[::2]:
        table.remove(name)
        table.remove(name)
        assert table.get(name) is None
    assert len(table) == 150
    assert implementation.parse_produce(produce_frame(b"topic-0", b"", b"v"), 0, 99, table, 1, [], out)[1:] == (0, hot.OTHER_FRAME)
    assert implementation.parse_produce(produce_frame(b"topic-1", b"", b"v"), 0, 99, table, 1, [], out)[1:] == (1, hot.NEED_MORE)
    table.clear()
    assert len(table) == 0 and table.get(b"topic-1") is None


def test_a_record_and_its_answer(implementation: ModuleType) -> None:
    table, accumulators = _table(implementation, orders=3)
    frame = produce_frame(b"orders", b"key", b"value", 2)
    dirty: list[object] = []
    out = implementation.ByteBuffer()
    data = b"junk" + frame + frame[:-1]
    taken = implementation.parse_produce(memoryview(data), 4, len(data), table, 1234, dirty, out)
    assert taken == (4 + len(frame), 1, hot.NEED_MORE)
    assert dirty == [accumulators["orders"][2]]
    assert (len(out), out.level, out.frames) == (44, 1, 1)
    answer = b"\xaf\x01\x01\x01" + struct.pack(">IH", 36, 6) + b"orders" + struct.pack(">iQqiI", 2, 200, 1234, 3, 5)
    assert out.take() == answer
    assert (len(out), out.level, out.frames, out.take()) == (0, 0, 0, b"")
    batch = accumulators["orders"][2].take(5, 0)  # type: ignore[attr-defined]
    assert implementation.decode_records(batch, 0, 9, lambda *record: record)[0] == [(200, 5, b"key", b"value", b"")]


def test_records_find_their_partition(implementation: ModuleType) -> None:
    """As asked, else by key, else in turn; and what cannot be placed is left to the general path."""
    table, _ = _table(implementation, many=5, one=1)
    where = []
    asked = [(b"many", b"", -1), (b"many", b"", -7), (b"many", b"", 4), (b"many", b"", -1), (b"many", b"k", -1)]
    for topic, key, partition in [*asked, (b"one", b"k", -1), (b"one", b"", -1)]:
        out = implementation.ByteBuffer()
        frame = produce_frame(topic, key, b"v", partition)
        assert implementation.parse_produce(frame, 0, len(frame), table, 0, [], out)[2] == hot.NEED_MORE
        answer = out.take()
        where.append(int.from_bytes(answer[10 + len(topic) : 14 + len(topic)], "big"))
    assert where == [0, 1, 4, 2, implementation.fnv1a(b"k") % 5, 0, 0]
    frame = produce_frame(b"many", b"", b"v", 5)
    assert implementation.parse_produce(frame, 0, len(frame), table, 0, [], implementation.ByteBuffer()) == (0, 0, hot.OTHER_FRAME)


def test_a_read_only_partition_is_left_to_the_general_path(implementation: ModuleType) -> None:
    table, accumulators = _table(implementation, many=2)
    accumulators["many"][0].writable = False  # type: ignore[attr-defined]
    frame = produce_frame(b"many", b"", b"v")
    for _ in range(3):
        assert implementation.parse_produce(frame, 0, len(frame), table, 0, [], implementation.ByteBuffer()) == (
            0,
            0,
            hot.OTHER_FRAME,
        )
    assert table.get(b"many").counter == 0, "a record that was not taken takes no turn"  # type: ignore[attr-defined]


@pytest.mark.parametrize("partition", [-1, -2])
def test_a_full_batch_stops_the_parser_and_the_turn(implementation: ModuleType, partition: int) -> None:
    table, accumulators = _table(implementation, many=2)
    for accumulator in accumulators["many"]:
        accumulator.append(None, bytes(limits.FLUSH_BYTES_TARGET - 16 - 40))  # type: ignore[attr-defined]
    fits, over = produce_frame(b"many", b"", bytes(32), partition), produce_frame(b"many", b"", bytes(33), partition)
    out = implementation.ByteBuffer()
    assert implementation.parse_produce(over, 0, len(over), table, 0, [], out) == (0, 0, hot.FULL)
    assert table.get(b"many").counter == 0  # type: ignore[attr-defined]
    assert implementation.parse_produce(fits + over + over, 0, 9999, table, 0, [], out) == (len(fits), 1, hot.FULL)
    assert table.get(b"many").counter == 1  # type: ignore[attr-defined]
    for accumulator in accumulators["many"]:
        accumulator.reset()  # type: ignore[attr-defined]
    assert implementation.parse_produce(over, 0, 9999, table, 0, [], out)[1:] == (1, hot.NEED_MORE)


def test_one_record_may_be_larger_than_a_batch_is_meant_to_be(implementation: ModuleType) -> None:
    table, _ = _table(implementation, one=1)
    largest = produce_frame(b"one", b"k" * 24, bytes(limits.RECORD_BYTES_MAX - 24))
    out = implementation.ByteBuffer()
    assert implementation.parse_produce(largest, 0, len(largest), table, 0, [], out)[1:] == (1, hot.NEED_MORE)
    over = produce_frame(b"one", b"k" * 24, bytes(limits.RECORD_BYTES_MAX - 23))
    assert implementation.parse_produce(over, 0, len(over), table, 0, [], out)[1:] == (0, hot.OTHER_FRAME)


@pytest.mark.parametrize("length", [0, 1, 13, 14, limits.FRAME_PAYLOAD_BYTES_MAX, limits.FRAME_PAYLOAD_BYTES_MAX + 1, 0xFFFFFFFF])
@pytest.mark.parametrize("behind", [0, 1, 2, 13, 14, 40])
def test_a_length_is_judged_as_soon_as_it_is_there(implementation: ModuleType, length: int, behind: int) -> None:
    """A frame that can never come is not waited for."""
    table, _ = _table(implementation, one=1)
    head = b"\xaf\x01\x01\x01" + struct.pack(">I", length) + bytes(behind)
    position, count, status = implementation.parse_produce(head, 0, len(head), table, 0, [], implementation.ByteBuffer())
    waits = behind < length <= limits.FRAME_PAYLOAD_BYTES_MAX
    assert (position, count, status) == (0, 0, hot.NEED_MORE if waits else hot.OTHER_FRAME)
