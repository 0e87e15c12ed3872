"""Pipelines as the broker keeps them: commands, bounds, and every way to rebuild the table."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.pipeline_table import PipelineTable
from braidmq.broker.pipelines import LIVE_MS, Pipelines


class Now:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


class Kept:
    """Pipelines whose commands go through JSON, as the journal's do, and are remembered."""

    def __init__(self) -> None:
        self.clock = Now()
        self.commands: list[list[Any]] = []
        self.pipelines = Pipelines(self.clock, self._submit)  # type: ignore[arg-type]

    async def _submit(self, command: list[Any]) -> Any:
        command = json.loads(json.dumps(command))
        self.commands.append(command)
        return self.pipelines.table.apply(command)

    def rebuilt(self) -> list[PipelineTable]:
        replayed, restored = PipelineTable(), PipelineTable()
        for command in self.commands:
            try:
                replayed.apply(command)
            except BraidError:
                # Refused then, refused now.
                assert command[0] == "put"
        restored.restore(json.loads(json.dumps(self.pipelines.table.snapshot())))
        return [replayed, restored]


def run(test: Any) -> None:
    asyncio.run(test)


def code(fault: pytest.ExceptionInfo[BraidError]) -> str:
    return fault.value.code


def test_the_life_of_a_pipeline() -> None:
    async def live() -> None:
        kept = Kept()
        pipelines, table = kept.pipelines, kept.pipelines.table
        await pipelines.put("p", "1:bob", "yaml", "text")
        await pipelines.put("p", "2:eve", "yaml", "text")
        assert len(kept.commands) == 1, "the same again is no change"
        await pipelines.put("p", "2:eve", "yaml", "other")
        assert (table.get("p").owner, table.get("p").definition) == ("1:bob", "other"), "who changes it does not take it over"
        assert pipelines.state(table.get("p")) == "stopped"

        first = await pipelines.start("p", "continuous", "here", replace=False)
        assert await pipelines.report("p", first.number, b'{"rows": 1}', [("info", "began")]) == "run"
        assert pipelines.state(table.get("p")) == "running"
        with pytest.raises(BraidError) as caught:
            await pipelines.start("p", "once", "there", replace=False)
        assert code(caught) == "PIPELINE_RUNNING"
        with pytest.raises(BraidError) as caught:
            await pipelines.remove("p")
        assert code(caught) == "PIPELINE_RUNNING"

        await pipelines.steer("p", "pause")
        assert await pipelines.report("p", first.number, b"", []) == "pause"
        assert pipelines.state(table.get("p")) == "paused"
        kept.clock.ms += LIVE_MS + 1
        assert pipelines.state(table.get("p")) == "lost"
        # It was lost while it was paused: the next one is paused too.
        second = await pipelines.start("p", "continuous", "there", replace=False)
        assert (second.number, table.get("p").desired, table.get("p").runs[0].outcome) == (2, "pause", "replaced")
        for late in (pipelines.report("p", 1, b"{}", []), pipelines.end("p", 1, "finished", "")):
            with pytest.raises(BraidError) as caught:
                await late
            assert code(caught) == "PIPELINE_RUN_ENDED"
        await pipelines.steer("p", "stop")
        assert await pipelines.report("p", 2, b'{"rows": 7}', [("error", "bad row")]) == "stop"
        await pipelines.end("p", 2, "stopped", "asked to")
        assert pipelines.state(table.get("p")) == "stopped"
        third = await pipelines.start("p", "once", "there", replace=False)
        assert table.get("p").desired == "run", "started on purpose"
        for rebuilt in kept.rebuilt():
            found = rebuilt.get("p")
            assert [(each.number, each.outcome) for each in found.runs] == [(1, "replaced"), (2, "stopped"), (3, "")]
            assert json.loads(found.runs[1].progress) == {"rows": 7}
            assert [event.text for event in found.events] == ["began", "bad row"]
            assert (found.next_run, found.desired) == (4, "run")
        await pipelines.end("p", third.number, "finished", "")
        await pipelines.remove("p")
        with pytest.raises(BraidError) as caught:
            await pipelines.steer("p", "run")
        assert code(caught) == "PIPELINE_NOT_FOUND"
        assert all(rebuilt.all() == [] for rebuilt in kept.rebuilt())

    run(live())


def test_everything_is_bounded() -> None:
    async def bounds() -> None:
        kept = Kept()
        pipelines = kept.pipelines
        pipelines.table._pipelines_max = 2
        for name in ("a", "b"):
            await pipelines.put(name, "", "yaml", "x")
        with pytest.raises(BraidError) as caught:
            await pipelines.put("c", "", "yaml", "x")
        assert code(caught) == "PIPELINE_LIMIT"
        assert PipelineTable()._pipelines_max == limits.PIPELINES_MAX
        for _ in range(limits.PIPELINE_RUNS_KEPT + 5):
            number = (await pipelines.start("a", "once", "here", replace=True)).number
        assert len(pipelines.table.get("a").runs) == limits.PIPELINE_RUNS_KEPT
        for index in range(limits.PIPELINE_EVENTS_KEPT + 5):
            await pipelines.report("a", number, b"", [("info", str(index))])
        events = pipelines.table.get("a").events
        assert len(events) == limits.PIPELINE_EVENTS_KEPT and events[0].text == "5"
        before = len(kept.commands)
        for index in range(limits.PIPELINE_PROGRESS_KEPT + 5):
            await pipelines.report("a", number, json.dumps({"n": index}).encode(), [])
        reports = pipelines.reports(pipelines.table.get("a"))
        assert len(reports) == limits.PIPELINE_PROGRESS_KEPT and json.loads(reports[0][1]) == {"n": 5}
        assert len(kept.commands) == before + 1, "reports are written down once a minute"

    run(bounds())


@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p.put("a b", "", "yaml", "x"),
        lambda p: p.put("a", "", "yaml", "x" * (limits.PIPELINE_DEFINITION_BYTES_MAX + 1)),
        lambda p: p.steer("p", "jump"),
        lambda p: p.start("p", "sideways", "here", replace=True),
        lambda p: p.start("p", "once", "x" * 1001, replace=True),
        lambda p: p.report("p", 1, b"[]", []),
        lambda p: p.report("p", 1, b"{", []),
        lambda p: p.report("p", 1, b'{"x": "' + b"x" * limits.PIPELINE_REPORT_BYTES_MAX + b'"}', []),
        lambda p: p.report("p", 1, b"", [("info", "x" * (limits.PIPELINE_REPORT_BYTES_MAX + 1))]),
        lambda p: p.report("p", 1, b"", [("loud", "x")]),
        lambda p: p.report("p", 1, b"", [("info", "x")] * 21),
        lambda p: p.end("p", 1, "exploded", ""),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Any) -> None:
    async def refused() -> None:
        kept = Kept()
        await kept.pipelines.put("p", "", "yaml", "x")
        await kept.pipelines.start("p", "once", "here", replace=False)
        commands = len(kept.commands)
        with pytest.raises(BraidError) as caught:
            await ask(kept.pipelines)
        assert code(caught) == "INVALID_ARGUMENT"
        assert len(kept.commands) == commands

    run(refused())
