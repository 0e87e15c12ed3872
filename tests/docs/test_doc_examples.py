"""The examples in the documentation are true: code in it runs, bytes in it are what the codec makes, links lead somewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
from doc_pages import ROOT, code_blocks, dead_links, hex_examples, page, pages, section, tables, unreachable

from braidmq import hot
from braidmq.base.clock import ManualClock
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log import attrs as record_attrs
from braidmq.log.attrs import encode_headers
from braidmq.log.checkpoint import Checkpoint, PartitionCheckpoint
from braidmq.log.commit import GroupCommit, InlineSyncer
from braidmq.log.index import SparseIndex
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, Op

BATCH_PAGE = page("docs/batch-format.md")
FLYMQ_PAGE = page("docs/protocols/flymq.md")
TIME_MS = 1705123456000

Stored = tuple[int, int, bytes, bytes]
ReadSegment = Callable[[str], Iterator[Stored]]

# --- the batch format


def write_segment(directory: str) -> tuple[str, list[Stored]]:
    """A segment as the broker writes it: flushes, whole batches, headers, empty keys and values. Returns it and its records."""
    clock = ManualClock(TIME_MS)
    disk = RealDisk()
    commit = GroupCommit(clock, InlineSyncer(disk), lambda _: None)
    log = PartitionLog(disk, directory, "orders", 0, LogSettings())
    expected: list[Stored] = []
    for turn in range(6):
        now_ms = commit.now_ms()
        for number in range(turn + 1):
            key, value = b"k" * (number % 3), b"value %d" % turn * number
            expected.append((log.accumulator.append(key or None, value), now_ms, key, value))
        commit.touch(log)
        if turn % 2:
            attrs = [encode_headers({"trace": b"1"}), b"", b""]
            batch = hot.encode_batch([b"a", None, b""], [b"one", b"", b"three"], attrs, 7, 0, turn // 2 * 3)
            base, _, _, _ = log.stage_batch(batch, now_ms)
            expected += [(base + i, now_ms, *pair) for i, pair in enumerate([(b"a", b"one"), (b"", b""), (b"", b"three")])]
        commit.flush()
        clock.advance(1)
    assert log.high_watermark == len(expected)
    log.close()
    return log.segments[0].log_path, sorted(expected)


@pytest.fixture
def read_segment() -> ReadSegment:
    """The reader that the page shows."""
    (source,) = code_blocks(BATCH_PAGE, "python")
    names: dict[str, Any] = {}
    exec(compile(source, "docs/batch-format.md", "exec"), names)
    reader: ReadSegment = names["read_segment"]
    return reader


def test_the_reader_of_the_page_reads_a_segment(read_segment: ReadSegment, tmp_path: Path) -> None:
    path, expected = write_segment(str(tmp_path / "topics" / "1" / "0"))
    assert list(read_segment(path)) == expected
    assert len({time_ms for _, time_ms, _, _ in expected}) == 6, "flushes with times of their own"


def test_the_reader_of_the_page_notices_what_is_no_batch(read_segment: ReadSegment, tmp_path: Path) -> None:
    path, expected = write_segment(str(tmp_path / "topics" / "1" / "0"))
    data = bytearray(Path(path).read_bytes())
    second = layout.read_header(data).length
    data[second] ^= 1
    Path(path).write_bytes(data)
    reader = read_segment(path)
    assert next(reader) == expected[0]
    with pytest.raises(AssertionError, match="damaged"):
        list(reader)


def test_the_reader_of_the_page_is_short() -> None:
    (source,) = code_blocks(BATCH_PAGE, "python")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 15


def test_the_checksum_of_the_page_is_right(tmp_path: Path) -> None:
    sentence = "crc32c.crc32c(data[at + 12 : at + length]) == head[2]"
    assert f"`{sentence}`" in BATCH_PAGE
    path, _ = write_segment(str(tmp_path / "topics" / "1" / "0"))
    data = np.memmap(path, np.uint8, "r+")
    head = layout.read_header(data)
    names = {"crc32c": crc32c, "data": data, "at": 0, "length": head.length, "head": head}
    assert eval(sentence, names) is True
    data[head.length - 1] ^= 1
    assert eval(sentence, names) is False


_LETTERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i16": "h", "i32": "i", "i64": "q", "8 bytes": "8s"}


def documented_header(text: str) -> list[tuple[int, str, str]]:
    """(position, type, field) of the header's table."""
    return [(int(at), kind, name) for at, kind, name, _ in tables(section(text, "Header"))[0]]


def code_header() -> list[tuple[int, str, str]]:
    kinds = {letter: kind for kind, letter in _LETTERS.items()}
    rows = []
    at = 0
    for letter, name in zip(layout.HEADER.format.lstrip("<"), layout.BatchHeader._fields, strict=True):
        rows.append((at, kinds[letter], name))
        at += struct.calcsize(letter)
    return rows


