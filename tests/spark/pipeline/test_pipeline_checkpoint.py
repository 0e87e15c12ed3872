"""A pipeline that has run before begins anew only where somebody says so."""

from __future__ import annotations

import shutil

import pytest
from pipeline_lab import Lab, orders

from braidmq.base.errors import BraidError

TEXT = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - sql: SELECT data.order_id, timestamp FROM input
sinks:
  - table: {path: lake/orders}
checkpoint: "of [o]rders/{here}"
"""


def ids(lab: Lab) -> list[str]:
    return sorted(row["order_id"] for row in lab.table("lake/orders"))


def code(lab: Lab, text: str = TEXT, *, fresh: bool = False) -> str:
    with pytest.raises(BraidError) as caught:
        lab.once(text, fresh=fresh)
    return caught.value.code


@pytest.mark.timeout(600)
def test_a_lost_checkpoint(lab: Lab) -> None:
    lab.send(*orders(range(3)))
    # A run that never came to a batch is no reason to refuse the next one.
    assert code(lab, TEXT.replace("sinks:", "  - deduplicate: [nowhere]\nsinks:")) == "PIPELINE_FAILED"
    lab.once(TEXT)
    expected = [f"o{n}" for n in range(3)]
    assert ids(lab) == expected
    assert code(lab, fresh=True) == "INVALID_ARGUMENT", "there is a checkpoint"
    runs = len(lab.client.pipeline.show(lab.name).runs)
    shutil.rmtree(lab.folder / "of [o]rders")
    assert code(lab) == "PIPELINE_CHECKPOINT_GONE"
    assert ids(lab) == expected and len(lab.client.pipeline.show(lab.name).runs) == runs
    lab.once(TEXT, fresh=True)
    assert ids(lab) == sorted(expected * 2), "the table has no key: this is what was asked for"
    lab.once(TEXT)
    assert len(ids(lab)) == 6


def test_a_run_that_was_killed_has_left_its_position(lab: Lab) -> None:
    reading = lab.read(TEXT)
    lab.client.pipeline.put(lab.name, reading.text, "yaml")
    run = lab.client.pipeline.start(lab.name, "once", "here", replace=False).run
    lab.client.group.commit(f"pipeline-{lab.name}", [(lab.topic, 0, 1)])
    lab.client.pipeline.end(lab.name, run, "failed", "killed")
    assert code(lab) == "PIPELINE_CHECKPOINT_GONE"
