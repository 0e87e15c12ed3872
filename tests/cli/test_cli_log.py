"""`braid log` on the files a broker left: whole, torn, damaged, with gaps, and in use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from running_broker import RunningBroker, StartBroker

from braidmq.cli.exits import Exit
from braidmq.cli.log import shown_flags, shown_time
from braidmq.cli.main import main
from braidmq.client.sync import connect
from braidmq.hot import layout

RECORDS = 400
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped broker's directory: `a/b` with many small segments in partition 1, and an empty topic."""
    broker = RunningBroker(tmp_path_factory.mktemp("log") / "data", ("--segment-bytes", "4KiB", "--durability", "os"))
    broker.start()
    try:
        with connect(broker.address) as client:
            client.create_topic("gone", 1)
            client.create_topic("a/b", 2)
            client.create_topic("empty", 1)
            client.delete_topic("gone")
            for number in range(RECORDS):
                client.produce("a/b", b"%04d" % number + b"x" * 60, key=b"k", partition=1)
            client.produce("a/b", b"with headers", headers={"h": b"1"}, partition=1)
        broker.stop()
    finally:
        if broker.running:
            broker.kill()
    return broker.data_dir


@pytest.fixture
def data_dir(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(original, tmp_path / "data")


def segments(data_dir: Path) -> list[Path]:
    found = sorted((data_dir / "topics").rglob("*.log"))
    assert len(found) > 3, "the broker should have rolled"
    return found


def documents(capsys: Output) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- whole


def test_verify_of_a_whole_directory(data_dir: Path, capsys: Output) -> None:
    assert main(["log", "verify", str(data_dir)]) == Exit.OK
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["a/b/1"][3] == f"{RECORDS + 1:,}" and rows["a/b/1"][-1] == "ok"
    assert "__metadata/0" in rows
    assert main(["log", "verify", str(data_dir / "a/b/1"), "-o", "json"]) == Exit.OK
    (report,) = json.loads(capsys.readouterr().out)
    assert report["damaged"] is False and report["partition"] == "a/b/1"
    assert sum(segment["records"] for segment in report["segments"]) == RECORDS + 1
    assert report["segments"][0]["base_offset"] == 0 and report["segments"][-1]["next_offset"] == RECORDS + 1
    assert [segment["path"] for segment in report["segments"]] == [str(path) for path in segments(data_dir)]


def test_dump_shows_batches_and_records(data_dir: Path, capsys: Output) -> None:
    assert main(["log", "dump", str(data_dir / "a/b"), "-o", "json", "--records"]) == Exit.OK
    lines = documents(capsys)
    batches = [line for line in lines if "checksum" in line]
    records = [line for line in lines if "offset" in line]
    assert sum(int(str(batch["records"])) for batch in batches) == RECORDS + 1
    assert [record["offset"] for record in records] == list(range(RECORDS + 1))
    assert records[7]["value"] == "0007" + "x" * 60 and records[7]["key"] == "k"
    assert records[-1]["headers"] == {"h": "1"}
    assert all(record["topic"] == "a/b" and record["partition"] == 1 for record in records)

    assert main(["log", "dump", str(data_dir / "a/b/1"), "--from", "395", "--limit", "2"]) == Exit.OK
    out = capsys.readouterr().out
    assert "offsets 395..395  1 records" in out and "offsets 396..396" in out
    assert "offsets 394" not in out and "offsets 397" not in out


def test_one_segment_directory_without_its_broker(data_dir: Path, capsys: Output, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    copy.mkdir()
    for path in segments(data_dir):
        (copy / path.name).write_bytes(path.read_bytes())
    assert main(["log", "verify", str(copy), "-o", "json"]) == Exit.OK
    (report,) = json.loads(capsys.readouterr().out)
    assert {segment["index"] for segment in report["segments"]} == {"missing"}


@pytest.mark.parametrize(
    ("below", "status", "code"),
    [
        ("nope", Exit.NOT_FOUND, "TOPIC_NOT_FOUND"),
        ("gone/0", Exit.NOT_FOUND, "TOPIC_NOT_FOUND"),
        ("a/b/2", Exit.NOT_FOUND, "PARTITION_NOT_FOUND"),
        ("a/b/x", Exit.NOT_FOUND, "PARTITION_NOT_FOUND"),
        ("../elsewhere", Exit.FAILED, "DATA_DIR_INVALID"),
    ],
)
def test_what_is_not_there(data_dir: Path, below: str, status: Exit, code: str, capsys: Output) -> None:
    assert main(["log", "verify", f"{data_dir}/{below}"]) == status
    assert capsys.readouterr().err.startswith(f"error: {code}: ")


@pytest.mark.parametrize("below", ["empty", "empty/0", "a/b/0"])
def test_partitions_without_records_are_no_error(data_dir: Path, below: str) -> None:
    for verb in ("verify", "dump", "rebuild-index"):
        assert main(["log", verb, f"{data_dir}/{below}"]) == Exit.OK


# --- damaged


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def last_batch_at(path: Path) -> int:
    data = path.read_bytes()
    position = at = 0
    while position < len(data):
        at = position
        position += layout.read_header(data, position).length
    return at


def test_a_flipped_bit_is_named(data_dir: Path, capsys: Output) -> None:
    path = segments(data_dir)[1]
    flip(path, layout.HEADER_BYTES + 20)
    assert main(["log", "verify", str(data_dir)]) == Exit.DAMAGED
    captured = capsys.readouterr()
    assert f"a/b/1: {path}: byte 0: checksum mismatch" in captured.err
    assert "DAMAGED" in captured.out
    assert main(["log", "dump", str(data_dir / "a/b/1"), "-o", "json"]) == Exit.OK
    faults = [line["fault"] for line in documents(capsys) if "fault" in line]
    assert faults[0] == "byte 0: checksum mismatch"
    assert main(["log", "rebuild-index", str(data_dir / "a/b/1")]) == Exit.FAILED
    assert capsys.readouterr().err.startswith(f"error: CORRUPT_LOG: corrupt data in {path} at byte 0 ")


def test_a_missing_segment_is_a_gap(data_dir: Path, capsys: Output) -> None:
    first, second, third = segments(data_dir)[:3]
    second.unlink()
    assert main(["log", "verify", str(data_dir / "a/b")]) == Exit.DAMAGED
    missing = f"gap: offsets {int(second.stem)} to {int(third.stem) - 1} are missing before {third}"
    assert missing in capsys.readouterr().err
    assert main(["log", "dump", str(data_dir / "a/b"), "-o", "json"]) == Exit.OK
    faults = [line for line in documents(capsys) if "fault" in line]
    assert [fault["segment"] for fault in faults] == [str(third)]
    assert f"where {int(second.stem)} comes next" in str(faults[0]["fault"])
    assert first.exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("header", lambda path: path.write_bytes(path.read_bytes()[: last_batch_at(path) + 30])),
        ("rows", lambda path: path.write_bytes(path.read_bytes()[:-5])),
    ],
)
def test_a_torn_tail_is_no_damage_in_the_newest_segment_only(
    data_dir: Path, capsys: Output, name: str, change: Callable[[Path], object]
) -> None:
    paths = segments(data_dir)
    change(paths[-1])
    assert main(["log", "verify", str(data_dir)]) == Exit.OK
    captured = capsys.readouterr()
    assert "torn tail" in captured.out and "bytes of an unfinished batch at the end" in captured.err
    assert main(["log", "rebuild-index", str(data_dir / "a/b/1")]) == Exit.OK
    assert f"{paths[-1]}: skipped" in capsys.readouterr().out
    change(paths[0])
    assert main(["log", "verify", str(data_dir)]) == Exit.DAMAGED
    assert "cut short" in capsys.readouterr().err


