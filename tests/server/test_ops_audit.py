"""What the audit trail says of groups, offsets, topics that come by producing, and transactions that nobody ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import Peer, batch, new_topic, until
from running_broker import RunningBroker

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.wire import flymq
from braidmq.wire.flymq import TopicOffset


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Nobody has to log in here, and whoever does is who they say."""
    broker = RunningBroker(tmp_path_factory.mktemp("audit") / "data", ("--durability", "os"))
    broker.start()
    try:
        yield broker
        assert "bug in an operation" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture
def ann(broker: RunningBroker) -> Iterator[Peer]:
    with named(broker.address, "ann") as peer:
        yield peer


def named(address: str, name: str) -> Peer:
    peer = Peer(address)
    assert peer.ask(flymq.Auth(name, "any password")).success
    return peer


def events(peer: Peer, kind: str, resource: str) -> list[tuple[str, str]]:
    """User and action of the events of a type about exactly one thing, the oldest first."""
    wanted = flymq.AuditFilter(types=(kind,), resource=resource, limit=1000)
    found = peer.ask(flymq.AuditQuery(wanted)).events
    assert all(event.client_ip == "127.0.0.1" or event.user == "system" for event in found), found
    return [(event.user, event.action) for event in reversed(found) if event.resource == resource]


# --- groups and offsets


def test_a_group_that_begins_is_written_down_once_whatever_begins_it(ann: Peer) -> None:
    topic = ann.create(new_topic())
    ann.produce(topic, b"0", b"1", b"2")
    identity = ann.ask(flymq.TxnBegin()).id
    ways: dict[str, list[flymq.Request]] = {
        "commit": [flymq.Commit(topic, "commit", 0, 1)],
        "subscribe": [flymq.Subscribe(topic, "subscribe", 0, "earliest")],
        "join": [flymq.GroupJoin("join", "", (topic, "not-there"), "range", 10_000)],
        "reset": [flymq.ResetOffset(topic, "reset", 0, "latest")],
        "seek": [flymq.SeekToTimestamp(topic, "seek", 0, 0)],
        "transaction": [
            flymq.TxnOffsets(identity, "transaction", (TopicOffset(topic, 0, 2),)), flymq.TxnCommit(identity),
        ],
    }  # fmt: skip
    for group, requests in ways.items():
        assert not any(isinstance(answer, flymq.ErrorReply) for answer in ann.ask_all(*requests))
        # It is there by now, however else it is used.
        ann.ask_all(flymq.Commit(topic, group, 0, 3), flymq.Subscribe(topic, group, 0, "earliest"))
        assert events(ann, "group.create", f"{topic}:{group}") == [("ann", group)]
    assert events(ann, "group.create", "not-there:join") == [], "there is no such topic"
    ann.ask(flymq.DeleteGroup(topic, "commit"))
    ann.ask(flymq.Commit(topic, "commit", 0, 1))
    assert len(events(ann, "group.create", f"{topic}:commit")) == 2, "it began again"


def test_what_fails_is_not_written_down(ann: Peer) -> None:
    topic = ann.create(new_topic())
    for request in (
        flymq.Commit(topic, "g", 7, 1), flymq.ResetOffset(topic, "g", 0, "nowhere"), flymq.Subscribe(topic, "g", 0, "x"),
        flymq.Commit(topic, "", 0, 1), flymq.Commit("not-there", "g", 0, 1),
    ):  # fmt: skip
        assert isinstance(ann.ask(request), flymq.ErrorReply)
    ann.ask(flymq.Subscribe(topic, "", 0, "earliest"))
    for kind in ("group.create", "offset.commit", "offset.reset"):
        assert [events(ann, kind, f"{name}:{group}") for name in (topic, "not-there") for group in ("g", "")] == [[]] * 4


def test_commits_are_written_down_once_a_connection_and_group(broker: RunningBroker, ann: Peer) -> None:
    topic, other = ann.create(new_topic(), 2), ann.create(new_topic())
    resource = f"{topic}:g"
    for offset in range(20):
        ann.ask_all(flymq.Commit(topic, "g", 0, offset), flymq.Commit(topic, "g", 1, offset))
    assert events(ann, "offset.commit", resource) == [("ann", "commit")]
    ann.ask_all(flymq.Commit(topic, "h", 0, 1), flymq.Commit(other, "g", 0, 1))
    assert events(ann, "offset.commit", f"{topic}:h") == events(ann, "offset.commit", f"{other}:g") == [("ann", "commit")]
    with named(broker.address, "bob") as bob:
        bob.ask_all(*[flymq.Commit(topic, "g", 0, 30)] * 3)
        assert events(ann, "offset.commit", resource) == [("ann", "commit"), ("bob", "commit")]
        assert bob.ask(flymq.Auth("eve", "")).success
        bob.ask(flymq.Commit(topic, "g", 0, 30))
        assert events(ann, "offset.commit", resource)[2:] == [("eve", "commit")], "another user, on the same connection"
        joined = bob.ask(flymq.GroupJoin("members", "", (topic,), "range", 10_000))
        for offset in range(5):
            mine = (TopicOffset(topic, 0, offset), TopicOffset(topic, 1, offset))
            assert bob.ask(flymq.GroupCommit("members", joined.member, joined.generation, mine)) == flymq.Ok()
    assert events(ann, "offset.commit", f"{topic}:members") == [("eve", "commit")]
    assert events(ann, "offset.reset", resource) == [], "all of them went forward"


