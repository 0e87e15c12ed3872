"""SIGKILL right after the answer: users, rights, schemas, offsets, delayed messages, letters and transactions are still there."""

from __future__ import annotations

from flymq_peer import Peer, until
from running_broker import RunningBroker, StartBroker

from braidmq.wire import flymq
from braidmq.wire.flymq import TopicOffset

PASSWORD = "correct horse"


def admin(broker: RunningBroker) -> Peer:
    peer = Peer(broker.address)
    assert peer.ask(flymq.Auth("admin", PASSWORD)).success
    return peer


def killed(broker: RunningBroker) -> None:
    broker.kill()
    broker.restart()


def start(start_broker: StartBroker) -> RunningBroker:
    return start_broker("--auth-enabled", env={"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})


def test_users_rights_and_schemas(start_broker: StartBroker) -> None:
    broker = start(start_broker)
    with admin(broker) as peer:
        peer.create("t")
        created = peer.ask(flymq.UserCreate("bob", "old password", roles=("consumer",)))
        assert peer.ask(flymq.PasswordChange("bob", "new password")).success
        assert peer.ask(flymq.UserCreate("gone", PASSWORD)).user == "gone"
        assert peer.ask(flymq.UserDelete("gone")).success
        assert peer.ask(flymq.AclSet("t", False, ("bob",), ())).success
        assert peer.ask(flymq.RegisterSchema("s", "json", b'{"type":"object"}', "full")).version == 1
        assert peer.ask(flymq.RegisterSchema("s", "json", b'{"type":"object","title":"x"}')).version == 2
        assert peer.ask(flymq.DeleteSchema("s", 2)) == flymq.Ok()
        assert peer.ask(flymq.TopicConfig("t", (("schema", "s"),))).properties
    killed(broker)
    with Peer(broker.address) as peer:
        assert not peer.ask(flymq.Auth("bob", "old password")).success
        assert not peer.ask(flymq.Auth("gone", PASSWORD)).success
        assert peer.ask(flymq.Auth("bob", "new password")).roles == ("consumer",)
        assert isinstance(peer.ask(flymq.Produce("t", b"", b"{}", 0)), flymq.RecordMetadata), "the ACL names bob"
        assert "schema validation failed" in peer.ask(flymq.Produce("t", b"", b"[]", 0)).text
    with admin(broker) as peer:
        assert peer.ask(flymq.UserGet("bob")).created == created.created
        found = peer.ask(flymq.GetSchema("s", 0))
        assert (found.version, found.definition, found.compatibility) == (1, b'{"type":"object"}', "full")
        assert peer.ask(flymq.RegisterSchema("s", "json", b'{"type":"object","title":"y"}')).version == 3, "2 was used"
        kinds = {event.type for event in peer.ask(flymq.AuditQuery(flymq.AuditFilter(limit=1000))).events}
        assert {"user.create", "user.delete", "acl.set", "schema.register", "schema.delete", "system.start"} <= kinds
    broker.restart()
    with admin(broker) as peer:
        # An orderly stop writes a snapshot of all of it; this start began there.
        assert [user.user for user in peer.ask(flymq.UserList()).users] == ["admin", "bob"]
        assert peer.ask(flymq.AclGet("t")).users == ("bob",)
        assert len(peer.ask(flymq.ListSchemas()).schemas) == 2
        stops = peer.ask(flymq.AuditQuery(flymq.AuditFilter(types=("system.stop",))))
        assert stops.total == 1


def test_offsets_delayed_messages_and_letters(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        peer.create("t")
        peer.produce("t", b"0", b"1", b"2")
        peer.ask(flymq.Commit("t", "kept", 0, 2))
        peer.ask(flymq.Commit("t", "deleted", 0, 2))
        peer.ask(flymq.DeleteGroup("t", "deleted"))
        peer.ask(flymq.ResetOffset("t", "reset", 0, "latest"))
        soon = peer.ask(flymq.ProduceDelayed("later", b"due soon", 1500, partition=0)).id
        far = peer.ask(flymq.ProduceDelayed("later", b"far away", 3_600_000)).id
        cancelled = peer.ask(flymq.ProduceDelayed("later", b"cancelled", 1500, partition=0)).id
        assert peer.ask(flymq.CancelDelayed(cancelled)) == flymq.Ok()
        assert peer.ask(flymq.ProduceWithTtl("t", b"short-lived", 500, partition=0)).offset == 3
        for _ in range(3):
            failed = peer.ask(flymq.DlqFail("t", 0, 1, "kept", "processing_error", "boom"))
        assert failed.dead_lettered
    killed(broker)
    with Peer(broker.address) as peer:
        assert peer.ask(flymq.GetOffset("t", "kept", 0)) == flymq.Offset(2)
        assert peer.ask(flymq.GetOffset("t", "reset", 0)) == flymq.Offset(3)
        assert "not found" in peer.ask(flymq.GetOffset("t", "deleted", 0)).text
        until(lambda: [item.value for item in peer.fetch_all("later")] == [b"due soon"], "the delayed message")
        assert [waiting.id for waiting in peer.ask(flymq.DelayedList("", 10)).messages] == [far]
        assert "message not found" in peer.ask(flymq.CancelDelayed(soon)).text
        assert [item.value for item in peer.fetch_all("t")] == [b"0", b"1", b"2"], "a time to live does not begin anew"
        (letter,) = peer.ask(flymq.FetchDlq("t", 10)).items
        assert (letter.data, letter.error, letter.retries) == (b"1", "boom", 3)
        assert peer.ask(flymq.ReplayDlq("t", letter.id)).count == 1
    killed(broker)
    with Peer(broker.address) as peer:
        assert peer.ask(flymq.FetchDlq("t", 10)) == flymq.DeadLetters(())
        assert [item.value for item in peer.fetch_all("t")] == [b"0", b"1", b"2", b"1"]
        assert [item.value for item in peer.fetch_all("later")] == [b"due soon"], "delivered once"
        assert peer.ask(flymq.CancelDelayed(far)) == flymq.Ok()


def test_transactions(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        for topic in ("a", "b"):
            peer.create(topic)
        done = peer.ask(flymq.TxnBegin()).id
        left = peer.ask(flymq.TxnBegin()).id
        for topic in ("a", "b"):
            for number in range(50):
                peer.ask(flymq.TxnProduce(done, topic, b"%d" % number, b"k", 0))
            peer.ask(flymq.TxnProduce(left, topic, b"never"))
        assert peer.ask(flymq.TxnOffsets(done, "g", (TopicOffset("a", 0, 7), TopicOffset("b", 0, 8)))) == flymq.Ok()
        assert peer.ask(flymq.TxnCommit(done)).success
    killed(broker)
    with Peer(broker.address) as peer:
        for topic, offset in (("a", 7), ("b", 8)):
            assert [item.value for item in peer.fetch_all(topic)] == [b"%d" % number for number in range(50)]
            assert peer.ask(flymq.GetOffset(topic, "g", 0)) == flymq.Offset(offset)
        assert peer.ask(flymq.TxnCommit(done)).success, "whoever did not get the answer may ask again"
        assert "transaction" in peer.ask(flymq.TxnCommit(left)).text
        assert peer.ask(flymq.TxnRollback(left)).success
        assert peer.ask(flymq.TxnList()).transactions == ()