def test_the_table_of_the_header_is_the_header() -> None:
    assert documented_header(BATCH_PAGE) == code_header()
    assert f"\n{layout.HEADER_BYTES} bytes.\n" in section(BATCH_PAGE, "Header")


def test_a_wrong_table_of_the_header_is_noticed() -> None:
    assert documented_header(BATCH_PAGE.replace("| 28 | u32 | leader_epoch", "| 28 | u16 | leader_epoch")) != code_header()


def test_the_table_of_flags_is_complete() -> None:
    documented = {name: int(bit, 16) for bit, name, *_ in tables(section(BATCH_PAGE, "Flags"))[0]}
    known = {name.removeprefix("FLAG_"): value for name, value in vars(layout).items() if name.startswith("FLAG_")}
    assert documented == known
    assert sum(documented.values()) == layout.FLAGS_KNOWN


def test_the_table_of_tags_is_complete() -> None:
    documented = [int(tag) for tag, _ in tables(section(BATCH_PAGE, "Attrs"))[1]]
    assert documented == sorted(value for name, value in vars(record_attrs).items() if name.startswith("TAG_"))


def test_the_index_is_as_documented(tmp_path: Path) -> None:
    rows = tables(section(BATCH_PAGE, "Index"))[0]
    head = struct.Struct("<" + "".join(_LETTERS[kind] for _, kind, _ in rows[:-1]))
    positions = [sum(struct.calcsize("<" + _LETTERS[kind]) for _, kind, _ in rows[:n]) for n in range(len(rows))]
    assert [int(at) for at, _, _ in rows] == positions
    assert head.size == positions[-1]
    index = SparseIndex()
    index.add(0, 0, 500)
    index.add(7, 4095, 900)
    index.add(9, 4096, 800)
    data = index.encode(8192)
    magic, size, count, checksum, newest_ms = head.unpack_from(data)
    assert (f"`{magic.decode()}`", size, count, newest_ms) == ("`BRDINDX1`", 8192, 2, 900)
    assert "`BRDINDX1`" in section(BATCH_PAGE, "Index")
    assert crc32c.crc32c(data[:20] + bytes(4) + data[24:]) == checksum
    assert list(struct.iter_unpack("<QQq", data[head.size :])) == [(0, 0, 500), (9, 4096, 900)]


