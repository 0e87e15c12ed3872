"""What is in messages: content filters, compressed payloads, time to live, and records of other protocols."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer, delivered, new_name, payloads
from flymq_peer import Peer, until

from braidmq.base import compression
from braidmq.log.attrs import TAG_FQ, encode_attrs, encode_headers
from braidmq.wire import blipmq
from braidmq.wire.blipmq import ErrorCode, Publish, Subscribe
from braidmq.wire.flymq import Fetch, Fetched

TEXT = b"hello " * 200


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_drain_timeout_s=0.1, blipmq_ack_timeout_ms=60_000) as running:
        yield running


@pytest.fixture
def peer(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


@pytest.fixture
def publisher(broker: BlipMQBroker) -> Iterator[BlipMQPeer]:
    with broker.peer() as connected:
        yield connected


# --- content filters


@pytest.mark.parametrize("qos", [0, 1])
def test_a_filter_chooses_among_the_messages_of_a_topic(peer: BlipMQPeer, publisher: BlipMQPeer, qos: int) -> None:
    topic = new_name()
    peer.subscribe(topic, qos, filter='payload.t > 20 and meta.x-kind = "sensor" or size = 0')
    for number, (payload, kind) in enumerate(
        [(b'{"t": 25}', "sensor"), (b'{"t": 25}', "other"), (b'{"t": 15}', "sensor"), (b"", "other"), (b"no json", "sensor")]
    ):
        publisher.publish(topic, payload, f"m{number}", x_kind=kind)
    got = peer.receive_many(2)
    assert payloads(got) == [b'{"t": 25}', b""]
    for each in got:
        peer.ack(each)
    peer.nothing()


def test_one_filter_that_says_yes_is_enough_and_a_new_one_replaces_the_old(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name("content")
    peer.subscribe(topic, 1, filter='payload = "a"')
    peer.subscribe("content/+", 1, filter='payload = "b"')
    for number, payload in enumerate((b"a", b"b", b"c")):
        publisher.publish(topic, payload, f"m{number}")
    got = peer.receive_many(2)
    assert payloads(got) == [b"a", b"b"]
    peer.subscribe(topic, 1, filter='payload = "c"')
    for number, payload in enumerate((b"a", b"b", b"c")):
        publisher.publish(topic, payload, f"n{number}")
    got += peer.receive_many(2)
    assert payloads(got[2:]) == [b"b", b"c"]
    peer.subscribe("content/+", 1)
    publisher.publish(topic, b"d", "o")
    assert payloads([peer.receive()]) == [b"d"], "one without a filter wants everything"


def test_a_wrong_expression_is_refused_with_its_place(peer: BlipMQPeer) -> None:
    topic = new_name()
    answer = peer.ask(Subscribe(topic), filter="size > and").message
    assert isinstance(answer, blipmq.ErrorMessage) and answer.error_code == ErrorCode.PROTOCOL_ERROR
    assert "position 7" in (answer.details or "")
    assert peer.unsubscribe(topic) == ErrorCode.TOPIC_NOT_FOUND, "nothing was subscribed"


# --- compression


@pytest.mark.parametrize("name", ["gzip", "lz4"])
def test_a_compressed_payload_travels_as_it_is_to_who_takes_it(
    broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer, name: str
) -> None:
    if not compression.is_installed(compression.IDS[name]):
        assert publisher.refused(Publish("t", b"", 1, 0, "m"), compression=name) == ErrorCode.PROTOCOL_ERROR
        return
    topic = new_name()
    packed = compression.compress(compression.IDS[name], TEXT)
    with broker.peer() as other, broker.peer() as picky:
        peer.subscribe(topic, 1, accept_compression="gzip, lz4")
        other.subscribe(topic, 1)
        picky.subscribe(topic, 0, filter='payload contains "hello"')
        publisher.publish(topic, packed, "m", x_user="kept", compression=name)
        as_it_is, expanded, chosen = peer.receive(), other.receive(), picky.receive()
        assert delivered(as_it_is).payload == packed and as_it_is.metadata == (("compression", name), ("x-user", "kept"))
        assert delivered(expanded).payload == TEXT and expanded.metadata == (("x-user", "kept"),)
        assert delivered(chosen).payload == TEXT
        assert as_it_is.sequence == expanded.sequence


@pytest.mark.parametrize(
    ("payload", "name", "code"),
    [
        (b"not gzip", "gzip", ErrorCode.PROTOCOL_ERROR),
        (gzip.compress(TEXT)[:-5], "gzip", ErrorCode.PROTOCOL_ERROR),
        (gzip.compress(TEXT) + b"more", "gzip", ErrorCode.PROTOCOL_ERROR),
        (gzip.compress(bytes(2 << 20)), "gzip", ErrorCode.MESSAGE_TOO_LARGE),
        (b"x", "zstd", ErrorCode.PROTOCOL_ERROR),
        (b"x", "none", ErrorCode.PROTOCOL_ERROR),
        (b"x", "", ErrorCode.PROTOCOL_ERROR),
    ],
    ids=["no gzip", "cut short", "more behind it", "too large", "zstd", "none", "no name"],
)
def test_a_payload_that_cannot_be_expanded_is_refused(publisher: BlipMQPeer, payload: bytes, name: str, code: int) -> None:
    assert publisher.refused(Publish(new_name(), payload, 1, 0, "m"), compression=name) == code


def test_more_metadata_than_a_delivery_can_carry_is_refused(peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    fitting = {f"x_{number}": "v" for number in range(54)}
    publisher.publish(topic, b"", "fits", **fitting)
    assert len(peer.receive().metadata) == 54
    assert publisher.refused(Publish(topic, b"", 1, 0, "m"), **fitting, x_more="v") == ErrorCode.PROTOCOL_ERROR
    assert publisher.refused(Publish(topic, b"", 1, 0, "m"), x_long="v" * 14_000) == ErrorCode.PROTOCOL_ERROR


# --- time to live


def test_what_expired_is_not_delivered(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic, name = new_name(), new_name("client")
    with broker.peer() as away:
        away.subscribe(topic, 1, name)
    publisher.publish(topic, b"short", "short", 50)
    publisher.publish(topic, b"long", "long", 60_000)
    publisher.publish(topic, b"never", "never")
    publisher.send(Publish(topic, b"short, at QoS 0", 0, 50))
    with broker.peer() as letters:
        letters.subscribe(f"$DLQ/{topic}", 1)
        began = time.monotonic()
        letter = letters.receive()
        assert time.monotonic() - began < 15
        assert (delivered(letter).payload, letter.meta("dlq_code"), letter.meta("dlq_reason")) == (b"short", "9", "expired")
        letters.ack(letter)
        with broker.peer() as back:
            back.subscribe(topic, 1, name)
            got = back.receive_many(2)
            assert payloads(got) == [b"long", b"never"]
            for each in got:
                back.ack(each)
            back.nothing()
        letters.nothing()


def test_what_expired_in_time_for_nobody_is_one_letter_and_what_was_delivered_is_none(
    broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer
) -> None:
    topic, one, two = new_name(), new_name("client"), new_name("client")
    for name in (one, two):
        with broker.peer() as away:
            away.subscribe(topic, 1, name)
    peer.subscribe(topic, 1)
    publisher.publish(topic, b"x", "m", 100)
    got = peer.receive()
    with broker.peer() as letters:
        letters.subscribe(f"$DLQ/{topic}", 1)
        letter = letters.receive()
        assert payloads([letter]) == [b"x"]
        letters.ack(letter)
        letters.nothing()
        # It was delivered before it expired, so a late Ack is still an Ack.
        peer.ack(got)
        letters.nothing()


def test_what_expires_under_way_is_not_sent_again() -> None:
    with BlipMQBroker(blipmq_ack_timeout_ms=300, blipmq_drain_timeout_s=0.1) as broker:
        topic = new_name()
        with broker.peer() as peer, broker.peer() as publisher, broker.peer() as letters:
            letters.subscribe(f"$DLQ/{topic}", 0)
            peer.subscribe(topic, 1)
            publisher.publish(topic, b"x", "m", 100)
            assert payloads([peer.receive()]) == [b"x"]
            peer.nothing(0.6)
            assert letters.receive().meta("dlq_code") == "9"


def test_a_message_to_a_paused_subscriber_is_gone_in_time() -> None:
    with BlipMQBroker(blipmq_max_inflight=1, blipmq_drain_timeout_s=0.1) as broker:
        topic = new_name()
        with broker.peer() as paused, broker.peer() as publisher, broker.peer() as letters:
            letters.subscribe(f"$DLQ/{topic}", 0)
            paused.subscribe(topic, 1)
            publisher.publish(topic, b"fills the window", "m0")
            held = paused.receive()
            publisher.publish(topic, b"short", "m1", 50)
            began = time.monotonic()
            assert payloads([letters.receive()]) == [b"short"]
            assert time.monotonic() - began < 15
            paused.ack(held)
            paused.nothing()


def test_messages_without_a_time_to_live_get_the_configured_one() -> None:
    with BlipMQBroker(blipmq_default_ttl_ms=50) as broker:
        topic = new_name()
        with broker.peer() as away, broker.peer() as publisher:
            away.subscribe(topic, 1, "away")
            away.reset()
            publisher.publish(topic, b"short", "m1")
            publisher.publish(topic, b"its own", "m2", 60_000)
            time.sleep(0.1)
            with broker.peer() as back:
                back.subscribe(topic, 1, "away")
                assert payloads([back.receive()]) == [b"its own"]
                back.ack("m2")
                back.nothing(0.05)


# --- repeated messages


def test_a_repeated_message_is_acknowledged_and_not_stored_again() -> None:
    with BlipMQBroker(blipmq_dedup_window_ms=300) as broker:
        topic, other = new_name(), new_name()
        with broker.peer() as peer, broker.peer() as publisher, broker.peer() as another:
            peer.subscribe(topic, 0)
            peer.subscribe(other, 0)
            for _ in range(3):
                publisher.publish(topic, b"once", "same")
            another.publish(topic, b"another publisher", "same")
            publisher.publish(other, b"another topic", "same")
            publisher.publish(topic, b"another id", "different")
            got = payloads(peer.receive_many(4))
            assert sorted(got) == sorted([b"once", b"another publisher", b"another topic", b"another id"])
            peer.nothing(0.4)
            publisher.publish(topic, b"the window is over", "same")
            assert payloads([peer.receive()]) == [b"the window is over"]


# --- other protocols


def test_records_of_other_protocols_come_out_as_messages(broker: BlipMQBroker, peer: BlipMQPeer) -> None:
    topic = broker.create(new_name("flymq"), 1)
    peer.subscribe(topic, 1)
    with Peer(broker.address) as flymq:
        flymq.produce(topic, b"from FlyMQ")
    first = peer.receive()
    assert delivered(first) == blipmq.Message(topic, b"from FlyMQ", str(first.sequence), delivered(first).timestamp, 1)
    peer.ack(first)

    async def append() -> None:
        log = broker.server.broker
        headers = encode_headers({"x-tag": b"value", "other": b"not for BlipMQ", "x-bytes": b"\xff"})
        await log.append(log.topic(topic), 0, b"key", b"with headers", attrs=headers)
        tail = b"\x06sender\x01\x0a\x00\x00\x01"
        await log.append(log.topic(topic), 0, b"route", b"from fq", attrs=encode_attrs([(TAG_FQ, bytes(range(16)) + tail)]))
        await log.append(log.topic(topic), 0, b"", b"damaged", attrs=b"\x03\0\0\0abc")

    broker.run(append)
    with_headers, from_fq, damaged = peer.receive_many(3)
    assert with_headers.metadata == (("x-tag", "value"), ("x-bytes", "\ufffd"))
    assert delivered(from_fq).message_id == bytes(range(16)).hex() and delivered(from_fq).payload == b"from fq"
    assert delivered(damaged).payload == b"damaged"
    for each in (with_headers, from_fq):
        peer.ack(each)
    peer.ack(damaged, 100)
    with broker.peer() as letters:
        letters.subscribe(f"$DLQ/{topic}", 0)
        assert payloads([letters.receive()]) == [b"damaged"], "what is unsound of it stays behind"


def test_what_blipmq_publishes_is_a_record_like_any_other(broker: BlipMQBroker, publisher: BlipMQPeer) -> None:
    topic = broker.create(new_name("flymq"), 1)
    publisher.publish(topic, b"plain", "m1")
    publisher.publish(topic, b"with metadata", "m2", x_tag="value")
    with Peer(broker.address) as flymq:
        fetched = flymq.ask(Fetch(topic, 0, 0, 10))
        assert isinstance(fetched, Fetched)
        assert [item.value for item in fetched.items] == [b"plain", b"with metadata"]


def test_a_schema_holds_for_every_protocol(broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer) -> None:
    strict, lenient = new_name("schema"), new_name("schema")

    async def bind() -> None:
        engine = broker.server.broker
        definition = b'{"type": "object", "required": ["id"]}'
        await engine.schemas.register("shape", "json", definition, "none")
        for topic, rule in ((strict, "reject"), (lenient, "dead-letter")):
            await engine.create_topic(topic, 1, {"schema": "shape", "schema_rule": rule})

    broker.run(bind)
    for topic in (strict, lenient):
        peer.subscribe(topic, 1)
        publisher.publish(topic, b'{"id": 1}', f"good {topic}")
        peer.ack(peer.receive())
    assert publisher.refused(Publish(strict, b"{}", 1, 0, "bad")) == ErrorCode.PROTOCOL_ERROR
    assert publisher.refused(Publish(strict, b"{}")) == ErrorCode.PROTOCOL_ERROR
    publisher.publish(lenient, b"{}", "bad")
    peer.nothing(0.05)
    with broker.peer() as letters:
        letters.subscribe(f"$DLQ/{lenient}", 1)
        letter = letters.receive()
        assert (delivered(letter).payload, delivered(letter).message_id, letter.meta("dlq_reason")) == (b"{}", "bad", "rejected")
        letters.ack(letter)


def test_letters_that_were_replayed_or_purged_are_not_read_again(
    broker: BlipMQBroker, peer: BlipMQPeer, publisher: BlipMQPeer
) -> None:
    topic = new_name()
    peer.subscribe(topic, 1)
    for number in range(3):
        publisher.publish(topic, b"%d" % number, f"m{number}")
        peer.ack(peer.receive(), 100)
    letters = broker.server.broker.dead_letters
    until(lambda: len(broker.run(lambda: letters.letters(topic))) == 3, "three letters")
    broker.run(lambda: letters.replay_offset(topic, 1))
    again = peer.receive()
    assert (delivered(again).payload, again.metadata) == (b"1", ())
    peer.ack(again)
    with broker.peer() as reader:
        reader.subscribe(f"$DLQ/{topic}", 0)
        assert payloads(reader.receive_many(2)) == [b"0", b"2"]
        reader.nothing(0.05)


@pytest.mark.parametrize(("unit", "least"), [("s", 10**9), ("ms", 10**12), ("us", 10**15), ("ns", 10**18)])
def test_the_unit_of_timestamps_is_configurable(unit: str, least: int) -> None:
    with BlipMQBroker(blipmq_timestamp_unit=unit) as broker, broker.peer() as peer:
        peer.subscribe("t", 1)
        peer.send(Publish("t", b"x", 1, 0, "m"), 5)
        for envelope in peer.receive_many(2):
            assert least < envelope.timestamp < 1000 * least
            if isinstance(envelope.message, blipmq.Message):
                assert envelope.message.timestamp == envelope.timestamp
                peer.ack(envelope)


def test_only_topics_that_exist_where_that_is_asked_for() -> None:
    with BlipMQBroker(blipmq_strict_topics=True) as broker, broker.peer() as peer:
        broker.create("known")
        peer.subscribe("known")
        peer.subscribe("unknown/#")
        assert peer.refused(Subscribe("unknown")) == ErrorCode.TOPIC_NOT_FOUND
        assert peer.refused(Publish("unknown", b"x", 1, 0, "m")) == ErrorCode.TOPIC_NOT_FOUND
        assert peer.refused(Publish("unknown", b"x")) == ErrorCode.TOPIC_NOT_FOUND
