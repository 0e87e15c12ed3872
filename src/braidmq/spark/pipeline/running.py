"""Runs a pipeline: one query of Spark, watched and steered.

A run says to the broker about once a second how far it is, and does what the answer asks: go on, pause, stop, or process something
once more between two batches (`replay_orders.py`). When the broker
cannot be reached the run goes on as well as it can, because Spark retries by itself; when the broker says that the run has ended
(another one took over, or the pipeline was removed) it stops at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.pipeline.batches import RESULTS, SESSIONS, BatchJob, Result
from braidmq.spark.pipeline.checkpoints import checkpoint_path, refuse_a_lost_checkpoint
from braidmq.spark.pipeline.compiling import attributed, first_lines, stream_of
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.definition import Trigger
from braidmq.spark.pipeline.reading import Reading
from braidmq.spark.pipeline.replay_orders import ReplayDesk
from braidmq.spark.pipeline.sinks import make_sink
from braidmq.spark.pipeline.sources import read_source
from braidmq.spark.pipeline.whereabouts import describe_place
from braidmq.spark.progress import places_in

REPORT_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 30.0
"""How long a batch may take to end by itself when the run is to stop; after that it is interrupted, and comes again."""
_UNREACHABLE: Final = frozenset({"UNREACHABLE", "CONNECTION_LOST", "TIMED_OUT", "SHUTTING_DOWN"})

logger = logging.getLogger("braidmq.pipeline")


@dataclass(slots=True)
class Progress:
    """How far a run is."""

    state: str = "starting"
    batch: int = -1
    rows: int = 0
    """Rows read in this run."""
    rate: float = 0.0
    """Rows a second of the last batch."""
    batch_ms: int = 0
    lag: int | None = None
    """Records that the source holds and the pipeline has not read."""
    lag_ms: int | None = None
    counted: int = -1
    """The last batch that `rejected` and `written` tell of."""
    rejected: dict[str, int] = field(default_factory=dict)
    late: int = 0
    """Rows that a step left out in this run because they came later than it waits. Of a window at least so many: Spark counts what
    is left of a batch's rows after adding them up."""
    written: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__dataclass_fields__}).encode()


Show = Callable[[Progress], None]


