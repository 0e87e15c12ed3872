"""A pipeline that dies between its sinks, is mended, and replayed: each row is in each sink once, and each letter there is once.

Replays as a user types them: `test_pipeline_verbs.py`.
"""

from __future__ import annotations

import pytest
from pipeline_lab import Lab, orders

from braidmq.base.errors import BraidError

TEXT = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - validate: {expect: [{name: positive, sql: data.amount >= 0}]}
  - sql: SELECT topic, partition, offset, timestamp, data.order_id, data.amount * FACTOR AS amount FROM input
sinks:
  - table: {path: lake/first}
  - topic: {name: <clean>, key: order_id}
  - table: {path: lake/second, key: order_id}
"""


def text(factor: int = 1) -> str:
    return TEXT.replace("FACTOR", str(factor))


def amounts(lab: Lab, path: str) -> dict[str, float]:
    rows = lab.table(path)
    found = {row["order_id"]: row["amount"] for row in rows}
    assert len(found) == len(rows), "a row twice"
    return found


@pytest.mark.timeout(600)
def test_between_sinks_and_replays(lab: Lab) -> None:
    from braidmq.spark.pipeline.replaying import parse_span, replay

    lab.send(*orders(range(10)), {"order_id": "neg", "amount": -5})
    expected = {f"o{n}": n + 0.5 for n in range(10)}
    # A file lies where the last table should be: the batch fails after the others have it.
    (lab.folder / "lake").mkdir()
    (lab.folder / "lake/second").write_text("in the way")
    with pytest.raises(BraidError) as caught:
        lab.once(text())
    assert caught.value.code == "PIPELINE_FAILED" and "sink table:lake/second" in caught.value.text
    assert amounts(lab, "lake/first") == expected
    shown = lab.client.pipeline.show(lab.name)
    assert (shown.state, shown.runs[-1].outcome) == ("stopped", "failed") and "lake/second" in shown.runs[-1].reason
    assert any(event.level == "error" for event in shown.events)
    # Mended and started again, the same batch comes again.
    (lab.folder / "lake/second").unlink()
    progress = lab.once(text())
    assert amounts(lab, "lake/first") == amounts(lab, "lake/second") == expected
    assert sorted(row["order_id"] for row in lab.values(lab.clean)) == sorted(expected)
    assert len(lab.client.dlq.ls(lab.topic)) == 1
    assert progress.rejected == {"positive": 1}
    assert lab.lag() == 0

    # A replay after a change replaces what was made of the records; a topic cannot be replayed into.
    changed = lab.read(text(factor=2))
    spans = [parse_span(f"{lab.topic}:{partition}:0-1000") for partition in range(2)]
    with pytest.raises(BraidError) as caught:
        replay(lab.spark, lab.context(changed), lab.client, spans)
    assert caught.value.code == "PIPELINE_REPLAY_REFUSED" and "topic:" in caught.value.text
    done = replay(lab.spark, lab.context(changed), lab.client, spans, skip=[f"topic:{lab.clean}"])
    assert done.records == 11
    twice = {name: amount * 2 for name, amount in expected.items()}
    assert amounts(lab, "lake/first") == amounts(lab, "lake/second") == twice, "by the range, and by the key"
    assert len(lab.client.dlq.ls(lab.topic)) == 1, "a letter has one letter"
