"""A topic that is bound to a schema is checked on every way in, whatever its rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flymq_peer import LISTENERS, Peer, batch, new_topic, until
from running_broker import RunningBroker, StartBroker

from braidmq.wire import flymq

SCHEMA = b'{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
GOOD, BAD = b'{"a":1}', b'{"b":1}'
LARGE = json.dumps({"a": 1, "text": "x" * 100_000}).encode()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("checked") / "data", (*LISTENERS, "--durability", "os"))
    broker.start()
    try:
        with Peer(broker.address) as peer:
            assert peer.ask(flymq.RegisterSchema("s", "json", SCHEMA)).version == 1
        yield broker
        assert "bug in an operation" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture
def peer(checked: RunningBroker) -> Iterator[Peer]:
    with Peer(checked.address) as connected:
        yield connected


def _transaction(peer: Peer, topic: str, value: bytes) -> Any:
    identity = peer.ask(flymq.TxnBegin()).id
    answer = peer.ask(flymq.TxnProduce(identity, topic, value))
    peer.ask(flymq.TxnCommit(identity))
    return answer


WAYS: dict[str, Callable[[Peer, str, bytes], Any]] = {
    "PRODUCE": lambda peer, topic, value: peer.ask(flymq.Produce(topic, b"k", value, 0)),
    "PRODUCE_BATCH": lambda peer, topic, value: peer.ask(flymq.ProduceBatch(topic, 0, batch(value))),
    "PRODUCE_WITH_SCHEMA": lambda peer, topic, value: peer.ask(flymq.ProduceWithSchema(topic, "not-there", value)),
    "PRODUCE_DELAYED now": lambda peer, topic, value: peer.ask(flymq.ProduceDelayed(topic, value, 0)),
    "PRODUCE_DELAYED": lambda peer, topic, value: peer.ask(flymq.ProduceDelayed(topic, value, 1)),
    "PRODUCE_WITH_TTL": lambda peer, topic, value: peer.ask(flymq.ProduceWithTtl(topic, value, 3_600_000)),
    "TXN_PRODUCE": _transaction,
}


def values(peer: Peer, topic: str) -> list[bytes]:
    return [item.value for item in peer.fetch_all(topic)]


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_is_refused(peer: Peer, way: str) -> None:
    topic = peer.create(new_topic("reject"), schema="s")
    for value in (BAD, b"no json", b"", b"[" * 100_000):
        answer = WAYS[way](peer, topic, value)
        assert isinstance(answer, flymq.ErrorReply) and "schema validation failed" in answer.text, answer
    for value in (GOOD, LARGE):
        assert not isinstance(WAYS[way](peer, topic, value), flymq.ErrorReply)
    until(lambda: len(values(peer, topic)) == 2, "what fits")
    assert sorted(values(peer, topic)) == sorted([GOOD, LARGE])
    assert topic + ".dlq" not in peer.ask(flymq.ListTopics()).topics


@pytest.mark.parametrize("way", WAYS)
def test_or_becomes_a_dead_letter(peer: Peer, way: str) -> None:
    topic = peer.create(new_topic("letter"), schema="s", schema_rule="dead-letter")
    assert not isinstance(WAYS[way](peer, topic, BAD), flymq.ErrorReply)
    assert not isinstance(WAYS[way](peer, topic, GOOD), flymq.ErrorReply)
    until(lambda: values(peer, topic) == [GOOD], "what fits")
    (letter,) = peer.ask(flymq.FetchDlq(topic, 10)).items
    assert (letter.data, letter.error) == (BAD, "missing required field: a")


def test_a_binding_ends_the_short_way_of_connections_that_produce(peer: Peer, checked: RunningBroker) -> None:
    topic = peer.create(new_topic("bound"))
    peer.produce(topic, BAD, BAD, BAD)
    with Peer(checked.address) as other:
        other.produce(topic, BAD)
        assert peer.ask(flymq.TopicConfig(topic, (("schema", "s"),))).properties == (("schema", "s"),)
        for each in (peer, other):
            answers = each.ask_all(*[flymq.Produce(topic, b"", BAD, 0)] * 3, flymq.Produce(topic, b"", GOOD, 0))
            assert [isinstance(answer, flymq.ErrorReply) for answer in answers] == [True, True, True, False]
            assert "schema" in each.ask(flymq.ProduceBatch(topic, 0, batch(GOOD, BAD))).text
    assert values(peer, topic) == [BAD] * 4 + [GOOD] * 2
    assert peer.ask(flymq.TopicConfig(topic, (("schema", ""),))).properties == ()
    peer.produce(topic, BAD, BAD)


def test_a_batch_is_taken_apart(peer: Peer) -> None:
    topic = peer.create(new_topic("parts"), schema="s", schema_rule="dead-letter")
    mixed = batch(GOOD, BAD, b'{"a":2}', b"{}", producer=7, epoch=0, sequence=0)
    answer = peer.ask(flymq.ProduceBatch(topic, 0, mixed))
    assert (answer.base_offset, answer.count, answer.duplicate) == (0, 4, False)
    again = peer.ask(flymq.ProduceBatch(topic, 0, mixed))
    assert again.duplicate and again.base_offset == 0, "a batch that comes again is known"
    following = peer.ask(flymq.ProduceBatch(topic, 0, batch(b'{"a":3}', producer=7, epoch=0, sequence=4)))
    assert (following.base_offset, following.duplicate) == (4, False), "what became a letter keeps its offset"
    assert values(peer, topic) == [GOOD, b'{"a":2}', b'{"a":3}']
    assert [item.data for item in peer.ask(flymq.FetchDlq(topic, 10)).items] == [BAD, b"{}"]
    assert peer.ask(flymq.ProduceBatch(topic, 0, batch(BAD, BAD))).count == 2


def test_a_large_batch_is_checked_whole(peer: Peer) -> None:
    topic = peer.create(new_topic("large"), schema="s")
    many = [b'{"a":%d}' % number for number in range(3000)]
    assert peer.ask(flymq.ProduceBatch(topic, 0, batch(*many))).count == 3000
    assert "record 2999" in peer.ask(flymq.ProduceBatch(topic, 0, batch(*many[:-1], BAD))).text
    assert len(values(peer, topic)) == 3000


def test_a_letter_of_a_transaction_comes_with_it_or_not_at_all(peer: Peer) -> None:
    topic = peer.create(new_topic("atomic"), schema="s", schema_rule="dead-letter")
    identity = peer.ask(flymq.TxnBegin()).id
    peer.ask(flymq.TxnProduce(identity, topic, BAD))
    peer.ask(flymq.TxnRollback(identity))
    assert peer.ask(flymq.FetchDlq(topic, 10)) == flymq.DeadLetters(())


def test_schemas_that_are_not_there(peer: Peer) -> None:
    assert peer.ask(flymq.ValidateSchema("not-there", b"anything")) == flymq.Validation(True, ())
    topic = new_topic("unknown")
    assert isinstance(peer.ask(flymq.ProduceWithSchema(topic, "not-there", b"anything")), flymq.RecordMetadata)
    assert "schema not found" in peer.ask(flymq.CreateTopic(new_topic(), 1, {"schema": "not-there"})).text
    assert "schema not found" in peer.ask(flymq.TopicConfig(topic, (("schema", "not-there"),))).text


def test_a_schema_in_use_stays(peer: Peer) -> None:
    name = new_topic("used")
    peer.ask(flymq.RegisterSchema(name, "json", SCHEMA))
    peer.ask(flymq.RegisterSchema(name, "json", b'{"type":"object"}'))
    topic = peer.create(new_topic(), schema=name)
    assert "SCHEMA_IN_USE" in peer.ask(flymq.DeleteSchema(name, 0)).text
    assert peer.ask(flymq.DeleteSchema(name, 2)) == flymq.Ok()
    assert "SCHEMA_IN_USE" in peer.ask(flymq.DeleteSchema(name, 1)).text
    assert "schema validation failed" in peer.ask(flymq.Produce(topic, b"", BAD, 0)).text
    peer.ask(flymq.TopicConfig(topic, (("schema", ""),)))
    assert peer.ask(flymq.DeleteSchema(name, 0)) == flymq.Ok()


@pytest.mark.parametrize("properties", [
    {"schema_rule": "sometimes"}, {"schema": "x" * 256}, {"nothing": "1"}, {"nothing": ""}, {"durability": "maybe"},
], ids=str)  # fmt: skip
def test_wrong_properties_change_nothing(peer: Peer, properties: dict[str, str]) -> None:
    topic = peer.create(new_topic("props"), retention_bytes="7")
    assert isinstance(peer.ask(flymq.TopicConfig(topic, tuple(properties.items()))), flymq.ErrorReply)
    assert peer.ask(flymq.TopicConfig(topic)).properties == (("retention_bytes", "7"),)


def test_properties_apply_at_once_and_survive(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as peer:
        topic = peer.create("t")
        peer.produce(topic, b"1", b"2")
        asked = (("compression", "gzip"), ("durability", "fsync"), ("ttl_ms", "3600000"))
        assert peer.ask(flymq.TopicConfig(topic, asked)).properties == asked
        peer.produce(topic, b"3" * 1000, b"4")
        assert len(peer.fetch_all(topic)) == 4
    broker.kill()
    broker.restart()
    with Peer(broker.address) as peer:
        assert peer.ask(flymq.TopicConfig(topic)).properties == asked
        assert [item.value for item in peer.fetch_all(topic)] == [b"1", b"2", b"3" * 1000, b"4"]


def test_checked_records_pipeline_and_keep_their_order(peer: Peer) -> None:
    topic = peer.create(new_topic("pipeline"), schema="s", durability="fsync")
    sent = [b'{"a":%d}' % number if number % 3 else BAD for number in range(300)]
    answers = peer.ask_all(*(flymq.Produce(topic, b"", value, 0) for value in sent), flymq.Fetch(topic, 0, 0, 1000))
    fetched = answers.pop()
    assert [isinstance(answer, flymq.ErrorReply) for answer in answers] == [value == BAD for value in sent]
    assert [item.value for item in fetched.items] == [value for value in sent if value != BAD]
    offsets = [answer.offset for answer in answers if isinstance(answer, flymq.RecordMetadata)]
    assert offsets == list(range(200))


def test_a_replay_is_no_way_around_the_schema(peer: Peer) -> None:
    """Letters that do not fit stay where they are, until the schema lets them in."""
    schema = new_topic("loose")
    assert peer.ask(flymq.RegisterSchema(schema, "json", b'{"type":"object"}', "none")).version == 1
    topic = peer.create(new_topic("replayed"), schema=schema, schema_rule="dead-letter")
    peer.ask(flymq.Produce(topic, b"", b"[1]", 0))
    peer.ask(flymq.Produce(topic, b"", b"[2]", 0))
    letters = until(lambda: peer.ask(flymq.FetchDlq(topic, 10)).items, "both became letters")
    assert [letter.data for letter in letters] == [b"[1]", b"[2]"]
    refused = peer.ask(flymq.ReplayDlq(topic, id=letters[0].id))
    assert isinstance(refused, flymq.ErrorReply) and "schema validation failed" in refused.text
    assert peer.ask(flymq.ReplayDlq(topic, all=True)).count == 0
    assert values(peer, topic) == [] and len(peer.ask(flymq.FetchDlq(topic, 10)).items) == 2
    assert peer.ask(flymq.RegisterSchema(schema, "json", b'{"type":["object","array"]}', "none")).version == 2
    assert peer.ask(flymq.ReplayDlq(topic, all=True)).count == 2
    assert values(peer, topic) == [b"[1]", b"[2]"] and peer.ask(flymq.FetchDlq(topic, 10)).items == ()


def test_a_replay_keeps_to_the_partition_that_the_producer_chose(peer: Peer) -> None:
    """Without a key nothing else says where the record belongs, and what comes before and after it is there."""
    topic = peer.create(new_topic("placed"), 3, schema="s", schema_rule="dead-letter")
    batches = [flymq.ProduceBatch(topic, 2, batch(BAD, GOOD)) for _ in range(2)]
    transaction = peer.ask(flymq.TxnBegin()).id
    peer.ask_all(
        flymq.Produce(topic, b"", BAD, 2), flymq.ProduceWithTtl(topic, BAD, 3_600_000, partition=2),
        flymq.ProduceDelayed(topic, BAD, 1, partition=2), flymq.TxnProduce(transaction, topic, BAD, partition=2), *batches,
    )  # fmt: skip
    assert peer.ask(flymq.TxnCommit(transaction)).success
    until(lambda: len(peer.ask(flymq.FetchDlq(topic, 10)).items) == 6, "all six became letters")
    peer.ask(flymq.TopicConfig(topic, (("schema", ""),)))
    assert peer.ask(flymq.ReplayDlq(topic, all=True)).count == 6
    assert [len(peer.fetch_all(topic, partition)) for partition in range(3)] == [0, 0, 8]
