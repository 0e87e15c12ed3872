"""Steps that remember rows, in a stream: a join of two topics, and windows over deduplicated rows, with letters on the way."""

from __future__ import annotations

import json

import pytest
from pipeline_lab import Lab, orders

from braidmq.cli.main import main


@pytest.mark.timeout(600)
def test_a_join_of_topics(lab: Lab) -> None:
    payments = lab.topic + "-payments"
    lab.client.create_topic(payments, 1)
    lab.client.schema.put(payments, json.dumps({"type": "object", "properties": {"order_id": {"type": "string"}}}).encode())
    with lab.client.producer() as producer:
        for n in (1, 3, 9):
            producer.send(payments, json.dumps({"order_id": f"o{n}"}).encode())
    lab.send(*orders(range(5)))
    lab.once(f"""
name: <name>
source: {{topics: [<topic>], schema: <schema>}}
steps:
  - sql: SELECT data.order_id, data.amount, timestamp FROM input
  - join: {{topic: {payments}, schema: {payments}, on: order_id, within: 10 minutes}}
sinks:
  - table: {{path: lake/paid}}
""")
    assert sorted(row["order_id"] for row in lab.table("lake/paid")) == ["o1", "o3"]


@pytest.mark.timeout(600)
def test_windows_over_deduplicated_rows(lab: Lab) -> None:
    lab.send(*orders(range(4)), *orders(range(2)), {"order_id": "x"})
    text = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - validate: {}
  - sql: SELECT data.*, to_timestamp(1700000000 + cast(data.amount AS int) * 60) AS timestamp FROM input
  - deduplicate: {keys: [order_id], within: 1 second}
  - window: {size: 1 minute, aggregates: {n: count(*), total: sum(amount)}}
sinks:
  - table: {path: lake/windows, key: window_start}
"""
    progress = lab.once(text)
    assert progress.rejected == {"schema": 1}
    found = sorted((row["n"], row["total"]) for row in lab.table("lake/windows"))
    # The last window may still change, so it is not there.
    assert found == [(1, 0.5), (1, 1.5), (1, 2.5)]
    assert len(lab.client.dlq.ls(lab.topic)) == 1


@pytest.mark.timeout(600)
def test_rows_that_come_too_late_are_counted(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """In a batch after the one that moved the time on: two for a deduplication."""
    deduplicated = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - sql: SELECT data.*, to_timestamp(1700000000 + cast(data.amount AS int) * 60) AS timestamp FROM input
  - deduplicate: {keys: [order_id], within: 1 minute}
sinks:
  - table: {path: lake/deduplicated}
"""
    lab.send(*orders([100, 100]))
    assert lab.once(deduplicated).late == 0
    lab.send(*orders([1, 2, 101, 100]))
    assert lab.once(deduplicated).late == 2
    assert sorted(row["order_id"] for row in lab.table("lake/deduplicated")) == ["o100", "o101"]
    assert main(["pipeline", "show", lab.name, "--server", lab.broker.address]) == 0
    assert "late:      2\n" in capsys.readouterr().out
    (told,) = [each for each in lab.client.pipeline.show(lab.name).events if each.level == "warning"]
    assert told.run == 2 and "were left out" in told.text
