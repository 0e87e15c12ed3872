"""Brokers that are linked: every consumer sees each message once, whichever broker it entered and however it came in."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fq_peer import LOCAL, FqBroker, FqPeer, closed, eventually, request, stats
from held_port import HeldPort
from test_server_tls import Authority

from braidmq.base.config_links import Upstream
from braidmq.wire.fq.commands import Bound, CommandReader, Heartbeat, encode_reply
from braidmq.wire.fq.messages import Message
from braidmq.wire.fq.modes import Mode, read_opening

NODE_A, NODE_B, NODE_C = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), bytes((10, 0, 0, 3))


def upstream(port: int, exchange: str = "ex", **more: object) -> Upstream:
    return Upstream("127.0.0.1", port, exchange, **{"program": "prefix:", "user": "link"} | more)  # type: ignore[arg-type]


def linked(broker: FqBroker, count: int = 1) -> None:
    """Wait until so many peers have bound what they want here."""

    def peers() -> int:
        queues = broker.server.broker.fq.all()
        return sum(1 for queue in queues if any(b.peer for b in queue.bindings.values()) and queue.ready())

    eventually(peers, count)


@pytest.fixture
def both_ways() -> Iterator[tuple[FqBroker, FqBroker]]:
    ports = HeldPort(), HeldPort()
    with (
        FqBroker(port=ports[0].number, fq_node_id="10.0.0.1", fq_upstreams=(upstream(ports[1].number),)) as first,
        FqBroker(port=ports[1].number, fq_node_id="10.0.0.2", fq_upstreams=(upstream(ports[0].number),)) as second,
    ):
        linked(first)
        linked(second)
        yield first, second


def test_two_brokers_linked_both_ways_deliver_everything_once(both_ways: tuple[FqBroker, FqBroker]) -> None:
    first, second = both_ways
    with FqPeer(first.fq) as here, FqPeer(second.fq) as there:
        here.bind(b"ex")
        there.bind(b"ex")
        at_home, abroad = here.data(), there.data()
        at_home.publish(b"ex", b"r", b"from A")
        assert at_home.receive(1) == [Message(b"ex", b"r", bytes(16), b"from A", b"alice", (NODE_A, LOCAL))]
        assert abroad.receive(1) == [Message(b"ex", b"r", bytes(16), b"from A", b"alice", (NODE_B, NODE_A, LOCAL))]
        abroad.publish(b"ex", b"r", b"from B")
        assert abroad.receive(1)[0].hops == (NODE_B, LOCAL)
        assert at_home.receive(1)[0].hops == (NODE_A, NODE_B, LOCAL)
        request(first.fq, "POST", "/submit", {"X-Fq-Exchange": "ex", "X-Fq-Route": "w"}, b"by HTTP")
        assert at_home.receive(1)[0].hops == (NODE_A, LOCAL)
        assert abroad.receive(1)[0].hops == (NODE_B, NODE_A, LOCAL)
        payloads = [b"%d" % number for number in range(500)]
        at_home.publish(b"ex", b"r", *payloads)
        assert abroad.payloads(500) == payloads and at_home.payloads(500) == payloads
        # Had anything come twice, it would stand before this.
        at_home.publish(b"ex", b"r", b"end")
        assert abroad.payloads(1) == at_home.payloads(1) == [b"end"]
        shown = [client["mode"] for queue in stats(first.fq)["queues"].values() for client in queue["clients"]]
        assert sorted(shown) == ["client", "peer"]


def test_records_of_other_protocols_travel_too(both_ways: tuple[FqBroker, FqBroker]) -> None:
    first, second = both_ways
    with FqPeer(second.fq) as there:
        there.bind(b"ex")
        data = there.data()
        broker = first.server.broker

        async def produce() -> None:
            topic = await broker.auto_create("ex")
            await broker.append(topic, 0, b"key", b"value")

        first.run(produce)
        assert data.receive(1) == [Message(b"ex", b"key", bytes(16), b"value", b"anonymous", (NODE_B, NODE_A))]


def test_a_ring_of_three() -> None:
    ports = [HeldPort() for _ in range(3)]
    brokers = [
        FqBroker(port=ports[number].number, fq_node_id=f"10.0.0.{number + 1}", fq_upstreams=(upstream(ports[number - 1].number),))
        for number in range(3)
    ]
    with brokers[0], brokers[1], brokers[2], ExitStack() as open_peers:
        for broker in brokers:
            linked(broker)
        peers = [open_peers.enter_context(FqPeer(broker.fq)) for broker in brokers]
        sockets = []
        for peer in peers:
            peer.bind(b"ex")
            sockets.append(peer.data())
        for number in range(3):
            sockets[number].publish(b"ex", b"", b"%d" % number)
        for data in sockets:
            assert sorted(data.payloads(3)) == [b"0", b"1", b"2"]
        sockets[0].publish(b"ex", b"", b"end")
        assert [data.receive(1)[0].hops[:-1] for data in sockets] == [(NODE_A,), (NODE_B, NODE_A), (NODE_C, NODE_B, NODE_A)]


def test_a_link_comes_up_again_and_a_permanent_queue_has_kept_what_was_missed() -> None:
    held = HeldPort()
    link = upstream(held.number, queue="link-queue", queue_type="disk:public,permanent,drop", permanent=True)
    from braidmq.base.disk_faulty import FaultyDisk

    disk = FaultyDisk()
    with FqBroker(fq_node_id="10.0.0.2", fq_upstreams=(link,)) as below, FqPeer(below.fq) as peer:
        peer.bind(b"ex")
        data = peer.data()
        for life in range(2):
            with FqBroker(disk, port=held.number, fq_node_id="10.0.0.1") as above, FqPeer(above.fq) as publisher:
                linked(above)
                publisher.data().publish(b"ex", b"", b"life %d" % life)
                assert data.payloads(1) == [b"life %d" % life]
    with FqBroker(disk, port=held.number, fq_node_id="10.0.0.1") as above, FqPeer(above.fq) as publisher:
        publisher.data().publish(b"ex", b"", b"meanwhile")
        eventually(lambda: publisher.figures("routed"), (1,))
        with FqBroker(fq_node_id="10.0.0.2", fq_upstreams=(link,)) as below:
            below.run(lambda: below.server.broker.create_topic("ex"))
            linked(above)
            log = below.server.broker.partition("ex", 0)
            eventually(lambda: log.high_watermark, 1)


def test_rows_of_the_same_place_share_connections_and_a_refused_bind_is_said(caplog: pytest.LogCaptureFixture) -> None:
    held = HeldPort()
    port = held.number
    rows = (upstream(port, "one"), upstream(port, "two", program=""), upstream(port, "three", program="nonsense"))
    with FqBroker(port=port, fq_node_id="10.0.0.1") as above, FqBroker(fq_node_id="10.0.0.2", fq_upstreams=rows) as below:
        eventually(lambda: [len(queue.bindings) for queue in above.server.broker.fq.all()], [2])
        linked(above)
        with FqPeer(below.fq) as peer, FqPeer(above.fq) as publisher:
            peer.bind(b"one")
            peer.bind(b"two")
            data, writing = peer.data(), publisher.data()
            writing.publish(b"one", b"", b"1")
            writing.publish(b"two", b"", b"2")
            assert sorted(data.payloads(2)) == [b"1", b"2"]
        eventually(lambda: "is refused" in caplog.text, True)


def test_a_link_to_a_broker_that_refuses_or_says_nonsense_is_tried_again() -> None:
    came = threading.Semaphore(0)
    answers = [b"", b"\xee\xee\x00\x02no", b"nonsense", encode_reply(Heartbeat())]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                raw, _ = server.accept()
                with raw:
                    raw.recv(1000)
                    raw.sendall(answer)
                came.release()

        thread = threading.Thread(target=serve)
        thread.start()
        with FqBroker(fq_upstreams=(upstream(server.getsockname()[1]),)) as broker:
            for _ in answers:
                assert came.acquire(timeout=20)
            thread.join()
            with FqPeer(broker.fq) as peer:
                assert peer.status() == {"dropped_in": 0}


def test_what_a_link_says_first() -> None:
    """The bytes, as another implementation reads them: commands, then the preamble of a peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        rows = (upstream(server.getsockname()[1], "ex", program="prefix:a", queue="q", permanent=True, password="p"),)
        with FqBroker(fq_node_id="10.0.0.2", fq_upstreams=rows):
            command, _ = server.accept()
            with command:
                reader = CommandReader()
                raw = command.recv(1000)
                assert read_opening(raw) is not None
                (auth,) = reader.receive(raw[4:])
                assert (auth.user, auth.queue, auth.password) == (b"link", b"q\0mem:drop,private", b"p")  # type: ignore[union-attr]
                command.sendall(b"\xaa\x00\x00\x03key" + encode_reply(Heartbeat()))
                data, _ = server.accept()
                with data:
                    opening = read_opening(data.recv(1000))
                    assert opening is not None
                    assert (opening.mode, opening.key, opening.node_id) == (Mode.PEER, b"key", NODE_B)
                    commands = reader.receive(command.recv(1000))
                    bind = commands[-1]
                    assert (bind.flags, bind.exchange, bind.program) == (0x0111, b"ex", b"prefix:a")  # type: ignore[union-attr]
                    command.sendall(encode_reply(Bound(7)))
                closed(command)


def test_a_link_behind_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    with FqBroker(tls=authority.issue("localhost"), fq_node_id="10.0.0.1") as above:
        port = int(above.fqs.rpartition(":")[2])
        link = Upstream("localhost", port, "ex", tls=True)
        with (
            FqBroker(fq_node_id="10.0.0.2", fq_upstreams=(link,), tls_ca_file=str(authority.file)) as below,
            FqPeer(below.fq) as peer,
            FqPeer(above.fq) as publisher,
        ):
            linked(above)
            peer.bind(b"ex")
            publisher.data().publish(b"ex", b"", b"secret")
            assert peer.data().payloads(1) == [b"secret"]


def test_a_broker_stops_while_its_links_are_being_refused() -> None:
    """Links that try again all the time must not miss that they are to end, whatever they are doing at that moment."""
    held = HeldPort()
    links = tuple(upstream(held.number, user=f"link-{number}") for number in range(100))
    for _ in range(5):
        with FqBroker(fq_upstreams=links) as broker, FqPeer(broker.fq) as peer:
            assert peer.status() == {"dropped_in": 0}
