"""A record that came in through any protocol goes out through every other: bytes equal, attributes kept, one verdict for all."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from running_broker import RunningBroker

from braidmq.base.errors import BraidError
from braidmq.client import blipmq, fq
from braidmq.client.sync import Client, connect

LISTENERS = tuple(
    flag for scheme in ("flymq", "blipmq", "fq") for flag in ("--listen", f"{scheme}://127.0.0.1:0")
)  # fmt: skip
_PATIENCE_S = 60.0
_names = itertools.count()


class Got(NamedTuple):
    value: bytes
    route: bytes
    headers: dict[str, bytes]


@pytest.fixture(scope="module", params=["compiled", "pure"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    env = {} if request.param == "compiled" else {"BRAID_PURE": "1"}
    made = RunningBroker(tmp_path_factory.mktemp("matrix") / "data", (*LISTENERS, "--durability", "os"), env)
    made.start()
    try:
        yield made
        assert "bug in" not in made.log, made.log
        made.stop()
    finally:
        if made.running:
            made.kill()


# --- the three ways in


def _in_by_flymq(broker: RunningBroker, topic: str, values: list[bytes]) -> None:
    with connect(broker.addresses["flymq"]) as client, client.producer() as producer:
        for value in values:
            producer.send(topic, value, key=b"some.route", headers={"x-kind": b"test"})


def _in_by_blipmq(broker: RunningBroker, topic: str, values: list[bytes]) -> None:
    with blipmq.sync.connect(broker.addresses["blipmq"]) as client:
        for value in values:
            client.send(topic, value, qos=1, metadata={"x-kind": "test"})
        client.flush()


def _in_by_fq(broker: RunningBroker, topic: str, values: list[bytes]) -> None:
    with fq.sync.connect(broker.addresses["fq"], user="alice") as client:
        for value in values:
            client.publish(topic, b"some.route", value)
        client.flush(confirm=True)


# --- the three ways out


def _out_by_flymq(broker: RunningBroker, topic: str, count: int, publish: Callable[[], None]) -> list[Got]:
    publish()
    with connect(broker.addresses["flymq"]) as client, client.consumer(topic, start="earliest") as consumer:
        got: list[Got] = []
        while len(got) < count:
            records = consumer.poll(500, _PATIENCE_S)
            assert records, f"{len(got)} of {count} records came"
            got += [Got(record.value, record.key or b"", record.headers) for record in records]
        return got


def _out_by_blipmq(broker: RunningBroker, topic: str, count: int, publish: Callable[[], None]) -> list[Got]:
    with blipmq.sync.connect(broker.addresses["blipmq"]) as client:
        client.subscribe(topic, qos=1)
        publish()
        got: list[Got] = []
        while len(got) < count:
            messages = client.poll(500, _PATIENCE_S)
            assert messages, f"{len(got)} of {count} messages came"
            for message in messages:
                headers = {name: value.encode() for name, value in message.metadata.items() if name.startswith("x-")}
                got.append(Got(message.payload, b"", headers))
                message.ack()
        return got


def _out_by_fq(broker: RunningBroker, topic: str, count: int, publish: Callable[[], None]) -> list[Got]:
    with fq.sync.connect(broker.addresses["fq"], user="bob") as client:
        client.bind(topic)
        publish()
        got: list[Got] = []
        while len(got) < count:
            messages = client.poll(500, _PATIENCE_S)
            assert messages, f"{len(got)} of {count} messages came"
            for message in messages:
                assert message.sender and message.hops, "some clients refuse a delivery without them"
                got.append(Got(message.payload, message.route, {}))
        return got


IN = {"flymq": _in_by_flymq, "blipmq": _in_by_blipmq, "fq": _in_by_fq}
OUT = {"flymq": _out_by_flymq, "blipmq": _out_by_blipmq, "fq": _out_by_fq}
ROUTED = {"flymq", "fq"}
"""Protocols with a place for a key or route."""
HEADED = {"flymq", "blipmq"}
"""Protocols with a place for headers."""
VALUES = [b"", b"plain", bytes(range(256)), b"\x00" * 5, b"x" * 70_000, *(b"number %d" % n for n in range(200))]


@pytest.mark.parametrize("way_out", OUT)
@pytest.mark.parametrize("way_in", IN)
def test_what_comes_in_by_one_goes_out_by_another(broker: RunningBroker, way_in: str, way_out: str) -> None:
    topic = f"matrix/{way_in}/{way_out}/{next(_names)}"
    got = OUT[way_out](broker, topic, len(VALUES), lambda: IN[way_in](broker, topic, VALUES))
    # A publisher of BlipMQ or fq keeps its order; a producer of FlyMQ keeps it for a key.
    assert [each.value for each in got] == VALUES
    if way_in in ROUTED and way_out in ROUTED:
        assert {each.route for each in got} == {b"some.route"}
    if way_in in HEADED and way_out in HEADED:
        assert all(each.headers == {"x-kind": b"test"} for each in got)


def test_one_schema_for_all(broker: RunningBroker) -> None:
    topic = f"checked-{next(_names)}"
    with connect(broker.addresses["flymq"]) as client:
        _bind_schema(client, topic)
        with pytest.raises(BraidError, match="SCHEMA_VALIDATION_FAILED"):
            client.produce(topic, b"not json")
        with blipmq.sync.connect(broker.addresses["blipmq"]) as other:
            with pytest.raises(BraidError):
                other.publish(topic, b"not json", qos=1)
            other.publish(topic, b'{"n": 2}', qos=1)
        with fq.sync.connect(broker.addresses["fq"], user="alice") as other:
            other.publish(topic, b"", b"not json")
            other.publish(topic, b"", b'{"n": 3}')
            other.flush(confirm=True)
        with client.consumer(topic, start="earliest") as consumer:
            found: list[bytes] = []
            while len(found) < 2:
                found += [record.value for record in consumer.poll(10, _PATIENCE_S)]
        assert sorted(found) == [b'{"n": 2}', b'{"n": 3}']
        held = sum(part.newest for part in client.metadata(topic).partitions)
        assert held == 2, "what does not fit is not stored, whoever brought it"


def _bind_schema(client: Client, topic: str) -> None:
    client.create_topic(topic, 1)
    client.schema.put(topic, b'{"type": "object", "required": ["n"]}', "json")
    client.schema.bind(topic, topic)


def test_one_time_to_live_for_all(broker: RunningBroker) -> None:
    """A record that expired reaches nobody, by whichever protocol it came and goes."""
    topic = f"short-{next(_names)}"
    with connect(broker.addresses["flymq"]) as client:
        client.create_topic(topic, 1, {"ttl_ms": "1"})
        for way_in in IN:
            IN[way_in](broker, topic, [b"gone soon"])
        written_s = time.monotonic()
        while time.monotonic() < written_s + 0.01:
            assert client.metadata(topic).partitions[0].newest == len(IN)
        client.topic_config(topic, {"ttl_ms": ""})
        client.produce(topic, b"stays")
        with client.consumer(topic, start="earliest") as consumer:
            assert [record.value for record in consumer.poll(10, _PATIENCE_S)] == [b"stays"]
