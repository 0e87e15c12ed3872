"""Spans by OpenTelemetry, through its API package alone: where they go is decided by whoever sets up an SDK in the process.

`tracing_enabled` switches it on. What is made: `braid.produce`, with the context of the records' headers as its parent;
`braid.append` for the writes of a commit, with links to what it wrote; `braid.fsync` below it; `braid.deliver` for an answer with
records, with links to the contexts that lie in their headers. No payload, key or header value is ever an attribute.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import braidmq
from braidmq import hot
from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.base.tracing import Tracing
from braidmq.log.attrs import decode_headers

_LINKS_MAX: Final = 32
_RECORDS_LOOKED_AT_MAX: Final = 1000
_NS: Final = 1_000_000_000

logger = logging.getLogger("braidmq.tracing")


def open_tracing(clock: Clock) -> Tracing:
    """INVALID configuration where the package is not installed."""
    try:
        return _Tracing(clock)
    except ImportError as missing:
        reason = f"it needs the package {missing.name}: install braidmq[otel]"
        raise BraidError("CONFIG_INVALID_VALUE", key="tracing_enabled", origin="configuration", reason=reason) from None


class _Span:
    def __init__(self, span: Any) -> None:
        self._span = span
        self.context = span.get_span_context()

    def end(self, error: str = "", **figures: int) -> None:
        from opentelemetry.trace import Status, StatusCode

        for name, value in figures.items():
            self._span.set_attribute(f"braid.{name}", value)
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class _Tracing:
    def __init__(self, clock: Clock) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._clock = clock
        self._tracer = trace.get_tracer("braidmq", braidmq.__version__)
        self._w3c = TraceContextTextMapPropagator()

    def produce(self, protocol: str, peer: str, batch: Buffer | None = None) -> _Span:
        trace = self._trace
        contexts = [] if batch is None else self._contexts([batch])
        parent = None if not contexts else trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]))
        return _Span(
            self._tracer.start_span(
                "braid.produce", parent, trace.SpanKind.SERVER, _attributes(protocol, peer),
                links=[trace.Link(context) for context in contexts[1:]],
            )
        )  # fmt: skip

    def append(self, seconds: float, records: int, partitions: int, causes: Sequence[Any]) -> Any:
        trace = self._trace
        now = self._now_ns()
        span = self._tracer.start_span(
            "braid.append", None, trace.SpanKind.INTERNAL, {"braid.records": records, "braid.partitions": partitions},
            links=[trace.Link(context) for context in causes[:_LINKS_MAX]], start_time=now - round(seconds * _NS),
        )  # fmt: skip
        span.end(now)
        return span.get_span_context()

    def fsync(self, seconds: float, files: int, append: Any) -> None:
        trace = self._trace
        now = self._now_ns()
        parent = None if append is None else trace.set_span_in_context(trace.NonRecordingSpan(append))
        span = self._tracer.start_span(
            "braid.fsync", parent, trace.SpanKind.INTERNAL, {"braid.files": files}, start_time=now - round(seconds * _NS)
        )
        span.end(now)

    def deliver(self, protocol: str, peer: str, topic: str, partition: int, batches: Iterable[Buffer]) -> None:
        trace = self._trace
        attributes = {**_attributes(protocol, peer), "messaging.destination.name": topic, "braid.partition": partition}
        links = [trace.Link(context) for context in self._contexts(batches)]
        self._tracer.start_span("braid.deliver", None, trace.SpanKind.PRODUCER, attributes, links=links).end()

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000

    def _contexts(self, batches: Iterable[Buffer]) -> list[Any]:
        """The contexts that lie in the headers of records, each once, as many as are worth linking."""
        found: dict[Any, Any] = {}
        looked_at = 0

        def take(offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> bytes:
            return attrs

        for batch in batches:
            try:
                blocks, _ = hot.decode_records(bytes(batch), 0, _RECORDS_LOOKED_AT_MAX - looked_at, take)
                looked_at += len(blocks)
                for block in blocks:
                    if block:
                        context = self._context(decode_headers(block))
                        if context is not None:
                            found.setdefault((context.trace_id, context.span_id), context)
            except BraidError as fault:
                # Whoever asked is told what is wrong with the batch by others; for a span it does not matter.
                logger.debug("no context in a batch: %s", fault)
            if len(found) >= _LINKS_MAX or looked_at >= _RECORDS_LOOKED_AT_MAX:
                break
        return list(found.values())[:_LINKS_MAX]

    def _context(self, headers: Mapping[str, bytes]) -> Any:
        if "traceparent" not in headers:
            return None
        carrier = {name: headers[name].decode("ascii", "replace") for name in ("traceparent", "tracestate") if name in headers}
        context = self._trace.get_current_span(self._w3c.extract(carrier)).get_span_context()
        return context if context.is_valid else None


def _attributes(protocol: str, peer: str) -> dict[str, str | int]:
    host, _, port = peer.rpartition(":")
    return {"messaging.system": "braidmq", "network.protocol.name": protocol, "client.address": host, "client.port": port}
