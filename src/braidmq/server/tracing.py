"""Spans by OpenTelemetry, through its API package alone: where they go is decided by whoever sets up an SDK in the process.

`tracing_enabled` switches it on. What is made: `braid.produce`, with the context of the records' headers as its parent;
`braid.append` for the writes of a commit, with links to what it wrote; `braid.fsync` below it; `braid.deliver` for an answer or a
push with records, with links to the contexts that lie in their headers and to the `braid.append` that wrote them, if that was
lately. No payload, key or header value is ever an attribute.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import braidmq
from braidmq import hot
from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.base.tracing import Place, Tracing
from braidmq.log.attrs import decode_headers

_LINKS_MAX: Final = 32
_RECORDS_LOOKED_AT_MAX: Final = 1000
_WRITES_REMEMBERED: Final = 64
"""Of each partition. What is delivered later than that has no link to its write."""
_CONTEXT_NAMES: Final = {
    "traceparent": "traceparent", "tracestate": "tracestate", "x-traceparent": "traceparent", "x-tracestate": "tracestate",
}  # fmt: skip
"""What headers of records are called, and what W3C calls them. BlipMQ's own metadata of users begins with `x-`."""
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
        self._writes: WeakKeyDictionary[Place, deque[tuple[int, int, Any]]] = WeakKeyDictionary()
        """First offset, the one behind the last, and the context of the span that wrote them."""

    def produce(
        self, protocol: str, peer: str, batch: Buffer | None = None, headers: Mapping[str, bytes | str] | None = None
    ) -> _Span:
        trace = self._trace
        contexts = [] if batch is None else self._contexts([batch])
        own = self._context(headers) if headers else None
        if own is not None:
            contexts.append(own)
        parent = None if not contexts else trace.set_span_in_context(trace.NonRecordingSpan(contexts[0]))
        return _Span(
            self._tracer.start_span(
                "braid.produce", parent, trace.SpanKind.SERVER, _attributes(protocol, peer),
                links=[trace.Link(context) for context in contexts[1:]],
            )
        )  # fmt: skip

    def append(self, seconds: float, records: int, written: Sequence[tuple[Place, int, int]], causes: Sequence[Any]) -> Any:
        trace = self._trace
        now = self._now_ns()
        span = self._tracer.start_span(
            "braid.append", None, trace.SpanKind.INTERNAL, {"braid.records": records, "braid.partitions": len(written)},
            links=[trace.Link(context) for context in causes[:_LINKS_MAX]], start_time=now - round(seconds * _NS),
        )  # fmt: skip
        span.end(now)
        context = span.get_span_context()
        for place, first, stop in written:
            self._writes.setdefault(place, deque(maxlen=_WRITES_REMEMBERED)).append((first, stop, context))
        return context

    def fsync(self, seconds: float, files: int, append: Any) -> None:
        trace = self._trace
        now = self._now_ns()
        parent = None if append is None else trace.set_span_in_context(trace.NonRecordingSpan(append))
        span = self._tracer.start_span(
            "braid.fsync", parent, trace.SpanKind.INTERNAL, {"braid.files": files}, start_time=now - round(seconds * _NS)
        )
        span.end(now)

    def deliver(
        self, protocol: str, peer: str, place: Place, first: int, stop: int, records: int, batches: Iterable[Buffer],
        chosen: Callable[[int], bool] | None = None,
    ) -> None:
        trace = self._trace
        attributes = _attributes(protocol, peer)
        attributes |= {"messaging.destination.name": place.topic, "braid.partition": place.partition}
        attributes |= {"braid.offset": first, "braid.records": records}
        contexts = self._contexts(batches, first, stop, chosen)
        contexts += [write for start, end, write in self._writes.get(place, ()) if start < stop and first < end]
        links = [trace.Link(context) for context in contexts[:_LINKS_MAX]]
        self._tracer.start_span("braid.deliver", None, trace.SpanKind.PRODUCER, attributes, links=links).end()

    def _now_ns(self) -> int:
        return self._clock.now_ms() * 1_000_000

    def _contexts(
        self, batches: Iterable[Buffer], first: int = 0, stop: int | None = None, chosen: Callable[[int], bool] | None = None
    ) -> list[Any]:
        """The contexts that lie in the headers of records, each once, as many as are worth linking."""
        found: dict[Any, Any] = {}
        looked_at = 0

        def take(offset: int, timestamp: int, key: bytes | None, value: bytes, attrs: bytes) -> bytes:
            meant = (stop is None or offset < stop) and (chosen is None or chosen(offset))
            return attrs if meant else b""

        for batch in batches:
            try:
                blocks, _ = hot.decode_records(bytes(batch), first, _RECORDS_LOOKED_AT_MAX - looked_at, take)
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

    def _context(self, headers: Mapping[str, bytes | str]) -> Any:
        carrier: dict[str, str] = {}
        for name, official in _CONTEXT_NAMES.items():
            value = headers.get(name)
            if value is not None:
                carrier.setdefault(official, value if isinstance(value, str) else value.decode("ascii", "replace"))
        if not carrier:
            return None
        context = self._trace.get_current_span(self._w3c.extract(carrier)).get_span_context()
        return context if context.is_valid else None


def _attributes(protocol: str, peer: str) -> dict[str, str | int]:
    host, _, port = peer.rpartition(":")
    return {"messaging.system": "braidmq", "network.protocol.name": protocol, "client.address": host, "client.port": port}
