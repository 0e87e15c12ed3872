"""Spans, seen by the SDK's exporter in memory: what is made, what hangs together, and nothing where it is off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from span_memory import span_memory

from braidmq.base.config import Listen
from braidmq.base.disk_real import RealDisk
from braidmq.client.blipmq import sync as blipmq
from braidmq.client.fq import sync as fq
from braidmq.client.sync import connect
from braidmq.client.trace_context import context_of, trace_headers, trace_metadata
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

_LISTEN = tuple(Listen(protocol, "127.0.0.1", 0) for protocol in ("flymq", "blipmq", "fq"))


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


def _linked(exporter: InMemorySpanExporter, name: str, to: trace.SpanContext | None, **attributes: object) -> ReadableSpan:
    """The one span of a name that is linked to another, or hangs below it."""
    assert to is not None
    found = [
        span for span in _named(exporter, name)
        if (to.span_id in [link.context.span_id for link in span.links] or (span.parent and span.parent.span_id == to.span_id))
        and attributes.items() <= (span.attributes or {}).items()
    ]  # fmt: skip
    assert len(found) == 1, (name, attributes, found)
    return found[0]


def _written(exporter: InMemorySpanExporter, protocol: str, sent: trace.SpanContext | None = None) -> trace.SpanContext:
    """Follows one record from its produce to its append and its fsync."""
    if sent is None:
        (produced,) = [s for s in _named(exporter, "braid.produce") if s.attributes["network.protocol.name"] == protocol]
    else:
        produced = _linked(exporter, "braid.produce", sent, **{"network.protocol.name": protocol})
    written = _linked(exporter, "braid.append", produced.context)
    _linked(exporter, "braid.fsync", written.context)
    assert written.context is not None
    return written.context


def test_a_blipmq_message_is_followed_until_it_is_pushed(
    tmp_path: Path, tracer: trace.Tracer, exported: InMemorySpanExporter
) -> None:
    with (
        EmbeddedBroker(RealDisk(), str(tmp_path / "data"), tracing_enabled=True, listen=_LISTEN) as broker,
        blipmq.connect(broker.server.addresses["blipmq"], client_id="c") as client,
    ):
        client.subscribe("b", qos=1)
        with tracer.start_as_current_span("order") as order:
            client.publish("b", b"secret payload", qos=1, metadata=trace_metadata({"x-own": "y"}))
            sent = order.get_span_context()
        message = next(iter(client))
        received = trace.get_current_span(context_of(message.metadata)).get_span_context()
        assert received.trace_id == sent.trace_id and message.metadata["x-own"] == "y"
        message.ack()
    written = _written(exported, "blipmq", sent)
    delivered = _linked(exported, "braid.deliver", sent, **{"network.protocol.name": "blipmq"})
    assert delivered == _linked(exported, "braid.deliver", written)
    assert delivered.attributes["braid.records"] == 1 and delivered.attributes["messaging.destination.name"] == "b"
    assert "secret" not in " ".join(span.to_json() for span in exported.get_finished_spans())


def test_an_fq_message_has_no_headers_and_is_followed_by_its_write(tmp_path: Path, exported: InMemorySpanExporter) -> None:
    with (
        EmbeddedBroker(RealDisk(), str(tmp_path / "data"), tracing_enabled=True, listen=_LISTEN) as broker,
        fq.connect(broker.server.addresses["fq"], user="me") as client,
    ):
        broker.create("f")
        client.bind("f")
        exported.clear()
        client.publish("f", "r", b"p")
        client.flush(confirm=True)
        assert next(client).payload == b"p"
    written = _written(exported, "fq")
    _linked(exported, "braid.deliver", written, **{"network.protocol.name": "fq", "messaging.destination.name": "f"})


def test_rows_are_linked_to_the_contexts_of_their_records_only(
    tmp_path: Path, tracer: trace.Tracer, exported: InMemorySpanExporter
) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), tracing_enabled=True) as broker, connect(broker.address) as client:
        client.create_topic("t", 1)
        sent = []
        with client.producer() as producer:
            for _ in range(100):
                with tracer.start_as_current_span("order") as order:
                    producer.send("t", b"v", headers=trace_headers())
                    sent.append(order.get_span_context().span_id)
        exported.clear()
        _fetch_rows(broker.address, 5, 3)
        _fetch_rows(broker.address, 0, 100)
    few, many = _named(exported, "braid.deliver")
    links = [{link.context.span_id for link in span.links} & set(sent) for span in (few, many)]
    assert links[0] == set(sent[5:8]), "what lies in the same batch was not fetched"
    assert len(many.links) == 32 and links[1] <= set(sent), "there are only so many links"


def _fetch_rows(address: str, offset: int, count: int) -> None:
    """A plain FETCH: our client asks for batches."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer, peer.makefile("rb") as file:
        peer.sendall(flymq.encode_request(flymq.Fetch("t", 0, offset, count), Dialect.DOCUMENTED))
        op, _, size = flymq.read_header(file.read(flymq.HEADER_BYTES))
        answer = flymq.decode_response(flymq.Op.FETCH, op, file.read(size), Dialect.DOCUMENTED)
    assert isinstance(answer, flymq.Fetched) and len(answer.items) == count


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
