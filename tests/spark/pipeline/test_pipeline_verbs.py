"""The verbs of `braid pipeline` on a definition, as a user types them: plan, run, backfill and replay."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pipeline_lab import Lab, orders

from braidmq.cli.main import main

TEXT = """
name: <name>
source: {topics: [<topic>], schema: <schema>, starting: latest}
steps:
  - validate: {expect: [{name: positive, sql: data.amount >= LEAST}]}
  - sql: SELECT topic, partition, offset, data.order_id, data.amount * FACTOR AS amount FROM input
sinks:
  - table: {path: lake/rows}
  - topic: {name: <clean>, key: order_id}
"""


class Typed:
    """Commands on one definition, which may change in between."""

    def __init__(self, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
        self._lab = lab
        self._capsys = capsys
        self.file = lab.folder / "orders.yaml"
        self.define()

    def define(self, factor: int = 1, least: int = 0, text: str = TEXT) -> None:
        for word in ("name", "topic", "clean", "schema"):
            text = text.replace(f"<{word}>", getattr(self._lab, word))
        self.file.write_text(text.replace("FACTOR", str(factor)).replace("LEAST", str(least)))

    def __call__(self, verb: str, *words: str, status: int = 0) -> str:
        """What it printed, on both outputs."""
        self._capsys.readouterr()
        found = main(["pipeline", verb, str(self.file), "--server", self._lab.broker.address, *words])
        said = self._capsys.readouterr()
        assert (found == 0) == (status == 0), said.out + said.err
        return said.out + said.err


def amounts(lab: Lab) -> dict[str, float]:
    rows = lab.table("lake/rows")
    found = {row["order_id"]: row["amount"] for row in rows}
    assert len(found) == len(rows), "a row twice"
    return found


def as_time(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()


@pytest.mark.timeout(600)
def test_plan_run_backfill_and_replay(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    typed = Typed(lab, capsys)
    topic_sink = f"topic:{lab.clean}"
    # What it will do, before anything ran.
    graph = typed("plan")
    assert "step 1 (validate)" in graph and f"dead letters: {lab.topic}.dlq" in graph and "order_id string" in graph
    stages = json.loads(typed("plan", "-o", "json"))
    assert [stage["stage"] for stage in stages] == [
        "source", "step 1 (validate)", "step 2 (sql)", "sink table:lake/rows", f"sink {topic_sink}",
    ]  # fmt: skip
    assert stages[2]["columns"]["amount"] == "double" and stages[1]["dead_letters"] == [f"{lab.topic}.dlq"]
    typed.define(text=TEXT.replace("data.order_id,", "data.odrer_id,"))
    assert "step 2 (sql)" in typed("plan", status=1)
    typed.define()
    # It begins now: what is there already is for a backfill.
    lab.send(*orders(range(10)))
    typed("run", "--once")
    lab.send(*orders(range(10, 15)), {"order_id": "neg", "amount": -5})
    assert "6 rows, 1 rejected" in typed("run", "--once")
    late = {f"o{n}": n + 0.5 for n in range(10, 15)}
    assert amounts(lab) == late
    assert "exclude each other" in typed("run", "--once", "--backfill", status=1)
    second = min(record.timestamp for record in lab.records(lab.topic) if b"o10" in record.value)
    assert topic_sink in typed("run", "--backfill", status=1), "what a topic holds is never taken back"
    typed.define(text=TEXT.replace("  - topic: {name: <clean>, key: order_id}\n", ""))
    for _ in range(2):
        assert "10 records processed, 0 rejected" in typed("run", "--backfill", "--to", as_time(second))
        assert amounts(lab) == late | {f"o{n}": n + 0.5 for n in range(10)}
    # A time, then offsets, once more with another definition; and what was rejected is not rejected twice.
    typed.define(factor=2)
    assert "6 records processed" in typed("replay", "--from", as_time(second), "--skip", topic_sink)
    doubled = {f"o{n}": (n + 0.5) * (2 if n >= 10 else 1) for n in range(15)}
    assert amounts(lab) == doubled
    spans = [word for part in (0, 1) for word in ("--offsets", f"{lab.topic}:{part}:0-1000")]
    for _ in range(2):
        typed("replay", *spans, "--skip", topic_sink)
        assert amounts(lab) == {f"o{n}": (n + 0.5) * 2 for n in range(15)}
    assert len(lab.client.dlq.ls(lab.topic)) == 1 and "topic:" in typed("replay", *spans, status=1)
    assert "say what to replay" in typed("replay", status=1)
    assert "is not topic:partition" in typed("replay", "--offsets", "nonsense", status=1)
    # Dead letters after a fix, each once.
    typed.define(factor=2, least=-10)
    assert "1 dead letters sent back" in typed("replay", "--letters")
    assert "0 dead letters sent back" in typed("replay", "--letters")
    assert amounts(lab)["neg"] == -10
    assert [row["order_id"] for row in lab.values(lab.clean)].count("neg") == 1
    assert lab.client.dlq.ls(lab.topic) == []
    modes = [run.mode for run in lab.client.pipeline.show(lab.name).runs]
    assert {"once", "backfill", "replay"} == set(modes)
    assert {run.outcome for run in lab.client.pipeline.show(lab.name).runs} == {"finished"}


@pytest.mark.timeout(600)
def test_a_run_goes_on_until_somebody_stops_it(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    typed = Typed(lab, capsys)
    typed.define(text=TEXT.replace("latest", "earliest"))
    lab.send(*orders(range(3)))

    def stop_when_it_has_read() -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            known: dict[str, Any] = {each.name: json.loads(each.progress or b"{}") for each in lab.client.pipeline.ls()}
            if known.get(lab.name, {}).get("rows") == 3:
                break
            time.sleep(0.1)
        main(["pipeline", "stop", lab.name, "--server", lab.broker.address])

    stopper = threading.Thread(target=stop_when_it_has_read)
    stopper.start()
    try:
        assert "stopped: 3 rows, 0 rejected" in typed("run")
    finally:
        stopper.join()
    assert (Path(lab.folder) / "checkpoints" / lab.name).is_dir()
