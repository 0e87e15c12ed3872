"""Pipelines and their runs, as a state machine.

A pipeline has a definition, which the broker keeps as text and does not read, an owner, and what it is meant to do: run, pause or
stop. A run has a beginning, an end and an outcome. At most one run is under way: a new one ends the one before it, whose next
report is then refused. Replays that somebody asked for wait for a run (`pipeline_replays.py`). Everything is bounded; the oldest
runs, events and replays are forgotten first.

Faults: a crash before a command is durable leaves no trace; after it, it is replayed. Progress reports come every second and are
not commands; the last one of a run is written with its end, and once a minute (`pipelines.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.pipeline_replays import ReplayList, restored

RUN: Final = "run"
PAUSE: Final = "pause"
STOP: Final = "stop"
DESIRES: Final = (RUN, PAUSE, STOP)
OUTCOMES: Final = ("finished", "stopped", "failed", "replaced")
UNDER_WAY: Final = ""
"""The outcome of a run that has none yet."""


@dataclass(slots=True)
class Run:
    number: int
    mode: str
    where: str
    """Who runs it and on which Spark, for people."""
    started_ms: int
    ended_ms: int = 0
    outcome: str = UNDER_WAY
    reason: str = ""
    progress: str = ""
    """The last report that was written down, as JSON."""
    token: str = ""
    """What whoever began it calls it, to begin it only once; empty where nothing does."""


@dataclass(frozen=True, slots=True)
class Event:
    time_ms: int
    run: int
    level: str
    text: str


@dataclass(slots=True)
class Pipeline:
    name: str
    owner: str
    format: str
    definition: str
    changed_ms: int
    desired: str = STOP
    next_run: int = 1
    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    replays: ReplayList = field(default_factory=ReplayList)

    @property
    def current(self) -> Run | None:
        """The run that is under way."""
        return self.runs[-1] if self.runs and self.runs[-1].outcome == UNDER_WAY else None

    def begun_with(self, token: str) -> Run | None:
        """The run that began with a token, as long as it is remembered."""
        return next((run for run in reversed(self.runs) if token and run.token == token), None)

    def ended_as(self, number: int, outcome: str) -> bool:
        return any(run.number == number and run.outcome == outcome for run in self.runs)


class PipelineTable:
    def __init__(self, pipelines_max: int = limits.PIPELINES_MAX) -> None:
        self._pipelines: dict[str, Pipeline] = {}
        self._pipelines_max = pipelines_max

    def find(self, name: str) -> Pipeline | None:
        return self._pipelines.get(name)

    def get(self, name: str) -> Pipeline:
        found = self._pipelines.get(name)
        if found is None:
            raise BraidError("PIPELINE_NOT_FOUND", pipeline=name)
        return found

    def all(self) -> list[Pipeline]:
        return sorted(self._pipelines.values(), key=lambda each: each.name)

    def run_of(self, name: str, number: int) -> Run:
        """The run, as long as it is under way."""
        pipeline = self.get(name)
        run = pipeline.current
        if run is None or run.number != number:
            known = next((each for each in pipeline.runs if each.number == number), None)
            reason = known.outcome if known is not None else "nobody remembers it"
            raise BraidError("PIPELINE_RUN_ENDED", pipeline=name, run=number, reason=reason)
        return run

    # --- commands

    def put(self, name: str, owner: str, form: str, definition: str, now_ms: int) -> list[Any]:
        """Make a pipeline, or give it another definition. The command carries the limit of its day."""
        return ["put", name, owner, form, definition, now_ms, self._pipelines_max]

    def apply(self, command: list[Any]) -> Any:
        """`start` returns the run, `remove` whether there was anything, those of replays the replay, or None without one."""
        match command:
            case ["put", str(name), str(owner), str(form), str(definition), int(now_ms), int(most)]:
                return self._put(name, owner, form, definition, now_ms, most)
            case ["steer", str(name), str(desired)]:
                self.get(name).desired = desired
                return None
            case ["remove", str(name)]:
                return self._pipelines.pop(name, None) is not None
            case ["start", str(name), str(mode), str(where), str(desired), int(now_ms), *token]:
                # Commands of versions without tokens end here.
                return self._start(self.get(name), mode, where, desired, now_ms, *token)
            case ["progress", str(name), int(number), str(progress)]:
                self.run_of(name, number).progress = progress
                return None
            case ["end", str(name), int(number), str(outcome), str(reason), str(progress), int(now_ms)]:
                if self.get(name).ended_as(number, outcome):
                    return None
                run = self.run_of(name, number)
                run.outcome, run.reason, run.ended_ms = outcome, reason, now_ms
                run.progress = progress or run.progress
                self.get(name).replays.run_ended(number, now_ms)
                return None
            case ["replay", str(name), str(by), str(wish), int(now_ms), int(most)]:
                return self.get(name).replays.ask(by, wish, now_ms, most)
            case ["replay-take", str(name), int(number), int(now_ms)]:
                self.run_of(name, number)
                return self.get(name).replays.take(number, now_ms)
            case ["replay-end", str(name), int(number), str(state), str(result), int(now_ms)]:
                return self.get(name).replays.end(number, state, result, now_ms)
            case ["events", str(name), int(number), int(now_ms), list(events)]:
                pipeline = self.get(name)
                pipeline.events += [Event(now_ms, number, level, text) for level, text in events]
                del pipeline.events[: -limits.PIPELINE_EVENTS_KEPT]
                return None
        raise AssertionError(f"unknown pipeline command {command[:1]}")

    def _put(self, name: str, owner: str, form: str, definition: str, now_ms: int, most: int) -> None:
        known = self._pipelines.get(name)
        if known is None:
            if len(self._pipelines) >= most:
                raise BraidError("PIPELINE_LIMIT", limit=most)
            self._pipelines[name] = Pipeline(name, owner, form, definition, now_ms)
        else:
            # Who changes it does not take it over: an administrator may mend what somebody else owns.
            known.format, known.definition, known.changed_ms = form, definition, now_ms

    @staticmethod
    def _start(pipeline: Pipeline, mode: str, where: str, desired: str, now_ms: int, token: str = "") -> Run:
        begun = pipeline.begun_with(token)
        if begun is not None:
            return begun
        before = pipeline.current
        if before is not None:
            before.outcome, before.reason, before.ended_ms = "replaced", f"run {pipeline.next_run} took over", now_ms
            pipeline.replays.run_ended(before.number, now_ms)
        run = Run(pipeline.next_run, mode, where, now_ms, token=token)
        pipeline.next_run += 1
        pipeline.desired = desired
        pipeline.runs.append(run)
        del pipeline.runs[: -limits.PIPELINE_RUNS_KEPT]
        return run

    # --- snapshots

    def snapshot(self) -> Any:
        return [
            [
                each.name, each.owner, each.format, each.definition, each.changed_ms, each.desired, each.next_run,
                [
                    [r.number, r.mode, r.where, r.started_ms, r.ended_ms, r.outcome, r.reason, r.progress, r.token]
                    for r in each.runs
                ],
                [[e.time_ms, e.run, e.level, e.text] for e in each.events], each.replays.snapshot(),
            ]
            for each in self._pipelines.values()
        ]  # fmt: skip

    def restore(self, document: Any) -> None:
        for name, owner, form, definition, changed_ms, desired, next_run, runs, events, *more in document:
            self._pipelines[name] = Pipeline(
                name, owner, form, definition, changed_ms, desired, next_run, [Run(*row) for row in runs],
                [Event(*row) for row in events], restored(more[0]) if more else ReplayList(),
            )  # fmt: skip
