"""The published byte vectors with their meaning as values. Strategies for every message are in `flymq_cases_strategies`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from flymq_cases_areas import AREAS, Meaning
from flymq_cases_strategies import DOCUMENTED, V126
from hypothesis import settings
from proof_length import length

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import (
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Dialect,
    Fetch,
    Fetched,
    FetchedItem,
    ListTopics,
    Message,
    Metadata,
    Offset,
    Ok,
    PartitionMetadata,
    Produce,
    RecordMetadata,
    Subscribe,
    TopicList,
    TopicMetadata,
)

BOTH = (DOCUMENTED, V126)

quick = settings(max_examples=length(60, 300), deadline=None, database=None)
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

_TIME = 1_705_123_456_000
_TWO = Fetched((FetchedItem(b"", b"a", 0), FetchedItem(b"k", b"bc", 1)), 2)
_TWO_DOCUMENTED = Fetched((FetchedItem(b"k1", b"v1", 5), FetchedItem(b"", b"value two", 6)), 7)

MEANING: Meaning = {
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
    **AREAS,
}
"""What each vector says, written by hand, so that a codec which swaps two fields both ways is still found out."""
