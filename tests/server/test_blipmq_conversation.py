"""What each message leads to, as tables of steps over a real socket: what a client sends, and exactly what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads

from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, AnyMessage, Envelope, ErrorMessage, Message, Ping, Pong, Publish, Subscribe, Unsubscribe

TOO_LONG = "x" * 256
LONGEST = "\u20ac" * 255


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker() as running:
        yield running


@pytest.fixture
def peer(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


@dataclass
class Step:
    """A frame, and what answers it: None for nothing, a number for an Error with that code."""

    send: AnyMessage
    answer: AnyMessage | int | None
    meta: dict[str, str] = field(default_factory=dict)
    subject: str | None = None
    """The metadata `message_id` of the Error."""


CONVERSATIONS: dict[str, list[Step]] = {
    "ping and pong": [Step(Ping(1234567), Pong(1234567)), Step(Ping(0), Pong(0))],
    "what needs no answer": [
        Step(Pong(1), None), Step(ErrorMessage(7, "oh"), None), Step(Ack("unknown"), None), Step(Ack("unknown", 200), None),
        Step(Publish("c/none", b"x"), None), Step(Ping(1), Pong(1)),
    ],
    "subscribe, again, and no more": [
        Step(Subscribe("c/sub"), Ack("c/sub")), Step(Subscribe("c/sub", 1), Ack("c/sub")),
        Step(Unsubscribe("c/sub"), Ack("c/sub")), Step(Unsubscribe("c/sub"), Ack("c/sub", 2)),
        Step(Unsubscribe("c/never"), Ack("c/never", 2)),
    ],
    "an empty client_id is none": [
        Step(Subscribe("c/empty", 1, ""), Ack("c/empty")), Step(Unsubscribe("c/empty"), Ack("c/empty")),
    ],
    "filters that are none": [
        *(
            Step(Subscribe(text), 1, subject=text)
            for text in ("a/#/b", "a/b#", "+a", "", "a\nb", TOO_LONG, "$share/g", "$share//a", "/".join("l" * 129))
        ),
        Step(Unsubscribe("a/#/b"), 1, subject="a/#/b"),
        Step(Subscribe("/".join("l" * 127 + "+")), Ack("/".join("l" * 127 + "+"))),
    ],
    "topics that are none": [
        Step(Publish("", b"x", 1, 0, "m"), 1, subject="m"), Step(Publish("a/+", b"x", 1, 0, "m"), 1, subject="m"),
        *(Step(Publish(topic, b"x"), 1) for topic in ("a#b", "a\rb", "a\0b", TOO_LONG, "..", "__mine", "a\x07")),
        Step(Publish(LONGEST, b"x", 1, 0, "long"), Ack("long")),
        Step(Publish("/a//", b"x", 1, 0, "levels"), Ack("levels")),
    ],
    "topics of the broker": [
        Step(Publish("$SYS/x", b"x", 1, 0, "m"), 6, subject="m"),
        Step(Publish("$DLQ/a", b"x"), 6), Step(Publish("$anything", b"x"), 6),
    ],
    "a quality of service that is none": [
        Step(Publish("c/q", b"x", 2, 0, "m"), 8, subject="m"), Step(Publish("c/q", b"x", -1), 8),
        Step(Subscribe("c/q", 2), 8, subject="c/q"),
        Step(Publish("c/q", b"x", 1), 8), Step(Publish("c/q", b"x", 1, 0, ""), 8, subject=""),
    ],
    "ids that are too long": [
        Step(Publish("c/id", b"x", 1, 0, TOO_LONG), 8, subject=TOO_LONG), Step(Subscribe("c/id", 1, TOO_LONG), 8, subject="c/id"),
        Step(Publish("c/id", b"x", 1, 0, LONGEST), Ack(LONGEST)),
    ],
    "a message from a client": [Step(Message("c/m", b"x", "m"), 8), Step(Ping(9), Pong(9))],
    "QoS 1": [
        Step(Publish("c/qos1", b"x", 1, 0, "one"), Ack("one")), Step(Publish("c/qos1", b"", 1, 30_000, "two"), Ack("two")),
        Step(Publish("c/qos1", b"x", 1, 2**64 - 1, "for ever"), Ack("for ever")),
    ],
    "options that are wrong": [
        Step(Ping(1), 8, {"keepalive_s": "0"}), Step(Ping(1), 8, {"keepalive_s": "3601"}), Step(Ping(1), 8, {"keepalive_s": "ten"}),
        Step(Ping(1), Pong(1), {"keepalive_s": "3600"}),
        Step(Subscribe("c/o", 1, "options"), 8, {"durable_expiry_s": "-1"}, "c/o"),
        Step(Subscribe("c/o"), 8, {"filter": "size >"}, "c/o"),
        Step(Subscribe("c/o"), Ack("c/o"), {"accept_compression": "zip, gzip"}),
        Step(Subscribe("c/o", 1, "$share/g/t"), 8, subject="c/o"),
        Step(Publish("c/o", b"x"), 8, {"compression": "zip"}), Step(Publish("c/o", b"x"), 8, {"compression": "gzip"}),
        Step(Ping(1), Pong(1), {"no_such_option": "1"}),
    ],
    "keys where nobody asks": [
        Step(Ping(3), Pong(3), {"api_key": "anything"}), Step(Publish("$SYS/auth", b"key", 1, 0, "login"), Ack("login")),
        Step(Publish("$SYS/auth", b"key"), None),
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation(peer: BlipMQPeer, name: str) -> None:
    for number, step in enumerate(CONVERSATIONS[name], 100):
        peer.send(step.send, number, **step.meta)
        if step.answer is None:
            continue
        answer = peer.receive()
        assert answer.sequence == number, "an answer repeats the sequence number"
        if isinstance(step.answer, int):
            assert isinstance(answer.message, ErrorMessage), (step, answer)
            assert answer.message.error_code == step.answer, (step, answer)
            assert answer.message.message and answer.message.details
            assert answer.meta("message_id") == step.subject, (step, answer)
        else:
            assert answer.message == step.answer, step
            assert not answer.metadata
    peer.nothing()


def test_answers_leave_in_the_order_of_their_requests(peer: BlipMQPeer) -> None:
    topic = new_name()
    requests: list[AnyMessage] = []
    for number in range(60):
        requests += [Publish(topic, b"x", 1, 0, f"m{number}"), Ping(number), Publish("a+", b""), Subscribe(topic, number % 2)]
        requests += [Publish(topic, b"with metadata", 1, 0, f"n{number}"), Unsubscribe(topic)]
    frames = [
        blipmq.encode(Envelope(request, number, 0, (("x-a", "b"),) if number % 6 == 4 else ()))
        for number, request in enumerate(requests, 1)
    ]
    peer.send_bytes(b"".join(frames))
    answers: list[Envelope] = []
    while len(answers) < len(requests):
        envelope = peer.receive()
        if not isinstance(envelope.message, Message):
            answers.append(envelope)
    assert [answer.sequence for answer in answers] == list(range(1, len(requests) + 1))


def test_a_delivery_says_what_was_published(broker: BlipMQBroker, peer: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    with broker.peer() as other:
        other.publish(topic, b"zero")
        other.publish(topic, b"one", "id-1")
        other.publish(topic, b"", "\u00fcn\u00efcode", x_tag="value", x_other="")
        other.send(Publish(topic, b"zero with id", 0, 0, "id-0"))
    zero, one, meta, named = peer.receive_many(4)
    assert (zero.message, zero.metadata) == (Message(topic, b"zero", None, delivered(zero).timestamp, 0), ())
    assert (one.message, one.metadata) == (Message(topic, b"one", "id-1", delivered(one).timestamp, 1), ())
    assert delivered(meta).message_id == "\u00fcn\u00efcode" and meta.metadata == (("x-tag", "value"), ("x-other", ""))
    assert delivered(named).message_id == "id-0" and delivered(named).qos == 0
    sequences = [envelope.sequence for envelope in (zero, one, meta, named)]
    assert sequences == list(range(zero.sequence, zero.sequence + 4)) and zero.sequence > 0
    assert all(envelope.timestamp == delivered(envelope).timestamp > 1_600_000_000 for envelope in (zero, one, meta, named))


@pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_effective_quality_is_the_lower_one(broker: BlipMQBroker, peer: BlipMQPeer, published: int, subscribed: int) -> None:
    topic = new_name()
    peer.subscribe(topic, subscribed)
    with broker.peer() as other:
        other.publish(topic, b"x", "m" if published else "")
        assert delivered(peer.receive()).qos == min(published, subscribed)


def test_every_subscriber_gets_the_same_bytes(broker: BlipMQBroker) -> None:
    topic = new_name()
    peers = [broker.peer() for _ in range(10)]
    try:
        for peer in peers:
            peer.subscribe(topic, 1)
        with broker.peer() as publisher:
            for number in range(50):
                publisher.publish(topic, b"%d" % number, f"m{number}")
        first, *others = [peer.receive_many(50) for peer in peers]
        assert payloads(first) == [b"%d" % number for number in range(50)]
        assert all(other == first for other in others), "sequence numbers are the broker's, not a receiver's"
    finally:
        for peer in peers:
            peer.close()


def test_a_client_receives_what_it_publishes(peer: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic)
    peer.send(Publish(topic, b"to myself", 1, 0, "m"), 5)
    first, second = peer.receive_many(2)
    assert {type(first.message), type(second.message)} == {Ack, Message}


def test_overlapping_filters_give_one_delivery_at_the_highest_quality(broker: BlipMQBroker, peer: BlipMQPeer) -> None:
    topic = new_name("over")
    for text, qos in (("over/#", 0), (topic, 1), ("over/+", 0)):
        peer.subscribe(text, qos)
    with broker.peer() as publisher:
        publisher.publish(topic, b"once", "m1")
        assert delivered(peer.receive()).qos == 1
        peer.ack("m1")
        assert peer.unsubscribe(topic) == 0
        publisher.publish(topic, b"lower", "m2")
        assert delivered(peer.receive()).qos == 0
        peer.subscribe("over/#", 1)
        publisher.publish(topic, b"higher", "m3")
        assert delivered(peer.receive()).qos == 1
    peer.nothing()


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("sensor/+/temperature", ["sensor/1/temperature", "sensor//temperature"], ["sensor/temperature", "sensor/1/2/temperature"]),
        ("logs/#", ["logs", "logs/a", "logs/a/b"], ["log", "logsx"]),
        ("w/+/+", ["w//a", "w/a/"], ["w/a", "w/a/b/c"]),
    ],
)
def test_patterns_match_topics_that_are_there_and_topics_that_come(
    broker: BlipMQBroker, text: str, matching: list[str], others: list[str]
) -> None:
    prefix = new_name("pat")
    with broker.peer() as early, broker.peer() as late, broker.peer() as publisher:
        early.subscribe(f"{prefix}/{text}", 1)
        for number, topic in enumerate([*others, *matching]):
            publisher.publish(f"{prefix}/{topic}", topic.encode(), f"a{number}")
        assert payloads(early.receive_many(len(matching))) == [topic.encode() for topic in matching]
        late.subscribe(f"{prefix}/{text}")
        for number, topic in enumerate([*others, *matching]):
            publisher.publish(f"{prefix}/{topic}", b"again " + topic.encode(), f"b{number}")
        for peer in (early, late):
            assert payloads(peer.receive_many(len(matching))) == [b"again " + topic.encode() for topic in matching]
            peer.nothing(0.05)


def test_the_first_message_of_a_topic_reaches_who_waited_for_it(broker: BlipMQBroker, peer: BlipMQPeer) -> None:
    topic = new_name("fresh")
    peer.subscribe(topic, 1)
    with broker.peer() as publisher:
        publisher.publish(topic, b"first", "m")
        assert payloads([peer.receive()]) == [b"first"]


@pytest.mark.parametrize(("qos", "client_id"), [(0, None), (1, None), (1, "deletes")])
def test_a_topic_that_is_deleted_and_made_again_is_a_new_one(
    broker: BlipMQBroker, peer: BlipMQPeer, qos: int, client_id: str | None
) -> None:
    topic = new_name("gone")
    peer.subscribe(topic, qos, client_id)
    peer.subscribe("gone/#", 0, client_id)
    with broker.peer() as publisher:
        publisher.publish(topic, b"before", "m0")
        assert payloads([peer.receive()]) == [b"before"]
        broker.run(lambda: broker.server.broker.delete_topic(topic))
        publisher.publish(topic, b"after", "m1")
        assert payloads([peer.receive()]) == [b"after"]
        peer.ack("m0")
        peer.ack("m1")
    assert peer.unsubscribe(topic, client_id) == 0
    assert peer.unsubscribe("gone/#", client_id) == 0


def test_after_unsubscribe_nothing_comes(broker: BlipMQBroker, peer: BlipMQPeer) -> None:
    topic = new_name()
    with broker.peer() as publisher:
        publisher.publish(topic, b"before anybody", "m0")
        peer.subscribe(topic, 1)
        publisher.publish(topic, b"x", "m1")
        assert payloads([peer.receive()]) == [b"x"]
        assert peer.unsubscribe(topic) == 0
        publisher.publish(topic, b"y", "m2")
        peer.nothing()
        peer.ack("m1")
        peer.subscribe(topic, 1)
        publisher.publish(topic, b"z", "m3")
        assert payloads([peer.receive()]) == [b"z"]


@pytest.mark.parametrize("split", [1, 3, 50, 1000])
def test_frames_arrive_in_any_pieces(broker: BlipMQBroker, peer: BlipMQPeer, split: int) -> None:
    topic = new_name()
    frames = [blipmq.encode(Envelope(Subscribe(topic, 1), 1))]
    frames += [blipmq.encode(Envelope(Publish(topic, b"p" * 300, 1, 0, f"m{n}"), 2 + n)) for n in range(5)]
    data = b"".join(frames)
    for at in range(0, len(data), split):
        peer.send_bytes(data[at : at + split])
    answers = peer.receive_many(11)
    assert [answer.sequence for answer in answers if isinstance(answer.message, Ack)] == [1, 2, 3, 4, 5, 6]
    assert sum(isinstance(answer.message, Message) for answer in answers) == 5


def test_too_many_errors_end_the_connection(peer: BlipMQPeer) -> None:
    bad = blipmq.encode(Envelope(Publish("a+", b""), 1))
    peer.send_bytes(bad * 300)
    answers = peer.closed()
    assert 100 < len(answers) < 300 and all(isinstance(answer.message, ErrorMessage) for answer in answers)


def test_a_half_closed_connection_is_answered_and_closed(peer: BlipMQPeer) -> None:
    topic = new_name()
    peer.send(Publish(topic, b"x", 1, 0, "m"), 4)
    peer.socket.shutdown(1)
    assert [answer.message for answer in peer.closed()] == [Ack("m")]
