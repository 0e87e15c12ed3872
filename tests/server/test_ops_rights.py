"""Authorization end to end: each rule, on every way a request can reach a topic, over real sockets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from flymq_peer import LISTENERS, Peer, batch, until
from running_broker import RunningBroker

from braidmq.security.rules import OPCODE_PERMISSIONS, Rule
from braidmq.wire import flymq
from braidmq.wire.flymq import Op, TopicOffset

PASSWORD = "correct horse"
FILTER = flymq.AuditFilter(limit=1000)

PEOPLE = {"reader": ("consumer",), "writer": ("producer",), "listed": (), "guest": ("guest",)}

REQUESTS: dict[Op, flymq.Request] = {
    request.op: request
    for request in (
        flymq.Produce("secret", b"", b"v", 0),
        flymq.Consume("secret", 0, 0),
        flymq.CreateTopic("new", 1),
        flymq.Metadata("secret"),
        flymq.Subscribe("secret", "g", 0, "earliest"),
        flymq.Commit("secret", "g", 0, 0),
        flymq.Fetch("secret", 0, 0, 1),
        flymq.ListTopics(),
        flymq.DeleteTopic("not-there"),
        flymq.Consume("secret", 0, 0, zero_copy=True),
        flymq.Fetch("secret", 0, 0, 1, binary=True),
        flymq.ProduceBatch("secret", 0, batch(b"v")),
        flymq.FetchBatches("secret", 0, 0, 1000, 0, 0),
        flymq.TxnOffsets("txn-0", "g", (TopicOffset("secret", 0, 0),)),
        flymq.RegisterSchema("secret", "json", b"{}"),
        flymq.GetSchema("secret", 0),
        flymq.ListSchemas("secret"),
        flymq.ValidateSchema("secret", b"{}"),
        flymq.ProduceWithSchema("secret", "nothing", b"v"),
        flymq.DeleteSchema("not-there", 0),
        flymq.FetchDlq("secret", 1),
        flymq.ReplayDlq("secret", "x"),
        flymq.PurgeDlq("secret"),
        flymq.DlqDiscard("secret", "not-there"),
        flymq.ProduceDelayed("secret", b"v", 3_600_000),
        flymq.CancelDelayed("delayed-0"),
        flymq.ProduceWithTtl("secret", b"v", 3_600_000),
        flymq.TxnBegin(),
        flymq.TxnCommit("txn-0"),
        flymq.TxnRollback("txn-0"),
        flymq.TxnProduce("txn-0", "secret", b"v"),
        flymq.ClusterJoin("peer:1"),
        flymq.ClusterLeave(),
        flymq.ClusterStatus(),
        flymq.ClusterMap("secret"),
        flymq.GroupJoin("shared", "", ("secret",), "range", 10_000),
        flymq.GroupHeartbeat("shared", "nobody", 1),
        flymq.GroupLeave("shared", "nobody"),
        flymq.GroupCommit("shared", "nobody", 1, (TopicOffset("secret", 0, 0),)),
        flymq.GroupLag("secret", "g"),
        flymq.DlqFail("secret", 0, 0, "g", "manual", ""),
        flymq.TopicConfig("secret", (("retention_bytes", "0"),)),
        flymq.DelayedList("", 1),
        flymq.TxnList(),
        flymq.StageBatch("rights", 0, 0, 1, 0, "secret", 0, b"no batch"),
        flymq.StagePublish("rights", 1, (flymq.StageChoice(0, 1, 9),), "g", (TopicOffset("secret", 0, 0),)),
        flymq.StageAbort("rights", 2),
        flymq.StageStatus("rights", 2),
        flymq.StageList(),
        flymq.TopicPlaces(("secret",)),
        flymq.GroupPlan("g", (TopicOffset("secret", 0, 0),)),
        flymq.AuditQuery(FILTER),
        flymq.AuditExport(FILTER, "json"),
        flymq.RoleCreate("new-role", ("read",)),
        flymq.GetOffset("secret", "g", 0),
        flymq.ResetOffset("secret", "g", 0, "earliest"),
        flymq.ListGroups(),
        flymq.DescribeGroup("secret", "g"),
        flymq.GetLag("secret", "g", 0),
        flymq.DeleteGroup("not-there", "g"),
        flymq.SeekToTimestamp("secret", "g", 0, 0),
        flymq.UserCreate("new-user", "password"),
        flymq.UserDelete("not-there"),
        flymq.UserUpdate("guest", enabled=True),
        flymq.UserList(),
        flymq.UserGet("guest"),
        flymq.AclSet("elsewhere", False),
        flymq.AclGet("secret"),
        flymq.AclDelete("elsewhere"),
        flymq.AclList(),
        flymq.PasswordChange("admin", "another one", "wrong"),
        flymq.RoleList(),
        flymq.PipelinePut("theirs", "yaml", b"x"),
        flymq.PipelineList(),
        flymq.PipelineGet("theirs"),
        flymq.PipelineSteer("theirs", "run"),
        flymq.PipelineStart("theirs", "once", "here", True),
        flymq.PipelineReport("theirs", 1),
        flymq.PipelineEnd("theirs", 1, "finished"),
        flymq.PipelineReplay("theirs", b'{"letters": true}'),
        flymq.PipelineReplayList("theirs"),
        flymq.PipelineReplayTake("theirs", 1),
        flymq.PipelineReplayEnd("theirs", 1, "done"),
        flymq.PipelineRemove("theirs"),
        flymq.Document("status"),
        flymq.BackupBegin(),
        flymq.BackupRead("nobody's", "FORMAT", 0, 1),
        flymq.BackupEnd("nobody's"),
        flymq.ClusterSteer("rebalance"),
    )
}
LEFT_OUT = {
    Op.AUTH, Op.WHOAMI, Op.AUTH_RESPONSE, Op.ERROR,
    # They turn a connection to the other dialect; the rest of their story is in the vectors.
    Op.CLUSTER_METADATA, Op.AUDIT_QUERY, Op.AUDIT_EXPORT, Op.AUDIT_QUERY_SDK, Op.AUDIT_EXPORT_SDK,
}  # fmt: skip
REFUSALS = ("AUTHENTICATION_REQUIRED", "UNAUTHORIZED", "USER_DISABLED", "AUDIT_ADMIN_REQUIRED")

MAY: dict[Rule, set[str]] = {
    Rule.AUTHENTICATED: {"admin", "reader", "writer", "listed", "guest"},
    Rule.READ_TOPIC: {"admin", "reader", "listed"},
    Rule.WRITE_TOPIC: {"admin", "writer", "listed"},
    Rule.ADMIN: {"admin"},
    Rule.OWNER: {"admin", "reader", "writer", "listed", "guest"},
    Rule.OWNER_OR_ADMIN: {"admin", "reader", "writer", "listed", "guest"},
    Rule.OWNER_WRITE_TOPIC: {"admin", "writer", "listed"},
    Rule.OWNER_READ_TOPIC: {"admin", "reader", "listed"},
    Rule.SELF_OR_ADMIN: {"admin"},
}
"""Who is let through on the topic `secret`, whose ACL names nobody but `listed`. (Nobody owns transaction 0: it is not there.)"""
NO_TOPIC = {Op.CLUSTER_STATUS: {"admin", "reader"}, Op.GROUP_HEARTBEAT: {"admin", "reader"}, Op.GROUP_LEAVE: {"admin", "reader"}}
"""Requests that lead to no topic need the right on one without an ACL, which is private here."""
_THEIRS = (
    Op.PIPELINE_PUT, Op.PIPELINE_STEER, Op.PIPELINE_START, Op.PIPELINE_REPORT, Op.PIPELINE_END, Op.PIPELINE_REMOVE,
    Op.PIPELINE_REPLAY, Op.PIPELINE_REPLAY_TAKE, Op.PIPELINE_REPLAY_END,
)  # fmt: skip
KNOWN = {Op.CANCEL_DELAYED: MAY[Rule.AUTHENTICATED], **{op: {"admin", "writer"} for op in _THEIRS}}
"""Which topic it is about is known only of a message that waits; and the pipeline is the writer's."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    flags = (*LISTENERS, "--durability", "os", "--auth-enabled", "--no-auth-default-public")
    broker = RunningBroker(tmp_path_factory.mktemp("guarded") / "data", flags, {"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})
    broker.start()
    try:
        with logged_in(broker, "admin") as admin:
            for name, roles in PEOPLE.items():
                assert isinstance(admin.ask(flymq.UserCreate(name, PASSWORD, roles=roles)), flymq.UserInfo)
            admin.create("secret")
            admin.produce("secret", b"classified")
            admin.create("plain")
            assert admin.ask(flymq.AclSet("secret", False, ("listed",), ())).success
            assert isinstance(admin.ask(flymq.RegisterSchema("secret", "json", b"{}")), flymq.SchemaRegistered)
        with logged_in(broker, "writer") as writer:
            assert writer.ask(flymq.PipelinePut("theirs", "yaml", b"x")).success
            # Nobody ends it, and none of the others can remove it while it is under way.
            assert isinstance(writer.ask(flymq.PipelineStart("theirs", "once", "here")), flymq.PipelineStarted)
        yield broker
        assert "bug in an operation" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def logged_in(broker: RunningBroker, name: str, password: str = PASSWORD) -> Peer:
    peer = Peer(broker.addresses["flymq-2"])
    answer = peer.ask(flymq.Auth(name, password))
    assert answer.success and answer.user == name, answer
    return peer


def refused(answer: Any) -> bool:
    return isinstance(answer, flymq.ErrorReply) and answer.text.startswith(REFUSALS)


def test_every_opcode_is_asked() -> None:
    assert set(REQUESTS) | LEFT_OUT == set(Op)


@pytest.mark.parametrize("name", ["anonymous", "admin", *PEOPLE])
def test_everybody_asks_for_everything(guarded: RunningBroker, name: str) -> None:
    peer = Peer(guarded.addresses["flymq-2"]) if name == "anonymous" else logged_in(guarded, name)
    wrong = []
    with peer:
        for op, request in REQUESTS.items():
            allowed = KNOWN.get(op) or NO_TOPIC.get(op) or MAY[OPCODE_PERMISSIONS[op]]
            answer = peer.ask(request)
            if refused(answer) == (name in allowed):
                wrong.append((op.name, answer))
    assert wrong == []


def test_a_compressed_request_is_no_way_around(guarded: RunningBroker) -> None:
    frame = flymq.encode_request(flymq.Produce("secret", b"", b"smuggled", 0), flymq.Dialect.DOCUMENTED)
    packed = flymq.encode_frame(Op.PRODUCE, gzip.compress(frame[8:]), flags=0x03)
    for peer in (Peer(guarded.address), logged_in(guarded, "guest")):
        with peer:
            peer.send(packed)
            assert refused(peer.decode(Op.PRODUCE, peer.receive_frame()))
    with logged_in(guarded, "admin") as admin:
        assert b"smuggled" not in [item.value for item in admin.fetch_all("secret")]


@pytest.mark.parametrize("name", ["__metadata", "__audit", "__offsets"])
def test_the_brokers_own_topics_are_out_of_reach(guarded: RunningBroker, name: str) -> None:
    with logged_in(guarded, "admin") as admin:
        for request in (
            flymq.Produce(name, b"", b"v", 0), flymq.Fetch(name, 0, 0, 1), flymq.FetchBatches(name, 0, 0, 100, 0, 0),
            flymq.CreateTopic(name, 1), flymq.DeleteTopic(name), flymq.FetchDlq(name, 1), flymq.AclSet(name, False),
        ):  # fmt: skip
            assert "INVALID_TOPIC" in admin.ask(request).text


def test_rights_change_under_a_connection_that_produces(guarded: RunningBroker) -> None:
    with logged_in(guarded, "admin") as admin, logged_in(guarded, "guest") as peer:
        admin.create("moving")
        assert refused(peer.ask(flymq.Produce("moving", b"", b"0", 0)))
        admin.ask(flymq.AclSet("moving", False, ("guest",), ()))
        # The parser takes the second and those after it; they are authorized once.
        peer.produce("moving", b"1", b"2", b"3")
        admin.ask(flymq.AclDelete("moving"))
        answers = peer.ask_all(*[flymq.Produce("moving", b"", b"late", 0)] * 3)
        assert all(map(refused, answers))
        assert [item.value for item in admin.fetch_all("moving")] == [b"1", b"2", b"3"]


def test_one_connection_several_people(guarded: RunningBroker) -> None:
    with logged_in(guarded, "admin") as peer:
        peer.create("mine")
        peer.produce("mine", b"1", b"2")
        assert not peer.ask(flymq.Auth("guest", "wrong")).success
        assert peer.ask(flymq.WhoAmI()).user == "admin", "a failed login changes nothing"
        assert peer.ask(flymq.Auth("guest", PASSWORD)).success
        assert all(map(refused, peer.ask_all(*[flymq.Produce("mine", b"", b"3", 0)] * 2)))


def test_lists_show_what_may_be_read(guarded: RunningBroker) -> None:
    with logged_in(guarded, "listed") as peer:
        assert [name for name in peer.ask(flymq.ListTopics()).topics if not name.endswith(".dlq")] == ["secret"]
        assert {entry.id for entry in peer.ask(flymq.ListSchemas("secret")).schemas} == {"secret-v1"}
    with logged_in(guarded, "guest") as peer:
        assert peer.ask(flymq.ListTopics()).topics == ()
    with Peer(guarded.addresses["flymq-3"], flymq.Dialect.V126) as published:
        assert published.ask(flymq.Auth("listed", PASSWORD)).success
        assert "unauthorized" in published.ask(flymq.ClusterMetadata("plain")).text
        assert [topic.topic for topic in published.ask(flymq.ClusterMetadata("secret")).topics] == ["secret"]


def test_leaving_a_name_out_reaches_nothing(guarded: RunningBroker) -> None:
    with logged_in(guarded, "admin") as admin, logged_in(guarded, "guest") as guest:
        admin.ask(flymq.Commit("secret", "hidden-group", 0, 1))
        for request in (flymq.GetOffset("", "hidden-group", 0), flymq.GroupLag("", "hidden-group")):
            assert refused(guest.ask(request))
            assert not isinstance(admin.ask(request), flymq.ErrorReply)
        delayed = admin.ask(flymq.ProduceDelayed("secret", b"later", 3_600_000)).id
        for request in (flymq.CancelDelayed(delayed), flymq.CancelDelayed(delayed, "plain")):
            assert refused(guest.ask(request))
        assert admin.ask(flymq.CancelDelayed(delayed)) == flymq.Ok()


def test_letters_are_as_private_as_their_topics(guarded: RunningBroker) -> None:
    with logged_in(guarded, "admin") as admin, logged_in(guarded, "guest") as guest, logged_in(guarded, "listed") as listed:
        assert refused(guest.ask(flymq.FetchDlq("secret", 1)))
        assert isinstance(listed.ask(flymq.FetchDlq("secret", 1)), flymq.DeadLetters)
        admin.ask(flymq.AclSet("secret.dlq", False, (), ()))
        assert refused(listed.ask(flymq.FetchDlq("secret", 1))), "the letters have an ACL of their own now"
        assert refused(listed.ask(flymq.FetchDlq("secret.dlq", 1)))
        admin.ask(flymq.AclDelete("secret.dlq"))


def test_transactions_are_their_owners(guarded: RunningBroker) -> None:
    with logged_in(guarded, "admin") as admin, logged_in(guarded, "writer") as writer:
        identity = admin.ask(flymq.TxnBegin()).id
        for request in (
            flymq.TxnProduce(identity, "secret", b"x"), flymq.TxnCommit(identity), flymq.TxnRollback(identity),
        ):  # fmt: skip
            assert refused(writer.ask(request))
        assert admin.ask(flymq.TxnProduce(identity, "plain", b"in one piece")).offset == 0
        (shown,) = admin.ask(flymq.TxnList()).transactions
        assert (shown.id, shown.owner, shown.records) == (identity, "admin", 1)
        assert admin.ask(flymq.TxnCommit(identity)).success


def test_properties_are_read_by_readers_and_set_by_administrators(guarded: RunningBroker) -> None:
    with logged_in(guarded, "listed") as peer:
        assert isinstance(peer.ask(flymq.TopicConfig("secret")), flymq.TopicProperties)
        assert refused(peer.ask(flymq.TopicConfig("secret", (("retention_bytes", "1"),))))
    with logged_in(guarded, "guest") as peer:
        assert refused(peer.ask(flymq.TopicConfig("secret")))


def test_refusals_and_administration_are_written_down(guarded: RunningBroker) -> None:
    with logged_in(guarded, "guest") as guest:
        assert refused(guest.ask(flymq.Fetch("secret", 0, 0, 1)))
    with logged_in(guarded, "admin") as admin:
        wanted = flymq.AuditFilter(types=("access.denied",), user="guest", resource="secret")
        event = admin.ask(flymq.AuditQuery(wanted)).events[0]
        assert (event.action, event.result, event.client_ip) == ("fetch", "denied", "127.0.0.1")
        admin.create("audited")
        admin.ask(flymq.ResetOffset("audited", "g", 0, "earliest"))
        admin.ask(flymq.DeleteGroup("audited", "g"))
        admin.ask(flymq.TxnCommit(admin.ask(flymq.TxnBegin()).id))
        admin.ask(flymq.DeleteTopic("audited"))
        admin.ask(flymq.RegisterSchema("audited", "json", b"{}"))
        admin.ask(flymq.DeleteSchema("audited", 0))
        admin.ask(flymq.AclSet("audited", False))
        admin.ask(flymq.AclDelete("audited"))
        document = admin.ask(flymq.AuditExport(FILTER, "json")).document
        kinds = {row["type"] for row in json.loads(document)}
        assert kinds >= {
            "system.start", "auth.success", "auth.logout", "access.denied", "topic.create", "topic.delete", "user.create",
            "acl.set", "acl.delete", "schema.register", "schema.delete", "group.delete", "offset.reset", "txn.begin", "txn.commit",
        }  # fmt: skip
        assert PASSWORD.encode() not in document


def test_guessing_is_slowed_down(guarded: RunningBroker) -> None:
    with Peer(guarded.addresses["flymq-2"]) as peer, logged_in(guarded, "admin") as admin:
        admin.ask(flymq.UserCreate("target", PASSWORD))
        answers = [peer.ask(flymq.Auth("target", f"guess {number}")) for number in range(5)]
        assert all("invalid username or password" in answer.error for answer in answers)
        assert peer.ask(flymq.Auth("target", PASSWORD)).success, "who knows it comes in, a little later"
        failures = flymq.AuditFilter(types=("auth.failure",), user="target")
        until(lambda: admin.ask(flymq.AuditQuery(failures)).total == 5, "five failures in the trail")
