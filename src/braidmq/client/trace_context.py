"""The trace a record belongs to, in its headers, as W3C has it: `traceparent` and `tracestate`.

`headers=trace_headers()` sends the current context along with a record, `metadata=trace_metadata()` with a BlipMQ message, whose
metadata of users begins with `x-`; `context_of(record.headers)`, or of a message's metadata, is what a consumer begins its span
with, or links it to. The package opentelemetry-api is needed for either (`braidmq[otel]`), and nothing here is loaded before it is
used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BLIPMQ_PREFIX: Final = "x-"


def trace_headers(headers: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """`headers` with the current context added; without a current span they are as they were."""
    return {**(headers or {}), **{name: value.encode("ascii", "replace") for name, value in _current().items()}}


def trace_metadata(metadata: Mapping[str, str] | None = None) -> dict[str, str]:
    """The same for a BlipMQ message."""
    return {**(metadata or {}), **{_BLIPMQ_PREFIX + name: value for name, value in _current().items()}}


def _current() -> dict[str, str]:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


def context_of(headers: Mapping[str, bytes] | Mapping[str, str]) -> Any:
    """The OpenTelemetry context that headers or metadata carry; an empty one where they carry none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    for name, value in headers.items():
        official = name.removeprefix(_BLIPMQ_PREFIX)
        if official in ("traceparent", "tracestate"):
            carrier[official] = value if isinstance(value, str) else value.decode("ascii", "replace")
    return TraceContextTextMapPropagator().extract(carrier)
