"""Queues as their clients see them: who gets what, what happens when too much comes, and what is left when clients go."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from flymq_peer import Peer
from fq_peer import LOCAL, NODE, PATIENCE_S, DataSocket, FqBroker, FqPeer, closed, eventually, new_name

from braidmq.base import limits
from braidmq.server.fq_client import Clients
from braidmq.server.fq_listener import FqListener
from braidmq.wire.fq.auth import Auth, queue_field
from braidmq.wire.fq.commands import FLAG_TRANSIENT, FLAGS_PERMANENT, REFUSED
from braidmq.wire.fq.messages import Message
from braidmq.wire.fq.modes import Mode


@pytest.fixture(scope="module")
def broker() -> Iterator[FqBroker]:
    with FqBroker(default_partitions=3, fq_consumers_max=4) as running:
        yield running


def names(broker: FqBroker) -> list[bytes]:
    return [queue.detail.name for queue in broker.server.broker.fq.all()]


# --- routing


def test_two_bindings_that_match_deliver_one_copy(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange, b"prefix:a")
        peer.bind(exchange, b"prefix:a.b")
        peer.bind(exchange, b"exact:q")
        data = peer.data()
        for route in (b"a.b", b"a", b"b", b"q", b"qq"):
            data.publish(exchange, route, route)
        data.publish(exchange, b"q", b"end")
        assert data.payloads(4) == [b"a.b", b"a", b"q", b"end"]
        eventually(lambda: peer.figures("routed", "no_route", "no_exchange", "msgs_in", "msgs_out"), (4, 2, 0, 6, 4))


def test_every_queue_gets_a_copy_and_the_publisher_learns_how_many(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as publisher, FqPeer(broker.fq) as all_of_it, FqPeer(broker.fq) as some, FqPeer(broker.fq) as others:
        all_of_it.bind(exchange)
        some.bind(exchange, b'prefix: payload_prefix("1")')
        others.bind(exchange, b'prefix:"x" payload_contains("0")')
        data = publisher.data()
        payloads = [b"%d" % number for number in range(200)]
        data.publish(exchange, b"y", *payloads)
        assert all_of_it.data().payloads(200) == payloads
        ones = [payload for payload in payloads if payload.startswith(b"1")]
        assert some.data().payloads(len(ones)) == ones
        eventually(lambda: publisher.figures("routed", "no_route", "dropped"), (200 + len(ones), 0, 0))


def test_a_message_that_no_queue_wants_is_counted_and_kept(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer, Peer(broker.address) as reader:
        data = peer.data()
        data.publish(exchange, b"r", b"before")
        eventually(lambda: peer.figures("no_exchange", "no_route", "routed"), (1, 1, 0))
        route = peer.bind(exchange, b"exact:other")
        data.publish(exchange, b"r", b"during")
        eventually(lambda: peer.figures("no_exchange", "no_route", "routed"), (1, 2, 0))
        peer.unbind(route, exchange)
        data.publish(exchange, b"r", b"after")
        eventually(lambda: peer.figures("no_exchange", "no_route", "routed"), (1, 3, 0))
        kept = [item.value for partition in range(3) for item in reader.fetch_all(exchange.decode(), partition)]
        assert kept == [b"before", b"during", b"after"], "one publisher, one partition, in order"


def test_without_automatic_topics_a_message_for_none_is_refused() -> None:
    with FqBroker(auto_create_topics=False) as broker, FqPeer(broker.fq) as peer:
        data = peer.data()
        data.publish(b"nowhere", b"r", b"x", b"y")
        eventually(lambda: peer.figures("no_exchange", "no_route"), (2, 2))
        assert broker.server.broker.topics.get("nowhere") is None
        broker.create("there")
        peer.bind(b"there")
        data.publish(b"there", b"r", b"z")
        assert data.payloads(1) == [b"z"]


@pytest.mark.parametrize("exchange", [b"", b"\0", b"\xff\xfe", b"fq-bytes:%00", b"__internal", b"a b/c", b"\xe4" * 127])
def test_any_bytes_name_an_exchange(broker: FqBroker, exchange: bytes) -> None:
    with FqPeer(broker.fq) as peer:
        assert peer.bind(exchange) != REFUSED
        data = peer.data()
        data.publish(exchange, b"\0\xff", b"payload", message_id=bytes(range(16)))
        expected = Message(exchange, b"\0\xff", bytes(range(16)), b"payload", b"alice", (NODE, LOCAL))
        assert data.receive(1) == [expected]


def test_records_of_other_protocols_come_out_with_their_key_as_route(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer, Peer(broker.address) as writer:
        peer.bind(exchange, b"prefix:")
        data = peer.data()
        topic = exchange.decode()
        partition = writer.produce(topic, b"value", key=b"k" * 200)[0].partition
        (message,) = data.receive(1)
        assert message == Message(exchange, b"k" * 127, bytes(16), b"value", b"anonymous", (NODE,))
        data.publish(exchange, b"route", b"back")
        data.receive(1)
        items = [item for number in range(3) for item in writer.fetch_all(topic, number)]
        assert sorted((item.key, item.value) for item in items) == [(b"k" * 200, b"value"), (b"route", b"back")]
        assert partition in range(3)


def test_a_topic_that_is_deleted_and_comes_again_is_still_bound(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange)
        data = peer.data()
        for number in range(3):
            data.publish(exchange, b"", b"%d" % number)
            assert data.payloads(1) == [b"%d" % number]
            broker.run(lambda: broker.server.broker.delete_topic(exchange.decode()))


# --- bindings


def test_unbinding_needs_the_own_queue_and_the_right_exchange(broker: FqBroker) -> None:
    exchange, other = new_name(), new_name()
    with FqPeer(broker.fq) as peer, FqPeer(broker.fq) as stranger:
        route = peer.bind(exchange)
        assert peer.unbind(route, other) == REFUSED
        assert peer.unbind(route + 1, exchange) == REFUSED
        assert stranger.unbind(route, exchange) == REFUSED
        assert peer.bind(exchange) == route, "it is still there"
        assert peer.unbind(route, exchange) == route
        assert peer.unbind(route, exchange) == REFUSED
        assert peer.bind(exchange) > route, "and has another number when it comes again"


def test_clients_of_a_queue_share_its_bindings(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as first, FqPeer(broker.fq, first.queue) as second:
        route = first.bind(exchange)
        assert second.bind(exchange) == route
        data = second.data()
        data.publish(exchange, b"", b"x")
        assert data.payloads(1) == [b"x"]
        assert second.unbind(route, exchange) == route


def test_what_a_binding_chose_stays_when_it_is_taken_back(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer, FqPeer(broker.fq) as publisher:
        route = peer.bind(exchange, b"prefix:a")
        writing = publisher.data()
        writing.publish(exchange, b"a", b"one", b"two")
        eventually(lambda: publisher.figures("routed"), (2,))
        assert peer.unbind(route, exchange) == route
        writing.publish(exchange, b"a", b"three")
        eventually(lambda: publisher.figures("no_route"), (1,))
        peer.bind(exchange, b"prefix:")
        writing.publish(exchange, b"b", b"four")
        assert peer.data().payloads(3) == [b"one", b"two", b"four"]


def test_a_binding_is_active_when_its_answer_comes(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        data = peer.data()
        for number in range(20):
            peer.bind(exchange, b"exact:%d" % number)
            data.publish(exchange, b"%d" % number, b"%d" % number)
            assert data.payloads(1) == [b"%d" % number]


def test_bindings_have_a_limit(broker: FqBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FQ_QUEUE_BINDINGS_MAX", 3)
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        routes = [peer.bind(exchange, b"exact:%d" % number) for number in range(4)]
        assert routes.index(REFUSED) == 3
        assert peer.bind(exchange, b"exact:0") == routes[0]


# --- consumers


@pytest.mark.parametrize("burst", [True, False])
def test_consumers_share_evenly_each_in_order(broker: FqBroker, burst: bool) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as first, FqPeer(broker.fq, first.queue) as second, FqPeer(broker.fq, first.queue) as third:
        first.bind(exchange)
        sockets = [peer.data() for peer in (first, second, third)]
        for peer in (first, second, third):
            eventually(lambda peer=peer: len(peer.status()) > 1, True)
        with FqPeer(broker.fq) as publisher:
            writing = publisher.data()
            payloads = [b"%04d" % number for number in range(600)]
            if burst:
                writing.publish(exchange, b"", *payloads)
            else:
                for payload in payloads:
                    writing.publish(exchange, b"", payload)
            eventually(lambda: sum(peer.status()["msgs_out"] for peer in (first, second, third)), 600)
        counts = [peer.status()["msgs_out"] for peer in (first, second, third)]
        shares = [data.payloads(count) for data, count in zip(sockets, counts, strict=True)]
        assert sorted(itertools.chain(*shares)) == payloads, "each once"
        assert all(share == sorted(share) for share in shares)
        assert min(counts) > 100


def test_a_consumer_that_does_not_read_holds_up_nobody(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq, kind="mem:public,backlog=-1") as slow, FqPeer(broker.fq, slow.queue, "mem:public") as quick:
        slow.bind(exchange)
        stuck, reading = slow.data(receive_buffer=4096), quick.data()
        eventually(lambda: (len(slow.status()), len(quick.status())), (10, 10))
        with FqPeer(broker.fq) as publisher:
            writing = publisher.data()
            total = 40
            for number in range(total):
                writing.publish(exchange, b"", b"%d" % number + bytes(500_000))
            reader = threading.Thread(target=closed, args=(reading.socket,))
            reader.start()
            eventually(lambda: slow.status()["msgs_out"] + quick.status()["msgs_out"], total)
            assert slow.status()["msgs_out"] < total // 2
            assert publisher.figures("routed", "dropped") == (total, 0)
        eventually(lambda: len(slow.status()), 10)
        quick.socket.close()
        stuck.close()
        reader.join(PATIENCE_S)


def test_what_a_dead_consumer_did_not_get_goes_to_the_others(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as first, FqPeer(broker.fq, first.queue) as second:
        first.bind(exchange)
        with FqPeer(broker.fq) as publisher:
            publisher.data().publish(exchange, b"", b"a", b"b", b"c")
            eventually(lambda: publisher.figures("routed"), (3,))
        first.close()
        assert second.data().payloads(3) == [b"a", b"b", b"c"]


def test_a_queue_has_only_so_many_clients(broker: FqBroker) -> None:
    with FqPeer(broker.fq) as first:
        others = [FqPeer(broker.fq, first.queue) for _ in range(3)]
        with FqPeer(broker.fq, authenticate=False) as one_too_many:
            one_too_many.send(Auth(b"u", queue_field(first.queue, "mem:public"), b""))
            assert one_too_many.refused() == "can't add you to queue"
        others.pop().close()
        eventually(lambda: len(broker.server.broker.fq.get(first.queue).members), 3)  # type: ignore[union-attr]
        with FqPeer(broker.fq, first.queue):
            pass
        for other in others:
            other.close()


# --- too much


def fill(publisher: FqPeer, writing: DataSocket, exchange: bytes, count: int) -> None:
    for number in range(count):
        writing.publish(exchange, b"", b"%d" % number)
        eventually(lambda number=number: publisher.figures("routed"), (number + 1,))


def test_a_full_queue_that_drops_keeps_the_oldest(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq, kind="mem:public,drop,backlog=3") as peer, FqPeer(broker.fq) as publisher:
        peer.bind(exchange)
        writing = publisher.data()
        fill(publisher, writing, exchange, 5)
        eventually(lambda: publisher.figures("routed", "dropped", "no_route"), (5, 2, 0))
        assert peer.status() == {"dropped_in": 2}
        data = peer.data()
        assert data.payloads(3) == [b"0", b"1", b"2"]
        writing.publish(exchange, b"", b"room again")
        assert data.payloads(1) == [b"room again"]


@pytest.mark.parametrize("program", [b"prefix:", b"prefix: payload_contains(\"7\")"])
def test_one_burst_over_the_backlog_is_cut_at_its_end(broker: FqBroker, program: bytes) -> None:
    exchange = new_name()
    with FqPeer(broker.fq, kind="mem:public,drop,backlog=10") as peer, FqPeer(broker.fq) as publisher:
        peer.bind(exchange, program)
        payloads = [b"%d" % number for number in range(300)]
        publisher.data().publish(exchange, b"", *payloads)
        wanted = [payload for payload in payloads if program == b"prefix:" or b"7" in payload]
        eventually(lambda: publisher.figures("routed", "dropped"), (len(wanted), len(wanted) - 10))
        assert publisher.figures("no_route") == (300 - len(wanted),)
        assert peer.data().payloads(10) == wanted[:10]


def test_a_backlog_of_nothing_delivers_to_whoever_is_there(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq, kind="mem:public,drop,backlog=0") as peer, FqPeer(broker.fq) as publisher:
        peer.bind(exchange)
        writing = publisher.data()
        fill(publisher, writing, exchange, 2)
        eventually(lambda: publisher.figures("dropped"), (2,))
        data = peer.data()
        eventually(lambda: len(peer.status()), 10)
        writing.publish(exchange, b"", b"now")
        assert data.payloads(1) == [b"now"]


def test_a_full_queue_that_blocks_stops_its_publisher_and_nobody_else(broker: FqBroker) -> None:
    blocked, free = new_name(), new_name()
    count, size = 400, 50_000
    with (
        FqPeer(broker.fq, kind="mem:public,block,backlog=5") as peer,
        FqPeer(broker.fq) as publisher,
        FqPeer(broker.fq) as other,
        Peer(broker.address) as flymq,
    ):
        peer.bind(blocked)
        other.bind(free)
        writing = publisher.data()
        sent = threading.Thread(target=lambda: [writing.publish(blocked, b"", b"%04d" % n + bytes(size)) for n in range(count)])
        sent.start()

        def is_blocked() -> bool:
            topic = broker.server.broker.topics.get(blocked.decode())
            return topic is not None and broker.server.broker.push.is_blocked(topic.id)

        eventually(is_blocked, True)
        # Others write to other exchanges, and to the same topic by another protocol, as if nothing were.
        busy = other.data()
        for number in range(20):
            busy.publish(free, b"", b"%d" % number)
            assert busy.payloads(1) == [b"%d" % number]
        flymq.produce(blocked.decode(), b"by FlyMQ")
        taken = publisher.status()["msgs_in"]
        assert sent.is_alive() and taken < count
        assert publisher.status()["msgs_in"] == taken, "nothing more is read"
        data = peer.data()
        came = [payload for payload in data.payloads(count + 1) if payload != b"by FlyMQ"]
        assert [payload[:4] for payload in came] == [b"%04d" % number for number in range(count)], "nothing is lost"
        sent.join(PATIENCE_S)
        eventually(lambda: publisher.figures("msgs_in", "routed", "dropped"), (count, count, 0))


def test_a_publisher_that_leaves_while_it_is_blocked_has_published() -> None:
    with FqBroker(fq_key_grace_s=0.1) as broker, FqPeer(broker.fq, kind="mem:public,block,backlog=1") as peer:
        peer.bind(b"ex")
        publisher = FqPeer(broker.fq)
        writing = publisher.data()
        for number in range(10):
            writing.publish(b"ex", b"", b"%d" % number)
        queue = broker.server.broker.fq.get(peer.queue)
        assert queue is not None
        eventually(lambda: queue.pending.count > 0, True)
        publisher.close()
        keys = broker.run(lambda: _clients(broker))
        eventually(lambda: broker.server.broker.fq.get(publisher.queue), None)
        time.sleep(0.3)  # Longer than the key is good for.
        assert peer.data().payloads(10) == [b"%d" % number for number in range(10)]
        eventually(lambda: len(keys), 1)


async def _clients(broker: FqBroker) -> Clients:
    return next(listener.clients for listener in broker.server.listeners if isinstance(listener, FqListener))


# --- coming and going


def test_a_transient_queue_goes_with_its_last_client(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as publisher:
        writing = publisher.data()
        first = FqPeer(broker.fq)
        queue = first.queue
        second = FqPeer(broker.fq, queue)
        first.bind(exchange)
        writing.publish(exchange, b"", b"lost")
        eventually(lambda: publisher.figures("routed"), (1,))
        first.close()
        second.close()
        eventually(lambda: queue in names(broker), False)
        with FqPeer(broker.fq, queue) as again:
            route = again.bind(exchange)
            assert route, "the binding is a new one"
            writing.publish(exchange, b"", b"new")
            assert again.data().payloads(1) == [b"new"]


def test_a_permanent_queue_stays_with_its_content_and_all_its_bindings(broker: FqBroker) -> None:
    exchange, queue = new_name(), new_name("q")
    with FqPeer(broker.fq) as publisher:
        writing = publisher.data()
        with FqPeer(broker.fq, queue, "mem:public,permanent,backlog=7") as peer:
            peer.bind(exchange, b"prefix:t", FLAG_TRANSIENT)
            peer.bind(exchange, b"prefix:p", FLAGS_PERMANENT)
        eventually(lambda: len(broker.server.broker.fq.get(queue).members), 0)  # type: ignore[union-attr]
        writing.publish(exchange, b"t", b"1")
        writing.publish(exchange, b"p", b"2")
        eventually(lambda: publisher.figures("routed"), (2,))
        # Nothing said about permanence: it keeps its own, and so does the backlog.
        with FqPeer(broker.fq, queue, "mem:public,backlog=99") as peer:
            assert peer.data().payloads(2) == [b"1", b"2"]
            assert broker.server.broker.fq.get(queue).detail.backlog == 7  # type: ignore[union-attr]
        eventually(lambda: len(broker.server.broker.fq.get(queue).members), 0)  # type: ignore[union-attr]
        with FqPeer(broker.fq, queue, "mem:public,transient"):
            assert queue in names(broker)
        eventually(lambda: queue in names(broker), False)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("disk:public", "requested type disk, queue is mem"),
        ("mem:private", "requested private, queue is public"),
        ("mem:public,block", "request block, queue is drop"),
        ("disk:private,block", "requested type disk, queue is mem"),
    ],
)
def test_a_queue_is_what_it_was_created_as(broker: FqBroker, asked: str, text: str) -> None:
    with FqPeer(broker.fq) as owner, FqPeer(broker.fq, authenticate=False) as other:
        other.send(Auth(b"u", queue_field(owner.queue, asked), b""))
        assert other.refused() == text


# --- peers


def test_a_peer_gets_nothing_that_was_there_already(broker: FqBroker) -> None:
    exchange = new_name()
    there = bytes((9, 9, 9, 9))
    with FqPeer(broker.fq) as peer, FqPeer(broker.fq) as relay:
        peer.bind(exchange)
        data = peer.data(Mode.PEER, there)
        relaying = relay.data(Mode.PEER, bytes((8, 8, 8, 8)))
        relaying.relay(
            Message(exchange, b"", bytes(16), b"new", b"s", (bytes((8, 8, 8, 8)),)),
            Message(exchange, b"", bytes(16), b"was there", b"s", (bytes((8, 8, 8, 8)), there)),
            Message(exchange, b"", bytes(16), b"was here", b"s", (bytes((8, 8, 8, 8)), NODE)),
            Message(exchange, b"", bytes(16), b"from nobody", b"", ()),
        )
        assert data.payloads(2) == [b"new", b"from nobody"]
        eventually(lambda: relay.figures("msgs_in", "routed"), (4, 3))


def test_the_oldest_hop_falls_off(broker: FqBroker) -> None:
    exchange = new_name()
    hops = tuple(bytes((1, 1, 1, number)) for number in range(limits.FQ_HOPS_MAX))
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange)
        data = peer.data(Mode.OLD_PEER)
        data.relay(Message(exchange, b"", bytes(16), b"x", b"s", hops))
        assert data.receive(1)[0].hops == (NODE, *hops[:-1])
