"""Values decoded by the schema of their topic, of every kind: in lists, in full, while they come, in a filter, and masked."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient

pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

AVRO = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "double"}, {"name": "s", "type": "string"}]}
CASES: dict[str, tuple[bytes, bytes, bytes]] = {
    "json": (json.dumps({"type": "object", "required": ["s"]}).encode(), b'{"s": "sesame"}', b'{"n": 1}'),
    "avro": (json.dumps(AVRO).encode(), b"\x00" * 6 + b"\xf8\x7f\x0csesame", b"\x00\x01"),
    "protobuf": (b'syntax = "proto3"; message R { int64 n = 1; string s = 2; }', b"\x08\x96\x01\x12\x06sesame", b"\x12\x09a\xff"),
}
"""A definition, a value that fits it, and one that does not. The number of the Avro value is none, which JSON has no word for."""
KINDS = pytest.mark.parametrize("kind", list(CASES))


@pytest.fixture
def topic_of(standing: EmbeddedBroker) -> Callable[..., str]:
    def make(name: str, kind: str, **properties: str) -> str:
        """A topic with a value that fits its schema, and one from before it had any."""
        broker = standing.server.broker
        definition, good, bad = CASES[kind]

        async def fill() -> None:
            await broker.schemas.register(name, kind, definition)
            topic = await broker.create_topic(name, 1, properties)
            await broker.append(topic, 0, b"", bad)
            await broker.configure_topic(name, {"schema": name})
            await broker.admission.produce(broker.topic(name), 0, b"k", good)

        standing.run(fill)
        return name

    return make


@KINDS
def test_what_a_value_says_stands_beside_it(web: WebClient, topic_of: Callable[..., str], kind: str) -> None:
    name = topic_of(f"decoded-{kind}", kind)
    plain = web.get(f"/api/v1/topics/{name}/messages").json["messages"]
    assert all("decoded" not in message and "decoded_as" not in message for message in plain), "only who asks pays for it"
    answer = web.get(f"/api/v1/topics/{name}/messages?decode=true")
    assert b"NaN" not in answer.body
    bad, good = answer.json["messages"]
    assert good["decoded"]["s"] == "sesame" and good["decoded_as"] == f"{kind}: {name}, version 1" and good["schema_errors"] == []
    assert bad["schema_errors"] and bad["decoded_as"] == ("JSON" if kind == "json" else "")
    raw = bad["value"].encode() if bad["value_encoding"] == "text" else base64.b64decode(bad["value"])
    assert raw == CASES[kind][2], "what does not fit is there as it is"
    whole = web.get(f"/api/v1/topics/{name}/messages/0/1").json
    assert (whole["decoded"], whole["decoded_as"], whole["schema_errors"]) == (good["decoded"], good["decoded_as"], [])
    broken = web.get(f"/api/v1/topics/{name}/messages/0/0").json
    assert broken["schema_errors"] == bad["schema_errors"] and base64.b64decode(broken["data"]) == CASES[kind][2]


@KINDS
def test_filters_see_what_is_decoded(web: WebClient, topic_of: Callable[..., str], kind: str) -> None:
    name = topic_of(f"searched-{kind}", kind)
    found = web.get(f"/api/v1/topics/{name}/messages?decode=true&filter=$.s").json["messages"]
    assert [message["offset"] for message in found] == [1]
    assert web.get(f"/api/v1/topics/{name}/messages?decode=true&filter=nothing-like-it").json["messages"] == []


def test_a_masked_field_is_masked_in_what_is_decoded(guarded: EmbeddedBroker, admin: WebClient) -> None:
    broker = guarded.server.broker

    async def fill() -> None:
        await broker.schemas.register("veiled", "avro", CASES["avro"][0])
        topic = await broker.create_topic("veiled", 1, {"schema": "veiled", "mask_fields": "s"})
        await broker.admission.produce(topic, 0, b"", CASES["avro"][1])

    guarded.run(fill)
    admin.put("/api/v1/acls/veiled", {"public": False, "allowed_users": ["reader"]})
    token = base64.b64encode(b"reader:readerpass1").decode()
    reader = WebClient(admin.address, {"Authorization": f"Basic {token}"})
    for query, count in (("", 1), ("&filter=sesame", 0)):
        found = reader.get(f"/api/v1/topics/veiled/messages?decode=true{query}")
        assert len(found.json["messages"]) == count and b"sesame" not in found.body
    assert reader.get("/api/v1/topics/veiled/messages?decode=true").json["messages"][0]["decoded"]["s"] == "•••"
    assert admin.get("/api/v1/topics/veiled/messages?decode=true").json["messages"][0]["decoded"]["s"] == "sesame"


def test_the_live_tail_decodes(standing: EmbeddedBroker, web: WebClient, topic_of: Callable[..., str]) -> None:
    name = topic_of("tailed", "protobuf")
    connection = http.client.HTTPConnection(web.address, timeout=60)
    try:
        connection.request("GET", f"/api/v1/topics/{name}/tail?decode=true")
        response = connection.getresponse()
        broker = standing.server.broker
        # Until the stream has begun nobody knows from where on it follows.
        assert response.readline()
        standing.run(lambda: broker.admission.produce(broker.topic(name), 0, b"", CASES["protobuf"][1]))
        for line in response:
            if line.startswith(b"data:"):
                assert json.loads(line[5:])["decoded"] == {"n": "150", "s": "sesame"}
                break
    finally:
        connection.close()
