"""`braid group`, `schema`, `dlq`, `delayed`, `txn` and the new ways to produce, against a broker as users run it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect

Captured = pytest.CaptureFixture[str]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
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


def printed(capsys: Captured, *arguments: str, status: Exit = Exit.OK) -> tuple[str, str]:
    """Standard output and error of a command that ends with `status`."""
    ended = main(list(arguments))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out, err


def document(capsys: Captured, *arguments: str, status: Exit = Exit.OK) -> Any:
    return json.loads(printed(capsys, *arguments, "-o", "json", status=status)[0])


def filled(topic: str, *values: bytes) -> None:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.create_topic(topic, 1)
        for value in values:
            client.produce(topic, value)


def values_in(topic: str) -> list[bytes]:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        return [record.value for record in client.fetch(topic, 0, 0).records]


def test_groups(capsys: Captured) -> None:
    filled("g/topic", b"a", b"b", b"c")
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.commit("g/topic", "readers", 0, 1)
    assert {"group": "readers", "topic": "g/topic", "members": 0, "offsets": {"0": 1}} in document(capsys, "group", "ls")
    assert "readers" in printed(capsys, "group", "ls")[0]
    shown = document(capsys, "group", "show", "readers")
    assert (shown["state"], shown["lag"], shown["partitions"][0]["committed"]) == ("empty", 2, 1)
    assert "readers: empty, 0 members, 2 records behind" in printed(capsys, "group", "show", "readers")[0]
    assert document(capsys, "group", "lag", "readers", "--topic", "g/topic")[0]["lag"] == 2
    lines = printed(capsys, "group", "lag", "readers", "--watch", "10ms", "--count", "3", "-o", "json")[0].splitlines()
    assert [json.loads(line)["partitions"][0]["lag"] for line in lines] == [2, 2, 2]
    printed(capsys, "group", "lag", "readers", "--count", "3", status=Exit.USAGE)

    planned = document(capsys, "group", "seek", "readers", "g/topic", "--to", "latest", "--dry-run")
    assert planned == {"dry_run": True, "changes": [{"topic": "g/topic", "partition": 0, "before": 1, "after": 3}]}
    assert document(capsys, "group", "lag", "readers")[0]["committed"] == 1
    out, err = printed(capsys, "group", "seek", "readers", "g/topic", "--to", "2", "--yes")
    assert out.splitlines()[1].split() == ["0", "1", "2", "1"] and err == "moved\n"
    printed(capsys, "group", "seek", "readers", "g/topic", "--to", "@2020-01-01T00:00:00Z", "--yes")
    assert document(capsys, "group", "lag", "readers")[0]["committed"] == 0
    printed(capsys, "group", "seek", "readers", "g/topic", "--to", "yesterday", status=Exit.USAGE)
    printed(capsys, "group", "seek", "readers", "g/missing", "--to", "latest", status=Exit.NOT_FOUND)

    assert "would remove readers of g/topic" in printed(capsys, "group", "rm", "readers", "--dry-run")[1]
    assert "removed readers of g/topic" in printed(capsys, "group", "rm", "readers", "--yes")[1]
    printed(capsys, "group", "rm", "readers", "--yes", status=Exit.NOT_FOUND)
    printed(capsys, "group", "show", "readers", status=Exit.NOT_FOUND)


def test_moving_a_group_that_reads_warns(capsys: Captured) -> None:
    filled("g/live", b"a")
    with connect(os.environ["BRAID_SERVERS"]) as client, client.consumer("g/live", group="live") as consumer:
        consumer.poll(timeout_s=10)
        assert "the group has 1 members" in printed(capsys, "group", "seek", "live", "g/live", "--to", "latest", "--dry-run")[1]


def test_schemas(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("jsonschema_rs")
    definition, wider, good, bad = (tmp_path / name for name in ("a.json", "b.json", "good", "bad"))
    definition.write_text(json.dumps(SCHEMA))
    wider.write_text(json.dumps({**SCHEMA, "title": "orders"}))
    good.write_text('{"n": 1}')
    bad.write_text('{"n": "x"}')
    assert document(capsys, "schema", "put", "orders", str(definition)) == {"schema": "orders", "version": 1, "type": "json"}
    assert printed(capsys, "schema", "put", "orders", str(wider), "--compatibility", "full")[1] == "orders version 2\n"
    assert document(capsys, "schema", "ls", "orders")[1] == {"schema": "orders", "version": 2, "type": "json"}
    assert "orders" in printed(capsys, "schema", "ls")[0]
    assert json.loads(printed(capsys, "schema", "get", "orders", "--version", "1")[0]) == SCHEMA
    assert document(capsys, "schema", "get", "orders")["compatibility"] == "full"
    assert printed(capsys, "schema", "check", "orders", str(good))[1] == "the message fits\n"
    assert document(capsys, "schema", "check", "orders", str(bad), status=Exit.FAILED)["errors"]
    printed(capsys, "schema", "check", "missing", str(good), status=Exit.NOT_FOUND)
    assert '+  "title": "orders"' in printed(capsys, "schema", "diff", "orders", "1", "2")[0]
    assert document(capsys, "schema", "diff", "orders", "1", "1")["differ"] is False

    filled("s/orders")
    assert document(capsys, "schema", "bind", "s/orders") == {"topic": "s/orders", "schema": None, "rule": None}
    bound = document(capsys, "schema", "bind", "s/orders", "orders", "--rule", "dead-letter")
    assert bound == {"topic": "s/orders", "schema": "orders", "rule": "dead-letter"}
    assert "bound to no schema" in printed(capsys, "schema", "bind", "s/orders", "--none")[1]
    printed(capsys, "produce", "s/orders", '{"n": 1}', "--schema", "orders")
    _, err = printed(capsys, "produce", "s/orders", "{}", '{"n": 2}', "--schema", "orders", status=Exit.FAILED)
    assert "SCHEMA_VALIDATION_FAILED" in err and "0 of 1 messages" in err
    assert values_in("s/orders") == [b'{"n": 1}']

    assert "would remove orders-v1" in printed(capsys, "schema", "rm", "orders", "--version", "1", "--dry-run")[1]
    printed(capsys, "schema", "rm", "orders", "--yes")
    printed(capsys, "schema", "rm", "orders", "--yes", status=Exit.NOT_FOUND)
    printed(capsys, "schema", "get", "orders", status=Exit.NOT_FOUND)


def test_dead_letters(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("jsonschema_rs")
    definition = tmp_path / "d.json"
    definition.write_text(json.dumps(SCHEMA))
    filled("d/topic")
    printed(capsys, "schema", "put", "strict", str(definition))
    printed(capsys, "schema", "bind", "d/topic", "strict", "--rule", "dead-letter")
    printed(capsys, "produce", "d/topic", "one", "two", "three", "--key", "k")
    printed(capsys, "schema", "bind", "d/topic", "--none")
    letters = document(capsys, "dlq", "ls", "d/topic")
    assert [letter["value"] for letter in letters] == ["one", "two", "three"]
    assert "three" in printed(capsys, "dlq", "ls", "d/topic")[0]
    story = document(capsys, "dlq", "show", "d/topic", letters[0]["id"])
    assert (story["topic"], story["reason"], story["key"], story["value"]) == ("d/topic", "validation_failed", "k", "one")
    assert "validation_failed" in printed(capsys, "dlq", "show", "d/topic", letters[0]["id"])[0]
    printed(capsys, "dlq", "show", "d/topic", "no-1-1", status=Exit.NOT_FOUND)

    assert "would send 1 dead letters back" in printed(capsys, "dlq", "retry", "d/topic", letters[0]["id"], "--dry-run")[1]
    assert "1 dead letters sent back" in printed(capsys, "dlq", "retry", "d/topic", letters[0]["id"], "--yes")[1]
    printed(capsys, "dlq", "retry", "d/topic", letters[0]["id"], status=Exit.NOT_FOUND)
    assert "1 dead letters sent back" in printed(capsys, "dlq", "retry", "d/topic", "--matching", "TWO")[1]
    assert values_in("d/topic") == [b"one", b"two"]
    printed(capsys, "dlq", "retry", "d/topic", status=Exit.USAGE)
    assert "would delete 1 dead letters" in printed(capsys, "dlq", "purge", "d/topic", "--dry-run")[1]
    last = json.loads(printed(capsys, "dlq", "ls", "d/topic", "-o", "json")[0])[0]["id"]
    assert "would delete 1 dead letters" in printed(capsys, "dlq", "discard", "d/topic", last, "--dry-run")[1]
    assert main(["dlq", "discard", "d/topic", "nobody", "--yes"]) == Exit.NOT_FOUND
    assert "deleted 1 dead letters" in printed(capsys, "dlq", "discard", "d/topic", last, "--yes")[1]
    assert printed(capsys, "dlq", "ls", "d/topic", "-o", "json")[0].strip() == "[]"
    assert "deleted 0 dead letters" in printed(capsys, "dlq", "purge", "d/topic", "--yes")[1]
    assert document(capsys, "dlq", "ls", "d/topic") == []
    assert "0 dead letters sent back" in printed(capsys, "dlq", "retry", "d/topic", "--all")[1]


def test_a_dead_letter_far_down_the_list(capsys: Captured) -> None:
    filled("far/topic")
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.create_topic("far/topic.dlq", 1)
        with client.producer() as producer:
            for number in range(1100):
                producer.send("far/topic.dlq", b"%d" % number)
    assert [letter["value"] for letter in document(capsys, "dlq", "ls", "far/topic", "--max", "2000")][-1] == "1099"
    assert document(capsys, "dlq", "show", "far/topic", "far/topic-1090-0")["value"] == "1090"
    would = printed(capsys, "dlq", "retry", "far/topic", "far/topic-1090-0", "--dry-run")[1]
    assert "would send 1 dead letters back to far/topic, which has 1000 or more" in would
    printed(capsys, "dlq", "retry", "far/topic", "far/topic-1090-0", "--yes")
    for gone in ("show", "retry"):
        printed(capsys, "dlq", gone, "far/topic", "far/topic-1090-0", status=Exit.NOT_FOUND)
    printed(capsys, "dlq", "retry", "far/topic", "far/topic-1090-0", "--dry-run", status=Exit.NOT_FOUND)
    assert "would delete 1000 or more dead letters" in printed(capsys, "dlq", "purge", "far/topic", "--dry-run")[1]


def test_delayed_records(capsys: Captured) -> None:
    filled("l/topic")
    out, err = printed(capsys, "produce", "l/topic", "later", "even later", "--delay", "1h")
    ids = out.split()
    assert len(ids) == 2 and "2 messages will be delivered in 1h" in err
    assert [row["id"] for row in document(capsys, "delayed", "ls", "l/topic")] == ids
    assert ids[0] in printed(capsys, "delayed", "ls")[0]
    assert f"would cancel {ids[0]}" in printed(capsys, "delayed", "cancel", ids[0], "--dry-run")[1]
    printed(capsys, "delayed", "cancel", *ids, "--yes")
    assert document(capsys, "delayed", "ls", "l/topic") == []
    printed(capsys, "delayed", "cancel", ids[0], "--yes", status=Exit.NOT_FOUND)
    printed(capsys, "delayed", "cancel", ids[0], "--dry-run", status=Exit.NOT_FOUND)
    assert document(capsys, "produce", "l/topic", "x", "--delay", "1h")["delayed"]


def test_time_to_live(capsys: Captured) -> None:
    filled("t/topic")
    printed(capsys, "produce", "t/topic", "fleeting", "--ttl", "1h")
    printed(capsys, "produce", "t/topic", "too", "--ttl", "1h", "--header", "a=b")
    printed(capsys, "produce", "t/topic", *(f"gone {number}" for number in range(20)), "--ttl", "1ms")
    with connect(os.environ["BRAID_SERVERS"]) as client:
        assert client.metadata("t/topic").partitions[0].newest == 22
        deadline = time.monotonic() + 10
        while len(values_in("t/topic")) > 2 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert values_in("t/topic") == [b"fleeting", b"too"]
    printed(capsys, "produce", "t/topic", "x", "--ttl", "1h", "--delay", "1h", status=Exit.USAGE)
    printed(capsys, "produce", "t/topic", "x", "--ttl", "soon", status=Exit.USAGE)


def test_transactions(capsys: Captured) -> None:
    filled("x/topic")
    with connect(os.environ["BRAID_SERVERS"]) as client:
        open_one = client.transaction()
        open_one.begin()
        open_one.produce("x/topic", b"never")
        row = next(row for row in document(capsys, "txn", "ls") if row["id"] == open_one.id)
        assert (row["state"], row["records"]) == ("active", 1)
        assert open_one.id in printed(capsys, "txn", "ls")[0]
        assert f"would abort {open_one.id}: 1 records" in printed(capsys, "txn", "abort", open_one.id, "--dry-run")[1]
        assert f"aborted {open_one.id}: 1 records" in printed(capsys, "txn", "abort", open_one.id, "--yes")[1]
        printed(capsys, "txn", "abort", open_one.id, status=Exit.NOT_FOUND)
    assert values_in("x/topic") == []
