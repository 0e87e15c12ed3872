"""Conversations with the broker, as tables: what is sent, and what must come back."""

# long file: one table of conversations; splitting it would only hide what is covered

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flymq_peer import DOCUMENTED, NAMES, V126, Peer, batch, new_topic, rss_bytes, until, untimed
from running_broker import RunningBroker, StartBroker

from braidmq.base import limits
from braidmq.wire import flymq
from braidmq.wire.flymq import (
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Dialect,
    ErrorReply,
    Fetch,
    FetchBatches,
    Fetched,
    FetchedItem,
    ListTopics,
    Message,
    Metadata,
    Offset,
    Ok,
    Op,
    PartitionMetadata,
    Produce,
    ProduceBatch,
    RecordMetadata,
    Request,
    Subscribe,
    TopicMetadata,
    encode_frame,
)

ANY = object()
"""An answer nobody looks at."""


@dataclass(frozen=True)
class Says:
    """An ERROR whose text, as the connection's dialect has it, matches."""

    pattern: str


Steps = list[tuple[Request | bytes, Any]]


def converse(peer: Peer, steps: Steps) -> None:
    """Send each request and hold its answer to what was expected, apart from timestamps."""
    for number, (request, expected) in enumerate(steps):
        peer.send(request if isinstance(request, bytes) else peer.encode(request))
        frame = peer.receive_frame()
        op = request[2] if isinstance(request, bytes) else request.op
        answer = peer.decode(op, frame)
        if isinstance(expected, Says):
            assert isinstance(answer, ErrorReply), (number, request, answer)
            assert re.fullmatch(expected.pattern, answer.text), (number, request, answer)
        elif expected is not ANY:
            assert untimed(answer) == expected, (number, request)


def _meta(topic: str, partition: int, offset: int, key: bytes, value: bytes) -> RecordMetadata:
    return RecordMetadata(topic, partition, offset, 0, len(key) or -1, len(value))


# --- topics and partitions

Table = Callable[[str], Steps]