def test_every_cut_and_flip_of_a_segment_is_reported_and_never_crashes(
    data_dir: Path, capsys: Output, rounds: Callable[[int, int], int]
) -> None:
    path = segments(data_dir)[0]
    whole = path.read_bytes()
    for position in range(0, layout.HEADER_BYTES * 2, rounds(3, 1)):
        flip(path, position)
        assert main(["log", "verify", str(path.parent)]) == Exit.DAMAGED, position
        path.write_bytes(whole)
    boundaries = set()
    at = 0
    while at < len(whole):
        at += layout.read_header(whole, at).length
        boundaries.add(at)
    for size in range(1, len(whole), rounds(311, 97)):
        if size not in boundaries:
            path.write_bytes(whole[:size])
            assert main(["log", "verify", str(path.parent)]) == Exit.DAMAGED, size
    path.write_bytes(whole)
    assert main(["log", "verify", str(path.parent)]) == Exit.OK
    capsys.readouterr()


# --- indexes


def test_a_wrong_index_is_reported_and_rebuilt_exactly(data_dir: Path, capsys: Output) -> None:
    indexes = sorted((data_dir / "topics").rglob("*.idx"))
    before = {path: path.read_bytes() for path in indexes}
    assert len(before) >= 3
    indexes[0].write_bytes(b"rubbish")
    indexes[1].unlink()
    assert main(["log", "verify", str(data_dir)]) == Exit.OK, "an index holds nothing that is not in the log"
    assert "its index does not fit" in capsys.readouterr().err
    assert main(["log", "rebuild-index", str(data_dir), "--dry-run"]) == Exit.OK
    assert "would write the index of" in capsys.readouterr().out
    assert indexes[0].read_bytes() == b"rubbish" and not indexes[1].exists()
    assert main(["log", "rebuild-index", str(data_dir)]) == Exit.OK
    assert {path: path.read_bytes() for path in indexes} == before


def test_a_running_broker_can_be_read_but_not_rebuilt(start_broker: StartBroker, capsys: Output) -> None:
    broker = start_broker("--segment-bytes", "4KiB")
    with connect(broker.address) as client:
        client.create_topic("live", 1)
        for number in range(200):
            client.produce("live", b"%d" % number)
        assert main(["log", "verify", str(broker.data_dir)]) == Exit.OK
        assert main(["log", "dump", str(broker.data_dir / "live/0"), "-o", "json"]) == Exit.OK
        capsys.readouterr()
        assert main(["log", "rebuild-index", str(broker.data_dir)]) == Exit.FAILED
        assert capsys.readouterr().err.startswith("error: DATA_DIR_LOCKED: ")
        assert client.fetch("live", 0, 199).records[0].value == b"199"


def test_topics_are_read_from_a_snapshot_and_what_followed_it(data_dir: Path, start_broker: StartBroker, capsys: Output) -> None:
    assert list((data_dir / "internal/metadata").glob("snapshot-*.json")), "an orderly stop leaves one"
    broker = start_broker(name=data_dir.name)
    assert broker.data_dir == data_dir
    with connect(broker.address) as client:
        client.create_topic("after", 1)
        client.produce("after", b"x")
        client.delete_topic("empty")
    broker.kill()
    assert main(["log", "verify", str(data_dir), "-o", "json"]) == Exit.OK
    names = [report["partition"] for report in json.loads(capsys.readouterr().out)]
    assert "after/0" in names and "a/b/1" in names and not any(name.startswith("empty") for name in names)


# --- words


def test_times_and_flags_in_words() -> None:
    assert shown_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert shown_time(1 << 62) == f"time {1 << 62}"
    assert shown_flags(0) == "-"
    assert shown_flags(layout.FLAG_ATTRS | layout.FLAG_COMPRESSED) == "compressed,attrs"
