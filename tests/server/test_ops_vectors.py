"""The published byte vectors of everything beyond the core, over a socket, area by area.

Each test brings about what the vectors of its area take for granted and walks through them in their order. Answers are compared
byte for byte; where one holds a time, an id or a name of this machine, those fields are made equal first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flymq_peer import LISTENERS, NAMES, V126, Peer, until
from running_broker import RunningBroker, StartBroker

from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

_DOCUMENT = json.loads((Path(__file__).parent.parent / "wire" / "flymq_vectors.json").read_text())
VECTORS: dict[tuple[str, str], dict[str, Any]] = {(row["name"], row["dialect"]): row for row in _DOCUMENT["vectors"]}
SEEN: set[tuple[str, str]] = set()

ADMIN = {"BRAID_AUTH_ADMIN_PASSWORD": "adminpass"}
NODE = ("--node-id", "n1")

Equal = Callable[[Any, Any], Any]
"""Takes what came and what the vector has, and returns what came with the fields that may differ taken from the vector."""


def same(came: Any, _published: Any) -> Any:
    return came


def at_any_time(came: Any, published: Any) -> Any:
    return replace(came, timestamp=published.timestamp)


class Walk:
    """One connection that is led through vectors."""

    def __init__(self, broker: RunningBroker, dialect: Dialect = V126) -> None:
        self.peer = Peer(broker.addresses[NAMES["v126" if dialect is V126 else "documented"]], dialect)
        self.dialect = "v126" if dialect is V126 else "documented"

    def step(
        self, name: str, equal: Equal = same, *, request: bytes | None = None, expect: type[flymq.Response] | None = None
    ) -> Any:
        """Send a vector's request, or one like it, and hold the answer against the vector's; returns the answer."""
        key = (name, self.dialect) if (name, self.dialect) in VECTORS else (name, "both")
        vector = VECTORS[key]
        SEEN.add(key)
        self.peer.send(bytes.fromhex(vector["request_hex"]) if request is None else request)
        frame = self.peer.receive_frame()
        published = bytes.fromhex(vector["response_hex"])
        if equal is same:
            assert frame.hex() == published.hex(), name
            return self.peer.decode(vector["op"], frame)
        came, other = (
            flymq.decode_response(vector["op"], each[2], each[8:], self.peer.dialect, expect) for each in (frame, published)
        )
        assert equal(came, other) == other, name
        # Nothing but those fields differs, not even the length of what has none of them.
        assert frame[:4] == published[:4]
        return came


def start(start_broker: StartBroker, *flags: str, env: dict[str, str] | None = None) -> RunningBroker:
    return start_broker(*LISTENERS, *NODE, "--durability", "os", *flags, env=env)


def test_schemas(start_broker: StartBroker) -> None:
    walk = Walk(start(start_broker))
    with walk.peer:
        walk.step("REGISTER_SCHEMA")
        walk.step("REGISTER_SCHEMA")
        walk.step("GET_SCHEMA")
        walk.step("LIST_SCHEMAS")
        walk.step("VALIDATE_SCHEMA ok")
        walk.step("VALIDATE_SCHEMA bad")
        walk.step("PRODUCE_WITH_SCHEMA data-first", at_any_time)
        walk.step("PRODUCE_WITH_SCHEMA schema-first", at_any_time)
        walk.step("DELETE_SCHEMA")


def test_dead_letters(start_broker: StartBroker) -> None:
    walk = Walk(start(start_broker))
    peer = walk.peer

    def fail(offset: int) -> None:
        for attempt in (1, 2, 3):
            failed = peer.ask(flymq.DlqFail("d1", 0, offset, "g", "processing_error", "boom"))
            assert (failed.attempts, failed.dead_lettered) == (attempt, attempt == 3)

    def any_id(came: Any, published: Any) -> Any:
        return replace(came, items=tuple(replace(a, id=b.id) for a, b in zip(came.items, published.items, strict=True)))

    with peer:
        walk.step("FETCH_DLQ empty")
        walk.step("PURGE_DLQ")
        peer.create("d1")
        peer.produce("d1", b"pay", b"other")
        fail(0)
        letter = walk.step("FETCH_DLQ", any_id).items[0]
        assert letter.id.startswith("d1-0-")
        topic, identity = b"\0\x02d1", letter.id.encode()
        payload = topic + len(identity).to_bytes(2, "big") + identity
        walk.step("REPLAY_DLQ by id", request=flymq.encode_frame(flymq.Op.REPLAY_DLQ, payload))
        assert [item.value for item in peer.fetch_all("d1")] == [b"pay", b"other", b"pay"]
        peer.send(flymq.encode_frame(flymq.Op.REPLAY_DLQ, payload))
        assert isinstance(peer.decode(flymq.Op.REPLAY_DLQ, peer.receive_frame()), flymq.ErrorReply), "each letter once"
        walk.step("PURGE_DLQ")
        assert peer.ask(flymq.DeleteTopic("d1.dlq")) == flymq.Ok()
        fail(1)
        walk.step("REPLAY_DLQ by offset")
        assert [item.value for item in peer.fetch_all("d1")] == [b"pay", b"other", b"pay", b"other"]


def test_delay_and_time_to_live(start_broker: StartBroker) -> None:
    walk = Walk(start(start_broker))

    def any_id(came: Any, published: Any) -> Any:
        return replace(came, id=published.id, timestamp=published.timestamp)

    with walk.peer as peer:
        peer.create("d1")
        later = flymq.encode_request(flymq.ProduceDelayed("d1", b"later", 60_000), V126)
        identity = walk.step("PRODUCE_DELAYED", any_id, request=later).id.encode()
        payload = len(identity).to_bytes(2, "big") + identity
        walk.step("CANCEL_DELAYED", request=flymq.encode_frame(flymq.Op.CANCEL_DELAYED, payload))
        walk.step("PRODUCE_DELAYED", any_id)
        until(lambda: peer.fetch_all("d1"), "the message that is 300 ms late")
        peer.produce("d1", b"another")
        walk.step("PRODUCE_WITH_TTL", at_any_time)
        assert [item.value for item in peer.fetch_all("d1")] == [b"later", b"another", b"ttl"]
        until(lambda: len(peer.fetch_all("d1")) == 2, "the end of the time to live")
        assert "message expired" in peer.ask(flymq.Consume("d1", 0, 2)).text


def test_transactions(start_broker: StartBroker) -> None:
    walk = Walk(start(start_broker))

    def any_id(came: Any, published: Any) -> Any:
        return replace(came, id=published.id)

    def about(op: flymq.Op, identity: str, rest: bytes = b"") -> bytes:
        return flymq.encode_frame(op, len(identity).to_bytes(2, "big") + identity.encode() + rest)

    with walk.peer as peer:
        walk.step("TXN_COMMIT failure")
        first = walk.step("TXN_BEGIN", any_id).id
        walk.step("TXN_PRODUCE", at_any_time, request=about(flymq.Op.TXN_PRODUCE, first, b"\0\x02tx\0\0\0\x01a"))
        assert peer.fetch_all("tx") == []
        walk.step("TXN_COMMIT", any_id, request=about(flymq.Op.TXN_COMMIT, first))
        assert [item.value for item in peer.fetch_all("tx")] == [b"a"]
        second = walk.step("TXN_BEGIN", any_id).id
        walk.step("TXN_PRODUCE", at_any_time, request=about(flymq.Op.TXN_PRODUCE, second, b"\0\x02tx\0\0\0\x01a"))
        walk.step("TXN_ROLLBACK", any_id, request=about(flymq.Op.TXN_ROLLBACK, second))
        assert len(peer.fetch_all("tx")) == 1


def test_cluster(start_broker: StartBroker) -> None:
    broker = start(start_broker)
    address = broker.addresses[NAMES["v126"]]
    walk = Walk(broker)

    def status(came: flymq.ClusterState, published: flymq.ClusterState) -> flymq.ClusterState:
        assert came.nodes[0].client_address == address
        return replace(came, nodes=(replace(came.nodes[0], client_address=published.nodes[0].client_address),))

    def topics(came: flymq.ClusterTopics, published: flymq.ClusterTopics) -> flymq.ClusterTopics:
        (topic,) = came.topics
        (partition,) = topic.partitions
        assert partition.leader_address == address
        wanted = published.topics[0].partitions[0].leader_address
        return replace(came, topics=(replace(topic, partitions=(replace(partition, leader_address=wanted),)),))

    with walk.peer as peer:
        peer.create("t1")
        walk.step("CLUSTER_STATUS", status)
        walk.step("CLUSTER_METADATA", topics)
        walk.step("CLUSTER_METADATA all", topics)
        walk.step("CLUSTER_METADATA unknown topic")


def test_a_broker_alone_says_yes_and_keeps_a_record_of_it(start_broker: StartBroker) -> None:
    broker = start(start_broker)
    walk = Walk(broker)
    with walk.peer as peer:
        before = peer.ask(flymq.ClusterStatus())
        walk.step("CLUSTER_JOIN")
        walk.step("CLUSTER_LEAVE")
        assert peer.ask(flymq.ClusterStatus()) == before, "nobody may believe that there are copies"
        assert "node2:9093: this broker runs alone" in broker.log
        for peer_address in ("", "node2", ":9093", "node2:", "node2:port", "node2:0", "node2:65536"):
            assert "invalid argument: peer" in peer.ask(flymq.ClusterJoin(peer_address)).text

        def recorded() -> list[tuple[str, str, str]]:
            found = peer.ask(flymq.AuditQuery(flymq.AuditFilter(types=("cluster.join", "cluster.leave"))))
            return [(event.type, event.resource, event.result) for event in found.events]

        until(lambda: len(recorded()) == 2, "both are in the trail")
        assert sorted(recorded()) == [("cluster.join", "node2:9093", "failure"), ("cluster.leave", "n1", "success")]


def test_groups(start_broker: StartBroker) -> None:
    walk = Walk(start(start_broker))

    def any_member(came: flymq.GroupDetail, published: flymq.GroupDetail) -> flymq.GroupDetail:
        assert len(came.members) == 1
        return replace(came, members=published.members)

    with walk.peer as peer:
        peer.create("t1")
        before = peer.produce("t1", b"0", b"1", b"2")[-1].timestamp
        until(lambda: time.time() * 1000 > before + 1, "a later millisecond")
        peer.produce("t1", b"3", b"4", b"5")
        assert peer.ask(flymq.Subscribe("t1", "g", 0, "earliest")) == flymq.Offset(0)
        peer.ask(flymq.Commit("t1", "g", 0, 2))
        walk.step("GET_OFFSET")
        walk.step("GET_OFFSET unknown group")
        walk.step("LIST_GROUPS")
        walk.step("DESCRIBE_GROUP")
        walk.step("DESCRIBE_GROUP empty topic (Go client, CLI)")
        walk.step("DESCRIBE_GROUP one string (Java)", any_member, expect=flymq.GroupDetail)
        walk.step("GET_LAG")
        walk.step("RESET_OFFSET earliest")
        assert peer.ask(flymq.GetOffset("t1", "g", 0)) == flymq.Offset(0)
        walk.step("RESET_OFFSET offset")
        assert peer.ask(flymq.GetOffset("t1", "g", 0)) == flymq.Offset(5)
        walk.step("RESET_OFFSET latest + offset (Java)")
        walk.step("SEEK_TO_TIMESTAMP", request=peer.encode(flymq.SeekToTimestamp("t1", "g", 0, before + 1)))
        assert peer.ask(flymq.GetOffset("t1", "g", 0)) == flymq.Offset(3)
        walk.step("DELETE_GROUP")
        assert "consumer group not found" in peer.ask(flymq.GetOffset("t1", "g", 0)).text


def test_users_and_rights(start_broker: StartBroker) -> None:
    broker = start(start_broker, "--auth-enabled", env=ADMIN)

    def times(came: Any, published: Any) -> Any:
        if isinstance(came, flymq.Users):
            return flymq.Users(tuple(map(times, came.users, published.users)))
        return replace(came, created=published.created, updated=published.updated)

    walk = Walk(broker)
    with walk.peer as peer:
        walk.step("WHOAMI anonymous")
        walk.step("AUTH failed")
        walk.step("AUTH ok")
        walk.step("WHOAMI authenticated")
        walk.step("USER_LIST", times)
        walk.step("USER_CREATE", times)
        walk.step("USER_UPDATE")
        walk.step("USER_GET", times)
        walk.step("USER_GET unknown")
        walk.step("PASSWORD_CHANGE")
        walk.step("ACL_SET")
        walk.step("ACL_GET", lambda came, published: replace(came, default_public=published.default_public))
        walk.step("ACL_LIST")
        walk.step("ACL_DELETE")
        walk.step("ROLE_LIST")
        walk.step("USER_DELETE")
        peer.ask(flymq.UserCreate("norole", "pw"))
        peer.ask(flymq.UserUpdate("admin", roles=("admin",), enabled=True))
    walk = Walk(broker)
    with walk.peer:
        walk.step("AUTH no roles")
    walk = Walk(broker, Dialect.DOCUMENTED)
    with walk.peer as peer:
        assert peer.ask(flymq.Auth("admin", "adminpass")).success
        peer.ask(flymq.PasswordChange("admin", "secret", "adminpass"))
    walk = Walk(broker, Dialect.DOCUMENTED)
    with walk.peer:
        # The vector leaves the text to us.
        refused = walk.step("AUTH refused", lambda came, published: replace(came, error=published.error))
        assert refused.error == "INVALID_CREDENTIALS: invalid username or password"
        walk.step("AUTH")
        walk.step("WHOAMI")


def test_audit(start_broker: StartBroker) -> None:
    broker = start(start_broker, "--auth-enabled", env=ADMIN)

    def events(came: flymq.AuditEvents, published: flymq.AuditEvents) -> flymq.AuditEvents:
        (event,), (other,) = came.events, published.events
        assert event.id and event.timestamp and event.client_ip == "127.0.0.1"
        return replace(came, events=(replace(
            event, id=other.id, timestamp=other.timestamp, action=other.action, details=other.details, resource=other.resource,
        ),))  # fmt: skip

    walk = Walk(broker)
    with walk.peer as peer:
        assert peer.ask(flymq.Auth("admin", "adminpass")).success
        walk.step("AUDIT_EXPORT", lambda came, _published: replace(came, document=came.document.strip()))
        peer.create("t1")
        found = walk.step("AUDIT_QUERY", events)
        assert (found.events[0].type, found.events[0].resource) == ("topic.create", "t1")
        walk.step("AUDIT_QUERY (Java/Python opcode)", events)
        vector = VECTORS["AUDIT_EXPORT (Java/Python opcode)", "both"]
        peer.send(bytes.fromhex(vector["request_hex"]))
        rows = json.loads(peer.receive_frame()[8:])
        SEEN.add(("AUDIT_EXPORT (Java/Python opcode)", "both"))
        assert {"system.start", "user.create", "auth.success", "topic.create"} <= {row["type"] for row in rows}


def test_no_vector_was_forgotten() -> None:
    """Every vector beyond the core is named in one of the tests above."""
    source = Path(__file__).read_text()
    beyond = {key for key, row in VECTORS.items() if row["op"] > 0x0B and row["op"] != 0xEE}
    assert {key for key in beyond if f'"{key[0]}"' not in source} == set()