def test_moving_a_group_back_is_written_down_each_time(ann: Peer) -> None:
    topic = ann.create(new_topic())
    ann.produce(topic, *[b"x"] * 9)
    for offset in (5, 3, 4, 0):
        ann.ask(flymq.Commit(topic, "g", 0, offset))
    ann.ask(flymq.ResetOffset(topic, "g", 0, "latest"))
    ann.ask(flymq.SeekToTimestamp(topic, "g", 0, 0))
    wanted = flymq.AuditFilter(types=("offset.reset",), resource=f"{topic}:g")
    found = [(event.action, dict(event.details)) for event in reversed(ann.ask(flymq.AuditQuery(wanted)).events)]
    assert found == [
        (action, {"partition": "0", "before": before, "after": after})
        for action, before, after in (
            ("commit", "5", "3"), ("commit", "4", "0"), ("latest", "0", "9"), ("timestamp", "9", "0"),
        )
    ]  # fmt: skip


def test_a_connection_remembers_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.SESSION_COMMITS_NOTED_MAX >= 100
    monkeypatch.setattr(limits, "SESSION_COMMITS_NOTED_MAX", 2)
    with EmbeddedBroker(FaultyDisk(), audit_enabled=True) as broker, named(broker.address, "ann") as peer:
        peer.create("t")
        for _ in range(3):
            for group in "ab":
                peer.ask(flymq.Commit("t", group, 0, 1))
        # An event is durable a moment after what it is about.
        until(lambda: len(events(peer, "offset.commit", "t:a")) == 1, "the first commit is written down")
        peer.ask(flymq.Commit("t", "c", 0, 1))
        peer.ask(flymq.Commit("t", "a", 0, 1))
        until(lambda: len(events(peer, "offset.commit", "t:a")) == 2, "forgotten, and so written down anew")
        (session,) = broker.server.listeners[0].sessions
        assert len(session._commits) == 2


# --- topics


def test_a_topic_that_comes_by_producing_is_written_down_once(ann: Peer) -> None:
    identity = ann.ask(flymq.TxnBegin()).id
    ways = {
        name: new_topic(name.lower())
        for name in ("plain", "batch", "ttl", "delayed", "at-once", "schema", "transaction", "refused")
    }  # fmt: skip
    requests: list[flymq.Request] = [
        flymq.Produce(ways["plain"], b"", b"v", -1),
        flymq.ProduceBatch(ways["batch"], -1, batch(b"v")),
        flymq.ProduceWithTtl(ways["ttl"], b"v", 60_000),
        flymq.ProduceDelayed(ways["delayed"], b"v", 3_600_000),
        flymq.ProduceDelayed(ways["at-once"], b"v", 0),
        flymq.ProduceWithSchema(ways["schema"], "none", b"v"),
        flymq.TxnProduce(identity, ways["transaction"], b"v"),
        # Made before it turns out that it has no such partition.
        flymq.TxnProduce(identity, ways["refused"], b"v", partition=99),
    ]
    for request in requests:
        for _ in range(2):
            answer = ann.ask(request)
            assert isinstance(answer, flymq.ErrorReply) == (request is requests[-1]), answer
    assert {name: events(ann, "topic.create", topic) for name, topic in ways.items()} == {
        name: [("ann", "produce")] for name in ways
    }


def test_a_topic_that_somebody_makes_is_written_down_once(ann: Peer) -> None:
    topic = new_topic()
    for _ in range(2):
        ann.create(topic, 3)
    assert events(ann, "topic.create", topic) == [("ann", "create")]
    wanted = flymq.AuditFilter(types=("topic.create",), resource=topic)
    assert ann.ask(flymq.AuditQuery(wanted)).events[0].details == (("partitions", "3"),)


def test_what_the_broker_makes_for_itself_is_its_own(ann: Peer) -> None:
    topic = ann.create(new_topic())
    ann.produce(topic, b"bad")
    for _ in range(3):
        ann.ask(flymq.DlqFail(topic, 0, 0, "g", "manual", ""))
    assert events(ann, "topic.create", f"{topic}.dlq") == [("system", "create")]


# --- transactions


def test_transactions_that_end_by_themselves(broker: RunningBroker, ann: Peer) -> None:
    with named(broker.address, "bob") as bob:
        late = bob.ask(flymq.TxnBegin(timeout_ms=50)).id
        until(lambda: events(ann, "txn.abort", late), "the end of its time")
        fenced = bob.ask(flymq.TxnBegin("payments")).id
        ann.ask(flymq.TxnBegin("payments"))
        asked = bob.ask(flymq.TxnBegin()).id
        bob.ask(flymq.TxnRollback(asked))
        done = bob.ask(flymq.TxnBegin()).id
        bob.ask(flymq.TxnCommit(done))
        left = bob.ask(flymq.TxnBegin()).id
    until(lambda: events(ann, "txn.abort", left), "the end of the connection")
    found = {name: events(ann, "txn.abort", identity) for name, identity in (
        ("late", late), ("fenced", fenced), ("asked", asked), ("done", done), ("left", left),
    )}  # fmt: skip
    assert found == {
        "late": [("bob", "time-out")], "fenced": [("bob", "fenced")], "asked": [("bob", "abort")], "done": [],
        "left": [("bob", "disconnect")],
    }  # fmt: skip


def test_time_is_up_also_when_somebody_asks(ann: Peer) -> None:
    identity = ann.ask(flymq.TxnBegin(timeout_ms=10)).id
    none: tuple[TopicOffset, ...] = ()
    until(lambda: "not active" in getattr(ann.ask(flymq.TxnOffsets(identity, "g", none)), "text", ""), "the end of its time")
    assert events(ann, "txn.abort", identity) == [("ann", "time-out")]
