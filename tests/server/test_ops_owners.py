"""What ends with a connection: transactions and memberships; what a certificate says of it; and what a quota does to it."""

from __future__ import annotations

import time
from pathlib import Path

from authority import Authority
from flymq_peer import Peer, batch, until
from running_broker import StartBroker

from braidmq.wire import flymq
from braidmq.wire.flymq import TopicOffset, TopicPartition

PASSWORD = "correct horse"


def test_a_transaction_ends_with_its_connection(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as watcher:
        watcher.create("t")
        for leave in (Peer.close, Peer.reset):
            owner = Peer(broker.address)
            identity = owner.ask(flymq.TxnBegin()).id
            owner.ask(flymq.TxnProduce(identity, "t", b"x"))
            assert [shown.id for shown in watcher.ask(flymq.TxnList()).transactions] == [identity]
            leave(owner)
            until(lambda: watcher.ask(flymq.TxnList()).transactions == (), "the end of the transaction")
            assert "not active: aborted" in watcher.ask(flymq.TxnCommit(identity)).text
        assert watcher.fetch_all("t") == []


def test_a_newer_producer_of_the_same_name_fences_the_older(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as old, Peer(broker.address) as new:
        old.create("t")
        first = old.ask(flymq.TxnBegin("payments")).id
        old.ask(flymq.TxnProduce(first, "t", b"zombie"))
        second = new.ask(flymq.TxnBegin("payments")).id
        assert "FENCED_PRODUCER" in old.ask(flymq.TxnProduce(first, "t", b"zombie")).text
        assert "FENCED_PRODUCER" in old.ask(flymq.TxnCommit(first)).text
        new.ask(flymq.TxnProduce(second, "t", b"alive"))
        assert new.ask(flymq.TxnCommit(second)).success
        assert [item.value for item in new.fetch_all("t")] == [b"alive"]
        took_over = old.ask(flymq.TxnBegin("payments"))
        assert took_over.epoch > 0, "without an epoch it is a new instance"
        assert old.ask(flymq.TxnBegin("payments", 0, took_over.epoch)).epoch == took_over.epoch
        broker.restart()
    with Peer(broker.address) as peer:
        assert "FENCED_PRODUCER" in peer.ask(flymq.TxnBegin("payments", 0, took_over.epoch - 1)).text, "also after a restart"
        assert peer.ask(flymq.TxnBegin("payments", 0, took_over.epoch)).epoch == took_over.epoch
        assert peer.ask(flymq.TxnBegin()).epoch == -1, "the published answer, where there is no name"


def test_members_share_and_a_lost_connection_gives_its_share_up(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    everything = {TopicPartition("t", number) for number in range(4)}
    with Peer(broker.address) as one:
        one.create("t", 4)
        alone = one.ask(flymq.GroupJoin("g", "", ("t",), "range", 5000))
        assert set(alone.partitions) == everything
        two = Peer(broker.address)
        two.send(two.encode(flymq.GroupJoin("g", "", ("t",), "range", 5000)))
        until(lambda: one.ask(flymq.GroupHeartbeat("g", alone.member, alone.generation)).rebalance, "a rebalance")
        halves = one.ask(flymq.GroupJoin("g", alone.member, ("t",), "range", 5000))
        other = two.decode(flymq.Op.GROUP_JOIN, two.receive_frame())
        assert halves.member == alone.member and halves.generation == other.generation > alone.generation
        assert len(halves.partitions) == len(other.partitions) == 2
        assert set(halves.partitions) | set(other.partitions) == everything
        mine, others = halves.partitions[0], other.partitions[0]
        good = (TopicOffset("t", mine.partition, 1),)
        assert one.ask(flymq.GroupCommit("g", alone.member, halves.generation, good)) == flymq.Ok()
        assert "FENCED_MEMBER" in one.ask(flymq.GroupCommit("g", alone.member, alone.generation, good)).text
        foreign = (TopicOffset("t", others.partition, 1),)
        assert "FENCED_MEMBER" in one.ask(flymq.GroupCommit("g", alone.member, halves.generation, foreign)).text
        assert one.ask(flymq.GroupLag("t", "g")).partitions[mine.partition].committed == 1
        two.reset()
        until(lambda: one.ask(flymq.GroupHeartbeat("g", alone.member, halves.generation)).rebalance, "the other's end")
        assert set(one.ask(flymq.GroupJoin("g", alone.member, ("t",), "range", 5000)).partitions) == everything
        assert one.ask(flymq.GroupLeave("g", alone.member)) == flymq.Ok()
        assert "UNKNOWN_MEMBER" in one.ask(flymq.GroupHeartbeat("g", alone.member, halves.generation)).text


def test_a_stop_does_not_wait_for_a_group_to_settle(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as one, Peer(broker.address) as two:
        one.create("t")
        one.ask(flymq.GroupJoin("g", "", ("t",), "range", 60_000))
        two.send(two.encode(flymq.GroupJoin("g", "", ("t",), "range", 60_000)))
        until(lambda: len(one.ask(flymq.DescribeGroup("t", "g")).offsets) == 0 and
              one.ask(flymq.DescribeGroup("t", "g")).members == 2, "the second to wait")  # fmt: skip
        began = time.monotonic()
        broker.stop()
        assert time.monotonic() - began < 20, "the group would take a minute"


def test_a_certificate_is_its_user(start_broker: StartBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("broker")
    broker = start_broker(
        "--listen", "flymqs://127.0.0.1:0", "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-file", str(authority.file), "--durability", "os", "--auth-enabled", "--no-auth-default-public",
        env={"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD},
    )  # fmt: skip
    address = broker.addresses["flymqs"]
    with Peer(address, tls=authority.client(authority.issue("stranger"))) as stranger:
        assert not stranger.ask(flymq.WhoAmI()).authenticated
        assert "authentication required" in stranger.ask(flymq.ListTopics()).text
        assert stranger.ask(flymq.Auth("admin", PASSWORD)).success, "a password still counts"
        stranger.create("t")
        stranger.ask(flymq.UserCreate("carol", PASSWORD, roles=("producer",)))
    with Peer(address, tls=authority.client(authority.issue("carol"))) as carol:
        answer = carol.ask(flymq.WhoAmI())
        assert (answer.user, answer.roles) == ("carol", ("producer",))
        carol.produce("t", b"1", b"2")
        assert "unauthorized" in carol.ask(flymq.Fetch("t", 0, 0, 1)).text


def test_a_quota_slows_down_and_loses_nothing(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--quota-bytes-per-s", "200000")
    value = b"x" * 1000
    with Peer(broker.address) as peer:
        peer.create("t")
        began = time.monotonic()
        peer.produce("t", *[value] * 300)
        assert peer.ask(flymq.ProduceBatch("t", 0, batch(*[value] * 100))).base_offset == 300
        peer.ask(flymq.ListTopics())
        # 400 kB go in and some come out; a second's worth is free.
        assert time.monotonic() - began > 0.9
        with Peer(broker.address) as other:
            began = time.monotonic()
            other.fetch_all("t")
            other.ask(flymq.ListTopics())
            assert time.monotonic() - began > 1.0, "what is fetched counts, and another connection is no way around"


def test_requests_have_a_quota_too(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--quota-requests-per-s", "100")
    with Peer(broker.address) as peer:
        began = time.monotonic()
        peer.ask_all(*[flymq.ListTopics()] * 200)
        assert 0.5 < time.monotonic() - began < 10


def test_settings_of_the_features_reach_them(start_broker: StartBroker) -> None:
    broker = start_broker(
        "--durability", "os", "--transaction-timeout", "200ms", "--delay-max", "1s", "--ttl", "500ms", "--dlq-attempts", "1",
        "--schema-strict",
    )  # fmt: skip
    with Peer(broker.address) as peer:
        peer.create("t")
        peer.produce("t", b"short-lived")
        assert "exceeds maximum allowed delay" in peer.ask(flymq.ProduceDelayed("t", b"x", 1001)).text
        assert peer.ask(flymq.DlqFail("t", 0, 0, "g", "manual", "")).dead_lettered
        assert "schema not found" in peer.ask(flymq.ValidateSchema("not-there", b"{}")).text
        assert "schema not found" in peer.ask(flymq.ProduceWithSchema("t", "not-there", b"{}")).text
        identity = peer.ask(flymq.TxnBegin()).id
        until(lambda: "not active" in getattr(peer.ask(flymq.TxnProduce(identity, "t", b"x")), "text", ""), "the time-out")
        until(lambda: peer.fetch_all("t") == [], "the end of the records")
        assert len(peer.ask(flymq.FetchDlq("t", 10)).items) == 1, "letters stay"
