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
                assert command[0] in ("put", "replay-take")
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


def test_whoever_asks_again_gets_the_run_that_began() -> None:
    async def asked_again() -> None:
        kept = Kept()
        pipelines = kept.pipelines
        await pipelines.put("p", "", "yaml", "x")
        for replace in (False, True):
            assert (await pipelines.start("p", "continuous", "here", replace=replace, token="one")).number == 1
        # Both tries may be under way at a time.
        pipelines.table.apply(kept.commands[-1])
        assert (await pipelines.start("p", "continuous", "there", replace=True, token="two")).number == 2
        late = await pipelines.start("p", "continuous", "here", replace=True, token="one")
        assert (late.number, late.outcome) == (1, "replaced"), "what came after it stays"
        for _ in range(2):
            await pipelines.end("p", 2, "failed", "a bad row")
        with pytest.raises(BraidError) as caught:
            await pipelines.end("p", 2, "finished", "")
        assert code(caught) == "PIPELINE_RUN_ENDED", "something else is not the same again"
        for table in kept.rebuilt():
            assert [(run.number, run.outcome, run.token) for run in table.get("p").runs] == [
                (1, "replaced", "one"), (2, "failed", "two")
            ]  # fmt: skip

    run(asked_again())


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
        lambda p: p.start("p", "once", "here", replace=True, token="x" * 65),
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


# --- replays that somebody asks for

LETTERS = b'{"letters": true}'


def test_a_replay_is_asked_for_taken_and_done() -> None:
    async def live() -> None:
        kept = Kept()
        pipelines, table = kept.pipelines, kept.pipelines.table
        await pipelines.put("p", "1:bob", "yaml", "x")
        pipeline = table.get("p")
        first = await pipelines.ask_replay("p", "ann", b'{"offsets": [["t", 0, 5, 9]], "skip": ["topic:x"]}')
        assert "no run is alive" in pipelines.outlook(pipeline, first)
        run = await pipelines.start("p", "continuous", "here", replace=False)
        assert "takes it when its batch has ended" in pipelines.outlook(pipeline, first)
        assert await pipelines.report("p", run.number, b"", []) == "replay"
        await pipelines.steer("p", "pause")
        assert await pipelines.report("p", run.number, b"", []) == "pause", "who pauses does nothing"
        assert "the pipeline is paused" in pipelines.outlook(pipeline, first)
        await pipelines.steer("p", "run")
        second = await pipelines.ask_replay("p", "ann", LETTERS)
        taken = await pipelines.take_replay("p", run.number)
        assert taken is not None and (taken.number, taken.state, taken.run) == (first.number, "running", run.number)
        assert await pipelines.take_replay("p", run.number) is taken, "whoever asks again gets the same"
        assert pipelines.outlook(pipeline, taken) == "run 1 does it"
        await pipelines.end_replay("p", first.number, "done", "4 records processed")
        await pipelines.end_replay("p", second.number, "cancelled", "")
        assert await pipelines.report("p", run.number, b"", []) == "run"
        assert await pipelines.take_replay("p", run.number) is None
        for rebuilt in kept.rebuilt():
            found = rebuilt.get("p").replays
            assert [(each.number, each.state, each.run) for each in found.all] == [(1, "done", 1), (2, "cancelled", 0)]
            assert (found.next_number, found.all[0].result) == (3, "4 records processed")

    run(live())


def test_a_replay_whose_run_is_gone_has_failed() -> None:
    async def live() -> None:
        kept = Kept()
        pipelines = kept.pipelines
        await pipelines.put("p", "", "yaml", "x")
        replays = pipelines.table.get("p").replays
        for end in ("end", "replace"):
            run = await pipelines.start("p", "continuous", "here", replace=True)
            asked = await pipelines.ask_replay("p", "", LETTERS)
            await pipelines.take_replay("p", run.number)
            kept.clock.ms += LIVE_MS + 1
            assert "not heard of any more" in pipelines.outlook(pipelines.table.get("p"), asked)
            if end == "end":
                await pipelines.end("p", run.number, "failed", "died")
            else:
                await pipelines.start("p", "continuous", "there", replace=True)
            assert asked.state == "failed" and f"run {run.number} ended before it was done" in asked.result
            with pytest.raises(BraidError) as caught:
                await pipelines.end_replay("p", asked.number, "done", "too late")
            assert code(caught) == "PIPELINE_REPLAY_OVER" and asked.state == "failed"
            with pytest.raises(BraidError) as caught:
                await pipelines.take_replay("p", run.number)
            assert code(caught) == "PIPELINE_RUN_ENDED"
        for rebuilt in kept.rebuilt():
            assert [each.state for each in rebuilt.get("p").replays.all] == ["failed", "failed"]
        assert replays.next_number == 3

    run(live())


