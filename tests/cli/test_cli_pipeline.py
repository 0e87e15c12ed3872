"""`braid pipeline` as far as it needs no Spark: init, check, and what the broker knows, over a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running_broker import RunningBroker, StartBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect


def braid(*words: str) -> int:
    return main(["pipeline", *words])


def test_init_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert braid("init", "mine") == Exit.OK
    assert braid("init", "mine") == Exit.USAGE, "it is there"
    assert braid("init", "mine", "--force", "--topic", "t") == Exit.OK
    assert braid("init", "not a name") == Exit.USAGE
    assert braid("check", "--offline", "mine.yaml") == Exit.OK
    (tmp_path / "bad.yaml").write_text("name: x\nsource: {topic: a}\nsinks: [console]\n")
    capsys.readouterr()
    assert braid("check", "--offline", "bad.yaml") == Exit.FAILED
    assert capsys.readouterr().out.startswith("bad.yaml:2:10: source.topic: unknown key `topic` (did you mean `topics`?)")
    assert braid("check", "--offline", "bad.yaml", "-o", "json") == Exit.FAILED
    (problem,) = json.loads(capsys.readouterr().out)
    assert (problem["line"], problem["column"], problem["where"]) == (2, 10, "source.topic")
    assert braid("check", "--offline", "missing.yaml") == Exit.NOT_FOUND
    for verb in ("run", "plan"):
        assert braid(verb, "bad.yaml") == Exit.USAGE, "nothing starts"
    assert braid("replay", "mine.yaml") == Exit.USAGE
    assert braid("run", "mine.yaml", "--from", "2025-01-01T00:00:00Z") == Exit.USAGE


def test_check_asks_the_broker(start_broker: StartBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker: RunningBroker = start_broker()
    file = tmp_path / "p.yaml"
    file.write_text("name: p\nsource: {topics: [there, gone],\n  schema: nowhere}\nsteps: [{validate: {}}]\nsinks: [console]\n")
    with connect(broker.address) as client:
        client.create_topic("there")
    assert braid("check", str(file), "--server", broker.address) == Exit.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{file}:") for line in lines] == [
        "2:26: source.topics.1: there is no topic gone", "3:11: source.schema: there is no schema nowhere in the registry",
    ]  # fmt: skip


def test_state_over_a_kill(start_broker: StartBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker: RunningBroker = start_broker()
    with connect(broker.address) as client:
        client.pipeline.put("orders", "name: orders")
        run = client.pipeline.start("orders", "continuous", "here").run
        progress = json.dumps({"rows": 5, "lag": 3, "rejected": {"schema": 2}}).encode()
        client.pipeline.report("orders", run, progress, [("info", "began")])
        client.pipeline.pause("orders")
    broker.kill()
    broker.restart()
    at = ("--server", broker.address)
    capsys.readouterr()
    assert braid("ls", "-o", "json", *at) == Exit.OK
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["state"], found["desired"]) == ("orders", "paused", "pause")
    assert found["progress"]["rows"] == 5
    assert braid("ls", *at) == Exit.OK
    assert "orders" in capsys.readouterr().out
    assert braid("logs", "orders", *at) == Exit.OK
    assert "began" in capsys.readouterr().out
    assert braid("resume", "orders", *at) == Exit.OK
    with connect(broker.address) as client:
        assert client.pipeline.report("orders", run) == "run"
        assert braid("rm", "orders", *at) == Exit.FAILED, "it is under way"
        client.pipeline.end("orders", run, "failed", "a bad row")
    capsys.readouterr()
    assert braid("show", "orders", *at) == Exit.OK
    shown = capsys.readouterr().out
    assert "failed" in shown and "a bad row" in shown and "name: orders" in shown and "schema 2" in shown
    assert braid("show", "orders", "-o", "json", *at) == Exit.OK
    assert json.loads(capsys.readouterr().out)["runs"][0]["outcome"] == "failed"
    with connect(broker.address) as client:
        client.create_topic("held", 1, {"retention_hold": "other,pipeline-orders"})
        client.create_topic("alone", 1, {"retention_hold": "pipeline-orders"})
        assert braid("rm", "orders", "--dry-run", *at) == Exit.OK
        assert braid("stop", "orders", *at) == Exit.OK
        assert client.topic_config("held")["retention_hold"] == "other,pipeline-orders"
        assert braid("rm", "orders", *at) == Exit.OK
        assert client.topic_config("held")["retention_hold"] == "other", "retention waits for the other one alone"
        assert "retention_hold" not in client.topic_config("alone")
    assert braid("show", "orders", *at) == Exit.NOT_FOUND


def test_a_replay_is_asked_for_over_a_kill(start_broker: StartBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker: RunningBroker = start_broker()
    at = ("--server", broker.address)
    with connect(broker.address) as client:
        client.pipeline.put("orders", "name: orders")
    assert braid("ask-replay", "orders", *at) == Exit.USAGE
    assert braid("ask-replay", "orders", "--offsets", "orders:0:9-1", *at) == Exit.USAGE
    assert braid("ask-replay", "orders", "--cancel", "1", "--letters", *at) == Exit.USAGE
    assert braid("ask-replay", "nobody", "--letters", *at) == Exit.NOT_FOUND
    capsys.readouterr()
    assert braid("ask-replay", "orders", "--offsets", "or:ders:0:5-9", "--skip", "topic:x", *at) == Exit.OK
    assert "replay 1 of orders is requested: no run is alive to take it" in capsys.readouterr().err
    assert braid("ask-replay", "orders", "--from", "2026-01-31T12:00:00Z", "-o", "json", *at) == Exit.OK
    assert json.loads(capsys.readouterr().out)["wish"] == {"since_ms": 1769860800000}
    broker.kill()
    broker.restart()
    at = ("--server", broker.address)
    assert braid("ask-replay", "orders", "--cancel", "2", *at) == Exit.OK
    assert braid("ask-replay", "orders", "--cancel", "2", *at) == Exit.FAILED
    with connect(broker.address) as client:
        run = client.pipeline.start("orders", "continuous", "here").run
        assert client.pipeline.report("orders", run) == "replay"
        taken = client.pipeline.take_replay("orders", run)
        assert taken is not None and json.loads(taken.wish) == {"offsets": [["or:ders", 0, 5, 9]], "skip": ["topic:x"]}
        broker.kill()
        broker.restart()
        assert client.pipeline.take_replay("orders", run) == taken, "who asks again after a kill gets the same"
        client.pipeline.end_replay("orders", 1, "done", "4 records processed")
        assert client.pipeline.take_replay("orders", run) is None
    capsys.readouterr()
    assert braid("show", "orders", *at) == Exit.OK
    shown = capsys.readouterr().out
    assert "4 records processed" in shown and "cancelled" in shown
    assert braid("show", "orders", "-o", "json", *at) == Exit.OK
    assert [each["state"] for each in json.loads(capsys.readouterr().out)["replays"]] == ["done", "cancelled"]
