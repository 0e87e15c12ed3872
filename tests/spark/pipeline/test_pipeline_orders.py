"""The pipeline of the documentation, from a topic to a table and a topic: every row once, whatever comes in between."""

from __future__ import annotations

from typing import Any

import pytest
from pipeline_lab import Lab, orders

ORDERS = """
name: <name>
source: {topics: [<topic>], schema: <schema>, starting: earliest}
steps:
  - validate:
      expect:
        - {name: positive, sql: data.amount >= 0}
        - {name: known, sql: data.order_id != 'unknown', on_fail: drop}
  - sql: SELECT data.*, timestamp FROM input
  - deduplicate: {keys: [order_id], within: 1 hour}
  - mask: {columns: [email]}
sinks:
  - table: {path: lake/orders, partition_by: [day]}
  - topic: {name: <clean>, key: order_id}
trigger: {every: 1 second}
"""


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["order_id"] for row in rows)


@pytest.mark.timeout(600)
def test_rows_letters_and_lag(lab: Lab) -> None:
    expected = sorted(f"o{n}" for n in range(20))
    lab.send(*orders(range(20)), *orders(range(5)), b"no json", {"order_id": "x"}, {"order_id": "neg", "amount": -1},
             {"order_id": "unknown", "amount": 1})  # fmt: skip
    progress = lab.once(ORDERS)
    assert ids(lab.table("lake/orders")) == expected
    assert ids(lab.values(lab.clean)) == expected
    assert progress.rejected == {"schema": 2, "positive": 1}
    assert progress.rows == 29, "each is counted once, however often Spark reads it"
    assert progress.written == {"table:lake/orders": 20, f"topic:{lab.clean}": 20}
    letters = [lab.client.dlq.show(lab.topic, each.id) for each in lab.client.dlq.ls(lab.topic)]
    stories = {record.value: story for record, story in letters}
    assert set(stories) == {b"no json", b'{"order_id": "x"}', b'{"order_id": "neg", "amount": -1}'}
    story = stories[b'{"order_id": "neg", "amount": -1}']
    assert story is not None
    assert (story.topic, story.reason) == (lab.topic, "positive")
    assert story.error.startswith(f"pipeline {lab.name}: expectation positive is not met")
    assert lab.client.consume(lab.topic, story.partition, story.offset).value == b'{"order_id": "neg", "amount": -1}'
    assert lab.lag() == 0
    # Again, with nothing new, and with duplicates of before.
    lab.send(*orders(range(3)))
    lab.once(ORDERS)
    assert ids(lab.table("lake/orders")) == expected
    assert ids(lab.values(lab.clean)) == expected
    assert len(lab.client.dlq.ls(lab.topic)) == 3
    assert lab.lag() == 0
