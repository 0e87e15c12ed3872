"""What a task does: read offset ranges from the broker as Arrow batches.

While Spark takes one batch, the next one is on its way. So a task holds two fetches at most, whatever the topic's size.

A broker that is lost is tried again with growing pauses until the option `timeout` is over; then the task fails, and Spark
repeats it from the beginning of its range. Records that retention removed before they were read are never passed over in
silence, nor is a topic that is another one by now: see `gaps.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from braidmq.base.errors import BraidError
from braidmq.base.limits import MIB
from braidmq.client.cipher import ValueCipher
from braidmq.client.sync import Client, FetchedBytes
from braidmq.spark.columns import Decode, RowFilter, Shaping
from braidmq.spark.connecting import client_of
from braidmq.spark.gaps import Gap, report, report_replaced
from braidmq.spark.options import Options
from braidmq.spark.ranges import Span

FETCH_BYTES_DEFAULT: Final = 4 * MIB


def read_spans(
    options: Options, schema: pa.Schema, spans: tuple[Span, ...], decode: Decode | None, row_filter: RowFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Every record of `spans` that `row_filter` takes, in order."""
    key = options.get("encryptionKey")
    shaping = Shaping(schema, ValueCipher(key) if key else None, decode, row_filter)
    with ThreadPoolExecutor(1, "braid-fetch") as ahead:
        for span in spans:
            yield from _Reading(options, shaping, span, ahead).batches()


class _Reading:
    """One span, from its beginning to its end."""

    def __init__(self, options: Options, shaping: Shaping, span: Span, ahead: ThreadPoolExecutor) -> None:
        self._options = options
        self._client: Client = client_of(options)
        self._shaping = shaping
        self._span = span
        self._ahead = ahead
        self._fetch_bytes = options.get("fetchBytes", FETCH_BYTES_DEFAULT)
        self._goes_on = not options.get("failOnDataLoss", True)
        """Whether what was lost, or another topic by now, does not fail the task, and with it all that it has read."""
        self._empty_at = -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        span, at = self._span, self._span.start
        coming = self._ask(at)
        if not self._is_same_topic():
            return
        while at < span.end:
            try:
                found = coming.result()
            except BraidError as fault:
                if fault.code not in ("OFFSET_OUT_OF_RANGE", "TOPIC_NOT_FOUND"):
                    raise
                at = self._past_gap(at)
                coming = self._ask(at)
                continue
            batches, following = self._shaping.batches(span.topic, span.partition, found.batches, at, span.end)
            if following == at:
                # There is nothing where there was something when the read was planned.
                at = self._past_gap(at)
                coming = self._ask(at)
                continue
            if self._goes_on and not self._is_same_topic():
                # Asked after the fetch: what came may be of another topic, whose rows are read from their beginning.
                return
            at = following
            if at < span.end:
                coming = self._ask(at)
            yield from batches
        self._is_same_topic()

    def _ask(self, offset: int) -> Future[FetchedBytes]:
        span = self._span
        return self._ahead.submit(
            self._client.fetch_batches, span.topic, span.partition, offset, max_bytes=self._fetch_bytes
        )

    def _is_same_topic(self) -> bool:
        """Whether the topic is still the one that the read was planned for; raises where another one is not wanted."""
        found = self._client.places([self._span.topic]).get(self._span.topic)
        if found is not None and found.id == self._span.topic_id:
            return True
        report_replaced(self._span.topic, found is not None, self._options)
        return False

    def _past_gap(self, at: int) -> int:
        """Where to go on behind records that are gone; raises where that is not wanted."""
        span = self._span
        if not self._is_same_topic():
            return span.end
        part = self._client.places([span.topic])[span.topic].partitions[span.partition]
        until = min(max(part.oldest, at), span.end)
        if until > at:
            report(Gap(span.topic, span.partition, at, until, "retention removed them"), self._options)
            return until
        if part.newest > at and self._empty_at != at:
            # A leader that has just begun finds out how far readers saw before it answers with places; now it can be read.
            self._empty_at = at
            return at
        report(Gap(span.topic, span.partition, at, span.end, "the topic ends before them"), self._options)
        return span.end
