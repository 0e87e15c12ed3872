"""Spans, seen by the SDK's exporter in memory: what is made, what hangs together, and nothing where it is off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from span_memory import span_memory

from braidmq.base.disk_real import RealDisk
from braidmq.client.sync import connect
from braidmq.client.trace_context import context_of, trace_headers


@pytest.fixture(scope="module")
def tracer() -> trace.Tracer:
    span_memory()
    return trace.get_tracer("test")


@pytest.fixture
def exported(tracer: trace.Tracer) -> Iterator[InMemorySpanExporter]:
    memory = span_memory()
    memory.clear()
    yield memory
    memory.clear()


def _named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def test_a_record_is_followed_from_the_producer_to_the_consumer(
    tmp_path: Path, tracer: trace.Tracer, exported: InMemorySpanExporter
) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), tracing_enabled=True) as broker, connect(broker.address) as client:
        client.create_topic("t", 1)
        with tracer.start_as_current_span("order") as order:
            with client.producer() as producer:
                producer.send("t", b"secret payload", headers=trace_headers({"own": b"x"})).result()
            sent = order.get_span_context()
        with client.consumer("t", group="g", start="earliest") as consumer:
            record = next(iter(consumer))
        received = trace.get_current_span(context_of(record.headers)).get_span_context()
    assert received.trace_id == sent.trace_id and received.span_id == sent.span_id and record.headers["own"] == b"x"

    (produced,) = [span for span in _named(exported, "braid.produce") if span.context.trace_id == sent.trace_id]
    assert produced.parent is not None and produced.parent.span_id == sent.span_id and produced.kind is trace.SpanKind.SERVER
    assert produced.attributes["braid.records"] == 1 and produced.attributes["network.protocol.name"] == "flymq"
    (written,) = [
        span
        for span in _named(exported, "braid.append")
        if any(link.context.span_id == produced.context.span_id for link in span.links)
    ]
    assert written.attributes["braid.records"] == 1
    assert any(
        span.parent is not None and span.parent.span_id == written.context.span_id for span in _named(exported, "braid.fsync")
    )
    delivered = [
        span for span in _named(exported, "braid.deliver") if any(link.context.span_id == sent.span_id for link in span.links)
    ]
    assert delivered and delivered[0].attributes["messaging.destination.name"] == "t"
    text = " ".join(span.to_json() for span in exported.get_finished_spans())
    assert "secret" not in text


def test_plain_records_have_spans_too(tmp_path: Path, exported: InMemorySpanExporter) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), tracing_enabled=True) as broker, connect(broker.address) as client:
        client.create_topic("t", 1)
        client.produce("t", b"v")
        client.produce("t", b"v")
        client.fetch("t", 0, 0)
    assert _named(exported, "braid.produce") and _named(exported, "braid.deliver")


def test_nothing_is_made_where_it_is_off(tmp_path: Path, exported: InMemorySpanExporter) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data")) as broker, connect(broker.address) as client:
        assert broker.server.broker.commit.tracing is None
        client.create_topic("t", 1)
        client.produce("t", b"v")
    assert exported.get_finished_spans() == ()
    assert trace_headers() == {}, "without a current span there is nothing to send along"
