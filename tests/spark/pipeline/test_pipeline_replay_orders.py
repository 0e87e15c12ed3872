"""Replays that somebody asks the broker for: a run that is under way takes them between two batches, and goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pipeline_lab import Lab, orders

TEXT = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - validate: {expect: [{name: positive, sql: data.amount >= 0}]}
  - sql: SELECT topic, partition, offset, data.order_id, data.amount FROM input
sinks:
  - table: {path: lake/orders}
trigger: {every: 100 milliseconds}
"""
PATIENCE_S = 120.0


def eventually(look: Callable[[], Any]) -> Any:
    """What `look` finds, once it finds something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.mark.timeout(600)
def test_a_run_does_what_it_is_asked_for(lab: Lab) -> None:
    from deltalake import DeltaTable

    from braidmq.spark.pipeline.running import Run

    path = lab.folder / "lake/orders"

    def ids() -> list[str]:
        table = DeltaTable(str(path)).to_pyarrow_table() if (path / "_delta_log").exists() else None
        return [] if table is None else sorted(table.column("order_id").to_pylist())

    def ended(number: int) -> Any:
        found = next(each for each in client.pipeline.replays(lab.name) if each.number == number)
        return found if found.state in ("done", "failed") else None

    client = lab.client
    lab.send(*orders(range(6)), {"order_id": "neg", "amount": -5})
    reading = lab.read(TEXT)
    run = Run(lab.spark, lab.context(reading), reading, client=client)
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.go()))
    thread.start()
    try:
        expected = [f"o{n}" for n in range(6)]
        eventually(lambda: ids() == expected)
        eventually(lambda: lab.lag() == 0)
        # Somebody lost rows of the sink. The replay brings them back, and none twice.
        DeltaTable(str(path)).delete("order_id in ('o2', 'o4')")
        assert len(ids()) == 4
        asked = client.pipeline.ask_replay(lab.name, {"offsets": [[lab.topic, part, 0, 1000] for part in range(2)]})
        assert "takes it when its batch has ended" in asked.outlook
        done = eventually(lambda: ended(asked.number))
        assert (done.state, done.run) == ("done", 1) and done.result.startswith("7 records processed, 0 rejected"), done
        assert ids() == expected and len(client.dlq.ls(lab.topic)) == 1, "a letter has one letter"
        # The stream has gone on, and takes what comes next.
        lab.send(*orders(range(6, 8)))
        eventually(lambda: ids() == [f"o{n}" for n in range(8)])
        # What cannot be done says why, and the run lives. Dead letters go back to their topic, and come through the pipeline like
        # any record: this one is rejected anew.
        wishes: tuple[dict[str, Any], ...] = (
            {"offsets": [["elsewhere", 0, 0, 1]]}, {"since_ms": 1, "until_ms": 2}, {"letters": True},
        )  # fmt: skip
        numbers = [client.pipeline.ask_replay(lab.name, wish).number for wish in wishes]
        wrong, nothing, letters = (eventually(lambda number=number: ended(number)) for number in numbers)  # type: ignore[misc]
        assert wrong.state == "failed" and "the pipeline does not read elsewhere" in wrong.result
        assert nothing.state == "done" and "nothing in that range" in nothing.result
        assert letters.state == "done" and letters.result.startswith("1 dead letters sent back")
        eventually(lambda: len(client.dlq.ls(lab.topic)) == 1 and lab.lag() == 0)
        assert ids() == [f"o{n}" for n in range(8)]
    finally:
        run.stop()
        thread.join(PATIENCE_S)
    assert outcomes == ["stopped"]
    texts = [event.text for event in client.pipeline.show(lab.name).events]
    assert any(text.startswith("replay 1 done: 7 records") for text in texts)
    waits = client.pipeline.ask_replay(lab.name, {"letters": True})
    assert waits.state == "requested" and "no run is alive to take it" in waits.outlook
