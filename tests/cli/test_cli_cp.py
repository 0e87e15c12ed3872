"""`braid cp`: what is copied is what was there, wherever it goes, and never twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import braidmq.testing
from braidmq.cli.cp_ends import Item, line_of, read_line
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.testing.thread_broker import ThreadBroker

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def settings(braid: ThreadBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", braid.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(capsys: Captured, *words: str, status: Exit = Exit.OK) -> str:
    ended = main(["cp", *words])
    out, err = capsys.readouterr()
    assert ended == status, err
    return out + err


@pytest.fixture
def source(braid: ThreadBroker) -> str:
    client = braid.client()
    braid.create("source", 3)
    for number in range(30):
        client.produce("source", b"v%d" % number, key=b"k%d" % number, headers={"h": b"\xff%d" % number})
    client.produce("source", b"\xff\xfe raw", partition=0)
    return "source"


def content(braid: ThreadBroker, topic: str) -> list[tuple[int, bytes | None, bytes, bytes]]:
    return [(r.partition, r.key, r.value, r.headers.get("h", b"")) for r in braid.records(topic)]


def test_a_topic_is_copied_with_keys_headers_partitions_and_times(braid: ThreadBroker, source: str, capsys: Captured) -> None:
    assert "copied 31 records" in run(capsys, source, "copy")
    assert content(braid, "copy") == content(braid, source)
    first, original = braid.records("copy")[0], braid.records(source)[0]
    assert first.headers["braid-source"] == f"source/{original.partition}/{original.offset}".encode()
    assert first.headers["braid-timestamp"] == b"%d" % original.timestamp


def test_a_dry_run_counts_and_writes_nothing(braid: ThreadBroker, source: str, capsys: Captured) -> None:
    assert json.loads(run(capsys, source, "copy", "--dry-run", "-o", "json")) == {"copied": 31, "bytes": 166, "dry_run": True}
    assert braid.client().list_topics() == [source]


def test_through_a_file_and_back_nothing_is_lost(braid: ThreadBroker, source: str, capsys: Captured, tmp_path: Path) -> None:
    file = str(tmp_path / "source.jsonl")
    run(capsys, source, file)
    braid.create("back", 3)
    run(capsys, file, "back", "--map", "keep")
    assert content(braid, "back") == content(braid, source)
    assert "exists" in run(capsys, source, file, status=Exit.USAGE)
    assert not os.path.exists(file + ".partial")


def test_ranges_partitions_filters_and_limits_choose(braid: ThreadBroker, source: str, capsys: Captured) -> None:
    run(capsys, source, "one", "--filter", "^v1[0-4]$")
    assert sorted(braid.values("one")) == [b"v10", b"v11", b"v12", b"v13", b"v14"]
    run(capsys, source, "two", "--partition", "1", "--from", "2", "--to", "5")
    records = braid.records(source)
    assert braid.values("two") == [r.value for r in records if r.partition == 1 and 2 <= r.offset < 5]
    run(capsys, source, "three", "--limit", "4", "--rate", "100000")
    assert len(braid.values("three")) == 4
    run(capsys, source, "four", "--from", "@2100-01-01T00:00:00Z")
    assert braid.values("four") == []
    run(capsys, source, "five", "--partition", "7", status=Exit.NOT_FOUND)


def test_a_topic_with_other_partitions_is_filled_by_keys(braid: ThreadBroker, source: str, capsys: Captured) -> None:
    braid.create("other", 2)
    run(capsys, source, "other")
    assert sorted(braid.values("other")) == sorted(braid.values(source))
    assert "--map keep" in run(capsys, source, "other", "--map", "keep", status=Exit.USAGE)
    assert "--resume needs" in run(capsys, source, "other", "--resume", status=Exit.USAGE)


def test_a_copy_that_is_resumed_copies_nothing_twice(braid: ThreadBroker, source: str, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    for target in ("copy", str(file)):
        run(capsys, source, target, "--resume", "--limit", "7")
        run(capsys, source, target, "--resume", "--limit", "9")
        run(capsys, source, target, "--resume")
        assert "copied 0 records" in run(capsys, source, target, "--resume")
    assert content(braid, "copy") == content(braid, source)
    with file.open("ab") as stream:
        stream.write(b'{"partition": 0, "off')
    braid.client().produce(source, b"more", partition=2)
    assert "copied 1 records" in run(capsys, source, str(file), "--resume")
    lines = [read_line(line, "", 0) for line in file.read_bytes().splitlines()]
    assert [(item.partition, item.offset) for item in lines] == [(r.partition, r.offset) for r in braid.records(source)]


def test_from_one_broker_to_another(braid: ThreadBroker, source: str, capsys: Captured) -> None:
    with braidmq.testing.broker() as far:
        run(capsys, source, source, "--to-server", far.address)
        assert content(far, source) == content(braid, source)
        main(["ctx", "add", "far", "--server", far.address])
        capsys.readouterr()
        run(capsys, source, "again", "--to-ctx", "far", "--plain", "--server", braid.address)
        assert "braid-source" not in far.records("again")[0].headers


@pytest.mark.parametrize("words", [["t", "t"], ["./x.jsonl", "t", "--from", "3"]])
def test_what_makes_no_sense_is_refused(braid: ThreadBroker, capsys: Captured, words: list[str]) -> None:
    braid.create("t")
    assert "INVALID_ARGUMENT" in run(capsys, *words, status=Exit.USAGE)


def test_a_bad_line_is_named(braid: ThreadBroker, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"value": "fine"}\n{"key": "no value"}\n')
    assert "line 2: it has no value" in run(capsys, str(file), "t", status=Exit.USAGE)
    file.write_text("not json\n")
    assert "line 1" in run(capsys, str(file), "t", status=Exit.USAGE)


def test_a_line_holds_any_bytes() -> None:
    item = Item("t", 1, 2, 3, b"\xff", bytes(range(256)), {"a_base64": b"text", "b": b"\x80"})
    assert read_line(line_of(item), "", 1) == item
    empty = Item("t", 0, 0, 0, None, b"")
    assert read_line(line_of(empty), "", 1) == empty
