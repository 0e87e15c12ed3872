"""The trace a record belongs to, in its headers, as W3C has it: `traceparent` and `tracestate`.

`headers=trace_headers()` sends the current context along with a record; `context_of(record.headers)` is what a consumer begins
its span with, or links it to. The package opentelemetry-api is needed for either (`braidmq[otel]`), and nothing here is loaded
before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def trace_headers(headers: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """`headers` with the current context added; without a current span they are as they were."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {**(headers or {}), **{name: value.encode("ascii", "replace") for name, value in carrier.items()}}


def context_of(headers: Mapping[str, bytes]) -> Any:
    """The OpenTelemetry context that a record's headers carry; an empty one where they carry none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier = {name: value.decode("ascii", "replace") for name, value in headers.items() if name in ("traceparent", "tracestate")}
    return TraceContextTextMapPropagator().extract(carrier)
