"""Replays of pipelines by the admin API: asked for, seen, taken back, and written down."""

from __future__ import annotations

from typing import Any

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient, basic


def pipeline_of(broker: EmbeddedBroker, name: str, owner: str = "") -> str:
    """A pipeline that nobody runs."""
    user = broker.server.broker.security.users.get(owner) if owner else None
    text = "0:" if user is None else f"{user.id}:{user.name}"
    broker.run(lambda: broker.server.broker.pipelines.put(name, text, "yaml", "x"))
    return f"/api/v1/pipelines/{name}/replays"


def test_a_replay_from_its_wish_to_its_end(standing: EmbeddedBroker, web: WebClient) -> None:
    path = pipeline_of(standing, "asked")
    span = {"topic": "orders", "partition": 0, "first": 5, "end": 9}
    made = web.post(path, {"offsets": [span], "skip": ["topic:clean"]})
    assert made.status == 201 and made.json["state"] == "requested" and made.json["number"] == 1
    assert made.json["wish"] == {"offsets": [["orders", 0, 5, 9]], "skip": ["topic:clean"]}
    assert "no run is alive to take it" in made.json["outlook"]
    assert web.post(path, {"since_ms": 1000, "until_ms": 2000}).json["wish"] == {"since_ms": 1000, "until_ms": 2000}
    assert web.delete(f"{path}/2").status == 204
    assert web.delete(f"{path}/2").code == "PIPELINE_REPLAY_OVER" and web.delete(f"{path}/x").code == "INVALID_ARGUMENT"
    pipelines = standing.server.broker.pipelines

    async def take() -> None:
        run = await pipelines.start("asked", "continuous", "here", replace=False)
        await pipelines.take_replay("asked", run.number)

    standing.run(take)
    first, second = web.get(path).json
    assert (first["state"], first["run"], first["outlook"]) == ("running", 1, "run 1 does it") and first["started_at"]
    assert second["state"] == "cancelled" and second["outlook"] == "" and second["ended_at"]
    assert web.delete(f"{path}/1").code == "PIPELINE_REPLAY_OVER", "what a run does is not taken back"
    standing.run(lambda: pipelines.end_replay("asked", 1, "done", "4 records processed"))
    assert web.get(path).json[0]["result"] == "4 records processed"


@pytest.mark.parametrize(
    "wish",
    [{}, {"letters": False}, {"letters": True, "since_ms": 1}, {"since_ms": -1}, {"until_ms": 5}, {"since_ms": "now"},
     {"offsets": [{"topic": "t", "partition": 0, "first": 5, "end": 5}]}, {"offsets": ["t:0:1-2"]}, {"colour": "red"}],
)  # fmt: skip
def test_a_wish_that_makes_no_sense_is_refused(standing: EmbeddedBroker, web: WebClient, wish: dict[str, Any]) -> None:
    assert web.post(pipeline_of(standing, "nonsense"), wish).code == "INVALID_ARGUMENT"


def test_only_its_owner_and_administrators_ask(guarded: EmbeddedBroker, admin: WebClient) -> None:
    path = pipeline_of(guarded, "owned", "writer")
    people = {name: WebClient(admin.address, basic(name, f"{name}pass1")) for name in ("writer", "reader")}
    assert people["reader"].post(path, {"letters": True}).code == "UNAUTHORIZED"
    assert people["writer"].post(path, {"letters": True}).status == 201
    assert admin.post(path, {"letters": True}).json["asked_by"] == "admin"
    assert [row["asked_by"] for row in people["reader"].get(path).json] == ["writer", "admin"], "everybody sees"
    assert people["reader"].delete(f"{path}/1").code == "UNAUTHORIZED"
    assert people["writer"].delete(f"{path}/2").status == 204
    events = admin.get("/api/v1/audit/events?types=pipeline.replay&resource=owned").json["events"]
    assert [(event["user"], event["action"]) for event in reversed(events)] == [
        ("writer", "ask"), ("admin", "ask"), ("writer", "cancelled"),
    ]  # fmt: skip
    assert admin.post("/api/v1/pipelines/none/replays", {"letters": True}).code == "PIPELINE_NOT_FOUND"
