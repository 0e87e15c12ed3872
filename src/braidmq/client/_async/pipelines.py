"""Pipelines that the broker knows, and their runs: what `braid pipeline` does, and what a run says of itself."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from braidmq.wire import flymq

from .asking import Asker


class Pipelines:
    """`client.pipeline`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.PipelineSummary]:
        return list((await self._asker.ask(flymq.PipelineList(), flymq.PipelineSummaries)).pipelines)

    async def show(self, pipeline: str) -> flymq.PipelineDetail:
        """A pipeline with its definition, its runs, its events, and the reports of the last minutes."""
        return await self._asker.ask(flymq.PipelineGet(pipeline), flymq.PipelineDetail)

    async def put(self, pipeline: str, definition: str, form: str = "yaml") -> None:
        """Make a pipeline, or give it another definition."""
        await self._asker.ask(flymq.PipelinePut(pipeline, form, definition.encode()), flymq.Ok)

    async def rm(self, pipeline: str) -> None:
        """Forget a pipeline that does not run, with its runs."""
        await self._asker.ask(flymq.PipelineRemove(pipeline), flymq.Ok, again=False)

    # --- steering a run

    async def pause(self, pipeline: str) -> None:
        await self._asker.ask(flymq.PipelineSteer(pipeline, "pause"), flymq.Ok)

    async def resume(self, pipeline: str) -> None:
        await self._asker.ask(flymq.PipelineSteer(pipeline, "run"), flymq.Ok)

    async def stop(self, pipeline: str) -> None:
        await self._asker.ask(flymq.PipelineSteer(pipeline, "stop"), flymq.Ok)

    # --- replays

    async def replays(self, pipeline: str) -> list[flymq.ReplayEntry]:
        """What was asked for, the oldest first, with what became of it."""
        return list((await self._asker.ask(flymq.PipelineReplayList(pipeline), flymq.PipelineReplays)).replays)

    async def ask_replay(self, pipeline: str, wish: Mapping[str, Any]) -> flymq.ReplayEntry:
        """Ask the run of a pipeline to process something once more, between two of its batches.

        That is `{"offsets": [[topic, partition, first, end]]}`, `{"since_ms": ..., "until_ms": ...}` or `{"letters": True}`; the
        first two also with `skip`, a list of sinks.
        """
        request = flymq.PipelineReplay(pipeline, json.dumps(wish).encode())
        return (await self._asker.ask(request, flymq.PipelineReplays, again=False)).replays[0]

    async def cancel_replay(self, pipeline: str, number: int) -> None:
        """Take back one that no run has taken."""
        await self._asker.ask(flymq.PipelineReplayEnd(pipeline, number, "cancelled"), flymq.Ok, again=False)

    async def take_replay(self, pipeline: str, run: int) -> flymq.ReplayEntry | None:
        """What a run is to process now, if anything; the same again until it has ended it."""
        found = (await self._asker.ask(flymq.PipelineReplayTake(pipeline, run), flymq.PipelineReplays)).replays
        return found[0] if found else None

    async def end_replay(self, pipeline: str, number: int, state: str, result: str = "") -> None:
        """Say what became of it: `done` or `failed`."""
        await self._asker.ask(flymq.PipelineReplayEnd(pipeline, number, state, result), flymq.Ok, again=False)

    # --- what a run says of itself

    async def start(self, pipeline: str, mode: str, where: str, *, replace: bool = False) -> flymq.PipelineStarted:
        """Begin a run; PIPELINE_RUNNING while another one is heard of, unless it is to be replaced.

        It is one run also where the answer is lost, and the broker is asked again.
        """
        request = flymq.PipelineStart(pipeline, mode, where, replace, secrets.token_hex(8))
        return await self._asker.ask(request, flymq.PipelineStarted)

    async def report(self, pipeline: str, run: int, progress: bytes = b"", events: Sequence[tuple[str, str]] = ()) -> str:
        """Say how far a run is; returns what it should do: `run`, `pause`, `stop`, or `replay`, which is to take one."""
        request = flymq.PipelineReport(pipeline, run, progress, tuple(events))
        return (await self._asker.ask(request, flymq.PipelineDesired)).desired

    async def end(self, pipeline: str, run: int, outcome: str, reason: str = "") -> None:
        """Say what became of a run; to say the same once more changes nothing."""
        await self._asker.ask(flymq.PipelineEnd(pipeline, run, outcome, reason), flymq.Ok)
