"""`braid topic`, `produce`, `consume` and `bench` against a broker as users run it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One broker for all tests here; each uses topics of its own."""
    broker = RunningBroker(tmp_path_factory.mktemp("cli") / "data", ("--durability", "os"))
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture(autouse=True)
def settings(server: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", server.address)


Captured = pytest.CaptureFixture[bytes]


def braid(*arguments: str, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """`braid` in a process of its own."""
    return subprocess.run([sys.executable, "-m", "braidmq", *arguments], input=feed, capture_output=True, timeout=120, check=False)


def filled(topic: str, values: list[bytes], partitions: int = 1) -> None:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.create_topic(topic, partitions)
        for value in values:
            client.produce(topic, value, partition=0)


def values_in(topic: str, partition: int = 0) -> list[bytes]:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        return [record.value for record in client.fetch(topic, partition, 0, max_records=10_000).records]


# --- topics


def test_topics_from_creation_to_removal(capfdbinary: Captured) -> None:
    assert main(["topic", "create", "life/one", "life/two", "--partitions", "2"]) == Exit.OK
    assert capfdbinary.readouterr().err == b"life/one created\nlife/two created\n"
    assert main(["topic", "create", "life/one", "--partitions", "9"]) == Exit.OK
    assert b"exists already" in capfdbinary.readouterr().err

    filled("life/one", [b"a", b"b"])
    assert main(["topic", "ls", "--quiet"]) == Exit.OK
    assert {b"life/one", b"life/two"} <= set(capfdbinary.readouterr().out.splitlines())
    assert main(["topic", "ls", "-o", "json"]) == Exit.OK
    rows = json.loads(capfdbinary.readouterr().out)
    assert {"topic": "life/one", "partitions": 2, "records": 2} in rows

    assert main(["topic", "info", "life/one"]) == Exit.OK
    assert b"life/one: 2 partitions, 2 records" in capfdbinary.readouterr().out
    assert main(["topic", "info", "life/one", "-o", "json"]) == Exit.OK
    info = json.loads(capfdbinary.readouterr().out)
    assert info["records"] == 2
    assert info["partitions"][0] == {"partition": 0, "oldest": 0, "newest": 2, "records": 2}

    assert main(["topic", "rm", "life/one", "--dry-run"]) == Exit.OK
    assert capfdbinary.readouterr().err == b"would remove life/one: 2 partitions, 2 records\n"
    assert values_in("life/one") == [b"a", b"b"]
    assert main(["topic", "rm", "life/one", "life/two", "--yes"]) == Exit.OK
    assert main(["topic", "info", "life/one"]) == Exit.NOT_FOUND


def test_one_missing_topic_keeps_the_others(capfdbinary: Captured) -> None:
    filled("kept", [b"a"])
    assert main(["topic", "rm", "kept", "never-there", "--yes"]) == Exit.NOT_FOUND
    assert b"error: TOPIC_NOT_FOUND: topic not found: never-there" in capfdbinary.readouterr().err
    assert values_in("kept") == [b"a"]
    assert main(["topic", "rm", "kept", "never-there", "--yes", "--if-exists"]) == Exit.OK
    assert main(["topic", "info", "kept"]) == Exit.NOT_FOUND


def test_a_refused_name_or_count_fails(capfdbinary: Captured) -> None:
    assert main(["topic", "create", "__internal"]) == Exit.FAILED
    assert b"error: INVALID_TOPIC: " in capfdbinary.readouterr().err
    assert main(["topic", "create", "many", "--partitions", "10001"]) == Exit.FAILED
    assert b"error: INVALID_PARTITIONS: " in capfdbinary.readouterr().err


def test_nobody_there_is_status_3(capfdbinary: Captured) -> None:
    with_nothing = ["--server", "127.0.0.1:1", "--timeout", "300ms"]
    for command in (["topic", "ls"], ["produce", "t", "x"], ["consume", "t"], ["bench", "latency"]):
        assert main([*command, *with_nothing]) == Exit.UNREACHABLE
        assert capfdbinary.readouterr().err.startswith(b"error: UNREACHABLE: ")


# --- produce


def test_produce_arguments(capfdbinary: Captured) -> None:
    assert main(["produce", "args", "one", "two", "--partition", "0"]) == Exit.OK
    assert b"2 messages acknowledged" in capfdbinary.readouterr().err
    assert values_in("args") == [b"one", b"two"]
    assert main(["produce", "args", "three", "--partition", "0"]) == Exit.OK
    assert capfdbinary.readouterr().err == b"acknowledged: args/0 offset 2\n"


def test_produce_lines_of_standard_input() -> None:
    filled("lines", [])
    done = braid("produce", "lines", "-o", "json", feed=b"one\n\ntw\xffo\nlast")
    assert done.returncode == Exit.OK, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["sent"], summary["acked"], summary["error"]) == (4, 4, None)
    assert summary["last"] == {"partition": 0, "offset": 3}
    assert values_in("lines") == [b"one", b"", b"tw\xffo", b"last"]


def test_produce_files(tmp_path: Path) -> None:
    filled("files", [])
    lines, whole = tmp_path / "lines", tmp_path / "whole"
    lines.write_bytes(b"1\n2\n")
    whole.write_bytes(b"x\ny\n")
    assert main(["produce", "files", "--file", str(lines)]) == Exit.OK
    assert main(["produce", "files", "--whole-file", str(whole), "--whole-file", str(lines)]) == Exit.OK
    assert values_in("files") == [b"1", b"2", b"x\ny\n", b"1\n2\n"]


def test_produce_keys_headers_and_consume_them_as_json(capfdbinary: Captured, tmp_path: Path) -> None:
    filled("pairs", [])
    lines = tmp_path / "pairs"
    lines.write_bytes(b"k1=v=1\n=none\nk2=\xff\n")
    assert main(["produce", "pairs", "--file", str(lines), "--key-separator", "=", "--header", "a=1", "--header", "b=2"]) == Exit.OK
    capfdbinary.readouterr()
    assert main(["consume", "pairs", "-o", "json"]) == Exit.OK
    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(r["offset"], r["key"], r.get("value")) for r in records] == [(0, "k1", "v=1"), (1, None, "none"), (2, "k2", None)]
    assert base64.b64decode(records[2]["value_base64"]) == b"\xff"
    assert all(record["headers"] == {"a": "1", "b": "2"} for record in records)
    assert all(abs(record["timestamp"] / 1000 - time.time()) < 300 for record in records)
    assert main(["consume", "pairs", "--show-key", "--show-offset"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"0:0\tk1\tv=1\n0:1\t-\tnone\n0:2\tk2\t\xff\n"
    assert main(["consume", "pairs", "--format", "raw"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"v=1none\xff"


def test_a_key_chooses_the_partition(capfdbinary: Captured) -> None:
    assert main(["topic", "create", "keyed", "--partitions", "3"]) == Exit.OK
    assert main(["produce", "keyed", "--key", "user-123", "x", "y"]) == Exit.OK
    assert values_in("keyed", 2) == [b"x", b"y"]


def test_produce_stops_at_the_first_error_and_counts_what_was_acked(capfdbinary: Captured, tmp_path: Path) -> None:
    filled("partly", [])
    lines = tmp_path / "lines"
    lines.write_bytes(b"k:1\nk:2\nnothing\nk:3\n")
    assert main(["produce", "partly", "--file", str(lines), "--key-separator", ":"]) == Exit.USAGE
    err = capfdbinary.readouterr().err
    assert b"2 messages acknowledged" in err
    assert b"error: INVALID_ARGUMENT: invalid argument: message 3 has no key separator `:`" in err
    assert values_in("partly") == [b"1", b"2"]
    assert main(["produce", "partly", "x", "--partition", "7"]) == Exit.NOT_FOUND
    assert b"error: PARTITION_NOT_FOUND: " in capfdbinary.readouterr().err
    assert main(["produce", "partly", "--file", str(tmp_path / "missing")]) == Exit.NOT_FOUND
    assert b"error: ENOENT: " in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key", "k", "--key-separator", ":"],
        ["--key-separator", ""],
        ["x", "--file", "y"],
        ["--file", "x", "--whole-file", "y"],
        ["x", "--header", "nonsense"],
        ["x", "--rate", "fast"],
        ["x", "--timeout", "soon"],
    ],
)
def test_produce_arguments_that_contradict(arguments: list[str], capfdbinary: Captured) -> None:
    assert main(["produce", "never-made", *arguments]) == Exit.USAGE
    assert capfdbinary.readouterr().err.startswith(b"error: INVALID_ARGUMENT: ")


def test_a_rate_is_kept() -> None:
    filled("paced", [])
    started = time.monotonic()
    assert main(["produce", "paced", *map(str, range(31)), "--rate", "100/s"]) == Exit.OK
    assert time.monotonic() - started >= 0.3
    assert len(values_in("paced")) == 31


def test_interrupted_produce_counts_what_was_sent() -> None:
    filled("tail", [])
    with subprocess.Popen(
        [sys.executable, "-m", "braidmq", "produce", "tail"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        until(lambda: len(values_in("tail")) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == Exit.INTERRUPTED
        assert b"2 messages acknowledged" in process.stderr.read()


# --- consume


def until(condition: object, seconds: float = 30.0) -> None:
    """Wait for something another process does."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_consume_from_everywhere(capfdbinary: Captured) -> None:
    filled("starts", [b"0", b"1", b"2"])
    border = int(time.time() * 1000) + 5
    until(lambda: time.time() * 1000 > border + 5)
    filled("starts", [b"3", b"4"])
    for start, expected in (
        ("earliest", b"0 1 2 3 4"),
        ("latest", b""),
        ("3", b"3 4"),
        ("5", b""),
        ("0", b"0 1 2 3 4"),
        (f"@{border}", b"3 4"),
        ("@2001-01-01T00:00:00Z", b"0 1 2 3 4"),
        ("@2101-01-01T00:00:00+00:00", b""),
    ):
        assert main(["consume", "starts", "--from", start]) == Exit.OK
        assert capfdbinary.readouterr().out.split() == expected.split(), start
    assert main(["consume", "starts", "--from", "1", "--count", "2"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"1\n2\n"
    assert main(["consume", "starts", "--count", "0"]) == Exit.OK
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["--from", "9"], Exit.NOT_FOUND, b"OFFSET_OUT_OF_RANGE"),
        (["--partition", "5"], Exit.NOT_FOUND, b"PARTITION_NOT_FOUND"),
        (["--partition", "-1"], Exit.NOT_FOUND, b"PARTITION_NOT_FOUND"),
        (["--from", "-1"], Exit.USAGE, b"INVALID_ARGUMENT"),
        (["--from", "soon"], Exit.USAGE, b"INVALID_ARGUMENT"),
        (["--from", "@soon"], Exit.USAGE, b"INVALID_ARGUMENT"),
        (["--count", "-1"], Exit.USAGE, b"INVALID_ARGUMENT"),
        (["--format", "raw", "-o", "json"], Exit.USAGE, b"INVALID_ARGUMENT"),
    ],
)
def test_consume_from_nowhere(arguments: list[str], status: Exit, code: bytes, capfdbinary: Captured) -> None:
    filled("nowhere", [])
    assert main(["consume", "nowhere", *(f"{a}" for a in arguments)]) == status
    assert capfdbinary.readouterr().err.startswith(b"error: " + code)


def test_consume_of_an_unknown_topic_is_status_4(capfdbinary: Captured) -> None:
    assert main(["consume", "not-a-topic"]) == Exit.NOT_FOUND
    assert capfdbinary.readouterr().err.startswith(b"error: TOPIC_NOT_FOUND: topic not found: not-a-topic\nhint: ")


def test_consume_reads_all_partitions_or_those_asked_for(capfdbinary: Captured) -> None:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.create_topic("spread", 3)
        for number in range(9):
            client.produce("spread", b"%d" % number, partition=number % 3)
    assert main(["consume", "spread"]) == Exit.OK
    assert sorted(capfdbinary.readouterr().out.split()) == [b"%d" % number for number in range(9)]
    assert main(["consume", "spread", "--partition", "1"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"1\n4\n7\n"


def test_a_group_goes_on_where_it_stopped(capfdbinary: Captured) -> None:
    filled("grouped", [b"%d" % number for number in range(6)])
    for expected in (b"0\n1\n", b"2\n3\n", b"4\n5\n", b""):
        assert main(["consume", "grouped", "--group", "g", "--count", "2"]) == Exit.OK
        assert capfdbinary.readouterr().out == expected
    assert main(["consume", "grouped", "--group", "g", "--from", "earliest", "--count", "1"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"0\n"
    assert main(["consume", "grouped", "--group", "g", "--count", "1"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"1\n", "a start that was asked for moves the group too"


def test_follow_prints_what_comes_and_commits_when_interrupted() -> None:
    filled("followed", [b"old"])
    with (
        connect(os.environ["BRAID_SERVERS"]) as client,
        subprocess.Popen(
            [sys.executable, "-m", "braidmq", "consume", "followed", "--follow", "--group", "f"], stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"old\n"
        client.produce("followed", b"new")
        assert process.stdout.readline() == b"new\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == Exit.INTERRUPTED
        assert client.committed("followed", "f", 0) == 2


def test_follow_without_a_start_begins_at_the_end() -> None:
    filled("ending", [b"old"])
    with (
        connect(os.environ["BRAID_SERVERS"]) as client,
        subprocess.Popen(
            [sys.executable, "-m", "braidmq", "consume", "ending", "-f", "--count", "1"], stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        # Nothing tells when the consumer has found the end, so new records come until one is seen.
        while process.poll() is None:
            client.produce("ending", b"new")
            time.sleep(0.01)
        assert process.stdout.read() == b"new\n"
        assert process.returncode == Exit.OK


def test_consume_into_a_closed_pipe_ends_quietly_and_commits_nothing_unseen() -> None:
    filled("piped", [b"x" * 1000] * 1000)
    with subprocess.Popen(
        [sys.executable, "-m", "braidmq", "consume", "piped", "--group", "p"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == Exit.PIPE_CLOSED
        assert process.stderr.read() == b""
    with connect(os.environ["BRAID_SERVERS"]) as client:
        assert client.committed("piped", "p", 0) < 1000


def test_what_arrives_while_reading_is_left_for_the_next_run(capfdbinary: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from braidmq.cli import consume

    filled("busy", [b"0", b"1"])
    original = consume._partitions

    def then_more(*args: object) -> object:
        found = original(*args)  # type: ignore[arg-type]
        filled("busy", [b"2"])
        return found

    monkeypatch.setattr(consume, "_partitions", then_more)
    assert main(["consume", "busy"]) == Exit.OK
    assert capfdbinary.readouterr().out == b"0\n1\n"


# --- bench


@pytest.mark.parametrize("what", ["produce", "consume", "latency"])
def test_bench_measures_and_cleans_up(what: str, capfdbinary: Captured) -> None:
    assert main(["bench", what, "--count", "300", "--size", "1KiB", "-o", "json"]) == Exit.OK
    result = json.loads(capfdbinary.readouterr().out)
    assert (result["what"], result["messages"], result["message_bytes"]) == (what, 300, 1024)
    rate = result["requests_per_s" if what == "latency" else "messages_per_s"]
    assert rate > 0
    if what == "latency":
        assert 0 < result["p50_us"] <= result["p90_us"] <= result["p99_us"] <= result["max_us"]
    else:
        assert result["megabytes_per_s"] == pytest.approx(rate * 1024 / 1e6)
    assert main(["topic", "ls", "--quiet"]) == Exit.OK
    assert b"braid-bench" not in capfdbinary.readouterr().out


def test_bench_on_a_topic_of_choice_keeps_it(capfdbinary: Captured) -> None:
    assert main(["bench", "produce", "--count", "10", "--topic", "measured"]) == Exit.OK
    assert b"messages per s" in capfdbinary.readouterr().out
    assert main(["topic", "info", "measured"]) == Exit.OK
    for wrong in (["--count", "0"], ["--size", "many"], ["--size", "1TB"]):
        assert main(["bench", "produce", *wrong]) == Exit.USAGE
