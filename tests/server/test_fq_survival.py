"""What of fq is there again after a restart, after a crash of the broker, and after kill -9 in the middle of it all."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path

import pytest
from flymq_peer import Peer
from fq_peer import FqBroker, FqPeer, eventually, request, stats
from running_broker import StartBroker

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.wire.flymq import ListGroups
from braidmq.wire.fq.commands import FLAG_TRANSIENT, FLAGS_PERMANENT, REFUSED
from braidmq.wire.fq.messages import Message
from braidmq.wire.fq.modes import Mode

DISK = "disk:public,permanent"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def crash(data: Path) -> None:
    """Keep the files as they are now: what a broker that dies in this moment leaves behind."""
    shutil.copytree(data, crashed(data))


def crashed(data: Path) -> Path:
    return data.with_name("crashed")



def publish(address: str, exchange: bytes, route: bytes, *payloads: bytes) -> tuple[int, int]:
    """Publish and wait until it is known what became of it; returns routed and no_route."""
    with FqPeer(address) as publisher:
        publisher.data().publish(exchange, route, *payloads)
        eventually(lambda: sum(publisher.figures("routed", "no_route")) >= len(payloads), True)
        routed, no_route = publisher.figures("routed", "no_route")
        return routed, no_route


@pytest.mark.parametrize("orderly", [True, False])
def test_permanent_queues_and_bindings_come_back_as_they_were(data: Path, orderly: bool) -> None:
    with FqBroker(RealDisk(), str(data)) as broker:
        with (
            FqPeer(broker.fq, b"kept", "mem:public,block,backlog=50,permanent") as kept,
            FqPeer(broker.fq, b"gone", "mem:public") as gone,
            FqPeer(broker.fq, b"\xff", "mem:private,permanent") as odd,
        ):
            kept.bind(b"ex", b"prefix:p", FLAGS_PERMANENT | 1)
            kept.bind(b"ex", b"prefix:t")
            kept.bind(b"ex", b"prefix:x", FLAGS_PERMANENT)
            kept.bind(b"ex", b"prefix:x", FLAG_TRANSIENT)
            route = kept.bind(b"ex", b"prefix:u", FLAGS_PERMANENT)
            kept.unbind(route, b"ex")
            gone.bind(b"ex", b"prefix:g", FLAGS_PERMANENT)
            odd.bind(b"\0\xfe", b'exact:"\\xff\\x00" true()', FLAGS_PERMANENT)
        crash(data)
    with FqBroker(RealDisk(), str(data if orderly else crashed(data))) as broker:
        queues = {queue.detail.name: queue for queue in broker.server.broker.fq.all()}
        assert sorted(queues) == [b"kept", b"\xff"]
        detail = queues[b"kept"].detail
        assert (detail.kind, detail.private, detail.policy, detail.backlog) == ("mem", False, "block", 50)
        found = [(b.exchange, b.program.text, b.peer, b.permanent) for b in queues[b"kept"].bindings.values()]
        assert found == [(b"ex", b"prefix:p", True, True)]
        assert [b.program.head for b in queues[b"\xff"].bindings.values()] == [b"\xff\0"]
        # It is permanent still: it stays when its next client leaves.
        with FqPeer(broker.fq, b"kept", "mem:public,block") as peer:
            reading = peer.data()
            reading.publish(b"ex", b"p", b"works")
            assert reading.payloads(1) == [b"works"]
        eventually(lambda: len(queues[b"kept"].members), 0)
        assert broker.server.broker.fq.get(b"kept") is not None


def test_a_queue_made_transient_is_forgotten_with_its_bindings(data: Path) -> None:
    with FqBroker(RealDisk(), str(data)) as broker:
        with FqPeer(broker.fq, b"q", "disk:public,permanent") as peer:
            peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT)
        with FqPeer(broker.fq, b"q", "disk:public,transient"):
            pass
        eventually(broker.server.broker.fq.all, [])
    with FqBroker(RealDisk(), str(data)) as broker:
        assert broker.server.broker.fq.all() == []
        assert list(broker.server.broker.groups.all()) == []


def test_bindings_of_a_queue_that_becomes_permanent_later(data: Path) -> None:
    with FqBroker(RealDisk(), str(data)) as broker, FqPeer(broker.fq, b"q", "mem:public") as first:
        first.bind(b"ex", b"prefix:p", FLAGS_PERMANENT)
        first.bind(b"ex", b"prefix:t")
        with FqPeer(broker.fq, b"q", "mem:public,permanent"):
            pass
    with FqBroker(RealDisk(), str(data)) as broker:
        (queue,) = broker.server.broker.fq.all()
        assert [binding.program.text for binding in queue.bindings.values()] == [b"prefix:p"]


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("program", [b"prefix:", b"prefix:r"])
def test_what_a_disk_queue_holds_survives(data: Path, orderly: bool, program: bytes) -> None:
    with FqBroker(RealDisk(), str(data), default_partitions=2) as broker:
        with FqPeer(broker.fq, b"q", DISK) as peer:
            publish(broker.fq, b"ex", b"r", b"before the bind")
            peer.bind(b"ex", program, FLAGS_PERMANENT)
            publish(broker.fq, b"ex", b"r", *(b"%d" % number for number in range(10)))
            publish(broker.fq, b"ex", b"s", b"other route")
            delivered = peer.data().payloads(4)
            eventually(lambda: peer.figures("msgs_out") > (3,), True)
        eventually(lambda: len(broker.server.broker.fq.get(b"q").members), 0)  # type: ignore[union-attr]
        assert delivered == [b"0", b"1", b"2", b"3"]
        publish(broker.fq, b"ex", b"r", b"nobody there")
        crash(data)
    with FqBroker(RealDisk(), str(data if orderly else crashed(data)), default_partitions=2) as broker:
        publish(broker.fq, b"ex", b"r", b"after")
        with FqPeer(broker.fq, b"q", "disk:public") as peer:
            reading = peer.data()
            came: list[bytes] = []
            while b"after" not in came:
                came += reading.payloads(1)
            assert b"nobody there" in came and b"before the bind" not in came
            assert (b"other route" in came) <= (program == b"prefix:"), "it chooses as before"


def test_messages_of_a_disk_queue_are_as_they_were(data: Path) -> None:
    sent = Message(b"ex", b"\0route", bytes(range(16)), b"payload", b"bob", (bytes((7, 7, 7, 7)),))
    with FqBroker(RealDisk(), str(data)) as broker, FqPeer(broker.fq, b"q", DISK) as peer, FqPeer(broker.fq) as relay:
        peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT)
        relay.data(Mode.OLD_PEER).relay(sent)
        eventually(lambda: relay.figures("routed"), (1,))
    with FqBroker(RealDisk(), str(data)) as broker, FqPeer(broker.fq, b"q", DISK) as peer:
        (came,) = peer.data().receive(1)
        assert came == Message(
            b"ex", b"\0route", bytes(range(16)), b"payload", b"bob", (bytes((10, 1, 2, 3)), bytes((7, 7, 7, 7)))
        )


@pytest.mark.parametrize("orderly", [True, False])
def test_a_transient_binding_of_a_disk_queue_goes_and_what_it_chose_stays(data: Path, orderly: bool) -> None:
    with FqBroker(RealDisk(), str(data)) as broker:
        with FqPeer(broker.fq, b"q", DISK) as peer:
            peer.bind(b"ex", b"prefix:t", FLAG_TRANSIENT)
            route = peer.bind(b"ex", b"prefix:u", FLAGS_PERMANENT)
            publish(broker.fq, b"ex", b"t", b"t1")
            publish(broker.fq, b"ex", b"u", b"u1")
            peer.unbind(route, b"ex")
            assert publish(broker.fq, b"ex", b"u", b"u2") == (0, 1)
        crash(data)
    for restart in range(2):
        with FqBroker(RealDisk(), str(data if orderly else crashed(data))) as broker:
            assert not broker.server.broker.fq.get(b"q").bindings  # type: ignore[union-attr]
            assert publish(broker.fq, b"ex", b"t", b"t2") == (0, 1)
            if restart:
                with FqPeer(broker.fq, b"q", DISK) as peer:
                    assert sorted(peer.data().payloads(2)) == [b"t1", b"u1"]
                stored = broker.server.broker.fq.table.get(b"q")
                assert stored is not None
                eventually(lambda stored=stored: stored.bindings, [])


def test_a_disk_queue_that_is_full_at_the_start_drops_nothing_it_had_accepted(data: Path) -> None:
    with FqBroker(RealDisk(), str(data)) as broker, FqPeer(broker.fq, b"q", "disk:public,permanent,drop,backlog=3") as peer:
        peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT)
        publish(broker.fq, b"ex", b"", b"0", b"1", b"2", b"dropped", b"dropped")
        reading = peer.data()
        assert reading.payloads(3) == [b"0", b"1", b"2"]
        reading.close()
        eventually(lambda: len(peer.status()), 1)
        publish(broker.fq, b"ex", b"", b"3", b"4", b"5", b"dropped")
        crash(data)
    with FqBroker(RealDisk(), str(crashed(data))) as broker, FqPeer(broker.fq, b"q", DISK) as peer:
        publish(broker.fq, b"ex", b"", b"6")
        reading = peer.data()
        came: list[bytes] = []
        while b"6" not in came:
            came += reading.payloads(1)
        assert [payload for payload in came if payload != b"dropped"] in (
            [b"0", b"1", b"2", b"3", b"4", b"5", b"6"],
            [b"3", b"4", b"5", b"6"],
        )


def test_a_disk_queue_is_a_consumer_group(data: Path) -> None:
    with FqBroker(default_partitions=1) as broker, Peer(broker.address) as admin, FqPeer(broker.fq, b"q", DISK) as peer:
        peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT)
        publish(broker.fq, b"ex", b"", b"1", b"2")
        assert [(group.topic, group.group) for group in admin.ask(ListGroups()).groups] == [("ex", "fq:q")]
        peer.data().payloads(2)
        positions = broker.server.broker.groups
        eventually(lambda: dict(positions.offsets(1, "fq:q")), {0: 2})


def test_checkpoints(data: Path) -> None:
    success = b'{"status": "success", "message": ""}'

    def ask(address: str, target: str) -> bytes:
        head, _, body = request(address, "GET", target).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 OK\r\n")
        return body

    with FqBroker(RealDisk(), str(data), default_partitions=1) as broker, FqPeer(broker.fq, b"q", DISK) as peer:
        peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT)
        reading = peer.data()
        publish(broker.fq, b"ex", b"", b"0", b"1")
        assert reading.payloads(2) == [b"0", b"1"]
        assert ask(broker.fq, "/add_checkpoint?qname=q&cpname=here&chkptid=now") == success
        number = broker.server.broker.topic("ex").first_partition
        assert ask(broker.fq, f"/add_checkpoint?qname=q&cpname=first&chkptid={number}:1") == success
        publish(broker.fq, b"ex", b"", b"2")
        assert reading.payloads(1) == [b"2"]
        assert ask(broker.fq, "/reset_to_checkpoint?qname=q&cpname=here") == success
        assert reading.payloads(1) == [b"2"]
        for target in (
            "/add_checkpoint?qname=q&cpname=fq&chkptid=now", "/add_checkpoint?qname=q&cpname=x", "/add_checkpoint",
            "/add_checkpoint?qname=nobody&cpname=x&chkptid=now", "/add_checkpoint?qname=q&cpname=x&chkptid=soon",
            "/add_checkpoint?qname=q&cpname=x&chkptid=999:1", "/remove_checkpoint?qname=q&cpname=never",
            "/reset_to_checkpoint?qname=q&cpname=never", "/reset_to_checkpoint?qname=q",
        ):  # fmt: skip
            assert ask(broker.fq, target).startswith(b'{"status": "error", "message": "'), target
        assert ask(broker.fq, "/remove_checkpoint?qname=q&cpname=here") == success
    with FqBroker(RealDisk(), str(data), default_partitions=1) as broker, FqPeer(broker.fq, b"q", DISK) as peer:
        reading = peer.data()
        assert ask(broker.fq, "/reset_to_checkpoint?qname=q&cpname=first") == success
        assert reading.payloads(2) == [b"1", b"2"]


# --- the real thing


def test_kill_in_the_middle_loses_nothing_accepted(start_broker: StartBroker) -> None:
    """Publishers, consumers and kill -9, three times over: every message that was accepted comes at least once."""
    flags = ("--listen", "fq://127.0.0.1:0", "--durability", "os", "--default-partitions", "3", "--checkpoint-interval", "0.2s")
    broker = start_broker(*flags)
    with FqPeer(broker.addresses["fq"], b"q", "disk:public,permanent,backlog=-1") as peer:
        peer.bind(b"ex", b"prefix:a", FLAGS_PERMANENT)
        peer.bind(b"ex", b"prefix:b", FLAGS_PERMANENT)
    accepted: set[bytes] = set()
    seen: list[bytes] = []
    for life in range(3):
        address = broker.addresses["fq"]
        reader = FqPeer(address, b"q", "disk:public")
        data = reader.data()
        publishers = [FqPeer(address) for _ in range(2)]
        for number, publisher in enumerate(publishers):
            payloads = [b"%d %d %d" % (life, number, each) for each in range(3000)]
            publisher.data().publish(b"ex", b"ab"[number : number + 1], *payloads)
            eventually(lambda publisher=publisher: publisher.figures("routed"), (3000,))
            accepted.update(payloads)
        accepted.add(b"by http %d" % life)
        headers = {"X-Fq-Exchange": "ex", "X-Fq-Route": "a"}
        assert b'"routed":1' in request(address, "POST", "/submit", headers, b"by http %d" % life)
        seen += data.payloads(1000)
        killer = threading.Thread(target=broker.kill)
        killer.start()
        killer.join()
        for publisher in publishers:
            publisher.close()
        seen += data.payloads_until_closed()
        reader.close()
        broker.start()
    with FqPeer(broker.addresses["fq"], b"q", "disk:public") as peer:
        data = peer.data()
        missing = accepted.difference(seen)
        while missing:
            missing.difference_update(data.payloads(1))
        queues = stats(broker.addresses["fq"])["queues"]
        assert queues["q"]["type"] == "disk" and queues["q"]["refcnt"] == 1


def test_nothing_is_kept_where_the_journal_fails() -> None:
    disk = FaultyDisk()
    with FqBroker(disk) as broker, FqPeer(broker.fq, b"q", "mem:public,permanent") as peer:
        disk.fail("write", path="/data/internal/metadata/00000000000000000000.log", code=errno.ENOSPC)
        assert peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT) == REFUSED
        disk.heal()
        assert peer.bind(b"ex", b"prefix:", FLAGS_PERMANENT) != REFUSED


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_loses_its_messages_and_says_so(durability: str) -> None:
    disk = FaultyDisk()
    with FqBroker(disk, durability=durability, default_partitions=1) as broker, FqPeer(broker.fq) as peer:
        broker.create("ex")
        peer.bind(b"ex")
        data = peer.data()
        data.publish(b"ex", b"", b"before")
        assert data.payloads(1) == [b"before"]
        disk.fail("write", path="/data/topics/1/0/00000000000000000000.log", code=errno.ENOSPC)
        data.publish(b"ex", b"", b"lost")
        eventually(lambda: peer.figures("routed", "no_route"), (1, 1))
        data.publish(b"ex", b"", b"after")
        assert data.payloads(1) == [b"after"]
        eventually(lambda: peer.figures("routed", "no_route"), (2, 1))


def test_a_partition_that_failed_takes_nothing_and_the_broker_goes_on() -> None:
    disk = FaultyDisk()
    with FqBroker(disk, durability="fsync", default_partitions=1) as broker, FqPeer(broker.fq) as peer:
        broker.create("ex")
        peer.bind(b"ex")
        peer.bind(b"other")
        data = peer.data()
        data.publish(b"ex", b"", b"before")
        assert data.payloads(1) == [b"before"]
        disk.fail("sync", path="/data/topics/1/0/00000000000000000000.log")
        data.publish(b"ex", b"", b"lost")
        eventually(lambda: peer.figures("no_route"), (1,))
        disk.heal()
        data.publish(b"ex", b"", b"lost too")
        data.publish(b"other", b"", b"fine")
        assert data.payloads(1) == [b"fine"]
        eventually(lambda: peer.figures("routed", "no_route"), (2, 2))
