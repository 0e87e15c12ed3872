"""Pipelines that the broker knows, and their runs: what `braid pipeline` does, and what a run says of itself."""

from __future__ import annotations

from collections.abc import Sequence

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

    # --- what a run says of itself

    async def start(self, pipeline: str, mode: str, where: str, *, replace: bool = False) -> flymq.PipelineStarted:
        """Begin a run; PIPELINE_RUNNING while another one is heard of, unless it is to be replaced."""
        return await self._asker.ask(flymq.PipelineStart(pipeline, mode, where, replace), flymq.PipelineStarted, again=False)

    async def report(self, pipeline: str, run: int, progress: bytes = b"", events: Sequence[tuple[str, str]] = ()) -> str:
        """Say how far a run is; returns what it should do: `run`, `pause` or `stop`."""
        request = flymq.PipelineReport(pipeline, run, progress, tuple(events))
        return (await self._asker.ask(request, flymq.PipelineDesired)).desired

    async def end(self, pipeline: str, run: int, outcome: str, reason: str = "") -> None:
        await self._asker.ask(flymq.PipelineEnd(pipeline, run, outcome, reason), flymq.Ok, again=False)