TABLES: dict[str, Table] = {
    "create twice keeps the first": lambda t: [
        (CreateTopic(t, 2), Ok()),
        (CreateTopic(t, 5), Ok()),
        (Metadata(t), TopicMetadata(t, (PartitionMetadata(0, 0, 0, 0), PartitionMetadata(1, 0, 0, 0)))),
    ],
    "create with no partitions means one": lambda t: [
        (CreateTopic(t, 0), Ok()),
        (Metadata(t), TopicMetadata(t, (PartitionMetadata(0, 0, 0, 0),))),
    ],
    "create with an impossible count": lambda t: [
        (CreateTopic(t, -1), Says("INVALID_PARTITIONS: .*")),
        (CreateTopic(t, -(2**31)), Says("INVALID_PARTITIONS: .*")),
        (CreateTopic(t, limits.PARTITIONS_MAX + 1), Says("INVALID_PARTITIONS: .*")),
        (CreateTopic(t, 2**31 - 1), Says("INVALID_PARTITIONS: .*")),
        (Metadata(t), Says(f"TOPIC_NOT_FOUND: topic not found: {t}")),
    ],
    "a property that does not exist": lambda t: [
        (CreateTopic(t, 1, {"colour": "blue"}), Says("INVALID_ARGUMENT: .*colour.*")),
        (CreateTopic(t, 1, {"durability": "maybe"}), Says("INVALID_ARGUMENT: .*maybe.*")),
        (CreateTopic(t, 1, {"segment_bytes": "1"}), Says("INVALID_ARGUMENT: .*segment_bytes.*")),
        (Metadata(t), Says("TOPIC_NOT_FOUND: .*")),
    ],
    "bytes behind CREATE_TOPIC that are no properties": lambda t: [
        (encode_frame(Op.CREATE_TOPIC, _str(t) + b"\0\0\0\2" + b"\0\0\0\1junk"), Ok()),
        (Metadata(t), TopicMetadata(t, (PartitionMetadata(0, 0, 0, 0), PartitionMetadata(1, 0, 0, 0)))),
    ],
    "delete what is not there": lambda t: [(DeleteTopic(t), Ok()), (DeleteTopic(t), Ok())],
    "delete and create again begins anew": lambda t: [
        (CreateTopic(t, 2), Ok()),
        (Produce(t, b"", b"old", 0), _meta(t, 0, 0, b"", b"old")),
        (Commit(t, "g", 0, 1), Ok()),
        (DeleteTopic(t), Ok()),
        (Fetch(t, 0, 0, 10), Says("TOPIC_NOT_FOUND: .*")),
        (Subscribe(t, "g", 0, "commit"), Says("TOPIC_NOT_FOUND: .*")),
        (CreateTopic(t, 1), Ok()),
        (Subscribe(t, "g", 0, "commit"), Offset(0)),
        (Fetch(t, 0, 0, 10), Fetched((), 0)),
        (Produce(t, b"", b"new", -1), _meta(t, 0, 0, b"", b"new")),
        (Fetch(t, 0, 0, 10), Fetched((FetchedItem(b"", b"new", 0),), 1)),
        (Produce(t, b"", b"x", 1), Says("PARTITION_NOT_FOUND: partition 1 not found")),
    ],
    "a missing topic, operation by operation": lambda t: [
        (Consume(t, 0, 0), Says(f"TOPIC_NOT_FOUND: topic not found: {t}")),
        (Consume(t, 0, 0, zero_copy=True), Says("TOPIC_NOT_FOUND: .*")),
        (Fetch(t, 0, 0, 1), Says("TOPIC_NOT_FOUND: .*")),
        (Fetch(t, 0, 0, 1, binary=True), Says("TOPIC_NOT_FOUND: .*")),
        (FetchBatches(t, 0, 0, 1, 1, 1), Says("TOPIC_NOT_FOUND: .*")),
        (Metadata(t), Says("TOPIC_NOT_FOUND: .*")),
        (Subscribe(t, "g", 0, "earliest"), Says("TOPIC_NOT_FOUND: .*")),
        (Commit(t, "g", 0, 0), Says("TOPIC_NOT_FOUND: .*")),
        # Reading never creates.
        (Metadata(t), Says("TOPIC_NOT_FOUND: .*")),
    ],
    "partition -1, operation by operation": lambda t: [
        (CreateTopic(t, 3), Ok()),
        (Produce(t, b"", b"v", -1), _meta(t, 0, 0, b"", b"v")),
        (Consume(t, -1, 0), Says("PARTITION_OUT_OF_RANGE: partition -1 out of range")),
        (Consume(t, -1, 0, zero_copy=True), Says("PARTITION_OUT_OF_RANGE: partition -1 out of range")),
        (Fetch(t, -1, 0, 10), Says("PARTITION_NOT_FOUND: partition -1 not found")),
        (Fetch(t, -1, 0, 10, binary=True), Says("PARTITION_NOT_FOUND: partition -1 not found")),
        (Subscribe(t, "g", -1, "earliest"), Says("PARTITION_NOT_FOUND: partition -1 not found")),
        (Commit(t, "g", -1, 0), Says("PARTITION_NOT_FOUND: partition -1 not found")),
        (FetchBatches(t, -1, 0, 1, 1, 0), Says("PARTITION_NOT_FOUND: partition -1 not found")),
    ],
    "a partition past the last, operation by operation": lambda t: [
        (CreateTopic(t, 3), Ok()),
        (Produce(t, b"", b"v", 2), _meta(t, 2, 0, b"", b"v")),
        (Produce(t, b"", b"v", 3), Says("PARTITION_NOT_FOUND: partition 3 not found")),
        (Produce(t, b"k", b"v", 2**31 - 1), Says("PARTITION_NOT_FOUND: .*")),
        (ProduceBatch(t, 3, batch(b"v")), Says("PARTITION_NOT_FOUND: partition 3 not found")),
        (Consume(t, 3, 0), Says("PARTITION_OUT_OF_RANGE: partition 3 out of range")),
        (Fetch(t, 3, 0, 10), Says("PARTITION_NOT_FOUND: partition 3 not found")),
        (Fetch(t, -(2**31), 0, 10), Says("PARTITION_NOT_FOUND: .*")),
        (Subscribe(t, "g", 3, "latest"), Says("PARTITION_NOT_FOUND: partition 3 not found")),
        (Commit(t, "g", 3, 0), Says("PARTITION_NOT_FOUND: partition 3 not found")),
        (FetchBatches(t, 3, 0, 1, 1, 0), Says("PARTITION_NOT_FOUND: partition 3 not found")),
    ],
    # --- reading
    "consume": lambda t: [
        (CreateTopic(t, 1), Ok()),
        (Consume(t, 0, 0), Says(f"EOF: offset 0 is at or past the end of {t}/0")),
        (Produce(t, b"k", b"v", 0), _meta(t, 0, 0, b"k", b"v")),
        (Produce(t, b"", b"", 0), _meta(t, 0, 1, b"", b"")),
        (Consume(t, 0, 0), Message(b"k", b"v")),
        (Consume(t, 0, 1), Message(b"", b"")),
        (Consume(t, 0, 1, zero_copy=True), Message(b"", b"")),
        (Consume(t, 0, 2), Says("EOF: .*")),
        (Consume(t, 0, 2**64 - 1), Says("EOF: .*")),
    ],
    "fetch": lambda t: [
        (CreateTopic(t, 1), Ok()),
        *((Produce(t, b"", b"%d" % n, 0), ANY) for n in range(15)),
        (Fetch(t, 0, 0, 0), Fetched(_items(0, 10), 10)),
        (Fetch(t, 0, 0, -5), Fetched(_items(0, 10), 10)),
        (Fetch(t, 0, 12, -(2**31)), Fetched(_items(12, 15), 15)),
        (Fetch(t, 0, 3, 2), Fetched(_items(3, 5), 5)),
        (Fetch(t, 0, 14, 2**31 - 1), Fetched(_items(14, 15), 15)),
        (Fetch(t, 0, 15, 10), Fetched((), 15)),
        (Fetch(t, 0, 999, 10), Fetched((), 999)),
        (Fetch(t, 0, 2**64 - 1, 10, binary=True), Fetched((), 2**64 - 1)),
    ],
    # --- groups
    "subscribe modes": lambda t: [
        (CreateTopic(t, 1), Ok()),
        (Subscribe(t, "g", 0, "latest"), Offset(0)),
        (Produce(t, b"", b"a", 0), ANY),
        (Produce(t, b"", b"b", 0), ANY),
        (Subscribe(t, "g", 0, "earliest"), Offset(0)),
        (Subscribe(t, "g", 0, "latest"), Offset(2)),
        (Subscribe(t, "g", 0, ""), Offset(2)),
        (Subscribe(t, "g", 0, "commit"), Offset(0)),
        (Commit(t, "g", 0, 2), Ok()),
        (Commit(t, "g", 0, 1), Ok()),
        (Subscribe(t, "g", 0, "commit"), Offset(1)),
        (Subscribe(t, "g", 0, "committed"), Offset(1)),
        (Subscribe(t, "other", 0, "commit"), Offset(0)),
        (Subscribe(t, "g", 0, "earliest"), Offset(0)),
        (Subscribe(t, "g", 0, "newest"), Says("INVALID_MODE: unknown subscribe mode: newest")),
        (Commit(t, "g", 0, 2**64 - 1), Ok()),
        (Subscribe(t, "g", 0, "commit"), Offset(2**64 - 1)),
    ],
    "group names": lambda t: [
        (CreateTopic(t, 1), Ok()),
        (Subscribe(t, "", 0, "earliest"), Offset(0)),
        (Subscribe(t, "../g", 0, "earliest"), Offset(0)),
        (Commit(t, "../g", 0, 0), Ok()),
        (Commit(t, "", 0, 0), Says("INVALID_GROUP: .*")),
        (Commit(t, "g\0", 0, 0), Says("INVALID_GROUP: .*")),
        (Commit(t, "g" * (limits.GROUP_NAME_BYTES_MAX + 1), 0, 0), Says("INVALID_GROUP: .*")),
        (Subscribe(t, "g\n", 0, "earliest"), Says("INVALID_GROUP: .*")),
    ],
    # --- frames that make no sense
    "payloads that cannot be read": lambda t: [
        (encode_frame(Op.PRODUCE, b""), Says("MALFORMED_PAYLOAD: invalid binary format: .*")),
        (encode_frame(Op.PRODUCE, b"\xff\xff" + t.encode()), Says("MALFORMED_PAYLOAD: .*")),
        (encode_frame(Op.PRODUCE, _str(t) + b"\xff\xff\xff\xff" + bytes(10)), Says("MALFORMED_PAYLOAD: .*")),
        (encode_frame(Op.PRODUCE, _str(t) + bytes(8)), Says("MALFORMED_PAYLOAD: .*")),
        (encode_frame(Op.CREATE_TOPIC, b"\x00\x02\xff\xfe\x00\x00\x00\x01"), Says("MALFORMED_PAYLOAD: .*UTF-8")),
        (encode_frame(Op.SUBSCRIBE, _str(t) + _str("g") + bytes(4) + b"\x07mode"), Says("MALFORMED_PAYLOAD: .*")),
        (encode_frame(Op.FETCH_BATCHES, _str(t) + bytes(12)), Says("MALFORMED_PAYLOAD: .*")),
        (encode_frame(Op.PRODUCE_BATCH, _str(t) + bytes(4) + b"\x7f\xff\xff\xff"), Says("MALFORMED_PAYLOAD: .*")),
        (Metadata(t), Says("TOPIC_NOT_FOUND: .*")),
    ],
    "opcodes that are no requests": lambda t: [
        (encode_frame(0xEE, b"anything"), Says("UNKNOWN_OPCODE: unknown opcode: 238")),
        (encode_frame(0xFF, b""), Says("UNKNOWN_OPCODE: unknown opcode: 255")),
        (encode_frame(0x71, b""), Says("UNKNOWN_OPCODE: unknown opcode: 113")),
        (encode_frame(0x00, bytes(1000)), Says("UNKNOWN_OPCODE: unknown opcode: 0")),
        (ListTopics(), ANY),
    ],
    "bytes after the last field are ignored": lambda t: [
        (encode_frame(Op.CREATE_TOPIC, _str(t) + b"\0\0\0\1" + b"\0\0\0"), Ok()),
        (encode_frame(Op.PRODUCE, _str(t) + bytes(4) + b"\0\0\0\1v" + b"\xff\xff\xff\xff" + b"more"), _meta(t, 0, 0, b"", b"v")),
        (encode_frame(Op.CONSUME, _str(t) + bytes(12) + b"more"), Message(b"", b"v")),
        (encode_frame(Op.METADATA, _str(t) + b"more"), TopicMetadata(t, (PartitionMetadata(0, 0, 0, 1),))),
        (encode_frame(Op.LIST_TOPICS, b"more"), ANY),
        (encode_frame(Op.DELETE_TOPIC, _str(t) + b"more"), Ok()),
    ],
    "the binary flag and the unused ones mean nothing": lambda t: [
        (encode_frame(Op.CREATE_TOPIC, _str(t) + b"\0\0\0\1", flags=0), Ok()),
        (encode_frame(Op.PRODUCE, _str(t) + bytes(4) + b"\0\0\0\1a" + bytes(4), flags=0), _meta(t, 0, 0, b"", b"a")),
        (encode_frame(Op.PRODUCE, _str(t) + bytes(4) + b"\0\0\0\1b" + bytes(4), flags=0xF1), _meta(t, 0, 1, b"", b"b")),
        (Fetch(t, 0, 0, 10), Fetched((FetchedItem(b"", b"a", 0), FetchedItem(b"", b"b", 1)), 2)),
    ],
    # --- compression
    "gzip on every kind of request": lambda t: [
        (_gzipped(CreateTopic(t, 2)), Ok()),
        (_gzipped(Produce(t, b"", b"v" * 1000, 1)), _meta(t, 1, 0, b"", b"v" * 1000)),
        (_gzipped(Fetch(t, 1, 0, 10)), Fetched((FetchedItem(b"", b"v" * 1000, 0),), 1)),
        (_gzipped(Commit(t, "g", 1, 1)), Ok()),
        (_gzipped(Subscribe(t, "g", 1, "commit")), Offset(1)),
        (_gzipped(ProduceBatch(t, 1, batch(b"x"))), ANY),
        (_gzipped(DeleteTopic(t)), Ok()),
    ],
    "compression that is not there, or not what was sent": lambda t: [
        (encode_frame(Op.METADATA, _str(t), flags=0x05), Says(".*lz4.*")),
        (encode_frame(Op.METADATA, _str(t), flags=0x07), Says(".*zstd.*")),
        (encode_frame(Op.METADATA, _str(t), flags=0x09), Says(".*snappy.*")),
        (encode_frame(Op.PRODUCE, _str(t) + bytes(12), flags=0x0F), Says("UNSUPPORTED_COMPRESSION: .*")),
        (encode_frame(Op.METADATA, b"not gzip", flags=0x03), Says("MALFORMED_PAYLOAD: .*gzip.*")),
        (encode_frame(Op.METADATA, gzip.compress(_str(t))[:-9], flags=0x03), Says("MALFORMED_PAYLOAD: .*gzip.*")),
        (Metadata(t), Says("TOPIC_NOT_FOUND: .*")),
    ],
}


