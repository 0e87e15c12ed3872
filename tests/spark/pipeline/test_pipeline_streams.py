"""Steps that remember rows, in a stream: a join of two topics, and windows over deduplicated rows, with letters on the way."""

from __future__ import annotations

import json

import pytest
from pipeline_lab import Lab, orders


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
