"""Durable clients that come, go, refuse, forget and disappear, at random: every message is acknowledged or a dead letter in the
end.

What each client acknowledged is noted by the client itself. When everybody has drained what is left, nothing may be under way,
nothing may wait, and for every client each stored message has been acknowledged at least once or lies among the dead letters.
"""

from __future__ import annotations

import random
import socket

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered
from flymq_peer import until

from braidmq.server.blipmq_queue import Queue
from braidmq.server.blipmq_service import service_of
from braidmq.wire.blipmq import Message

TOPICS = ("chaos/a", "chaos/b", "chaos/a/deep")
FILTERS = {"all": "chaos/#", "one level": "chaos/+", "exact": "chaos/a", "shared": "$share/workers/chaos/#"}
STEPS = 220


class Client:
    def __init__(self, broker: BlipMQBroker, name: str, chance: random.Random) -> None:
        self._broker = broker
        self.name = name
        self.text = FILTERS[name]
        self._chance = chance
        self._peer: BlipMQPeer | None = None
        self.acked: set[bytes] = set()

    def step(self) -> None:
        """Do something that clients do."""
        if self._peer is None:
            self._connect()
            return
        match self._chance.randrange(12):
            case 0:
                self._peer.reset()
                self._peer = None
            case 1:
                self._peer.close()
                self._peer = None
            case 2:
                # Another connection takes over; the older one is left to itself.
                left = self._peer
                self._connect()
                left.close()
            case 3:
                self._peer.subscribe_quietly(self.text, 1, self.name)
            case _:
                self.take(self._chance)

    def _connect(self) -> None:
        self._peer = BlipMQPeer(self._broker.blipmq)
        self._peer.subscribe_quietly(self.text, 1, self.name)

    def take(self, chance: random.Random | None) -> None:
        """Take what is there; acknowledge it, or with `chance` refuse or forget some of it."""
        if self._peer is None:
            self._connect()
        assert self._peer is not None
        self._peer.socket.settimeout(0.01)
        try:
            self._peer.read()
        except TimeoutError:
            return
        finally:
            self._peer.socket.settimeout(20)
        for envelope in self._peer.received():
            if not isinstance(envelope.message, Message):
                continue
            lot = 1.0 if chance is None else chance.random()
            if lot < 0.05:
                self._peer.ack(envelope, 7)
            elif lot < 0.08:
                self._peer.ack(envelope, 150)
            elif lot > 0.15:
                self._peer.ack(envelope)
                self.acked.add(delivered(envelope).payload)

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_whatever_clients_do(seed: int) -> None:
    chance = random.Random(seed)
    # An Ack that comes later than twice this counts for whoever has its id by then, and a busy machine stands still for a while.
    settings = {"blipmq_ack_timeout_ms": 250, "blipmq_max_attempts": 3, "blipmq_max_inflight": 20, "blipmq_drain_timeout_s": 0.1}
    with BlipMQBroker(**settings) as broker, broker.peer() as publisher:
        clients = [Client(broker, name, chance) for name in FILTERS]
        for client in clients:
            client.step()
        published: dict[bytes, str] = {}
        for _ in range(STEPS):
            if chance.random() < 0.5:
                topic = chance.choice(TOPICS)
                payload = b"%d" % len(published)
                publisher.publish(topic, payload, f"m{len(published) % 7}")
                published[payload] = topic
            chance.choice(clients).step()

        def drained() -> bool:
            for client in clients:
                client.take(None)
            return broker.run(lambda: _left(broker)) == 0

        until(drained, "everything is settled", 40)
        letters = set()
        with broker.peer() as reader:
            reader.subscribe("$DLQ/#", 0)
            for _ in range(broker.run(lambda: _letters(broker))):
                letters.add(delivered(reader.receive()).payload)
        for client in clients:
            client.close()
            wanted = {payload for payload, topic in published.items() if _matches(client.name, topic)}
            assert wanted - client.acked <= letters, client.name
            assert client.acked <= wanted, client.name
        assert len(published) > 50 and letters


async def _letters(broker: BlipMQBroker) -> int:
    """How many dead letters there are."""
    engine = broker.server.broker
    dead = [topic for topic in engine.topics.all() if topic.name.endswith(engine.settings.dlq_suffix)]
    return sum(engine.log_of(topic, n).high_watermark for topic in dead for n in range(topic.partitions))


def _matches(name: str, topic: str) -> bool:
    return name in ("all", "shared") or (name == "one level" and topic.count("/") == 1) or topic == FILTERS[name]


async def _left(broker: BlipMQBroker) -> int:
    """What is queued or under way, of everybody."""
    engine = broker.server.broker
    durables = service_of(engine, broker.server.config).durables
    left = 0
    for name, text in FILTERS.items():
        subscriber = durables.find(text if text.startswith("$") else name)
        assert subscriber is not None and isinstance(subscriber.queue, Queue)
        queue = subscriber.queue
        queue.catch_up()
        left += queue.pending.count + queue.inflight.count
        if not queue.pending and not queue.inflight.count:
            assert all(offset == feed.tail for feed, offset in queue.positions())
    return left


def test_the_sockets_of_this_test_are_plain() -> None:
    """`reset` has to be seen as a lost connection, or half of the chaos would not happen."""
    with BlipMQBroker() as broker:
        peer = broker.peer()
        peer.subscribe("t", 1)
        assert peer.socket.type == socket.SOCK_STREAM
        peer.reset()
        until(lambda: not broker.server.listeners[0].sessions, "the broker notices")