def _str(text: str) -> bytes:
    return len(text.encode()).to_bytes(2, "big") + text.encode()


def _items(first: int, stop: int) -> tuple[FetchedItem, ...]:
    return tuple(FetchedItem(b"", b"%d" % number, number) for number in range(first, stop))


def _gzipped(request: Request) -> bytes:
    frame = flymq.encode_request(request, DOCUMENTED)
    return encode_frame(request.op, gzip.compress(frame[8:]), flags=0x03)


@pytest.mark.parametrize("name", TABLES)
def test_conversation(peer: Peer, name: str) -> None:
    converse(peer, TABLES[name](new_topic()))


@pytest.mark.parametrize("name", TABLES)
def test_conversation_with_a_published_client(compiled_broker: RunningBroker, name: str) -> None:
    """The same rules hold in the other dialect; its errors carry the text without the code."""
    steps = [
        (request, Says(re.sub("^(?!EOF)[A-Z_]+: ", "", expected.pattern)) if isinstance(expected, Says) else expected)
        for request, expected in TABLES[name](new_topic())
    ]
    with Peer(compiled_broker.addresses[NAMES["v126"]], V126) as peer:
        converse(peer, steps)


# --- names

REFUSED_NAMES = [
    "", ".", "..", "a\0b", "line\nbreak", "\x7f", "\x85", "x" * 1021, "é" * 511, "x" * 1300, "x" * 65535, "__x", "__metadata",
]


