"""Carries out the replays that somebody asked the broker for, within a run that is under way.

The run stops its query between two batches, takes the order, and goes on when it has ended. The work is done in a thread of its
own, so that the run goes on telling how it is, and hears when it should stop; then Spark is interrupted, the order has failed, and
can be given again: a replay replaces what was made of its records before, however often it is done.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.pipeline.batches import RESULTS
from braidmq.spark.pipeline.compiling import first_lines
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.replaying import prepare, reprocess, send_letters_back, spans_of_time, spoken
from braidmq.spark.pipeline.sinks.sink import Span
from braidmq.wire import flymq

_TELL_SECONDS: Final = 30.0
"""How long a run that is to stop waits for a replay that was interrupted."""

logger = logging.getLogger("braidmq.pipeline")


class ReplayDesk:
    """The orders of one run, one at a time."""

    def __init__(self, spark: SparkSession, context: Context, client: Client) -> None:
        self._spark = spark
        self._context = context
        self._client = client
        self._name = context.pipeline.name
        self._thread: threading.Thread | None = None
        self._tag = f"replay-{self._name}-{id(self)}"
        self._interrupted = False

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def take(self, run: int) -> bool:
        """Begin with the oldest order; False where there is none any more."""
        order = self._client.pipeline.take_replay(self._name, run)
        if order is None:
            return False
        self._thread = threading.Thread(target=self._carry_out, args=(order, run), name=f"replay-{order.number}", daemon=True)
        self._thread.start()
        return True

    def close(self) -> None:
        """Interrupt what is being done, and wait until it is told."""
        if self._thread is not None and self.busy:
            self._interrupted = True
            self._spark.interruptTag(self._tag)
            self._thread.join(_TELL_SECONDS)

    def _carry_out(self, order: flymq.ReplayEntry, run: int) -> None:
        state, result = "failed", "it ended without a word"
        try:
            self._spark.addTag(self._tag)
            state, result = "done", self._process(order, run)
        except BraidError as fault:
            result = f"{fault.code}: {fault.text}"
        except PySparkException as fault:
            result = "the run was stopped meanwhile" if self._interrupted else first_lines(str(fault))
        except Exception as fault:
            logger.exception("replay %d of %s failed", order.number, self._name)
            result = f"{type(fault).__name__}: {first_lines(str(fault))}"
        finally:
            self._tell(order, run, state, result)

    def _process(self, order: flymq.ReplayEntry, run: int) -> str:
        wish: dict[str, Any] = json.loads(order.wish)
        if wish.get("letters"):
            count = send_letters_back(self._client, self._context)
            return f"{count} dead letters sent back, which come through the pipeline like any record"
        spans = [Span(*each) for each in wish.get("offsets", ())]
        if "since_ms" in wish:
            spans = spans_of_time(self._client, self._context, wish["since_ms"], wish.get("until_ms"))
        context, spans = prepare(self._spark, self._context, self._client, spans, wish.get("skip", ()))
        if not spans:
            return "there is nothing in that range that the pipeline has passed"
        mark = f"{run}-{order.number}"
        try:
            done = reprocess(self._spark, context, self._client, spans, "replay", run, mark)
        finally:
            RESULTS.pop(f"{self._name}-replay-{mark}", None)
        return f"{done.records} records processed, {sum(done.result.rejected.values())} rejected: {spoken(spans)}"

    def _tell(self, order: flymq.ReplayEntry, run: int, state: str, result: str) -> None:
        level = "info" if state == "done" else "error"
        try:
            self._client.pipeline.end_replay(self._name, order.number, state, result)
            self._client.pipeline.report(self._name, run, b"", [(level, f"replay {order.number} {state}: {result}"[:4000])])
        except BraidError as fault:
            # The broker writes it off when it hears of the end of the run; until then it is shown as running.
            logger.warning("the end of replay %d could not be told: %s", order.number, fault)
