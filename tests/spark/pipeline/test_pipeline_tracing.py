"""A batch is a span: linked to those who produced its records, and carried on by what it writes."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from pipeline_lab import Lab, orders
from span_memory import span_memory

from braidmq.client.trace_context import context_of, trace_headers

TEXT = """
name: <name>
source: {topics: [<topic>], schema: <schema>}
steps:
  - validate: {expect: [{name: small, sql: data.amount < 100}]}
  - sql: SELECT data.order_id, data.amount FROM input
sinks:
  - topic: {name: <clean>, key: order_id}
"""


@pytest.mark.timeout(600)
def test_a_trace_goes_on_through_a_batch(lab: Lab) -> None:
    memory = span_memory()
    tracer = trace.get_tracer("test")
    sent: list[Any] = []
    with lab.client.producer() as producer:
        for number in range(2):
            with tracer.start_as_current_span(f"order {number}") as span:
                sent.append(span.get_span_context())
                for _ in range(3):
                    value = b'{"order_id": "secret-%d", "amount": %d}' % (number, 200 * number)
                    producer.send(lab.topic, value, headers=trace_headers({"kind": b"order"}))
    lab.send(*orders(range(2)))
    memory.clear()
    lab.once(TEXT + "tracing: true\n")
    batches = [span for span in memory.get_finished_spans() if span.name == "braid.pipeline.batch"]
    (span,) = batches
    assert {link.context.span_id for link in span.links} == {context.span_id for context in sent}, "each cause once"
    attributes = dict(span.attributes or {})
    assert (attributes["braid.pipeline"], attributes["braid.batch"], attributes["braid.rejected"]) == (lab.name, 0, 3)
    assert attributes[f"braid.written.topic:{lab.clean}"] == 5
    assert "secret" not in span.to_json()
    carried = {trace.get_current_span(context_of(record.headers)).get_span_context().span_id for record in lab.records(lab.clean)}
    assert carried == {span.context.span_id}, "whoever reads what it wrote is linked to the batch"
    # Off, nothing is made, and nothing is sent along.
    lab.send(*orders(range(2, 4)))
    memory.clear()
    lab.once(TEXT)
    assert [span for span in memory.get_finished_spans() if span.name == "braid.pipeline.batch"] == []
    assert sum(not record.headers for record in lab.records(lab.clean)) == 2
