"""What a task does: read offset ranges from the broker as Arrow batches.

While Spark takes one batch, the next one is on its way. So a task holds two fetches at most, whatever the topic's size.

A broker that is lost is tried again with growing pauses until the option `timeout` is over; then the task fails, and Spark
repeats it from the beginning of its range. Records that retention removed before they were read are never passed over in
silence: see `gaps.py`.
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
from braidmq.spark.columns import Decode, Shaping
from braidmq.spark.connecting import client_of
from braidmq.spark.gaps import Gap, report
from braidmq.spark.options import Options
from braidmq.spark.ranges import Span

FETCH_BYTES_DEFAULT: Final = 4 * MIB


def read_spans(options: Options, schema: pa.Schema, spans: tuple[Span, ...], decode: Decode | None) -> Iterator[pa.RecordBatch]:
    """Every record of `spans`, in order."""
    key = options.get("encryptionKey")
    shaping = Shaping(schema, ValueCipher(key) if key else None, decode)
    client = client_of(options)
    with ThreadPoolExecutor(1, "braid-fetch") as ahead:
        for span in spans:
            yield from _read_span(options, client, shaping, span, ahead)


def _read_span(
    options: Options, client: Client, shaping: Shaping, span: Span, ahead: ThreadPoolExecutor
) -> Iterator[pa.RecordBatch]:
    fetch_bytes = options.get("fetchBytes", FETCH_BYTES_DEFAULT)

    def fetch(offset: int) -> FetchedBytes:
        return client.fetch_batches(span.topic, span.partition, offset, max_bytes=fetch_bytes)

    at = span.start
    coming: Future[FetchedBytes] = ahead.submit(fetch, at)
    while at < span.end:
        try:
            found = coming.result()
        except BraidError as fault:
            if fault.code not in ("OFFSET_OUT_OF_RANGE", "TOPIC_NOT_FOUND"):
                raise
            at = _past_gap(options, client, span, at, fault)
            coming = ahead.submit(fetch, at)
            continue
        batches, following = shaping.batches(span.topic, span.partition, found.batches, at, span.end)
        if following == at:
            # There is nothing where there was something when the read was planned.
            at = _past_gap(options, client, span, at, None)
            coming = ahead.submit(fetch, at)
            continue
        at = following
        if at < span.end:
            coming = ahead.submit(fetch, at)
        yield from batches


def _past_gap(options: Options, client: Client, span: Span, at: int, fault: BraidError | None) -> int:
    """Where to go on behind records that are gone; raises where that is not wanted."""
    if fault is not None and fault.code == "TOPIC_NOT_FOUND":
        report(Gap(span.topic, span.partition, at, span.end, "the topic was deleted"), options)
        return span.end
    part = client.metadata(span.topic).partitions[span.partition]
    if part.oldest > at:
        until = min(part.oldest, span.end)
        report(Gap(span.topic, span.partition, at, until, "retention removed them"), options)
        return until
    report(Gap(span.topic, span.partition, max(at, part.newest), span.end, "the topic ends before them, so it is another one"), options)
    return span.end
