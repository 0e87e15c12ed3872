"""BlipMQ and fq on nodes that are killed: what was acknowledged is in the log, in its publisher's order, and whoever waits for
messages gets each of them, at another node if need be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from etcd_bench import needs_etcd
from node_processes import PATIENCE_S, Processes, until

from braidmq.base.errors import BraidError
from braidmq.client import blipmq, fq
from braidmq.client.sync import connect

pytestmark = needs_etcd

_SETTLE_S = 2 * PATIENCE_S
_QUEUE = "disk:public,drop,permanent"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("pushed"), protocols=("blipmq", "fq")) as running:
        yield running


def make_topic(nodes: Processes, topic: str) -> str:
    """Make a topic of one partition that all nodes have; returns its leader."""
    with connect(nodes.addresses) as client:
        client.create_topic(topic, 1)
    until(lambda: whole(nodes, topic))
    with connect(nodes.addresses) as client:
        return client.cluster.metadata(topic)[0].partitions[0].leader


def whole(nodes: Processes, topic: str) -> bool:
    with connect(nodes.addresses) as client:
        return all(part.leader and len(part.in_sync) == 3 for part in client.cluster.metadata(topic)[0].partitions)


def restart(nodes: Processes, name: str, topic: str) -> None:
    nodes.nodes[name].start()
    nodes.nodes[name].wait_ready()
    until(lambda: whole(nodes, topic))


def ports(nodes: Processes, protocol: str, first: str) -> str:
    """Where all nodes serve a protocol, with one that is asked before the others."""
    names = sorted(nodes.nodes, key=lambda name: name != first)
    return ",".join(nodes.nodes[name].ports[protocol] for name in names)


def stored(nodes: Processes, topic: str, reached: Callable[[list[int]], bool]) -> list[int]:
    """The numbers in a topic of one partition, in its order, once there are enough of them."""
    values: list[int] = []
    deadline_s = time.monotonic() + PATIENCE_S
    with connect(nodes.addresses) as client, client.consumer(topic, start="earliest") as consumer:
        while not reached(values):
            assert time.monotonic() < deadline_s, f"{len(values)} are there, the last is {values[-1:]}"
            values += [int(record.value) for record in consumer.poll(timeout_s=0.5)]
        while more := consumer.poll(timeout_s=0.5):
            values += [int(record.value) for record in more]
    return values


class Publisher:
    """Publishes numbers without a pause, in a thread of its own."""

    def __init__(self, publish: Callable[[int], None], finish: Callable[[], None]) -> None:
        self._publish = publish
        self._finish = finish
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0
        self.fault: BaseException | None = None

    def _run(self) -> None:
        try:
            # Slow enough to be several seconds in a buffer, fast enough to be in the middle of something at any moment.
            while not self._stop.wait(0.001):
                self._publish(self.count)
                self.count += 1
            self._finish()
        except BaseException as fault:
            self.fault = fault

    def wait_for_more(self, count: int = 300) -> None:
        wanted = self.count + count
        until(lambda: self.count >= wanted or self.fault is not None)
        if self.fault is not None:
            raise self.fault

    def __enter__(self) -> Publisher:
        self._thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_SETTLE_S)
        assert not self._thread.is_alive(), "the publisher does not come to its end"
        if self.fault is not None:
            raise self.fault


@pytest.mark.parametrize("times", [1, 2])
def test_acked_messages_of_blipmq_survive_their_leader_in_order(nodes: Processes, times: int) -> None:
    """Through each of the nodes that do not lead: one of them leads afterwards."""
    topic = f"blip-{times}"
    leader = make_topic(nodes, topic)
    through = [name for name in nodes.nodes if name != leader][times - 1]
    sent: list[blipmq.sync.Publication] = []
    with blipmq.sync.connect(nodes.nodes[through].ports["blipmq"], timeout_s=_SETTLE_S) as client:
        publisher = Publisher(
            lambda number: sent.append(client.send(topic, b"%d" % number, qos=1)), lambda: client.flush(_SETTLE_S)
        )
        with publisher:
            nodes.nodes[leader].kill()
            publisher.wait_for_more(1500)
    acked = set()
    for number, publication in enumerate(sent):
        try:
            publication.result(0)
            acked.add(number)
        except BraidError as error:
            assert error.retriable, error
    values = stored(nodes, topic, lambda found: acked <= set(found))
    restart(nodes, leader, topic)
    assert acked == set(range(publisher.count)), f"{publisher.count - len(acked)} were refused"
    assert values == sorted(set(values)), "a message came twice, or not in its order"


@pytest.mark.parametrize("times", [1, 2])
def test_messages_of_fq_survive_their_leader_in_order(nodes: Processes, times: int) -> None:
    """fq acknowledges nothing. A node that lives has what it was sent, so all of it gets into the log after the pause."""
    topic = f"fq-{times}"
    leader = make_topic(nodes, topic)
    through = [name for name in nodes.nodes if name != leader][times - 1]
    with fq.sync.connect(nodes.nodes[through].ports["fq"], timeout_s=_SETTLE_S) as client:
        publisher = Publisher(lambda number: client.publish(topic, b"r", b"%d" % number), lambda: client.flush(confirm=True))
        with publisher:
            nodes.nodes[leader].kill()
            publisher.wait_for_more(1500)
    values = stored(nodes, topic, lambda found: len(set(found)) == publisher.count)
    restart(nodes, leader, topic)
    assert values == list(range(publisher.count))


def test_a_durable_subscriber_goes_on_at_another_node(nodes: Processes) -> None:
    topic, first = "followed", "a"
    make_topic(nodes, topic)
    found: set[int] = set()
    with (
        blipmq.sync.connect(ports(nodes, "blipmq", first), client_id="follower", timeout_s=_SETTLE_S) as reader,
        blipmq.sync.connect(nodes.nodes["b"].ports["blipmq"], timeout_s=_SETTLE_S) as writer,
    ):
        reader.subscribe(topic, qos=1)

        def read() -> None:
            for message in reader.poll(timeout_s=0.2):
                message.ack()
                found.add(int(message.payload))

        publisher = Publisher(
            lambda number: writer.send(topic, b"%d" % number, qos=1) and None, lambda: writer.flush(_SETTLE_S)
        )
        with publisher:
            until(lambda: read() or len(found) > 100)
            nodes.nodes[first].kill()
            seen = len(found)
            until(lambda: read() or len(found) > seen + 300)
        until(lambda: read() or len(found) == publisher.count)
        assert reader.reconnects == 1
    restart(nodes, first, topic)


def test_a_permanent_queue_is_served_at_another_node(nodes: Processes) -> None:
    topic, first = "queued", "b"
    make_topic(nodes, topic)
    found: set[int] = set()
    with fq.sync.connect(nodes.nodes["c"].ports["fq"], timeout_s=_SETTLE_S) as writer:
        publisher = Publisher(lambda number: writer.publish(topic, b"r", b"%d" % number), lambda: writer.flush(confirm=True))
        reader = fq.sync.connect(ports(nodes, "fq", first), queue="lasting", queue_type=_QUEUE, timeout_s=_SETTLE_S)
        with reader:
            reader.bind(topic, flags=fq.FLAGS_PERMANENT)

            def read() -> None:
                found.update(int(message.payload) for message in reader.poll(timeout_s=0.2))

            with publisher:
                until(lambda: read() or len(found) > 100)
                nodes.nodes[first].kill()
                seen = len(found)
                until(lambda: read() or len(found) > seen + 300)
            until(lambda: read() or len(found) == publisher.count)
            assert reader.reconnects >= 1
    restart(nodes, first, topic)
