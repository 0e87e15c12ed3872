"""What a replay must not do: put old rows over new ones, bring deleted ones back, let duplicates in."""

from __future__ import annotations

import json

import pytest
from pipeline_lab import Lab

from braidmq.base.errors import BraidError

TEXT = """
name: <name>
source: {topics: [<topic>]}
steps:
  - sql: >
      SELECT topic, partition, offset, timestamp, get_json_object(cast(value AS string), '$.id') AS id,
             cast(get_json_object(cast(value AS string), '$.n') AS int) * FACTOR AS n FROM input
sinks:
  - table: {path: lake/all}
  - table: {path: lake/latest, key: id}
"""
DEDUPLICATED = TEXT.replace("sinks:", "  - deduplicate: {keys: [id], within: 1 hour}\nsinks:")


def found(lab: Lab, path: str) -> list[tuple[str, int]]:
    return sorted((row["id"], row["n"]) for row in lab.table(path))


@pytest.mark.timeout(600)
def test_old_rows_stay_away(lab: Lab) -> None:
    from braidmq.spark.pipeline.planning import plan
    from braidmq.spark.pipeline.replaying import parse_span, prepare, replay

    changes = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]
    with lab.client.producer() as producer:
        for name, n in changes:
            producer.send(lab.topic, json.dumps({"id": name, "n": n}).encode(), partition=0)
    lab.once(TEXT.replace("FACTOR", "1"))
    assert found(lab, "lake/all") == sorted(changes)
    assert found(lab, "lake/latest") == [("a", 3), ("b", 2), ("c", 4)]
    # The first two records again, with another definition. That of `a` is not the latest of its key any more.
    spans = [parse_span(f"{lab.topic}:0:0-2")]
    context = lab.context(lab.read(TEXT.replace("FACTOR", "10")))
    for _ in range(2):
        replay(lab.spark, context, lab.client, spans)
        assert found(lab, "lake/all") == [("a", 3), ("a", 10), ("b", 20), ("c", 4)]
        assert found(lab, "lake/latest") == [("a", 3), ("b", 20), ("c", 4)]

    def refused(text: str) -> str:
        with pytest.raises(BraidError) as caught:
            prepare(lab.spark, lab.context(lab.read(text.replace("FACTOR", "10"))), lab.client, spans, ())
        assert caught.value.code == "PIPELINE_REPLAY_REFUSED"
        return caught.value.text

    # What cannot be done right says why.
    assert "step 2 keeps the first row of each key" in refused(DEDUPLICATED)
    assert "could come back" in refused(TEXT.replace("key: id", "key: id, delete_when: n = 0"))
    summed = TEXT.replace("sinks:", "  - sql: {query: 'SELECT id, sum(n) AS n FROM input GROUP BY id', per_batch: true}\nsinks:")
    assert "step 2 makes one row of several (GROUP BY)" in refused(summed.replace("key: id", "key: id, order_by: n"))
    versions = TEXT.replace("topic, partition, offset, timestamp, ", "").replace("key: id", "key: id, order_by: n")
    assert "cannot be told from a later one with the same key" in refused(versions)
    # A plan says it before anything runs, also where the text of a query does not show it.
    (lab.folder / "mine.py").write_text("def less(frame):\n    return frame.drop('offset')\n")
    hidden = TEXT.replace("FACTOR", "1").replace("sinks:", "  - python: mine.py:less\nsinks:")
    with pytest.raises(BraidError, match=r"sink table:lake/latest: .* nothing says which of two rows"):
        plan(lab.spark, lab.context(lab.read(hidden)))
