"""A span of each batch, linked to what produced its records: how a trace goes on across the log.

Records carry the context of whoever sent them in their headers (`traceparent`, as W3C has it). The span `braid.pipeline.batch` has
links to the contexts of some of the records that the batch read, and what the batch writes to topics carries the context of the
span, so whoever reads that is linked to the batch in turn. A batch of a million records has as many causes; a bounded sample of
them is looked at. Steps that remember rows hide the headers from the batch: its span then has no links.

It is off unless the definition says `tracing: true`, and off it costs one look at that flag a batch. Spans go where the SDK sends
them that is set up in the process of the batch: the driver's, or with Connect the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braidmq
from braidmq.client.trace_context import context_of, trace_headers
from braidmq.spark.pipeline.context import Context
from braidmq.spark.pipeline.sinks.sink import Batch

LINKS_MAX: Final = 32


@dataclass(slots=True)
class BatchSpan:
    """What a batch tells about itself; without a span, to nobody."""

    span: Any = None
    traceparent: bytes = b""
    """The context of the span as records carry it; empty without one."""

    def wrote(self, sink: str, rows: int | None) -> None:
        if self.span is not None and rows is not None:
            self.span.set_attribute(f"braid.written.{sink}", rows)

    def rejected(self, count: int) -> None:
        if self.span is not None:
            self.span.set_attribute("braid.rejected", count)


@contextmanager
def batch_span(context: Context, run: int, batch: Batch, frame: DataFrame) -> Iterator[BatchSpan]:
    """Around all that is done for a batch; a batch that fails says so."""
    if not context.pipeline.tracing:
        yield BatchSpan()
        return
    from opentelemetry import trace

    tracer = trace.get_tracer("braidmq", braidmq.__version__)
    attributes: dict[str, str | int] = {
        "messaging.system": "braidmq", "braid.pipeline": context.pipeline.name, "braid.run": run, "braid.batch": batch.number,
        "messaging.destination.name": ", ".join(context.source.topics or ()),
    }  # fmt: skip
    links = [trace.Link(each) for each in _causes(frame)]
    kind = trace.SpanKind.CONSUMER
    with tracer.start_as_current_span("braid.pipeline.batch", kind=kind, attributes=attributes, links=links) as span:
        yield BatchSpan(span, trace_headers().get("traceparent", b""))


def _causes(frame: DataFrame) -> list[Any]:
    """Contexts of some of the records, each once."""
    from opentelemetry import trace

    if "headers" not in frame.columns:
        return []
    carried = F.expr("filter(headers, each -> each.key IN ('traceparent', 'tracestate'))").alias("carried")
    rows = frame.select(carried).where("size(carried) > 0").distinct().limit(LINKS_MAX).collect()
    found: dict[tuple[int, int], Any] = {}
    for row in rows:
        headers = {header["key"]: bytes(header["value"]) for header in row["carried"]}
        context = trace.get_current_span(context_of(headers)).get_span_context()
        if context.is_valid:
            found.setdefault((context.trace_id, context.span_id), context)
    return list(found.values())
