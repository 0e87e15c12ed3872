"""SIGKILL in the middle of QoS 1: whatever a publisher was told is stored reaches every durable subscriber, perhaps twice."""

from __future__ import annotations

import random
import threading
import time
from collections import deque

import pytest
from blipmq_peer import BlipMQPeer, delivered
from running_broker import StartBroker

from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, Envelope, Message, Publish, Subscribe

_ROUNDS = 2
_AHEAD = 40


class Publisher(threading.Thread):
    """Publishes numbers, some ahead of the Acks, until the broker is gone."""

    def __init__(self, address: str, name: str, first: int) -> None:
        super().__init__()
        self._address = address
        self._topic = f"crash/{name}"
        self._first = first
        self.acked: list[bytes] = []

    def run(self) -> None:
        waiting: deque[bytes] = deque()
        number = self._first
        try:
            with BlipMQPeer(self._address) as peer:
                while True:
                    burst = []
                    for _ in range(10):
                        payload = b"%s:%d" % (self._topic.encode(), number)
                        burst.append(blipmq.encode(Envelope(Publish(self._topic, payload, 1, 0, payload.decode()), number)))
                        waiting.append(payload)
                        number += 1
                    peer.send_bytes(b"".join(burst))
                    while len(waiting) > _AHEAD:
                        answer = peer.receive().message
                        assert isinstance(answer, Ack), answer
                        assert answer.message_id.encode() == waiting[0], "Acks come in order"
                        self.acked.append(waiting.popleft())
        except (OSError, AssertionError) as fault:
            if isinstance(fault, AssertionError) and "closed" not in str(fault):
                raise


class Subscriber(threading.Thread):
    """Takes what comes for a client_id, and acknowledges most of it, until the broker is gone or it is told to stop."""

    def __init__(self, address: str, client_id: str, seed: int, patience_s: float = 20.0) -> None:
        super().__init__()
        self._address = address
        self._client_id = client_id
        self._chance = random.Random(seed)
        self._patience_s = patience_s
        self.taken: list[bytes] = []

    def run(self) -> None:
        try:
            with BlipMQPeer(self._address, timeout_s=self._patience_s) as peer:
                peer.send(Subscribe("crash/#", 1, self._client_id), 1)
                while True:
                    envelope = peer.receive()
                    if isinstance(envelope.message, Message):
                        self.taken.append(delivered(envelope).payload)
                        if self._patience_s < 10 or self._chance.random() < 0.98:
                            peer.ack(envelope)
        except (OSError, AssertionError):
            return


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_nothing_that_was_acknowledged_is_lost(start_broker: StartBroker, durability: str) -> None:
    flags = ("--listen", "blipmq://127.0.0.1:0", "--durability", durability, "--blipmq-ack-timeout", "1s")
    broker = start_broker(*flags)
    chance = random.Random(7)
    acked: dict[str, list[bytes]] = {"one": [], "two": []}
    taken: dict[str, list[bytes]] = {"early": [], "late": []}
    for round_number in range(_ROUNDS):
        address = broker.addresses["blipmq"]
        for client_id in taken:
            with BlipMQPeer(address) as peer:
                assert peer.ask(Subscribe("crash/#", 1, client_id)).message == Ack("crash/#")
        publishers = {name: Publisher(address, name, 1_000_000 * round_number) for name in acked}
        # One of them is connected all the time, the other one comes at the end.
        subscriber = Subscriber(address, "early", round_number)
        subscriber.start()
        for publisher in publishers.values():
            publisher.start()
        time.sleep(chance.uniform(0.2, 0.5))
        broker.kill()
        for name, publisher in publishers.items():
            publisher.join(30)
            acked[name] += publisher.acked
        subscriber.join(30)
        taken["early"] += subscriber.taken
        broker.start()
    address = broker.addresses["blipmq"]
    for client_id, seen in taken.items():
        last = Subscriber(address, client_id, 0, patience_s=1.5)
        last.start()
        last.join(60)
        seen += last.taken
    broker.stop()
    assert all(len(values) > 200 for values in acked.values()), "the test is about something"
    for client_id, seen in taken.items():
        for values in acked.values():
            missing = set(values) - set(seen)
            assert not missing, f"{client_id} misses {len(missing)} of {len(values)}, such as {sorted(missing)[:3]}"
    for topic in acked:
        # Only one connection ever read for this one, so even the order is known, of each connection that published.
        mine = [int(value.rpartition(b":")[2]) for value in taken["late"] if value.startswith(b"crash/%s:" % topic.encode())]
        for round_number in range(_ROUNDS):
            numbers = [number for number in mine if number // 1_000_000 == round_number]
            assert numbers == sorted(set(numbers)), "in order, and once: nothing of it was ever under way before"
