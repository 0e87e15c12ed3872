"""What the admin API says about what happens on the wire, and what it changes there."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient

from braidmq.base import limits
from braidmq.client.blipmq import sync as blipmq
from braidmq.client.fq import sync as fq
from braidmq.client.sync import Client, connect


@pytest.fixture
def wire(standing: EmbeddedBroker) -> Iterator[Client]:
    with connect(standing.address) as client:
        yield client


def test_messages_by_offset_time_end_and_filter(web: WebClient, wire: Client) -> None:
    wire.create_topic("browse", 1)
    with wire.producer() as producer:
        for number in range(20):
            producer.send("browse", b'{"n": %d}' % number, key=b"k%d" % number, headers={"h": b"x"})
    path = "/api/v1/topics/browse/messages"
    first = web.get(f"{path}?limit=3").json
    assert [m["offset"] for m in first["messages"]] == [0, 1, 2] and first["newest_offsets"] == [20]
    assert first["messages"][0] | {"timestamp_ms": 0} == {
        "partition": 0, "offset": 0, "timestamp_ms": 0, "value": '{"n": 0}', "value_encoding": "text", "size_bytes": 8,
        "truncated": False, "headers": {"h": "x"}, "key": "k0", "key_encoding": "text",
    }  # fmt: skip
    following = web.get(f"{path}?limit=3&cursor={first['next_cursor']}").json
    assert [m["offset"] for m in following["messages"]] == [3, 4, 5]
    assert [m["offset"] for m in web.get(f"{path}?start=latest&limit=2").json["messages"]] == [18, 19]
    assert [m["offset"] for m in web.get(f"{path}?start=offset&offset=17").json["messages"]] == [17, 18, 19]
    assert len(web.get(f"{path}?start=timestamp&timestamp_ms=1").json["messages"]) == 20
    found = web.get(f"{path}?filter=k1.$").json
    assert [m["offset"] for m in found["messages"]] == list(range(10, 20)) and "next_cursor" not in found
    assert [m["value"] for m in web.get(f"{path}?limit=1&value_bytes=3").json["messages"]] == ['{"n']
    assert web.get(f"{path}?partition=7").code == "PARTITION_NOT_FOUND"
    assert web.get(f"{path}?cursor=W10").code == "INVALID_ARGUMENT"


def test_a_message_that_is_produced_by_hand(web: WebClient, wire: Client) -> None:
    binary = base64.b64encode(b"\xff\x00").decode()
    stored = web.post(
        "/api/v1/topics/by-hand/messages", {"value": binary, "value_encoding": "base64", "key": "k", "headers": {"a": "b"}}
    )
    assert stored.status == 201
    place = stored.json
    (record,) = wire.fetch("by-hand", place["partition"], place["offset"], max_records=1).records
    assert record.value == b"\xff\x00" and record.key == b"k"
    shown = web.get("/api/v1/topics/by-hand/messages").json["messages"][0]
    assert shown["value"] == binary and shown["value_encoding"] == "base64" and shown["headers"] == {"a": "b"}
    assert web.post("/api/v1/topics/by-hand/messages", {"value": "é", "value_encoding": "base64"}).code == "INVALID_ARGUMENT"


def test_a_group_with_its_lag_is_moved_after_a_look(web: WebClient, wire: Client) -> None:
    wire.create_topic("lagging", 2)
    for partition in (0, 1):
        for _ in range(5):
            wire.produce("lagging", b"v", partition=partition)
    wire.commit("lagging", "readers", 0, 2)
    (row,) = [row for row in web.get("/api/v1/consumer-groups?topic=lagging").json if row["name"] == "readers"]
    assert (row["topic"], row["lag"], row["state"], row["members"]) == ("lagging", 8, "empty", 0)
    assert row["lag_ms"] >= 0 and [p["lag"] for p in row["partitions"]] == [3, 5]
    for path in ("consumer-groups/lagging:readers", "consumer-groups/readers", "topics/lagging/groups/readers"):
        assert web.get(f"/api/v1/{path}").json["lag"] == 8
    tried = web.post("/api/v1/topics/lagging/groups/readers/reset", {"mode": "latest", "dry_run": True}).json
    assert [(c["partition"], c.get("before"), c["after"], c["records"]) for c in tried["changes"]] == [
        (0, 2, 5, 3),
        (1, None, 5, 5),
    ]
    assert web.get("/api/v1/consumer-groups/readers").json["lag"] == 8, "nothing moved"
    web.post("/api/v1/topics/lagging/groups/readers/reset", {"mode": "latest"})
    assert web.get("/api/v1/consumer-groups/readers").json["lag"] == 0
    assert web.delete("/api/v1/topics/lagging/groups/readers").status == 204
    assert web.get("/api/v1/consumer-groups/readers").code == "GROUP_NOT_FOUND"


def test_schemas_and_dead_letters(web: WebClient, wire: Client) -> None:
    definition = '{"type": "object", "required": ["id"]}'
    assert web.post("/api/v1/schemas", {"name": "strict", "schema": definition}).json["version"] == 1
    assert web.get("/api/v1/schemas/strict").json["schema"] == definition
    assert [row["version"] for row in web.get("/api/v1/schemas/strict/versions").json] == [1]
    assert web.post("/api/v1/schemas/strict/validate", {"value": "{}"}).json["valid"] is False
    wire.create_topic("strict", 1, {"schema": "strict", "schema_rule": "dead-letter"})
    stored = web.post("/api/v1/topics/strict/messages", {"value": '{"no": 1}'}).json
    assert stored["topic"] == "strict.dlq"
    assert [row["topic"] for row in web.get("/api/v1/dlq").json] == ["strict"]
    (letter,) = web.get("/api/v1/dlq/strict").json
    assert letter["value"] == '{"no": 1}' and base64.b64decode(letter["data"]) == b'{"no": 1}'
    assert letter["reason"] == "validation_failed" and "id" in letter["error"]
    web.patch("/api/v1/topics/strict", {"properties": {"schema": ""}})
    assert web.post(f"/api/v1/dlq/strict/replay/{letter['id']}").json == {"count": 1}
    assert web.get("/api/v1/topics/strict/messages").json["messages"][0]["value"] == '{"no": 1}'
    assert web.get("/api/v1/dlq/strict").json == []
    assert web.post("/api/v1/dlq/strict/replay", {}).code == "INVALID_ARGUMENT"
    assert web.post("/api/v1/dlq/strict/replay", {"all": True}).json == {"count": 0}
    assert web.delete("/api/v1/dlq/strict").status == 204
    assert web.delete("/api/v1/schemas/strict").status == 204
    assert web.get("/api/v1/schemas/strict").code == "SCHEMA_NOT_FOUND"


def test_delayed_messages_and_transactions(web: WebClient, wire: Client) -> None:
    wire.create_topic("later", 1)
    wire.produce("later", b"v", delay_ms=600_000)
    (waiting,) = web.get("/api/v1/delayed?topic=later").json["messages"]
    assert waiting["size_bytes"] == 1
    assert web.delete(f"/api/v1/delayed/{waiting['id']}").status == 204
    assert web.get("/api/v1/delayed?topic=later").json["messages"] == []
    with wire.transaction() as transaction:
        transaction.produce("later", b"v")
        (row,) = web.get("/api/v1/transactions").json
        assert row["records"] == 1 and row["state"] == "active"
        assert web.post(f"/api/v1/transactions/{row['id']}/abort").status == 204
        assert web.get("/api/v1/transactions").json == []
        transaction.rollback()


def test_whoever_is_connected_is_seen_and_can_be_closed(web: WebClient, standing: EmbeddedBroker, wire: Client) -> None:
    addresses = standing.server.addresses
    with (
        blipmq.connect(addresses["blipmq"], client_id="seen") as subscriber,
        fq.connect(addresses["fq"], user="me", queue="seenq") as queue,
    ):
        subscriber.subscribe("seen/+", qos=1)
        queue.bind("seen-exchange", 'prefix:"a."')
        wire.create_topic("x-seen", 1)
        rows = web.get("/api/v1/connections").json
        assert {row["protocol"] for row in rows["items"]} == {"flymq", "blipmq", "fq"} and rows["total"] == len(rows["items"])
        subscriptions = {row["id"]: row for row in web.get("/api/v1/subscriptions").json["items"]}
        assert subscriptions["blipmq-seen"]["filters"] == ["seen/+"] and subscriptions["blipmq-seen"]["connections"]
        assert subscriptions["fq-seenq"]["protocol"] == "fq"
        (shown,) = [row for row in web.get("/api/v1/queues").json["items"] if row["name"] == "seenq"]
        assert [binding["program"] for binding in shown["bindings"]] == ['prefix:"a."'] and shown["clients"]
        (mine,) = [row for row in rows["items"] if row["protocol"] == "blipmq"]
        assert web.delete(f"/api/v1/connections/{mine['id']}").status == 204
        assert web.delete("/api/v1/connections/flymq-1.2.3.4:5").code == "CONNECTION_NOT_FOUND"


def test_users_roles_and_quotas(admin: WebClient) -> None:
    assert admin.post("/api/v1/roles", {"name": "ops", "permissions": ["read"], "description": "d"}).status == 201
    assert admin.put("/api/v1/roles/ops", {"permissions": ["read", "write"]}).json["permissions"] == ["read", "write"]
    user = admin.post("/api/v1/users", {"username": "anna", "password": "annapass1", "roles": ["ops"]})
    assert user.status == 201 and user.json["permissions"] == ["read", "write"]
    assert admin.delete("/api/v1/roles/ops").code == "ROLE_IN_USE"
    assert admin.put("/api/v1/users/anna/quota", {"bytes_per_s": 1000}).json == {"bytes_per_s": 1000}
    assert admin.get("/api/v1/users/anna/quota").json == {"bytes_per_s": 1000}
    assert admin.post("/api/v1/users/anna/password", {"new_password": "other1234"}).status == 200
    assert admin.delete("/api/v1/users/anna").status == 204
    assert admin.delete("/api/v1/roles/ops").status == 204
    assert admin.delete("/api/v1/users/admin").code == "OWN_ACCOUNT"
    assert "ops" not in [row["name"] for row in admin.get("/api/v1/roles").json]
    exported = admin.post("/api/v1/audit/export", {"format": "csv", "filter": {"types": ["user.create"]}})
    assert exported.headers["content-type"].startswith("text/csv") and "anna" in exported.body.decode()
    assert "annapass1" not in exported.body.decode()
    assert admin.get("/api/v1/audit/events?start_time=yesterday").code == "INVALID_ARGUMENT"


def test_the_broker_itself(web: WebClient, standing: EmbeddedBroker) -> None:
    node = standing.server.config.node_id
    cluster = web.get("/api/v1/cluster").json
    assert cluster["leader_id"] == node and cluster["node_count"] == 1 and cluster["nodes"][0]["is_leader"]
    assert web.get("/api/v1/cluster/members").json[0]["id"] == node
    web.post("/api/v1/topics", {"name": "placed", "options": {"partitions": 2}})
    assert web.get("/api/v1/cluster/partitions?topic=placed").json["count"] == 2
    assert web.get("/api/v1/cluster/metadata?topic=placed").json["topics"][0]["partitions"][1]["leader_id"] == node
    assert web.get("/api/v1/cluster/leaders").json["balanced"] is True
    assert web.post("/api/v1/cluster/rebalance").json["moves"] == []
    assert web.post("/api/v1/cluster/partitions/placed/0", {"new_leader": node}).json["success"] is True
    assert web.post("/api/v1/cluster/partitions/placed/0", {"new_leader": "nobody"}).code == "INVALID_ARGUMENT"
    assert web.get("/api/v1/recovery").json["clean"] is True
    settings = {row["key"]: row for row in web.get("/api/v1/config").json}
    assert settings["durability"]["value"] == "os" and settings["durability"]["doc"]
    assert web.get("/api/v1/health").json == {"status": "healthy"}
    assert web.get("/api/v1/version").json["listeners"]["flymq"] == standing.address
    assert web.get("/api/v1/stats").json["topics"]["count"] >= 1
    assert web.get("/api/v1/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_secrets_in_settings_are_not_shown() -> None:
    from braidmq.base.config import load_config
    from braidmq.base.config_settings import BY_KEY

    config = load_config({"blipmq_api_keys": ["me=topsecret"]}, {})
    assert "topsecret" not in BY_KEY["blipmq_api_keys"].kind.show(config.blipmq_api_keys)


def _events(address: str, path: str) -> Iterator[tuple[str, dict[str, object]]]:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200 and response.getheader("content-type", "").startswith("text/event-stream")
    try:
        name = ""
        while line := response.readline():
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])
            elif line.startswith(b": here"):
                yield "open", {}
    finally:
        connection.close()


def test_a_live_tail_shows_what_comes(web: WebClient, wire: Client) -> None:
    wire.create_topic("live", 1)
    wire.produce("live", b"before")
    events = _events(web.address, "/api/v1/topics/live/tail?filter=yes")
    assert next(events)[0] == "open"
    wire.produce("live", b"no")
    wire.produce("live", b"yes 1")
    name, message = next(events)
    assert name == "message" and message["value"] == "yes 1" and message["offset"] == 2
    web.delete("/api/v1/topics/live")
    assert next(events)[1]["title"] == "TOPIC_NOT_FOUND"
    events.close()


def test_live_figures_and_the_limit_of_streams(web: WebClient, standing: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    events = _events(web.address, "/api/v1/figures/live")
    assert [next(events)[0] for _ in range(3)] == ["open", "figures", "figures"]
    assert limits.LIVE_STREAMS_MAX == 64
    assert standing.service is not None and standing.service._serving is not None
    monkeypatch.setattr(standing.service._serving.site.live, "_most", 1)
    assert web.get("/api/v1/figures/live").code == "LIVE_LIMIT"
    events.close()


def test_pipelines_are_seen_and_steered(web: WebClient, wire: Client, standing: EmbeddedBroker) -> None:
    pipelines = standing.server.broker.pipelines

    async def told() -> None:
        await pipelines.put("orders", "0:", "yaml", "name: orders")
        run = await pipelines.start("orders", "continuous", "here", replace=False)
        await pipelines.report(
            "orders", run.number, b'{"rows": 7, "written": {"a": 5}, "rejected": {"bad": 2}}', [("info", "hello")]
        )

    standing.run(told)
    (row,) = web.get("/api/v1/pipelines").json
    assert row["name"] == "orders" and row["state"] == "running" and row["progress"]["rows"] == 7
    found = web.get("/api/v1/pipelines/orders").json
    assert (
        found["definition"] == "name: orders" and found["runs"][0]["mode"] == "continuous" and found["events"][0]["text"] == "hello"
    )
    metrics = web.get("/api/v1/metrics").body.decode()
    for way, count in (("in", 7), ("out", 5), ("rejected", 2)):
        assert f'braid_pipeline_rows_{way}_total{{pipeline="orders"}} {count}\n' in metrics
    assert web.post("/api/v1/pipelines/orders/steer", {"desired": "pause"}).json["desired"] == "pause"
    assert web.delete("/api/v1/pipelines/orders").code == "PIPELINE_RUNNING"
    standing.run(lambda: pipelines.end("orders", 1, "stopped", ""))
    assert web.delete("/api/v1/pipelines/orders").status == 204
    assert web.get("/api/v1/pipelines/orders").code == "PIPELINE_NOT_FOUND"