def test_the_checkpoint_is_as_documented(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    producers: list[list[object]] = [[7, 0, [[0, 3, 41, TIME_MS]]]]
    Checkpoint({"topics/1/0": PartitionCheckpoint(40, 336, 44, producers)}).save(RealDisk(), path)
    first, _, rest = Path(path).read_bytes().partition(b"\n")
    assert len(first) == 8 and int(first, 16) == crc32c.crc32c(rest)
    assert json.loads(rest) == {"format": 1, "partitions": {"topics/1/0": [40, 336, 44, producers]}}
    names = [name for name, _ in tables(section(BATCH_PAGE, "Checkpoint"))[0]]
    assert f'{{"format": 1, "partitions": {{"topics/1/0": [{", ".join(names)}], ...}}}}' in BATCH_PAGE


# --- bytes on the wire

BATCH = hot.encode_batch([b"k"], [b"v"], None, 7, 0, 0)
STORED_BATCH = bytes(hot.stamp_batch(BATCH, 41, 0, TIME_MS))
_ITEM = flymq.Fetched((flymq.FetchedItem(b"", b"hello", 0),), 1)

REQUESTS: dict[str, tuple[Any, Dialect]] = {
    "produce-request": (flymq.Produce("test", b"", b"hello", -1), Dialect.DOCUMENTED),
    "fetch-request": (flymq.Fetch("test", 0, 0, 10), Dialect.DOCUMENTED),
    "fetch-request-v126": (flymq.Fetch("test", 0, 0, 10), Dialect.V126),
    "create-topic-request": (flymq.CreateTopic("test", 3, {"durability": "os"}), Dialect.DOCUMENTED),
    "produce-batch-request": (flymq.ProduceBatch("test", 0, BATCH), Dialect.DOCUMENTED),
    "fetch-batches-request": (flymq.FetchBatches("test", 0, 41, 1 << 20, 1, 500), Dialect.DOCUMENTED),
}
RESPONSES: dict[str, tuple[Op, Any, Dialect]] = {
    "produce-response": (Op.PRODUCE, flymq.RecordMetadata("test", 0, 0, TIME_MS, -1, 5), Dialect.DOCUMENTED),
    "fetch-response": (Op.FETCH, _ITEM, Dialect.DOCUMENTED),
    "fetch-response-v126": (Op.FETCH, _ITEM, Dialect.V126),
    "produce-batch-response": (Op.PRODUCE_BATCH, flymq.BatchProduced("test", 0, 41, TIME_MS, 1, False), Dialect.DOCUMENTED),
    "fetch-batches-response": (Op.FETCH_BATCHES, flymq.FetchedBatches("test", 0, 42, 0, STORED_BATCH), Dialect.DOCUMENTED),
}
ERROR = BraidError("TOPIC_NOT_FOUND", topic="orders")
ERRORS = {"error": Dialect.DOCUMENTED, "error-v126": Dialect.V126}
FRAMES = hex_examples(FLYMQ_PAGE)
# The page ends this answer before its batches, which are the example of the other page.
FRAMES["fetch-batches-response"] += hex_examples(BATCH_PAGE)["stored-batch"]


def test_every_example_is_checked() -> None:
    assert set(FRAMES) == set(REQUESTS) | set(RESPONSES) | set(ERRORS)
    assert FLYMQ_PAGE.count("```hex") == len(FRAMES)
    assert set(hex_examples(BATCH_PAGE)) == {"stored-batch"} and BATCH_PAGE.count("```hex") == 1


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_what_the_codec_makes_and_reads(name: str) -> None:
    request, dialect = REQUESTS[name]
    frame = FRAMES[name]
    assert frame.hex(" ") == flymq.encode_request(request, dialect).hex(" ")
    op, flags, length = flymq.read_header(frame)
    assert (op, flags, length) == (request.op, 1, len(frame) - flymq.HEADER_BYTES)
    assert flymq.decode_request(op, frame[flymq.HEADER_BYTES :], Dialect.DOCUMENTED) == (request, dialect)


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_what_the_codec_makes_and_reads(name: str) -> None:
    op, response, dialect = RESPONSES[name]
    frame = FRAMES[name]
    assert frame.hex(" ") == flymq.encode_response(op, response, dialect).hex(" ")
    assert flymq.decode_response(op, frame[2], frame[flymq.HEADER_BYTES :], dialect) == response


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_what_the_codec_makes_and_reads(name: str) -> None:
    dialect = ERRORS[name]
    text = str(ERROR) if dialect is Dialect.DOCUMENTED else ERROR.text
    assert FRAMES[name].hex(" ") == flymq.encode_error(ERROR, dialect).hex(" ")
    reply = flymq.decode_response(Op.FETCH, FRAMES[name][2], FRAMES[name][flymq.HEADER_BYTES :], dialect)
    assert reply == flymq.ErrorReply(text)


def test_the_example_of_a_batch_is_a_stored_batch() -> None:
    example = hex_examples(BATCH_PAGE)["stored-batch"]
    assert example.hex(" ") == STORED_BATCH.hex(" ")
    assert hot.verify_batches(example, 0, len(example)) == (len(example), "")


def test_a_wrong_byte_in_an_example_is_noticed() -> None:
    text = FLYMQ_PAGE.replace("00 00 00 05 68 65 6C 6C 6F  value", "00 00 00 05 68 65 6C 6C 70  value")
    assert hex_examples(text)["fetch-response"] != FRAMES["fetch-response"]
    with pytest.raises(ValueError, match="non-hexadecimal"):
        hex_examples(FLYMQ_PAGE.replace("AF 01 01 01", "AF 01 01 0G"))


def test_the_example_of_a_partition_is_right() -> None:
    assert "`user-123` gives `8C93CC93`, partition 2 of 3." in " ".join(FLYMQ_PAGE.split())
    assert hot.fnv1a(b"user-123") == 0x8C93CC93 and 0x8C93CC93 % 3 == 2


# --- links


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    files = [*ROOT.iterdir(), *ROOT.glob("deploy/**/*")]
    others = {path.relative_to(ROOT).as_posix(): "" for path in files if path.is_file()}
    assert dead_links(pages(), others) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert {"README.md", "docs/durability.md", "docs/reference/errors.md"} <= set(pages())
    assert unreachable(pages(), "README.md") == set()


def test_a_dead_link_is_noticed() -> None:
    texts = {
        "README.md": "[a](docs/a.md) [b](docs/gone.md) [c](LICENSE) [d](https://example.org/x.md)\n```\n[e](no/link.md)\n```\n",
        "docs/a.md": "# The `one` way\n[up](../README.md) [here](#the-one-way) [there](#another-way)\n",
        "docs/lonely.md": "[a](a.md#the-one-way) [b](a.md#gone)",
    }
    assert dead_links(texts, {"LICENSE": ""}) == [
        "README.md: no file docs/gone.md",
        "docs/a.md: docs/a.md has no heading for #another-way",
        "docs/lonely.md: docs/a.md has no heading for #gone",
    ]
    assert unreachable(texts, "README.md") == {"docs/lonely.md"}