def test_a_run_that_ends_by_itself_takes_no_replay() -> None:
    async def live() -> None:
        kept = Kept()
        pipelines = kept.pipelines
        await pipelines.put("p", "", "yaml", "x")
        run = await pipelines.start("p", "once", "here", replace=False)
        asked = await pipelines.ask_replay("p", "", LETTERS)
        assert await pipelines.report("p", run.number, b"", []) == "run"
        assert "of the kind `once`, which takes none" in pipelines.outlook(pipelines.table.get("p"), asked)

    run(live())


def test_replays_are_bounded() -> None:
    async def bounds() -> None:
        kept = Kept()
        pipelines = kept.pipelines
        await pipelines.put("p", "", "yaml", "x")
        for _ in range(limits.PIPELINE_REPLAYS_WAITING_MAX):
            await pipelines.ask_replay("p", "", LETTERS)
        with pytest.raises(BraidError) as caught:
            await pipelines.ask_replay("p", "", LETTERS)
        assert code(caught) == "PIPELINE_REPLAYS_WAIT"
        replays = pipelines.table.get("p").replays
        for _ in range(limits.PIPELINE_REPLAYS_KEPT + 5):
            await pipelines.end_replay("p", replays.waiting()[0].number, "cancelled", "")
            await pipelines.ask_replay("p", "", LETTERS)
        assert len(replays.all) == limits.PIPELINE_REPLAYS_KEPT
        assert len(replays.waiting()) == limits.PIPELINE_REPLAYS_WAITING_MAX, "those that wait are not forgotten"

    run(bounds())


@pytest.mark.parametrize(
    "wish",
    [
        b"", b"[]", b"{", b"{}", b'{"letters": false}', b'{"letters": true, "since_ms": 1}', b'{"more": 1}',
        b'{"offsets": "t:0:1-2"}', b'{"offsets": [["t", 0, 5, 5]]}', b'{"offsets": [["t", -1, 0, 5]]}',
        b'{"offsets": [["t", 0, 5]]}', b'{"since_ms": -1}', b'{"since_ms": 5, "until_ms": 5}', b'{"letters": true, "until_ms": 5}',
        b'{"letters": true, "skip": ["a"]}', b'{"since_ms": 5, "skip": "a"}',
        b'{"since_ms": 1, "skip": ["%s"]}' % (b"x" * limits.PIPELINE_REPORT_BYTES_MAX),
    ],
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_refused(wish: bytes) -> None:
    async def refused() -> None:
        kept = Kept()
        await kept.pipelines.put("p", "", "yaml", "x")
        with pytest.raises(BraidError) as caught:
            await kept.pipelines.ask_replay("p", "", wish)
        assert code(caught) == "INVALID_ARGUMENT" and len(kept.commands) == 1

    run(refused())


def test_starts_and_runs_from_before_there_were_tokens_are_read() -> None:
    table = PipelineTable()
    table.restore([["p", "", "yaml", "x", 1, "run", 2, [[1, "once", "here", 5, 6, "finished", "", ""]], []]])
    assert table.apply(["start", "p", "once", "here", "run", 7]).number == 2
    assert [run.token for run in table.get("p").runs] == ["", ""]


def test_a_snapshot_from_before_there_were_replays_is_read() -> None:
    table = PipelineTable()
    table.restore([["p", "", "yaml", "x", 1, "run", 1, [], []]])
    assert table.get("p").replays.all == [] and table.get("p").replays.next_number == 1
