"""Avro and Protocol Buffers through the client: registered, compared, and held to on every way a client can produce."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from dataclasses import dataclass
from typing import Any

import pytest

from braidmq.client import BraidError, Client, connect, sync

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")


@dataclass(frozen=True)
class Kind:
    """A type of schema with what fits it, what does not, and versions that follow it or must not."""

    type: str
    definition: bytes
    good: tuple[bytes, ...]
    bad: tuple[bytes, ...]
    compatible: bytes
    incompatible: bytes


def _avro(*fields: dict[str, Any]) -> bytes:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields)}).encode()


def _order(**values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(_AVRO)), values)
    return out.getvalue()


_ID: dict[str, Any] = {"name": "id", "type": "long"}
_NAME: dict[str, Any] = {"name": "name", "type": ["null", "string"], "default": None}
_AVRO = _avro(_ID, _NAME)
_PROTO = b'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'

AVRO = Kind(
    "avro", _AVRO, (_order(id=1, name=None), _order(id=1 << 40, name="näme")), (b"", b"\x02", _order(id=1, name="cut")[:-1], b"{}"),
    _avro(_ID, _NAME, {"name": "more", "type": "int", "default": 0}), _avro(_ID, _NAME, {"name": "more", "type": "int"}),
)  # fmt: skip
PROTOBUF = Kind(
    "protobuf", _PROTO, (b"", b"\x08\x01", b"\x08\x01\x12\x05name!"), (b"\x12\x09cut", b"\x12\x01\xff", b"{}", b"\x08"),
    b'syntax = "proto3"; message Order { int64 id = 1; string name = 2; bool more = 3; }',
    b'syntax = "proto3"; message Order { string id = 1; string name = 2; }',
)  # fmt: skip
KINDS = pytest.mark.parametrize("kind", [AVRO, PROTOBUF], ids=lambda kind: kind.type)


@pytest.fixture
def schema() -> str:
    return f"schema-{uuid.uuid4().hex}"


async def values(client: Client, topic: str) -> list[bytes]:
    return [record.value for record in (await client.fetch(topic, 0, 0)).records]


@KINDS
def test_versions_are_compared(server: str, schema: str, kind: Kind) -> None:
    with sync.connect(server) as client:
        assert client.schema.put(schema, kind.definition, kind.type).version == 1
        assert client.schema.put(schema, kind.definition + b" ", kind.type).version == 1, "the same, written another way"
        with pytest.raises(BraidError, match="SCHEMA_INCOMPATIBLE"):
            client.schema.put(schema, kind.incompatible, kind.type)
        with pytest.raises(BraidError, match="SCHEMA_INCOMPATIBLE"):
            client.schema.put(schema, b'{"type":"object"}', "json")
        assert client.schema.put(schema, kind.compatible, kind.type).version == 2
        assert client.schema.put(schema, kind.incompatible, kind.type, compatibility="none").version == 3
        found = client.schema.get(schema, 1)
        assert (found.type, found.definition) == (kind.type, kind.definition)
        assert [(entry.version, entry.type) for entry in client.schema.ls(schema)] == [(n, kind.type) for n in (1, 2, 3)]
        assert "more" in client.schema.diff(schema, 1, 2)
        with pytest.raises(BraidError, match="SCHEMA_INVALID"):
            client.schema.put(f"{schema}-wrong", b"nonsense {", kind.type)


@KINDS
def test_a_message_is_checked(server: str, schema: str, kind: Kind) -> None:
    with sync.connect(server) as client:
        client.schema.put(schema, kind.definition, kind.type)
        for message in kind.good:
            assert client.schema.check(schema, message).valid
        for message in kind.bad:
            found = client.schema.check(schema, message)
            assert not found.valid and found.errors, message


@KINDS
def test_a_bound_topic_takes_what_fits_and_refuses_the_rest(server: str, topic: str, schema: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.schema.put(schema, kind.definition, kind.type)
            assert await client.schema.bind(topic, schema) == {"schema": schema, "schema_rule": "reject"}
            stored: list[bytes] = []
            for message in kind.good:
                await client.produce(topic, message, key=b"k")
                await client.produce(topic, message, schema=schema)
                async with client.producer() as producer, client.transaction() as t:
                    await (await producer.send(topic, message, headers={"h": b"1"}))
                    await t.produce(topic, message)
                stored += [message] * 4
            for message in kind.bad:
                for attempt in (client.produce(topic, message), client.produce(topic, message, ttl_ms=1000)):
                    with pytest.raises(BraidError, match="SCHEMA_VALIDATION_FAILED"):
                        await attempt
                async with client.producer() as producer:
                    fits = await producer.send(topic, kind.good[0])
                    unfit = await producer.send(topic, message)
                    for delivery in (fits, unfit):
                        with pytest.raises(BraidError, match=r"SCHEMA_VALIDATION_FAILED.*record 1"):
                            await delivery
            assert await values(client, topic) == stored, "of a batch all or nothing"

    asyncio.run(scenario())


@KINDS
def test_or_keeps_the_rest_as_dead_letters(server: str, topic: str, schema: str, kind: Kind) -> None:
    async def scenario() -> None:
        async with connect(server) as client:
            await client.create_topic(topic, 1)
            await client.schema.put(schema, kind.definition, kind.type)
            await client.schema.bind(topic, schema, "dead-letter")
            async with client.producer() as producer:
                deliveries = [await producer.send(topic, message) for message in (*kind.good, *kind.bad, *kind.good)]
                await producer.flush()
                assert [(await delivery).offset for delivery in deliveries] == list(range(len(deliveries)))
            assert await values(client, topic) == [*kind.good, *kind.good]
            letters = await client.dlq.ls(topic)
            assert [letter.data for letter in letters] == list(kind.bad) and all(letter.error for letter in letters)
            assert await client.dlq.retry(topic, everything=True) == 0, "they still do not fit"
            await client.schema.bind(topic, "")
            assert await client.dlq.retry(topic, everything=True) == len(kind.bad)

    asyncio.run(scenario())


def test_a_compiled_descriptor_is_a_definition_too(server: str, topic: str, schema: str) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="order.proto", syntax="proto3")
    field = file.message_type.add(name="Order").field.add(name="id", number=1)
    field.type, field.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    with sync.connect(server) as client:
        client.schema.put(schema, files.SerializeToString(), "protobuf")
        assert client.schema.check(schema, b"\x08\x01").valid and not client.schema.check(schema, b"\x08").valid
        client.create_topic(topic, 1)
        client.schema.bind(topic, schema)
        client.produce(topic, b"\x08\x01")
        with pytest.raises(BraidError, match="SCHEMA_VALIDATION_FAILED"):
            client.produce(topic, b"\x08")
