"""The fq port of `braid serve`, on both hot paths: many messages of every shape, whole and chosen among, at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from fq_peer import PATIENCE_S, FqPeer, eventually, new_name, request, stats
from running_broker import RunningBroker

FLAGS = ("--listen", "flymq://127.0.0.1:0", "--listen", "fq://127.0.0.1:0", "--durability", "os", "--default-partitions", "2")


@pytest.fixture(scope="module", params=["compiled", "pure"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    env = {"BRAID_PURE": "1"} if request.param == "pure" else {}
    broker = RunningBroker(tmp_path_factory.mktemp("fq") / "data", FLAGS, env)
    broker.start()
    try:
        yield broker.addresses["fq"]
        assert "bug in an operation" not in broker.log and "Traceback" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def test_many_publishers_and_queues(address: str) -> None:
    exchange = new_name()
    chance = random.Random(1)
    payloads = {
        number: [b"%d %d " % (number, each) + chance.randbytes(chance.choice((0, 10, 100, 5000))) for each in range(1000)]
        for number in range(3)
    }
    with FqPeer(address, kind="mem:public,backlog=-1") as whole, FqPeer(address, kind="mem:public,backlog=-1") as some:
        whole.bind(exchange)
        some.bind(exchange, b'prefix:"1" (payload_prefix("1 ") && payload_contains("9"))')
        some.bind(exchange, b"exact:2")
        reading, choosing = whole.data(), some.data()
        publishers = [FqPeer(address) for _ in payloads]

        def publish(number: int) -> None:
            writing = publishers[number].data()
            for each in range(0, 1000, 50):
                writing.publish(exchange, b"%d" % number, *payloads[number][each : each + 50])

        threads = [threading.Thread(target=publish, args=(number,)) for number in payloads]
        for thread in threads:
            thread.start()
        came = reading.payloads(3000)
        for number, sent in payloads.items():
            assert [payload for payload in came if payload.startswith(b"%d " % number)] == sent, "in the order of each publisher"
        wanted = [payload for payload in payloads[1] if b"9" in payload]
        chosen = choosing.payloads(1000 + len(wanted))
        assert [payload for payload in chosen if payload.startswith(b"1 ")] == wanted
        assert [payload for payload in chosen if payload.startswith(b"2 ")] == payloads[2]
        for thread in threads:
            thread.join(PATIENCE_S)
        expected = [(1000, 1000), (1000 + len(wanted), 0), (2000, 0)]
        for publisher, (routed, _) in zip(publishers, expected, strict=True):
            eventually(lambda publisher=publisher: publisher.figures("routed", "no_route"), (routed, 0))
            publisher.close()


def test_messages_larger_than_any_buffer(address: str) -> None:
    exchange = new_name()
    sizes = [0, 300_000, 5, 3_000_000, 1, 700_000]
    with FqPeer(address) as peer:
        peer.bind(exchange)
        data = peer.data()
        sending = threading.Thread(target=lambda: data.publish(exchange, b"r", *map(bytes, sizes)))
        sending.start()
        assert [len(payload) for payload in data.payloads(len(sizes))] == sizes
        sending.join(PATIENCE_S)


def test_http_beside_it(address: str) -> None:
    exchange = new_name()
    with FqPeer(address) as peer:
        peer.bind(exchange)
        headers = {"X-Fq-Exchange": exchange.decode(), "X-Fq-Route": "r"}
        assert b'"routed":1' in request(address, "POST", "/submit", headers, b"hello")
        assert peer.data().payloads(1) == [b"hello"]
        assert stats(address)["exchanges"][exchange.decode()]["messages"] == 1
