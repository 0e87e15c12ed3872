"""Every published byte vector of the core operations, over a socket, against a broker that is in the state the vector tells of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from flymq_peer import LISTENERS, NAMES, V126, Peer
from running_broker import RunningBroker

from braidmq.wire import flymq

UNKNOWN_OPCODE = 0xEE


class Vector(NamedTuple):
    op: int
    name: str
    dialect: str
    request: bytes
    response: bytes


def _load() -> list[Vector]:
    document = json.loads((Path(__file__).parent.parent / "wire" / "flymq_vectors.json").read_text())
    rows = [row for row in document["vectors"] if row["op"] <= 0x0B or row["op"] == UNKNOWN_OPCODE]
    return [
        Vector(row["op"], row["name"], row["dialect"], bytes.fromhex(row["request_hex"]), bytes.fromhex(row["response_hex"]))
        for row in rows
    ]


def _nothing(peer: Peer) -> None:
    pass


def _records(topic: str, partitions: int, partition: int, *records: tuple[bytes, bytes]) -> Callable[[Peer], None]:
    def bring_about(peer: Peer) -> None:
        peer.create(topic, partitions)
        for key, value in records:
            peer.produce(topic, value, key=key, partition=partition)

    return bring_about


def _many(topic: str, partitions: int, partition: int, count: int) -> Callable[[Peer], None]:
    return _records(topic, partitions, partition, *((b"", b"%d" % number) for number in range(count)))


def _group(bring_about: Callable[[Peer], None], topic: str, group: str, offset: int) -> Callable[[Peer], None]:
    def committed(peer: Peer) -> None:
        bring_about(peer)
        assert peer.ask(flymq.Commit(topic, group, 0, offset)) == flymq.Ok()

    return committed


def _both_topics(peer: Peer) -> None:
    peer.create("bc")
    peer.create("a")


_A_AND_BC = _records("test", 1, 0, (b"", b"a"), (b"k", b"bc"))
_HELLO = _records("test", 1, 0, (b"k", b"hello"), (b"", b"v"))
_SEVEN = _records("orders", 1, 0, *((b"", b"%d" % number) for number in range(5)), (b"k1", b"v1"), (b"", b"value two"))

STATE: dict[tuple[str, str], Callable[[Peer], None]] = {
    ("PRODUCE", "both"): _many("test", 1, 0, 42),
    ("PRODUCE keyed", "both"): _many("orders", 6, 0, 0),
    ("PRODUCE explicit partition", "both"): _many("events", 3, 2, 7),
    ("PRODUCE gzip", "both"): _many("test", 1, 0, 1),
    ("PRODUCE error", "v126"): _many("events", 3, 0, 0),
    ("CONSUME", "both"): _HELLO,
    ("CONSUME no key", "both"): _HELLO,
    ("CONSUME past end", "v126"): _HELLO,
    ("CONSUME unknown topic", "v126"): _nothing,
    ("CONSUME unknown topic", "documented"): _nothing,
    ("CREATE_TOPIC", "both"): _nothing,
    ("METADATA", "both"): _many("test", 1, 0, 43),
    ("SUBSCRIBE earliest", "v126"): _many("test", 1, 0, 43),
    ("SUBSCRIBE latest", "v126"): _many("test", 1, 0, 43),
    ("SUBSCRIBE commit", "v126"): _group(_many("test", 1, 0, 43), "test", "g", 2),
    ("SUBSCRIBE committed alias", "v126"): _many("test", 1, 0, 43),
    ("SUBSCRIBE u16 mode (documented layout)", "v126"): _many("test", 1, 0, 43),
    ("SUBSCRIBE earliest", "documented"): _SEVEN,
    ("SUBSCRIBE latest", "documented"): _SEVEN,
    ("SUBSCRIBE commit", "documented"): _group(_SEVEN, "orders", "g1", 3),
    ("COMMIT", "both"): _many("test", 1, 0, 3),
    ("FETCH", "v126"): _A_AND_BC,
    ("FETCH with filter", "v126"): _A_AND_BC,
    ("FETCH without filter field (documented layout)", "v126"): _A_AND_BC,
    ("FETCH at end", "v126"): _A_AND_BC,
    ("FETCH", "documented"): _SEVEN,
    ("FETCH empty", "documented"): _SEVEN,
    ("LIST_TOPICS", "both"): _both_topics,
    ("DELETE_TOPIC", "both"): _many("test", 1, 0, 1),
    ("CONSUME_ZERO_COPY", "both"): _HELLO,
    ("FETCH_BINARY", "v126"): _A_AND_BC,
    ("FETCH_BINARY", "documented"): _SEVEN,
    ("unknown opcode", "v126"): _nothing,
}
"""What each vector takes for granted."""

VECTORS = _load()
# A request that shows its dialect switches an `auto` connection before it is answered; others need a listener that is pinned.
_TELLING = (0x05, 0x07, 0x0B)


def _listeners(vector: Vector) -> tuple[str, ...]:
    if vector.dialect == "both":
        return ("auto", "documented", "v126")
    if vector.dialect == "documented":
        return ("auto", "documented")
    telling = vector.op in _TELLING and "(documented layout)" not in vector.name
    same_in_both = vector.op == 0x05
    return ("auto", "v126") if telling or same_in_both else ("v126",)


CASES = [
    pytest.param(vector, listener, id=f"{vector.name}-{vector.dialect}-on-{listener}".replace(" ", "_"))
    for vector in VECTORS
    for listener in _listeners(vector)
]


def test_every_vector_has_a_state() -> None:
    assert sorted(STATE) == sorted((vector.name, vector.dialect) for vector in VECTORS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker for this module: vectors name their topics, and LIST_TOPICS shows all there are."""
    broker = RunningBroker(tmp_path_factory.mktemp("vectors") / "data", (*LISTENERS, "--durability", "os"))

    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def _without_time(frame: bytes) -> bytes:
    if frame[2] != flymq.Op.PRODUCE:
        return frame
    at = 8 + 2 + int.from_bytes(frame[8:10], "big") + 12
    return frame[:at] + bytes(8) + frame[at + 8 :]


@pytest.mark.parametrize(("vector", "listener"), CASES)
def test_the_answer_is_byte_for_byte_the_published_one(alone: RunningBroker, vector: Vector, listener: str) -> None:
    with Peer(alone.address) as helper:
        for topic in helper.ask(flymq.ListTopics()).topics:
            assert helper.ask(flymq.DeleteTopic(topic)) == flymq.Ok()
        STATE[vector.name, vector.dialect](helper)
    with Peer(alone.addresses[NAMES[listener]]) as peer:
        peer.send(vector.request)
        answer = peer.receive_frame()
        assert _without_time(answer).hex() == _without_time(vector.response).hex()
        # The connection lives on, whatever the answer was, and no byte came on top of it.
        if listener == "v126" or (listener == "auto" and vector.dialect == "v126" and vector.op in _TELLING):
            peer.dialect = V126
        assert isinstance(peer.ask(flymq.ListTopics()), flymq.TopicList)


def test_the_keyed_record_of_the_vector_is_where_it_says(alone: RunningBroker) -> None:
    keyed = next(vector for vector in VECTORS if vector.name == "PRODUCE keyed")
    with Peer(alone.address) as peer:
        peer.ask(flymq.DeleteTopic("orders"))
        peer.create("orders", 6)
        peer.send(keyed.request)
        peer.receive_frame()
        assert [(item.key, item.value) for item in peer.fetch_all("orders", 5)] == [(b"user-123", b'{"id":1}')]
