"""What happens to each batch of a pipeline's stream.

Its rows go through the steps that remember nothing, are computed once, and are offered to each sink and to the dead letters under
the name (query, batch). Each of them takes a batch once, so a crash anywhere in here, and the batch that comes again, change
nothing.

The object travels to the server where Spark is reached by Connect: it holds a definition and names, no session.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.checkpoints import checkpoint_path, query_at
from braidmq.spark.pipeline.compiling import Outcome, apply_steps, attributed, part, split_at
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.diagnosing import diagnose
from braidmq.spark.pipeline.letters import letter_records
from braidmq.spark.pipeline.sinks import Batch, make_sink
from braidmq.spark.pipeline.sinks.sink import Replacing, writer_name
from braidmq.spark.pipeline.sinks.staging import write_records
from braidmq.spark.pipeline.tracing import BatchSpan, batch_span

logger = logging.getLogger("braidmq.pipeline")

SESSIONS: Final[dict[str, SparkSession]] = {}
"""By the name of a query, the session that started it in this process. A batch has a session of its own, which knows no queries."""
RESULTS: Final[dict[str, Result]] = {}
"""By the name of a query, what the batches of this process have come to."""


@dataclass
class Result:
    """What the batches of a run have come to so far."""

    batch: int = -1
    rejected: dict[str, int] = field(default_factory=dict)
    """Dead letters by reason."""
    written: dict[str, int] = field(default_factory=dict)
    """Rows by sink, of those sinks that can say."""


def query_id(frame: DataFrame, query: str, checkpoint: str) -> str:
    """The id of the query that a batch belongs to, which lives as long as its checkpoint."""
    session = SESSIONS.get(query)
    for active in session.streams.active if session is not None else ():
        if active.name == query:
            return str(active.id)
    # By Connect a batch runs in another process, with a session that knows no queries. Spark wrote the id down before any batch.
    found = query_at(frame.sparkSession, checkpoint)
    if found is None:
        raise BraidError("INTERNAL", reason=f"{checkpoint} does not say which query it belongs to")
    return found


@dataclass(frozen=True)
class BatchJob:
    context: Context
    query: str
    """The name of the query."""
    with_letters: bool
    run: int = 0
    """The run that the broker knows; 0 when there is none."""
    buried: Sequence[tuple[str, int, int]] = ()
    """Records that have a letter already, by topic, partition and offset."""

    def __call__(self, frame: DataFrame, number: int) -> None:
        context = self.context
        writer = query_id(frame, self.query, checkpoint_path(context))
        result = self.process(frame, Batch(writer, number))
        if self.run and self.query not in SESSIONS:
            self._tell(result)

    def _tell(self, result: Result) -> None:
        """Leave the figures with the broker. By Connect a batch runs on the server, and the run that watches it elsewhere."""
        name = self.context.pipeline.name
        try:
            with self.context.client() as client:
                reports = client.pipeline.show(name).reports
                last = json.loads(reports[-1].progress) if reports else {}
                told = {**last, "counted": result.batch, "rejected": result.rejected, "written": result.written}
                client.pipeline.report(name, self.run, json.dumps(told).encode())
        except BraidError as fault:
            # The batch is done; figures are not worth doing it again.
            logger.warning("the figures of batch %d of %s could not be told: %s", result.batch, name, fault)

    def process(self, frame: DataFrame, batch: Batch, replacing: Replacing | None = None) -> Result:
        """Take one batch through the rest of the steps and into the sinks."""
        frame.persist()
        try:
            with batch_span(self.context, self.run, batch, frame) as span:
                return self._process(frame, replace(batch, traceparent=span.traceparent), replacing, span)
        finally:
            frame.unpersist()

    def _process(self, frame: DataFrame, batch: Batch, replacing: Replacing | None, span: BatchSpan) -> Result:
        context = self.context
        rows, travelled = part(frame) if self.with_letters else (frame, None)
        steps = list(enumerate(context.pipeline.steps))
        first = split_at(context.pipeline.steps) if replacing is None else 0
        outcome = apply_steps(rows, steps[first:], context)
        letters = [*outcome.letters, *([travelled] if travelled is not None else [])]
        kept = outcome.rows.persist() if outcome.rows is not frame else None
        try:
            result = RESULTS.setdefault(self.query, Result())
            self._refuse_fatal(outcome)
            span.rejected(self._bury(letters, batch, result))
            for wanted in context.pipeline.sinks:
                sink = make_sink(wanted, context)
                work = self._write(outcome, sink, batch, replacing)
                taken = attributed(context, f"sink {sink.label}", work)
                span.wrote(sink.label, taken)
                if taken is not None:
                    result.written[sink.label] = result.written.get(sink.label, 0) + taken
            result.batch = batch.number
            return result
        finally:
            if kept is not None:
                kept.unpersist()

    def _write(self, outcome: Outcome, sink: Any, batch: Batch, replacing: Replacing | None) -> Any:
        def work() -> int | None:
            try:
                taken: int | None = (
                    sink.write(outcome.rows, batch) if replacing is None else sink.replace(outcome.rows, batch, replacing)
                )
            except Exception:
                # It may be a step that fails now that its rows are wanted: then that is the one to name.
                diagnose(outcome, self.context)
                raise
            return taken

        return work

    def _refuse_fatal(self, outcome: Outcome) -> None:
        for step, frame in outcome.fatal:
            found = attributed(self.context, step, lambda frame=frame: frame.limit(1).collect())  # type: ignore[misc]
            for row in found:
                reason = f"{row['error']}; row: {row['row']}"
                raise BraidError("PIPELINE_FAILED", pipeline=self.context.pipeline.name, step=step, reason=reason)

    def _bury(self, frames: list[DataFrame], batch: Batch, result: Result) -> int:
        """Letters of all steps into the topics of dead letters, once; returns how many the batch has."""
        if not frames:
            return 0
        letters = frames[0]
        for more in frames[1:]:
            letters = letters.unionByName(more)
        if self.buried:
            there = letters.sparkSession.createDataFrame(list(self.buried), "topic string, partition int, offset bigint")
            letters = letters.join(there, ["topic", "partition", "offset"], "left_anti")
        letters = letters.persist()
        try:
            counted = {row["reason"]: row["count"] for row in letters.groupBy("reason").count().collect()}
            if counted:
                records = letter_records(letters, self.context)
                writer = writer_name(batch, "letters")
                attributed(
                    self.context, "dead letters", lambda: write_records(records, self.context.options(), writer, batch.number)
                )
            for reason, count in counted.items():
                result.rejected[reason] = result.rejected.get(reason, 0) + count
            return sum(counted.values())
        finally:
            letters.unpersist()
