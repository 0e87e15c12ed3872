"""`braid schema` and `braid produce` with Avro and Protocol Buffers, against a broker as users run it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect

pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

Captured = pytest.CaptureFixture[str]
AVRO = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int", "default": 0}]}
NARROWER = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "int"}]}
PROTO = 'syntax = "proto3"; message R { int64 n = 1; string s = 2; }'
DEFINITIONS = {
    "avro": (".avsc", json.dumps(AVRO), json.dumps(WIDER), json.dumps(NARROWER)),
    "protobuf": (".proto", PROTO, PROTO.replace("}", "bool more = 3; }"), PROTO.replace("int64", "string")),
}
GOOD = {"avro": b"\x02\x02a", "protobuf": b"\x08\x01\x12\x01a"}
BAD = {"avro": b"\x02\x08a", "protobuf": b"\x08\x01\x12\x09a"}
KINDS = pytest.mark.parametrize("kind", list(DEFINITIONS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("kinds") / "data", ("--durability", "os"))
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


def values_in(topic: str) -> list[bytes]:
    with connect(os.environ["BRAID_SERVERS"]) as client:
        return [record.value for record in client.fetch(topic, 0, 0).records]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Definitions and messages of both kinds, by `kind-what`."""
    found = {}
    for kind, (ending, *definitions) in DEFINITIONS.items():
        for what, text in zip(("first", "wider", "narrower"), definitions, strict=True):
            found[f"{kind}-{what}"] = tmp_path / f"{what}{ending}"
            found[f"{kind}-{what}"].write_text(text)
        for what, message in (("good", GOOD[kind]), ("bad", BAD[kind])):
            found[f"{kind}-{what}"] = tmp_path / f"{kind}.{what}"
            found[f"{kind}-{what}"].write_bytes(message)
    return found


@KINDS
def test_from_the_first_version_to_the_last(capsys: Captured, files: dict[str, Path], kind: str) -> None:
    name = f"{kind}-versions"
    put = document(capsys, "schema", "put", name, str(files[f"{kind}-first"]), "--type", kind)
    assert put == {"schema": name, "version": 1, "type": kind}
    assert document(capsys, "schema", "put", name, str(files[f"{kind}-first"]))["version"] == 1, "the ending names the type"
    _, err = printed(capsys, "schema", "put", name, str(files[f"{kind}-narrower"]), status=Exit.FAILED)
    assert "SCHEMA_INCOMPATIBLE" in err
    assert document(capsys, "schema", "put", name, str(files[f"{kind}-wider"]))["version"] == 2
    assert printed(capsys, "schema", "get", name, "--version", "1")[0].strip() == files[f"{kind}-first"].read_text()
    assert "more" in printed(capsys, "schema", "diff", name, "1", "2")[0]
    assert [row["type"] for row in document(capsys, "schema", "ls", name)] == [kind, kind]
    other = "avro" if kind == "protobuf" else "protobuf"
    _, err = printed(capsys, "schema", "put", f"{name}-wrong", str(files[f"{kind}-first"]), "--type", other, status=Exit.FAILED)
    assert "SCHEMA_INVALID" in err


@KINDS
def test_a_message_is_checked(capsys: Captured, files: dict[str, Path], kind: str) -> None:
    name = f"{kind}-checks"
    printed(capsys, "schema", "put", name, str(files[f"{kind}-first"]), "--type", kind)
    assert printed(capsys, "schema", "check", name, str(files[f"{kind}-good"]))[1] == "the message fits\n"
    found = document(capsys, "schema", "check", name, str(files[f"{kind}-bad"]), status=Exit.FAILED)
    assert found["errors"]


@KINDS
def test_a_bound_topic_takes_what_fits(capsys: Captured, files: dict[str, Path], kind: str) -> None:
    name, topic = f"{kind}-bound", f"bound/{kind}"
    good, bad = (str(files[f"{kind}-{what}"]) for what in ("good", "bad"))
    printed(capsys, "schema", "put", name, str(files[f"{kind}-first"]), "--type", kind)
    printed(capsys, "topic", "create", topic, "--partitions", "1")
    assert document(capsys, "schema", "bind", topic, name) == {"topic": topic, "schema": name, "rule": "reject"}
    printed(capsys, "produce", topic, "--whole-file", good)
    printed(capsys, "produce", topic, "--whole-file", good, "--schema", name)
    for more in ((), ("--schema", name), ("--ttl", "1h"), ("--delay", "1h")):
        _, err = printed(capsys, "produce", topic, "--whole-file", bad, *more, status=Exit.FAILED)
        assert "SCHEMA_VALIDATION_FAILED" in err
    assert values_in(topic) == [GOOD[kind]] * 2

    printed(capsys, "schema", "bind", topic, name, "--rule", "dead-letter")
    printed(capsys, "produce", topic, "--whole-file", good, "--whole-file", bad, "--whole-file", good)
    assert values_in(topic) == [GOOD[kind]] * 4
    (letter,) = document(capsys, "dlq", "ls", topic)
    story = document(capsys, "dlq", "show", topic, letter["id"])
    assert (story["topic"], story["reason"]) == (topic, "validation_failed") and story["error"]
    printed(capsys, "dlq", "retry", topic, letter["id"], status=Exit.FAILED)


@KINDS
def test_consume_shows_what_the_schema_reads(capsysbinary: pytest.CaptureFixture[bytes], kind: str, tmp_path: Path) -> None:
    """Values of two versions and one of none: each as the version reads it that it fits, and the last one as it is."""
    _, first, second, _ = DEFINITIONS[kind]
    topic = f"read-{kind}"
    wider = {"avro": b"\x02\x02b\x06", "protobuf": b"\x08\x01\x12\x01b\x18\x01"}[kind]
    with connect(os.environ["BRAID_SERVERS"]) as client:
        client.schema.put(topic, first.encode(), kind)
        client.schema.put(topic, second.encode(), kind)
        client.create_topic(topic, 1)
        for value in (GOOD[kind], wider, BAD[kind]):
            client.produce(topic, value, key=b"k")
    more = {"avro": 3, "protobuf": True}[kind]
    assert main(["consume", topic, "--schema", topic, "--show-offset"]) == Exit.OK
    out, err = capsysbinary.readouterr()
    lines = out.split(b"\n", 2)
    place, text = lines[0].split(b"\t")
    assert place == b"0:0" and json.loads(text)["s"] == "a"
    assert json.loads(lines[1].split(b"\t")[1])["more"] == more
    assert lines[2] == b"0:2\t" + BAD[kind] + b"\n", "what does not fit stays what it is"
    assert b"0:2 does not fit" in err and f"invalid {kind.capitalize()}".encode() in err
    assert main(["consume", topic, "--schema", topic, "-o", "json"]) == Exit.OK
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [each.get("decoded_as") for each in found][1:] == [f"{kind}: {topic}, version 2", None]
    assert found[0]["decoded"]["s"] == "a" and "schema_errors" not in found[0]
    assert "invalid" in found[2]["schema_errors"][0] and "decoded" not in found[2]
    assert main(["consume", topic, "--schema", "not-there"]) == Exit.NOT_FOUND
    assert main(["consume", topic, "--schema", topic, "--format", "raw"]) == Exit.USAGE
    assert main(["consume", topic, "--schema", topic, "--via", "fq"]) == Exit.USAGE