@pytest.mark.parametrize("name", REFUSED_NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_nobody_may_use(peer: Peer, name: str) -> None:
    before = peer.ask(ListTopics())
    converse(peer, [
        (CreateTopic(name, 1), Says("(?s)INVALID_TOPIC: .*")),
        (Produce(name, b"", b"v", -1), Says("(?s)INVALID_TOPIC: .*")),
        (ProduceBatch(name, 0, batch(b"v")), Says("(?s)INVALID_TOPIC: .*")),
        (DeleteTopic(name), Says("(?s)INVALID_TOPIC: .*")),
        (Fetch(name, 0, 0, 1), Says("(?s)TOPIC_NOT_FOUND: .*")),
        (ListTopics(), before),
    ])


def test_names_that_look_like_paths_are_only_names(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("--durability", "os")
    names = [
        "../x", "a/b/c", "a/b", "/", "/etc/passwd", "C:\\x", "%2e%2e", "x" * 1020, "é" * 510, "名前", " ", "-rf", "~",
        "a//b", "0", "...",
    ]
    files_outside = {path for path in tmp_path.iterdir()}
    with Peer(broker.address) as peer:
        for name in names:
            peer.create(name, 2)
            peer.produce(name, name.encode(), partition=1)
        assert peer.ask(ListTopics()).topics == tuple(sorted(names))
    assert {path for path in tmp_path.iterdir()} == files_outside
    for _ in range(2):
        broker.kill()
        broker.restart()
        with Peer(broker.address) as peer:
            assert peer.ask(ListTopics()).topics == tuple(sorted(names))
            for name in names:
                assert [item.value for item in peer.fetch_all(name, 1)] == [name.encode()]
                assert peer.fetch_all(name, 0) == []


# --- dialects


@pytest.mark.parametrize(
    "telling",
    [
        pytest.param(lambda t: flymq.encode_request(Subscribe(t, "g", 0, "earliest"), V126), id="subscribe-str8"),
        pytest.param(lambda t: flymq.encode_request(Subscribe(t, "g", 0, ""), V126), id="subscribe-empty-str8"),
        pytest.param(lambda t: flymq.encode_request(Fetch(t, 0, 0, 10), V126), id="fetch-with-filter-field"),
        pytest.param(lambda t: flymq.encode_request(Fetch(t, 0, 0, 10, "v", binary=True), V126), id="fetch-binary-with-filter"),
        pytest.param(lambda t: encode_frame(0x53, b"\0\0"), id="cluster-metadata"),
        pytest.param(lambda t: encode_frame(0x80, b""), id="audit-query"),
        pytest.param(lambda t: encode_frame(0xA1, b""), id="audit-export-sdk"),
    ],
)
def test_auto_follows_the_first_request_that_only_a_published_client_sends(
    standing: RunningBroker, telling: Callable[[str], bytes]
) -> None:
    topic = new_topic()
    missing = Metadata("missing")
    fetched = Fetched((FetchedItem(b"k", b"v", 0),), 1)
    with Peer(standing.address) as peer:
        peer.create(topic)
        peer.produce(topic, b"v", key=b"k")
        converse(peer, [
            (Fetch(topic, 0, 0, 10), fetched),
            (missing, Says("TOPIC_NOT_FOUND: topic not found: missing")),
        ])
        peer.send(telling(topic))
        peer.receive_frame()
        peer.dialect = V126
        # For good: documented layouts are still understood, and answered in the other dialect.
        for _ in range(2):
            converse(peer, [(missing, Says("topic not found: missing")), (Fetch(topic, 0, 0, 10), fetched)])
            peer.send(flymq.encode_request(Fetch(topic, 0, 0, 10), DOCUMENTED))
            assert peer.decode(Op.FETCH, peer.receive_frame()) == fetched
            peer.send(flymq.encode_request(Subscribe(topic, "g", 0, "latest"), DOCUMENTED))
            assert peer.decode(Op.SUBSCRIBE, peer.receive_frame()) == Offset(1)


@pytest.mark.parametrize("request_of", [
    lambda t: Subscribe(t, "g", 0, "earliest"), lambda t: Fetch(t, 0, 0, 10), lambda t: Produce(t, b"", b"v", 0), Metadata,
    lambda t: Commit(t, "g", 0, 0), lambda t: Consume(t, 0, 0), lambda t: ProduceBatch(t, 0, batch(b"v")),
    lambda t: FetchBatches(t, 0, 0, 1, 1, 1),
])
def test_auto_stays_documented_with_documented_requests(peer: Peer, request_of: Callable[[str], Request]) -> None:
    topic = peer.create(new_topic())
    peer.ask(request_of(topic))
    converse(peer, [(Metadata("missing"), Says("TOPIC_NOT_FOUND: .*"))])


def test_a_pinned_listener_does_not_follow(standing: RunningBroker) -> None:
    with Peer(standing.addresses[NAMES["documented"]]) as peer:
        topic = peer.create(new_topic())
        peer.send(flymq.encode_request(Subscribe(topic, "g", 0, "earliest"), V126))
        assert peer.decode(Op.SUBSCRIBE, peer.receive_frame()) == Offset(0)
        converse(peer, [(Metadata("missing"), Says("TOPIC_NOT_FOUND: .*"))])
    with Peer(standing.addresses[NAMES["v126"]], V126) as peer:
        converse(peer, [(Metadata("missing"), Says("topic not found: missing"))])


@pytest.mark.parametrize(
    ("listener", "dialect", "partitions"), [("auto", DOCUMENTED, 3), ("documented", DOCUMENTED, 3), ("v126", V126, 1)]
)
@pytest.mark.parametrize("bulk", [False, True], ids=["produce", "batch"])
def test_partitions_of_a_topic_that_producing_creates(
    standing: RunningBroker, listener: str, dialect: Dialect, partitions: int, bulk: bool
) -> None:
    topic = new_topic()
    with Peer(standing.addresses[NAMES[listener]], dialect) as peer:
        peer.ask(ProduceBatch(topic, -1, batch(b"v")) if bulk else Produce(topic, b"", b"v", -1))
        assert len(peer.ask(Metadata(topic)).partitions) == partitions


def test_an_auto_connection_known_to_be_v126_creates_one_partition(peer: Peer) -> None:
    known, created = peer.create(new_topic()), new_topic()
    peer.send(flymq.encode_request(Fetch(known, 0, 0, 1), V126))
    peer.receive_frame()
    peer.dialect = V126
    assert isinstance(peer.ask(Produce(created, b"", b"v", -1)), RecordMetadata)
    assert len(peer.ask(Metadata(created)).partitions) == 1


def test_a_long_error_text_is_cut_and_stays_readable_in_both_dialects(compiled_broker: RunningBroker) -> None:
    name = "ü" * 30_000
    for listener, dialect in (("documented", DOCUMENTED), ("v126", V126)):
        with Peer(compiled_broker.addresses[NAMES[listener]], dialect) as peer:
            reply = peer.ask(Metadata(name))
            assert isinstance(reply, ErrorReply) and "topic not found: üü" in reply.text
            assert len(reply.text.encode()) <= limits.ERROR_TEXT_BYTES_MAX


# --- where records go


def test_keyless_records_go_round_from_partition_0(peer: Peer) -> None:
    topic = peer.create(new_topic(), 3)
    turns = [peer.ask(Produce(topic, b"", b"v", -1)).partition for _ in range(4)]
    assert turns == [0, 1, 2, 0]
    # Explicit and keyed ones do not take a turn.
    assert peer.ask(Produce(topic, b"", b"v", 2)).partition == 2
    assert peer.ask(Produce(topic, b"a", b"v", -1)).partition == 1
    assert [reply.partition for reply in peer.ask_all(*[Produce(topic, b"", b"v", -7)] * 5)] == [1, 2, 0, 1, 2]


PARTITION_VECTORS = json.loads((Path(__file__).parent.parent / "wire" / "flymq_vectors.json").read_text())["partition_vectors"]


@pytest.mark.parametrize("partitions", [3, 6, 12])
def test_keyed_records_go_where_every_client_expects_them(peer: Peer, partitions: int) -> None:
    topic = peer.create(new_topic(), partitions)
    for row in PARTITION_VECTORS:
        key = row["key"].encode()
        # The first goes the general way, the second through the parser; both must agree.
        assert [peer.ask(Produce(topic, key, b"v", -1)).partition for _ in range(2)] == [row[f"p{partitions}"]] * 2


def test_a_restart_begins_the_round_anew_and_keeps_the_records(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as peer:
        topic = peer.create(new_topic(), 12)
        assert [peer.ask(Produce(topic, b"", b"%d" % n, -1)).partition for n in range(11)] == list(range(11))
    broker.restart()
    with Peer(broker.address) as peer:
        for number in range(11):
            assert [item.value for item in peer.fetch_all(topic, number)] == [b"%d" % number]
        assert peer.fetch_all(topic, 11) == []
        assert peer.ask(Produce(topic, b"", b"v", -1)).partition == 0


# --- reading below what is kept


def test_reading_below_the_oldest(start_broker: StartBroker) -> None:
    broker = start_broker(
        "--durability", "os", "--segment-bytes", "4096", "--retention-bytes", "8192", "--retention-interval", "0.05s"
    )
    with Peer(broker.address) as peer:
        _read_below_the_oldest(peer)


def test_properties_of_a_topic_are_its_own(peer: Peer) -> None:
    """The same with properties in CREATE_TOPIC, beside a topic that keeps the broker's settings."""
    other = peer.create(new_topic())
    peer.produce(other, *[bytes(1000)] * 40)
    _read_below_the_oldest(peer, segment_bytes="4096", retention_bytes="8192", durability="fsync")
    assert peer.ask(Metadata(other)).partitions == (PartitionMetadata(0, 0, 0, 40),)


def _read_below_the_oldest(peer: Peer, **properties: str) -> None:
    topic = peer.create(new_topic(), 1, **properties)
    for number in range(40):
        peer.produce(topic, b"%03d" % number + bytes(1000))
    # Three records fill a segment; it stops at what 8192 bytes and the newest segment hold, and not while it still lets go.
    until(lambda: peer.ask(Metadata(topic)).partitions[0].oldest >= 30, "retention lets go of old segments")
    oldest = peer.ask(Metadata(topic)).partitions[0].oldest
    assert oldest == 30
    fetched = peer.ask(Fetch(topic, 0, 0, 100))
    assert [item.offset for item in fetched.items] == list(range(oldest, 40)) and fetched.next_offset == 40
    assert [item.value[:3] for item in fetched.items] == [b"%03d" % number for number in range(oldest, 40)]
    assert isinstance(peer.ask(Consume(topic, 0, oldest)), Message)
    converse(peer, [
        (Consume(topic, 0, oldest - 1), Says(f"OFFSET_OUT_OF_RANGE: offset out of range: {oldest - 1} of .*")),
        (Consume(topic, 0, 0, zero_copy=True), Says("OFFSET_OUT_OF_RANGE: .*")),
        (FetchBatches(topic, 0, 0, 1000, 1, 0), Says("OFFSET_OUT_OF_RANGE: .*")),
        (Subscribe(topic, "g", 0, "earliest"), Offset(oldest)),
        (Subscribe(topic, "g", 0, "commit"), Offset(oldest)),
    ])


# --- compression bombs


def test_a_gzip_bomb_is_refused_and_costs_little(compiled_broker: RunningBroker) -> None:
    bomb = gzip.compress(bytes(200 << 20), compresslevel=1)
    with Peer(compiled_broker.address) as peer:
        before = rss_bytes(compiled_broker.pid)
        for _ in range(5):
            converse(peer, [(encode_frame(Op.PRODUCE, bomb, flags=0x03), Says("FRAME_TOO_LARGE: .*"))])
        exact = encode_frame(Op.METADATA, gzip.compress(_str("missing") + bytes(limits.FRAME_PAYLOAD_BYTES_MAX - 9)), flags=0x03)
        converse(peer, [(exact, Says("TOPIC_NOT_FOUND: .*"))])
        assert rss_bytes(compiled_broker.pid) - before < 100 << 20


# --- durability


def test_a_committed_offset_survives_kill_9(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        topic = peer.create("orders/eu", 2)
        for offset in (5, 9, 7):
            assert peer.ask(Commit(topic, "g", 1, offset)) == Ok()
        assert peer.ask(Commit(topic, "other", 1, 1)) == Ok()
    for _ in range(2):
        broker.kill()
        broker.restart()
        with Peer(broker.address) as peer:
            converse(peer, [
                (Subscribe(topic, "g", 1, "commit"), Offset(7)),
                (Subscribe(topic, "g", 0, "commit"), Offset(0)),
                (Subscribe(topic, "other", 1, "committed"), Offset(1)),
            ])


@pytest.mark.parametrize("level", ["none", "os", "fsync"])
@pytest.mark.parametrize("existing", [True, False], ids=["known-topic", "new-topic"])
def test_a_fetch_right_behind_a_produce_sees_its_record(start_broker: StartBroker, level: str, existing: bool) -> None:
    """All in one write, on a topic the parser knows and on one that the first request creates."""
    for env in ({}, {"BRAID_PURE": "1"}):
        broker = start_broker("--durability", level, "--default-partitions", "1", name=f"data{len(env)}", env=env)
        with Peer(broker.address) as peer:
            for number in range(20):
                topic = peer.create(new_topic()) if existing else new_topic()
                one, two, bulk, three = (b"%d-%d" % (number, part) for part in range(4))
                answers = peer.ask_all(
                    Produce(topic, b"", one, 0), Fetch(topic, 0, 0, 9), Produce(topic, b"", two, -1), Consume(topic, 0, 1),
                    ProduceBatch(topic, 0, batch(bulk)), Fetch(topic, 0, 2, 9), Metadata(topic),
                    Produce(topic, b"", three, 0), Subscribe(topic, "g", 0, "latest"), FetchBatches(topic, 0, 3, 1000, 1, 0),
                )
                assert answers[1].items == (FetchedItem(b"", one, 0),)
                assert answers[3] == Message(b"", two)
                assert answers[5].items == (FetchedItem(b"", bulk, 2),)
                assert answers[6].partitions[0].newest == 3
                assert answers[8] == Offset(4)
                assert answers[9].batches
