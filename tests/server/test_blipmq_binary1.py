"""The binary framing of the published clients: its table of answers, and messages that go from one framing to the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from blipmq_peer import SILENCE_S, BlipMQBroker, BlipMQPeer, delivered, new_name, payloads

from braidmq.base import limits
from braidmq.wire import blipmq
from braidmq.wire.blipmq.binary1 import (
    Ack,
    Auth,
    Frame,
    Hello,
    Message,
    Nack,
    Ping,
    Poll,
    Pong,
    Publish,
    Reader,
    Subscribe,
    decode,
    encode,
)

ACK_TIMEOUT_S = 0.2


class Binary1Peer:
    def __init__(self, address: str, greet: bool = True) -> None:
        self.raw = BlipMQPeer(address)
        self._reader = Reader()
        self._frames: deque[Frame] = deque()
        if greet:
            assert self.ask(Hello(), 1) == Ack()

    def __enter__(self) -> Binary1Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def send(self, message: Message, correlation: int) -> None:
        self.raw.send_bytes(encode(Frame(message, correlation)))

    def receive(self) -> Frame:
        while not self._frames:
            data = self.raw.socket.recv(1 << 20)
            assert data, "the broker closed the connection"
            self._frames.extend(decode(body) for body in self._reader.receive(data))
        return self._frames.popleft()

    def ask(self, message: Message, correlation: int) -> Message:
        self.send(message, correlation)
        answer = self.receive()
        assert answer.correlation == correlation
        return answer.message

    def subscribe(self, topic: str, qos: int = 0) -> int:
        answer = self.ask(Subscribe(topic, qos), 99)
        assert isinstance(answer, Ack) and answer.subscription > 0
        return answer.subscription

    def nothing(self, seconds: float = SILENCE_S) -> None:
        assert not self._frames
        self.raw.socket.settimeout(seconds)
        try:
            data = self.raw.socket.recv(1 << 20)
        except TimeoutError:
            return
        finally:
            self.raw.socket.settimeout(20)
        raise AssertionError(f"something came: {data!r}")


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_ack_timeout_ms=round(1000 * ACK_TIMEOUT_S), blipmq_drain_timeout_s=0.1) as running:
        yield running


@pytest.fixture
def peer(broker: BlipMQBroker) -> Iterator[Binary1Peer]:
    with Binary1Peer(broker.blipmq) as connected:
        yield connected


@pytest.fixture
def flat(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


@dataclass
class Step:
    send: Message
    answer: Message | None


@pytest.mark.parametrize(
    "steps",
    [
        [Step(Hello(), Nack(400, "HELLO already performed"))],
        [Step(Auth(b"any"), Ack()), Step(Auth(b"x"), Nack(400, "already authenticated"))],
        [Step(Ping(), Pong()), Step(Pong(), None), Step(Nack(1, "x"), None), Step(Ping(), Pong())],
        [Step(Publish("", b"x"), Nack(400, "empty topic")), Step(Publish("t", b"x", 2), Nack(400, "invalid QoS value"))],
        [Step(Subscribe(""), Nack(400, "empty topic")), Step(Subscribe("t", 2), Nack(400, "invalid QoS value"))],
        [Step(Poll(0), Nack(400, "subscription_id must be non-zero")), Step(Poll(12345), None)],
        [Step(Ack(0), Nack(400, "subscription_id must be non-zero"))],
        [Step(Ack(12345), Nack(404, "unknown subscription or delivery tag"))],
        [Step(Publish("b1/none", b"x", 0), None), Step(Publish("b1/none", b"x", 1), None), Step(Ping(), Pong())],
    ],
)
def test_a_conversation(peer: Binary1Peer, steps: list[Step]) -> None:
    for number, step in enumerate(steps, 100):
        peer.send(step.send, number)
        if step.answer is not None:
            answer = peer.receive()
            assert (answer.message, answer.correlation) == (step.answer, number)
    peer.nothing(0.05)


@pytest.mark.parametrize(
    ("message", "code"),
    [(Publish("a+b", b"x"), 400), (Subscribe("a/#/b"), 400), (Publish("$SYS/x", b""), 403), (Publish("t", bytes(2 << 20)), 400)],
)
def test_what_the_broker_refuses_is_a_nack(peer: Binary1Peer, message: Message, code: int) -> None:
    answer = peer.ask(message, 7)
    assert isinstance(answer, Nack) and answer.code == code and answer.text


def test_before_hello(broker: BlipMQBroker) -> None:
    with Binary1Peer(broker.blipmq, greet=False) as peer:
        assert peer.ask(Hello(2), 1) == Nack(426, "unsupported protocol version")
        assert peer.ask(Auth(b"x"), 2) == Nack(400, "HELLO not performed")
        assert peer.ask(Hello(), 3) == Ack()


@pytest.mark.parametrize("bad", [b"\0\0\0\x09\x0a" + bytes(8), b"\0\0\0\x08\x07" + bytes(8), b"\x02\0\0\0\x07" + bytes(8)])
def test_what_is_no_frame_ends_the_connection_without_a_word(peer: Binary1Peer, bad: bytes) -> None:
    peer.raw.send_bytes(bad)
    assert peer.raw.socket.recv(100) == b""


def test_a_poll_brings_one_message_and_nothing_brings_nothing(peer: Binary1Peer, flat: BlipMQPeer) -> None:
    topic = new_name()
    number = peer.subscribe(topic, 0)
    peer.send(Poll(number), 5)
    peer.nothing()
    for value in (b"one", b"two", b"three"):
        flat.publish(topic, value, value.decode())
    peer.nothing()
    for correlation, value in ((21, b"one"), (22, b"two")):
        assert peer.ask(Poll(number), correlation) == Publish(topic, value, 0)
    for correlation in range(30, 35):
        peer.send(Poll(number), correlation)
    assert peer.receive() == Frame(Publish(topic, b"three", 0), 30)
    peer.nothing()
    flat.publish(topic, b"four", "four")
    peer.nothing()
    assert peer.ask(Poll(number), 40) == Publish(topic, b"four", 0), "POLLs that came too early are not answered later"


def test_qos_1_has_tags_that_are_acknowledged(peer: Binary1Peer, flat: BlipMQPeer) -> None:
    topic = new_name()
    number = peer.subscribe(topic, 1)
    for value in (b"a", b"b", b"c"):
        flat.publish(topic, value, value.decode())
    for correlation in (50, 51):
        peer.send(Poll(number), correlation)
    first, second = peer.receive(), peer.receive()
    assert (first, second) == (Frame(Publish(topic, b"a", 1), 1), Frame(Publish(topic, b"b", 1), 2))
    peer.send(Ack(number), 1)
    assert peer.ask(Ack(number), 1) == Nack(404, "unknown subscription or delivery tag")
    peer.nothing(1.5 * ACK_TIMEOUT_S)
    # What is overdue comes before what is new.
    for correlation in (60, 61):
        peer.send(Poll(number), correlation)
    again, third = peer.receive(), peer.receive()
    assert (again.message, third.message) == (Publish(topic, b"b", 1), Publish(topic, b"c", 1))
    assert again.correlation != second.correlation
    for frame in (again, third):
        peer.send(Ack(number), frame.correlation)
    peer.send(Poll(number), 62)
    peer.nothing()


def test_a_subscription_belongs_to_its_connection(broker: BlipMQBroker, peer: Binary1Peer, flat: BlipMQPeer) -> None:
    topic = new_name()
    number = peer.subscribe(topic, 1)
    flat.publish(topic, b"x", "m")
    with Binary1Peer(broker.blipmq) as thief:
        thief.send(Poll(number), 3)
        thief.nothing()
        assert thief.ask(Ack(number), 1) == Nack(404, "unknown subscription or delivery tag")
    peer.send(Poll(number), 4)
    assert peer.receive().message == Publish(topic, b"x", 1)


def test_messages_go_from_one_framing_to_the_other(peer: Binary1Peer, flat: BlipMQPeer) -> None:
    topic = new_name("both")
    flat.subscribe("both/#", 1)
    peer.send(Publish(topic, b"zero", 0), 70)
    peer.send(Publish(topic, b"one", 1), 71)
    zero, one = flat.receive_many(2)
    assert payloads([zero, one]) == [b"zero", b"one"]
    own = delivered(one).message_id or ""
    assert own.startswith("b1-") and own.endswith("-71") and delivered(one).qos == 1
    flat.ack(one)
    number = peer.subscribe("both/+", 1)
    flat.publish(topic, b"back", "m", x_user="lost here")
    flat.ack(flat.receive())
    peer.send(Poll(number), 72)
    assert peer.receive().message == Publish(topic, b"back", 1)
    peer.send(Ack(number), 1)


def test_many_polls_at_once_are_answered_together(peer: Binary1Peer, flat: BlipMQPeer) -> None:
    topic = new_name()
    number = peer.subscribe(topic, 1)
    count = 1500
    for value in range(count):
        flat.send(blipmq.Publish(topic, b"%d" % value, 1, 0, f"m{value}"))
    flat.receive_many(count)
    got: list[bytes] = []
    tag = 1
    while len(got) < count:
        polls = min(500, count - len(got))
        peer.raw.send_bytes(b"".join(encode(Frame(Poll(number), 1000 + index)) for index in range(polls)))
        for _ in range(polls):
            frame = peer.receive()
            assert isinstance(frame.message, Publish) and frame.correlation == tag
            got.append(frame.message.payload)
            tag += 1
        peer.raw.send_bytes(b"".join(encode(Frame(Ack(number), tag - 1 - index)) for index in range(polls)))
    assert got == [b"%d" % value for value in range(count)]


def test_too_many_errors_end_the_connection(peer: Binary1Peer) -> None:
    peer.raw.send_bytes(encode(Frame(Ack(0), 1)) * (3 * limits.BLIPMQ_ERRORS_PER_S_MAX))
    received = b""
    while piece := peer.raw.socket.recv(1 << 20):
        received += piece
    answers = Reader().receive(received)
    assert limits.BLIPMQ_ERRORS_PER_S_MAX < len(answers) < 3 * limits.BLIPMQ_ERRORS_PER_S_MAX
