"""QoS 1 on the subscriber's side: the window, deadlines and attempts, refusals, ids that clash, dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads

from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, Envelope, ErrorMessage, Message, Ping, Pong, Publish

ATTEMPTS = 3
TIMEOUT_S = 0.2


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    settings = {"blipmq_max_attempts": ATTEMPTS, "blipmq_max_inflight": 4, "blipmq_drain_timeout_s": 0.1}
    with BlipMQBroker(blipmq_ack_timeout_ms=round(1000 * TIMEOUT_S), **settings) as running:
        yield running


@pytest.fixture
def peer(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


@pytest.fixture
def publisher(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


def _attempt(envelope: Envelope) -> int:
    return int(envelope.meta("attempt") or 1)


def _letters(broker: BlipMQBroker, topic: str, count: int) -> list[Envelope]:
    with broker.peer() as reader:
        reader.subscribe(f"$DLQ/{topic}", 1)
        found = []
        for _ in range(count):
            found.append(reader.receive())
            reader.ack(found[-1])
        reader.nothing(0.05)
        return found


def test_what_is_acknowledged_comes_once(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m")
    peer.ack(peer.receive())
    peer.nothing(2 * TIMEOUT_S)


def test_what_is_not_acknowledged_comes_again_and_ends_as_a_dead_letter(
    broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer
) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m", x_user="kept")
    deliveries, times = [], []
    for _ in range(ATTEMPTS):
        deliveries.append(peer.receive())
        times.append(time.monotonic())
    assert [_attempt(each) for each in deliveries] == [1, 2, 3]
    assert {each.sequence for each in deliveries} == {deliveries[0].sequence}
    assert {each.message for each in deliveries} == {deliveries[0].message}, "same payload, id and timestamp"
    assert times[1] - times[0] > 0.85 * TIMEOUT_S and times[2] - times[1] > 1.7 * TIMEOUT_S, "each wait is twice as long"
    (letter,) = _letters(broker, topic, 1)
    message = delivered(letter)
    assert (message.topic, message.payload, message.message_id) == (f"$DLQ/{topic}", b"x", "m")
    assert message.timestamp == delivered(deliveries[0]).timestamp
    assert letter.metadata == (
        ("dlq_topic", topic), ("dlq_code", "7"), ("dlq_reason", "max_attempts"), ("dlq_attempts", "3"), ("x-user", "kept")
    )  # fmt: skip
    peer.nothing()


def test_a_refusal_for_now_brings_it_again_and_one_for_good_does_not(
    broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer
) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m")
    peer.ack(peer.receive(), 7)
    asked = time.monotonic()
    again = peer.receive()
    assert _attempt(again) == 2 and time.monotonic() - asked > 0.8 * TIMEOUT_S
    peer.ack(again, 200)
    (letter,) = _letters(broker, topic, 1)
    assert (letter.meta("dlq_code"), letter.meta("dlq_reason"), letter.meta("dlq_attempts")) == ("200", "rejected", "2")
    peer.nothing(3 * TIMEOUT_S)


def test_a_dead_letter_that_nobody_wants_is_let_go(broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m")
    peer.ack(peer.receive(), 100)
    with broker.peer() as reader:
        reader.subscribe(f"$DLQ/{topic}", 1)
        letter = reader.receive()
        reader.ack(letter, 101)
        reader.nothing()
    assert {name for name in broker.run(lambda: _names(broker)) if name.startswith(topic)} == {topic, f"{topic}.dlq"}


async def _names(broker: BlipMQBroker) -> list[str]:
    return broker.server.broker.topic_names()


def test_the_window_bounds_what_is_under_way_and_acks_open_it(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, f"m{number}")
    first = peer.receive_many(4)
    peer.nothing(TIMEOUT_S / 3)
    peer.ack(first[1])
    (fifth,) = peer.receive_many(1)
    assert payloads([*first, fifth]) == [b"0", b"1", b"2", b"3", b"4"]
    for each in (first[0], *first[2:], fifth):
        peer.ack(each)
    rest = peer.receive_many(4)
    for each in rest:
        peer.ack(each)
    rest += peer.receive_many(1)
    assert payloads(rest) == [b"5", b"6", b"7", b"8", b"9"]
    peer.ack(rest[-1])


def test_qos_0_in_between_needs_no_ack(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, f"m{number}" if number % 3 == 0 else "")
    got = peer.receive_many(10)
    assert payloads(got) == [b"%d" % number for number in range(10)]
    for each in got:
        if delivered(each).qos:
            peer.ack(each)
    peer.nothing(2 * TIMEOUT_S)


def test_the_same_id_is_never_under_way_twice(broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    with broker.peer() as other:
        publisher.publish(topic, b"first", "same")
        other.publish(topic, b"second", "same")
        publisher.publish(topic, b"behind it", "different")
        first = peer.receive()
        peer.nothing(TIMEOUT_S / 3)
        peer.ack(first)
        second = peer.receive()
        third = peer.receive()
        assert sorted(payloads([first, second])) == [b"first", b"second"] and payloads([third]) == [b"behind it"]
        assert second.sequence != first.sequence
        peer.ack(second)
        peer.ack(third)


def test_ids_that_repeat_within_one_run_wait_for_each_other(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    frames = [blipmq.encode(Envelope(Publish(topic, b"%d" % n, 1, 0, "same"), n)) for n in range(3)]
    publisher.send_bytes(b"".join(frames))
    for number in range(3):
        delivery = peer.receive()
        assert payloads([delivery]) == [b"%d" % number]
        peer.nothing(0.03)
        peer.ack(delivery)


def test_ids_do_not_clash_between_subscribers_of_one_connection(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    one, two = new_name(), new_name()
    peer.subscribe(one, 1)
    peer.subscribe(two, 1, "a client")
    publisher.publish(one, b"one", "same")
    publisher.publish(two, b"two", "same")
    first = peer.receive()
    peer.nothing(TIMEOUT_S / 3)
    peer.ack(first)
    second = peer.receive()
    assert sorted(payloads([first, second])) == [b"one", b"two"]
    peer.ack(second)
    peer.unsubscribe(two, "a client")


def test_an_ack_may_name_its_delivery_and_must_name_the_right_one(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m")
    first = peer.receive()
    peer.ack(first, delivery=str(first.sequence + 1))
    again = peer.receive()
    assert _attempt(again) == 2, "an Ack for another delivery settles nothing"
    peer.ack(again, delivery=str(again.sequence))
    peer.nothing(3 * TIMEOUT_S)


@pytest.mark.parametrize("layout", ["ours", "other"])
def test_acks_of_any_layout_settle(peer: BlipMQPeer, publisher: BlipMQPeer, layout: str) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    for number in range(8):
        publisher.publish(topic, b"%d" % number, f"m{number}")
    got = []
    for _ in range(2):
        some = peer.receive_many(4)
        got += some
        frames = []
        for each in some:
            own = delivered(each).message_id or ""
            # An Ack with metadata does not look like the others.
            metadata = () if layout == "ours" else (("unknown", "1"),)
            frames.append(blipmq.encode(Envelope(Ack(own), 0, 0, metadata)))
        peer.send_bytes(b"".join(frames))
    assert payloads(got) == [b"%d" % number for number in range(8)]
    peer.nothing(2 * TIMEOUT_S)


def test_what_a_connection_leaves_behind_is_gone_unless_it_is_durable(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic = new_name()
    with broker.peer() as gone:
        gone.subscribe(topic, 1)
        publisher.publish(topic, b"x", "m")
        gone.receive()
    with broker.peer() as other:
        other.subscribe(topic, 1)
        other.nothing(2 * TIMEOUT_S)


def test_publishing_goes_on_while_acks_are_due(peer: BlipMQPeer) -> None:
    """Acks and publishes of one connection come in any mix."""
    topic = new_name()
    peer.subscribe(topic, 1)
    for number in range(20):
        peer.send(Publish(topic, b"%d" % number, 1, 0, f"m{number}"), number + 1)
    acks, messages = [], []
    while len(acks) < 20 or len(messages) < 20:
        envelope = peer.receive()
        if isinstance(envelope.message, Message):
            messages.append(envelope.message.payload)
            peer.ack(envelope)
        else:
            acks.append(envelope.sequence)
    assert acks == list(range(1, 21)) and messages == [b"%d" % number for number in range(20)]


def test_a_connected_subscriber_without_room_refuses_qos_1_and_no_more_than_that() -> None:
    with BlipMQBroker(blipmq_subscriber_capacity=10, blipmq_max_inflight=2, blipmq_drain_timeout_s=0.1) as broker:
        topic = new_name()
        with broker.peer() as slow, broker.peer() as quick, broker.peer() as publisher:
            slow.subscribe(topic, 1)
            quick.subscribe(topic, 0)
            codes = []
            for number in range(100):
                answer = publisher.ask(Publish(topic, b"%d" % number, 1, 0, f"m{number}"))
                codes.append(answer.message.error_code if isinstance(answer.message, ErrorMessage) else 0)
                if codes[-1]:
                    assert answer.meta("message_id") == f"m{number}"
            accepted = codes.index(4)
            assert 10 <= accepted < 90 and set(codes[accepted:]) == {4}, "once full it stays so until there is room"
            assert payloads(quick.receive_many(accepted)) == [b"%d" % number for number in range(accepted)]
            # Refused means nobody got it; QoS 0 is not refused.
            publisher.publish(topic, b"zero")
            assert payloads([quick.receive()]) == [b"zero"]
            assert publisher.refused(Publish(topic, b"x", 1, 0, "still")) == 4
            for number in range(accepted):
                delivery = slow.receive()
                assert payloads([delivery]) == [b"%d" % number]
                slow.ack(delivery)
            assert payloads([slow.receive()]) == [b"zero"]
            publisher.publish(topic, b"after", "room")
            assert payloads([slow.receive()]) == [b"after"]
            assert publisher.ask(Ping(1)).message == Pong(1)


def test_publishers_see_an_answer_for_every_message_while_a_subscriber_stands_still() -> None:
    with BlipMQBroker(blipmq_subscriber_capacity=50, blipmq_drain_timeout_s=0.1) as broker:
        topic = new_name()
        with broker.peer(receive_buffer=4096) as stopped, broker.peer() as publisher:
            stopped.subscribe(topic, 1)
            count = 3000
            frames = [blipmq.encode(Envelope(Publish(topic, bytes(2000), 1, 0, f"m{n}"), n)) for n in range(1, count + 1)]
            refused = 0
            for at in range(0, count, 50):
                publisher.send_bytes(b"".join(frames[at : at + 50]))
                answers = publisher.receive_many(min(50, count - at))
                assert [answer.sequence for answer in answers] == list(range(at + 1, at + 1 + len(answers)))
                refused += sum(isinstance(answer.message, ErrorMessage) for answer in answers)
                if refused > 60:
                    break
            assert refused, "a subscriber that stands still runs out of room"