class Run:
    """One run of a pipeline, to be used once: `Run(...).go()` returns when it has ended."""

    def __init__(
        self,
        spark: SparkSession,
        context: Context,
        reading: Reading,
        *,
        once: bool = False,
        client: Client | None = None,
        replace: bool = False,
        fresh: bool = False,
        show: Show | None = None,
    ) -> None:
        """Without a `client` nobody else knows of the run, and nobody can steer it. `fresh` allows one that has lost its checkpoint
        to begin anew."""
        trigger = context.pipeline.trigger
        assert isinstance(trigger, Trigger)
        self._spark = spark
        self._context = context
        self._reading = reading
        self._once = once or trigger.once
        self._every_ms = trigger.every
        self._client = client
        self._replace = replace
        self._fresh = fresh
        self._show = show
        self._number = 0
        self._query_name = f"{context.pipeline.name}-{os.getpid()}-{id(self)}"
        self._query: Any = None
        self._desired = "run"
        self._asked_to_stop = threading.Event()
        self._desk = None if client is None else ReplayDesk(spark, context, client)
        self._seen_batches: set[int] = set()
        self._reported_s = 0.0
        self._scans = 1
        """How often a batch reads each row of the source."""
        self.progress = Progress()

    def stop(self) -> None:
        """Ask it to end, from a signal or from another thread."""
        self._asked_to_stop.set()

    # --- from beginning to end

    def go(self) -> str:
        """Run; returns the outcome, `finished` or `stopped`. Raises PIPELINE_FAILED, with the step."""
        outcome, reason = "failed", "it ended without a word"
        for each in self._context.pipeline.sinks:
            # What is wrong with one of them is wrong before anything runs.
            make_sink(each, self._context)
        if self._client is not None:
            refuse_a_lost_checkpoint(self._spark, self._context, self._client, self._fresh)
        self._begin()
        try:
            outcome = self._watch()
            reason = ""
        except BraidError as fault:
            reason = fault.text
            raise
        finally:
            self._halt()
            if self._desk is not None:
                self._desk.close()
            SESSIONS.pop(self._query_name, None)
            self.progress.state = outcome
            self._end(outcome, reason)
            RESULTS.pop(self._query_name, None)
        return outcome

    def _begin(self) -> None:
        if self._client is None:
            return
        name = self._context.pipeline.name
        form = "python" if self._reading.file.endswith(".py") else "yaml"
        self._client.pipeline.put(name, self._reading.text, form)
        mode = "once" if self._once else "continuous"
        started = self._client.pipeline.start(name, mode, describe_place(self._spark), replace=self._replace)
        self._number, self._desired = started.run, started.desired
        self._say("info", f"run {self._number} begins ({mode})")

    def _end(self, outcome: str, reason: str) -> None:
        if self._client is None or not self._number:
            return
        name = self._context.pipeline.name
        self._note_lag()
        try:
            level = "error" if outcome == "failed" else "info"
            self._client.pipeline.report(
                name,
                self._number,
                self.progress.as_json(),
                [(level, f"run {self._number} {outcome}{': ' if reason else ''}{reason}")],
            )
            self._client.pipeline.end(name, self._number, outcome, reason)
        except BraidError as fault:
            # The run has ended either way; who looks will see that nothing was heard of it.
            logger.warning("the end of run %d could not be told: %s", self._number, fault)

    def _start_query(self) -> None:
        context = self._context
        source = attributed(context, "source", lambda: read_source(self._spark, context, stream=True))
        stream, letters = stream_of(source, context)
        self._scans = 1 + letters
        job = BatchJob(context, self._query_name, letters > 0, self._number)
        SESSIONS[self._query_name] = self._spark
        writer = stream.writeStream.foreachBatch(job).queryName(self._query_name)
        writer = writer.option("checkpointLocation", checkpoint_path(context))
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif self._every_ms is not None:
            writer = writer.trigger(processingTime=f"{int(self._every_ms)} milliseconds")
        self._query = attributed(context, "start", writer.start)

    def _watch(self) -> str:
        while True:
            self._note_progress()
            self._report()
            if self._asked_to_stop.is_set() or self._desired == "stop":
                return "stopped"
            if self._desk is not None and self._desk.busy:
                self.progress.state = "replaying"
            elif self._desk is not None and self._desired == "replay":
                self._take_replay(self._desk)
            elif self._desired == "pause":
                if self._query is not None:
                    self._halt()
                    self._say("info", "paused")
                self.progress.state = "paused"
            elif self._query is None:
                self.progress.state = "running"
                self._start_query()
                self._say("info", "running")
            elif not self._query.isActive:
                fault = self._query.exception()
                if fault is not None:
                    raise self._failure(fault)
                self._note_progress()
                return "finished"
            self._asked_to_stop.wait(_WATCH_SECONDS)

    def _take_replay(self, desk: ReplayDesk) -> None:
        """Begin with a replay that somebody asked for; the stream goes on when it has ended."""
        self._halt()
        try:
            desk.take(self._number)
        except BraidError as fault:
            if fault.code not in _UNREACHABLE:
                raise
            logger.warning("a replay could not be taken: %s", fault)
        self._desired = "run"

    def _halt(self) -> None:
        """End the query between two batches if that is possible in time, or within one: its batch comes again."""
        query, self._query = self._query, None
        if query is None:
            return
        deadline_s = time.monotonic() + _STOP_SECONDS
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            time.sleep(_WATCH_SECONDS)
        query.stop()

    def _failure(self, fault: Any) -> BraidError:
        """What a query died of, as the error that a step raised where there is one."""
        text = str(fault)
        mark = f"PIPELINE_FAILED: pipeline {self._context.pipeline.name} failed in "
        if mark in text:
            step, _, reason = text.split(mark, 1)[1].partition(": ")
            return BraidError("PIPELINE_FAILED", pipeline=self._context.pipeline.name, step=step, reason=first_lines(reason))
        return BraidError("PIPELINE_FAILED", pipeline=self._context.pipeline.name, step="the stream", reason=first_lines(text))

    # --- how far it is

    def _note_progress(self) -> None:
        progress = self.progress
        for each in list(self._query.recentProgress) if self._query is not None else ():
            number, rows = each["batchId"], each.numInputRows // self._scans
            late = sum(state.numRowsDroppedByWatermark for state in each.stateOperators)
            if number in self._seen_batches or not (rows or late):
                continue
            if late and not progress.late:
                self._say("warning", "rows came later than a window, a deduplication or a join waits, and were left out")
            progress.late += late
            self._seen_batches.add(number)
            progress.batch, progress.rows = number, progress.rows + rows
            progress.batch_ms = each["durationMs"].get("triggerExecution", 0)
            progress.rate = round(rows * 1000 / max(progress.batch_ms, 1), 1)
            self._move_group(each["sources"])
        result: Result | None = RESULTS.get(self._query_name)
        if result is not None:
            progress.counted, progress.rejected, progress.written = result.batch, dict(result.rejected), dict(result.written)
        elif progress.batch > progress.counted:
            self._ask_for_figures()

    def _ask_for_figures(self) -> None:
        """What the batches left with the broker, where they run in another process."""
        if self._client is None or not self._number:
            return
        try:
            reports = self._client.pipeline.show(self._context.pipeline.name).reports
        except BraidError as fault:
            logger.debug("the figures of the batches are not known: %s", fault)
            return
        found = [told for each in reports if (told := json.loads(each.progress)).get("counted", -1) > self.progress.counted]
        if found:
            progress, last = self.progress, found[-1]
            progress.counted, progress.rejected, progress.written = last["counted"], last["rejected"], last["written"]

    def _move_group(self, sources: Any) -> None:
        """Show where the pipeline is: the source itself does so only when the next batch is planned."""
        topics = self._context.source.topics
        if self._client is None or topics is None:
            return
        places: list[tuple[str, int, int]] = []
        for source in sources:
            offset = source["endOffset"]
            reached = json.loads(offset) if isinstance(offset, str) else offset
            places += [place for place in places_in(reached) if place[0] in topics] if isinstance(reached, dict) else []
        try:
            self._client.group.commit(self._context.group, places)
        except BraidError as fault:
            logger.warning("the position of the pipeline could not be told: %s", fault)

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s < REPORT_SECONDS:
            return
        self._reported_s = now_s
        self._note_lag()
        if self._show is not None:
            self._show(self.progress)
        if self._client is not None and self._number:
            try:
                self._desired = self._client.pipeline.report(self._context.pipeline.name, self._number, self.progress.as_json())
            except BraidError as fault:
                if fault.code not in _UNREACHABLE:
                    raise
                logger.warning("the broker cannot be told how far the run is: %s", fault)

    def _note_lag(self) -> None:
        topics = self._context.source.topics
        if self._client is None or topics is None:
            return
        try:
            parts = [part for topic in topics for part in self._client.group.lag(self._context.group, topic)]
        except BraidError as fault:
            logger.debug("the lag is not known: %s", fault)
            return
        self.progress.lag = sum(part.lag for part in parts)
        self.progress.lag_ms = max((part.lag_ms for part in parts), default=0)

    def _say(self, level: str, text: str) -> None:
        logger.info("%s: %s", self._context.pipeline.name, text)
        if self._client is not None and self._number:
            try:
                self._client.pipeline.report(self._context.pipeline.name, self._number, b"", [(level, text)])
            except BraidError as fault:
                if fault.code not in _UNREACHABLE:
                    raise
                logger.warning("the broker cannot be told: %s", fault)
