"""What the FlyMQ wire tests share: the published byte vectors with their meaning as values, and strategies for every message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import (
    BatchProduced,
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Dialect,
    Fetch,
    FetchBatches,
    Fetched,
    FetchedBatches,
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
    Response,
    Subscribe,
    TopicList,
    TopicMetadata,
)

DOCUMENTED, V126 = Dialect.DOCUMENTED, Dialect.V126
BOTH = (DOCUMENTED, V126)

quick = settings(max_examples=150, deadline=None, database=None)
"""No deadline, because the machine may be busy with other things; no database, so that every run starts the same."""


class Vector(NamedTuple):
    op: int
    name: str
    dialect: str
    request: bytes
    response: bytes

    @property
    def dialects(self) -> tuple[Dialect, ...]:
        return BOTH if self.dialect == "both" else (Dialect(self.dialect),)


def load_vectors() -> list[Vector]:
    with (Path(__file__).parent / "flymq_vectors.json").open() as file:
        rows = json.load(file)["vectors"]
    return [
        Vector(row["op"], row["name"], row["dialect"], bytes.fromhex(row["request_hex"]), bytes.fromhex(row["response_hex"]))
        for row in rows
    ]


VECTORS = load_vectors()
UNKNOWN_OPCODE = 238
COVERED = [vector for vector in VECTORS if vector.op <= Op.FETCH_BINARY or vector.op == UNKNOWN_OPCODE]

_TIME = 1_705_123_456_000
_TWO = Fetched((FetchedItem(b"", b"a", 0), FetchedItem(b"k", b"bc", 1)), 2)
_TWO_DOCUMENTED = Fetched((FetchedItem(b"k1", b"v1", 5), FetchedItem(b"", b"value two", 6)), 7)

MEANING: dict[tuple[str, str], tuple[Request | None, Response | BraidError]] = {
    ("PRODUCE", "both"): (Produce("test", b"", b"hello", -1), RecordMetadata("test", 0, 42, _TIME, -1, 5)),
    ("PRODUCE keyed", "both"): (
        Produce("orders", b"user-123", b'{"id":1}', -1),
        RecordMetadata("orders", 5, 0, _TIME, 8, 8),
    ),
    ("PRODUCE explicit partition", "both"): (Produce("events", b"", b"data", 2), RecordMetadata("events", 2, 7, _TIME, -1, 4)),
    ("PRODUCE gzip", "both"): (Produce("test", b"gk", b"gz", -1), RecordMetadata("test", 0, 1, _TIME, 2, 2)),
    ("PRODUCE error", "v126"): (Produce("events", b"", b"x", 99), BraidError("PARTITION_NOT_FOUND", partition=99)),
    ("CONSUME", "both"): (Consume("test", 0, 0), Message(b"k", b"hello")),
    ("CONSUME no key", "both"): (Consume("test", 0, 1), Message(b"", b"v")),
    ("CONSUME past end", "v126"): (Consume("test", 0, 99), BraidError("EOF", offset=99, topic="test", partition=0)),
    ("CONSUME unknown topic", "v126"): (Consume("nope", 0, 0), BraidError("TOPIC_NOT_FOUND", topic="nope")),
    ("CONSUME unknown topic", "documented"): (Consume("nope", 0, 0), BraidError("TOPIC_NOT_FOUND", topic="nope")),
    ("CREATE_TOPIC", "both"): (CreateTopic("test", 3), Ok()),
    ("METADATA", "both"): (Metadata("test"), TopicMetadata("test", (PartitionMetadata(0, 0, 0, 43),))),
    ("SUBSCRIBE earliest", "v126"): (Subscribe("test", "g", 0, "earliest"), Offset(0)),
    ("SUBSCRIBE latest", "v126"): (Subscribe("test", "g", 0, "latest"), Offset(43)),
    ("SUBSCRIBE commit", "v126"): (Subscribe("test", "g", 0, "commit"), Offset(2)),
    ("SUBSCRIBE committed alias", "v126"): (Subscribe("test", "default", 0, "committed"), Offset(0)),
    ("SUBSCRIBE u16 mode (documented layout)", "v126"): (Subscribe("test", "g", 0, "earliest"), Offset(0)),
    ("SUBSCRIBE earliest", "documented"): (Subscribe("orders", "g1", 0, "earliest"), Offset(0)),
    ("SUBSCRIBE latest", "documented"): (Subscribe("orders", "g1", 0, "latest"), Offset(7)),
    ("SUBSCRIBE commit", "documented"): (Subscribe("orders", "g1", 0, "commit"), Offset(3)),
    ("COMMIT", "both"): (Commit("test", "g", 0, 2), Ok()),
    ("FETCH", "v126"): (Fetch("test", 0, 0, 10), _TWO),
    ("FETCH with filter", "v126"): (Fetch("test", 0, 0, 10, "BC"), Fetched((FetchedItem(b"k", b"bc", 1),), 2)),
    ("FETCH without filter field (documented layout)", "v126"): (Fetch("test", 0, 0, 10), _TWO),
    ("FETCH at end", "v126"): (Fetch("test", 0, 2, 10), Fetched((), 2)),
    ("FETCH", "documented"): (Fetch("orders", 0, 5, 10), _TWO_DOCUMENTED),
    ("FETCH empty", "documented"): (Fetch("orders", 0, 7, 10), Fetched((), 7)),
    ("LIST_TOPICS", "both"): (ListTopics(), TopicList(("a", "bc"))),
    ("DELETE_TOPIC", "both"): (DeleteTopic("test"), Ok()),
    ("CONSUME_ZERO_COPY", "both"): (Consume("test", 0, 0, zero_copy=True), Message(b"k", b"hello")),
    ("FETCH_BINARY", "v126"): (Fetch("test", 0, 0, 10, binary=True), _TWO),
    ("FETCH_BINARY", "documented"): (Fetch("orders", 0, 5, 10, binary=True), _TWO_DOCUMENTED),
    ("unknown opcode", "v126"): (None, BraidError("UNKNOWN_OPCODE", opcode=UNKNOWN_OPCODE)),
}
"""What each vector says, written by hand, so that a codec which swaps two fields both ways is still found out."""

# --- strategies; texts are short enough that even four-byte characters stay within a str8
texts = st.text(max_size=40)
blobs = st.binary(max_size=60)
bools = st.booleans()
i32s = st.integers(-(2**31), 2**31 - 1)
u32s = st.integers(0, 2**32 - 1)
i64s = st.integers(-(2**63), 2**63 - 1)
u64s = st.integers(0, 2**64 - 1)


def _requests(filters: st.SearchStrategy[str]) -> st.SearchStrategy[Request]:
    return st.one_of(
        st.builds(Produce, texts, blobs, blobs, i32s),
        st.builds(Consume, texts, i32s, u64s, bools),
        st.builds(CreateTopic, texts, i32s),
        st.builds(Metadata, texts),
        st.builds(Subscribe, texts, texts, i32s, texts),
        st.builds(Commit, texts, texts, i32s, u64s),
        st.builds(Fetch, texts, i32s, u64s, i32s, filters, bools),
        st.builds(ListTopics),
        st.builds(DeleteTopic, texts),
        st.builds(ProduceBatch, texts, i32s, blobs),
        st.builds(FetchBatches, texts, i32s, u64s, u32s, u32s, u32s),
    )


REQUESTS_OF = {DOCUMENTED: _requests(st.just("")), V126: _requests(texts)}
"""A filter exists only in v126."""

_oks = st.builds(Ok, bools, texts)
_messages = st.builds(Message, blobs, blobs)
_fetched = st.builds(Fetched, st.lists(st.builds(FetchedItem, blobs, blobs, u64s), max_size=6).map(tuple), u64s)
_partitions = st.lists(st.builds(PartitionMetadata, i32s, i32s, u64s, u64s), max_size=6).map(tuple)
_responses: dict[Op, st.SearchStrategy[Response]] = {
    Op.PRODUCE: st.builds(RecordMetadata, texts, i32s, u64s, i64s, i32s, i32s),
    Op.CONSUME: _messages,
    Op.CREATE_TOPIC: _oks,
    Op.METADATA: st.builds(TopicMetadata, texts, _partitions),
    Op.SUBSCRIBE: st.builds(Offset, u64s),
    Op.COMMIT: _oks,
    Op.FETCH: _fetched,
    Op.LIST_TOPICS: st.builds(TopicList, st.lists(texts, max_size=6).map(tuple)),
    Op.DELETE_TOPIC: _oks,
    Op.CONSUME_ZERO_COPY: _messages,
    Op.FETCH_BINARY: _fetched,
    Op.PRODUCE_BATCH: st.builds(BatchProduced, texts, i32s, u64s, i64s, u32s, bools),
    Op.FETCH_BATCHES: st.builds(FetchedBatches, texts, i32s, u64s, u64s, blobs),
}
RESPONSE_OPS = tuple(_responses)
RESPONSES = st.one_of(*(st.tuples(st.just(op), strategy) for op, strategy in _responses.items()))
