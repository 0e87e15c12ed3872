"""Pipelines as the broker sees them: what somebody else runs, and tells us about.

The broker runs nothing. A run says every second or so how far it is, and reads in the answer whether it should go on, pause or
stop, or that a replay waits for it. What survives a restart is in the table (`pipeline_table.py`); here are the latest reports, for
figures that move and plots.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.base.naming import PIPELINE_NAME
from braidmq.broker.pipeline_replays import ENDS, REQUESTED, RUNNING, Replay, checked_wish
from braidmq.broker.pipeline_table import DESIRES, OUTCOMES, PAUSE, RUN, STOP, Pipeline, PipelineTable, Run

LIVE_MS: Final = 10_000
"""A run that was not heard of for so long may be dead: it says so itself only where it can."""
_WRITTEN_EVERY_MS: Final = 60_000
_EVENTS_MAX: Final = 20
"""Events that one report may bring."""
_WHERE_BYTES_MAX: Final = 1000
_TOKEN_BYTES_MAX: Final = 64
MODES: Final = ("continuous", "once", "backfill", "replay")
_LEVELS: Final = ("info", "warning", "error")
REPLAY: Final = "replay"
"""What a run is told that should process something once more, and then go on."""


@dataclass(slots=True)
class _Live:
    """What is known of a run that is under way, until the broker stops."""

    run: int
    heard_ms: int
    written_ms: int = 0
    reports: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=limits.PIPELINE_PROGRESS_KEPT))


class Pipelines:
    def __init__(self, clock: Clock, submit: Callable[[list[Any]], Awaitable[Any]]) -> None:
        self.table = PipelineTable()
        self._clock = clock
        self._submit = submit
        self._live: dict[str, _Live] = {}

    # --- questions

    def state(self, pipeline: Pipeline) -> str:
        """One word for people: stopped, running, paused, stopping, or lost when nothing was heard of a run."""
        run = pipeline.current
        if run is None:
            return "stopped"
        if self._quiet_ms(pipeline, run) > LIVE_MS:
            return "lost"
        return {RUN: "running", PAUSE: "paused", STOP: "stopping"}[pipeline.desired]

    def progress(self, pipeline: Pipeline) -> str:
        """The latest report as JSON; empty when there is none."""
        live = self._live.get(pipeline.name)
        if live is not None and live.reports:
            return live.reports[-1][1]
        return next((run.progress for run in reversed(pipeline.runs) if run.progress), "")

    def reports(self, pipeline: Pipeline) -> list[tuple[int, str]]:
        """Times and reports of the last minutes, the oldest first."""
        live = self._live.get(pipeline.name)
        return [] if live is None else list(live.reports)

    def _quiet_ms(self, pipeline: Pipeline, run: Run) -> int:
        return self._clock.now_ms() - self._live_of(pipeline, run).heard_ms

    def _live_of(self, pipeline: Pipeline, run: Run) -> _Live:
        live = self._live.get(pipeline.name)
        if live is None:
            # The broker was restarted: the run gets the time to say that it is still there.
            live = self._live[pipeline.name] = _Live(run.number, self._clock.now_ms())
        elif live.run != run.number:
            live.run, live.heard_ms = run.number, self._clock.now_ms()
        return live

    # --- what people do

    async def put(self, name: str, owner: str, form: str, definition: str) -> None:
        if not PIPELINE_NAME.fullmatch(name):
            raise BraidError("INVALID_ARGUMENT", reason=f"pipeline name {name!r} is not {PIPELINE_NAME.pattern}")
        if len(definition.encode()) > limits.PIPELINE_DEFINITION_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"a definition is longer than {limits.PIPELINE_DEFINITION_BYTES_MAX} bytes")
        known = self.table.find(name)
        if known is None or (known.format, known.definition) != (form, definition):
            await self._submit(self.table.put(name, owner, form, definition, self._clock.now_ms()))

    async def steer(self, name: str, desired: str) -> None:
        """Say what a pipeline is meant to do; a run that is under way follows with its next report."""
        if desired not in DESIRES:
            raise BraidError("INVALID_ARGUMENT", reason=f"{desired!r} is not one of {', '.join(DESIRES)}")
        self.table.get(name)
        await self._submit(["steer", name, desired])

    async def remove(self, name: str) -> None:
        pipeline = self.table.get(name)
        self._refuse_live(pipeline)
        await self._submit(["remove", name])
        self._live.pop(name, None)

    # --- replays

    async def ask_replay(self, name: str, by: str, wish: bytes | str) -> Replay:
        """Ask the run of a pipeline to process something once more; a run that comes later takes it where none is there."""
        self.table.get(name)
        most = limits.PIPELINE_REPLAYS_WAITING_MAX
        replay: Replay | None = await self._submit(["replay", name, by, checked_wish(wish), self._clock.now_ms(), most])
        if replay is None:
            raise BraidError("PIPELINE_REPLAYS_WAIT", pipeline=name, count=most)
        return replay

    async def take_replay(self, name: str, run: int) -> Replay | None:
        """What a run is to process now, if anything."""
        self.table.run_of(name, run)
        replays = self.table.get(name).replays
        if not replays.waiting() and replays.under_way(run) is None:
            return None
        replay: Replay | None = await self._submit(["replay-take", name, run, self._clock.now_ms()])
        return replay

    async def end_replay(self, name: str, number: int, state: str, result: str) -> None:
        """Write down what became of a replay. One that waits can only be cancelled, and only one that waits."""
        if state not in ENDS:
            raise BraidError("INVALID_ARGUMENT", reason=f"{state!r} is not one of {', '.join(ENDS)}")
        text = result[: limits.PIPELINE_REPORT_BYTES_MAX // 4]
        self.table.get(name)
        if await self._submit(["replay-end", name, number, state, text, self._clock.now_ms()]) is None:
            replay = self.table.get(name).replays.get(number)
            found = "there is none" if replay is None else f"it is {replay.state}"
            raise BraidError("PIPELINE_REPLAY_OVER", pipeline=name, number=number, reason=found)

    def outlook(self, pipeline: Pipeline, replay: Replay) -> str:
        """Who will do it, or why nobody does, in words; empty once it has ended."""
        state, run = self.state(pipeline), pipeline.current
        if replay.state == RUNNING:
            return f"run {replay.run} is not heard of any more" if state == "lost" else f"run {replay.run} does it"
        if replay.state != REQUESTED:
            return ""
        if run is None or state == "lost":
            return "no run is alive to take it: start one with `braid pipeline run FILE`, or use `braid pipeline replay FILE`"
        if run.mode != "continuous":
            return f"run {run.number} is of the kind `{run.mode}`, which takes none: it waits for a continuous one"
        if state == "running":
            return f"run {run.number} takes it when its batch has ended"
        return f"the pipeline is {state}: it is taken when the pipeline runs again"

    def _refuse_live(self, pipeline: Pipeline) -> None:
        run = pipeline.current
        if run is not None:
            quiet_ms = self._quiet_ms(pipeline, run)
            if quiet_ms <= LIVE_MS:
                raise BraidError("PIPELINE_RUNNING", pipeline=pipeline.name, where=run.where, seconds=quiet_ms / 1000)

    # --- what runs do

    async def start(self, name: str, mode: str, where: str, *, replace: bool, token: str = "") -> Run:
        """Begin a run. One that is under way is in the way while it is heard of, unless it is to be replaced.

        Whoever got no answer asks again with the same `token`, and gets the run that began then, whatever became of it.
        """
        pipeline = self.table.get(name)
        begun = pipeline.begun_with(token)
        if begun is not None:
            return begun
        if mode not in MODES:
            raise BraidError("INVALID_ARGUMENT", reason=f"{mode!r} is not one of {', '.join(MODES)}")
        if len(where.encode()) > _WHERE_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"where a run runs takes more than {_WHERE_BYTES_MAX} bytes")
        if len(token.encode()) > _TOKEN_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"the token of a run takes more than {_TOKEN_BYTES_MAX} bytes")
        if not replace:
            self._refuse_live(pipeline)
        # Who was told to pause stays paused over a restart; who was told to stop is started again on purpose.
        desired = PAUSE if pipeline.desired == PAUSE and mode == "continuous" else RUN
        run: Run = await self._submit(["start", name, mode, where, desired, self._clock.now_ms(), token])
        self._live_of(pipeline, run)
        return run

    async def report(self, name: str, number: int, progress: bytes, events: Sequence[tuple[str, str]]) -> str:
        """Take a report; returns what the run should do."""
        pipeline = self.table.get(name)
        run = self.table.run_of(name, number)
        live = self._live_of(pipeline, run)
        live.heard_ms = now_ms = self._clock.now_ms()
        if progress:
            text = _checked(progress)
            live.reports.append((now_ms, text))
            if now_ms - live.written_ms >= _WRITTEN_EVERY_MS:
                live.written_ms = now_ms
                await self._submit(["progress", name, number, text])
        if events:
            await self._note(name, number, events)
        takes = pipeline.desired == RUN and run.mode == "continuous" and pipeline.replays.waiting()
        return REPLAY if takes else pipeline.desired

    async def end(self, name: str, number: int, outcome: str, reason: str) -> None:
        if outcome not in OUTCOMES:
            raise BraidError("INVALID_ARGUMENT", reason=f"{outcome!r} is not one of {', '.join(OUTCOMES)}")
        pipeline = self.table.get(name)
        if pipeline.ended_as(number, outcome):
            # Whoever got no answer says it once more.
            return
        self.table.run_of(name, number)
        reports = self.reports(pipeline)
        last = reports[-1][1] if reports else ""
        await self._submit(["end", name, number, outcome, reason[: limits.PIPELINE_REPORT_BYTES_MAX], last, self._clock.now_ms()])

    async def _note(self, name: str, number: int, events: Sequence[tuple[str, str]]) -> None:
        if len(events) > _EVENTS_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"{len(events)} events in one report, {_EVENTS_MAX} at most")
        for level, text in events:
            if level not in _LEVELS:
                raise BraidError("INVALID_ARGUMENT", reason=f"{level!r} is not one of {', '.join(_LEVELS)}")
            if len(text.encode()) > limits.PIPELINE_REPORT_BYTES_MAX:
                raise BraidError("INVALID_ARGUMENT", reason=f"an event is longer than {limits.PIPELINE_REPORT_BYTES_MAX} bytes")
        await self._submit(["events", name, number, self._clock.now_ms(), [list(event) for event in events]])


def _checked(progress: bytes) -> str:
    """A report as text: a JSON object of a bounded size, whatever is in it."""
    if len(progress) > limits.PIPELINE_REPORT_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"a report is longer than {limits.PIPELINE_REPORT_BYTES_MAX} bytes")
    try:
        if isinstance(json.loads(progress), dict):
            return progress.decode()
    except (ValueError, RecursionError):
        raise BraidError("INVALID_ARGUMENT", reason="a report is not JSON") from None
    raise BraidError("INVALID_ARGUMENT", reason="a report is not a JSON object")
