"""The topics, as a state machine: what exists is what the commands in the metadata journal say.

Commands are lists of plain values, applied in journal order on every start and, later, on every node. `apply` must
depend on nothing else: no clock, no disk, no chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import compression, limits
from braidmq.base.errors import BraidError
from braidmq.base.json_pieces import Deferred
from braidmq.broker.names import check_group
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings

PROPERTIES: Final[dict[str, str]] = {
    "durability": "none, os, fsync or quorum: what an acknowledgement means for this topic",
    "segment_bytes": "size at which a segment is closed",
    "segment_age_ms": "age at which a segment is closed",
    "retention_bytes": "bytes kept a partition; 0 keeps everything",
    "retention_age_ms": "age up to which records are kept; 0 keeps everything",
    "retention_hold": "names of groups, with commas: what one of them has not read yet is kept beyond retention",
    "retention_hold_bytes": "bytes of a partition up to which groups may hold what retention would let go",
    "ttl_ms": "time to live of records that have none of their own; 0 keeps them for ever",
    "dlq_expired": "true or false: whether expired records become dead letters",
    "compression": "none, gzip, lz4, zstd or snappy: how batches are compressed on the disk",
    "schema": "name of the schema that every record has to fit; without one nothing is checked",
    "schema_rule": "reject or dead-letter: what becomes of a record that does not fit the schema",
    "mask_fields": "fields of records, with commas, that the admin API and the console show to administrators only",
}
"""What a topic may set for itself; everything else comes from the broker's settings."""


@dataclass(slots=True)
class Topic:
    name: str
    id: int
    partitions: int
    created_ms: int
    properties: dict[str, str] = field(default_factory=dict)
    first_partition: int = 0
    """The number of its partition 0 among all partitions that the broker ever had; no other topic gets its numbers."""

    def settings(self, defaults: LogSettings) -> LogSettings:
        """The defaults with the topic's own properties over them."""
        own = self.properties
        return LogSettings(
            Level.parse(own["durability"]) if "durability" in own else defaults.level,
            int(own.get("segment_bytes", defaults.segment_bytes)),
            int(own.get("segment_age_ms", defaults.segment_age_ms)),
            int(own.get("retention_bytes", defaults.retention_bytes)),
            int(own.get("retention_age_ms", defaults.retention_age_ms)),
            int(own.get("ttl_ms", defaults.ttl_ms)),
            compression=own.get("compression", defaults.compression),
        )


    def holders(self) -> list[str]:
        """Groups that hold what they have not read."""
        return [name for name in self.properties.get("retention_hold", "").split(",") if name]

    @property
    def hold_bytes(self) -> int:
        return int(self.properties.get("retention_hold_bytes", limits.RETENTION_HOLD_BYTES_DEFAULT))


def check_schema_name(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 1 <= size <= limits.SCHEMA_NAME_BYTES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"a schema name of {size} bytes is not 1 to {limits.SCHEMA_NAME_BYTES_MAX}")


def check_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if name not in PROPERTIES:
            known = ", ".join(PROPERTIES)
            raise BraidError("INVALID_ARGUMENT", reason=f"unknown topic property {name!r}; there are {known}")
        if name == "durability":
            if value not in ("none", "os", "fsync", "quorum"):
                raise BraidError("INVALID_ARGUMENT", reason=f"durability {value!r} is not none, os, fsync or quorum")
            continue
        if name == "schema":
            check_schema_name(value)
            continue
        if name == "retention_hold":
            for group in value.split(","):
                check_group(group)
            continue
        if name == "schema_rule":
            if value not in ("reject", "dead-letter"):
                raise BraidError("INVALID_ARGUMENT", reason=f"schema_rule {value!r} is neither reject nor dead-letter")
            continue
        if name == "mask_fields":
            if len(value) > limits.MASK_FIELDS_CHARACTERS_MAX:
                raise BraidError("INVALID_ARGUMENT", reason=f"mask_fields is up to {limits.MASK_FIELDS_CHARACTERS_MAX} characters")
            continue
        if name == "dlq_expired":
            if value not in ("true", "false"):
                raise BraidError("INVALID_ARGUMENT", reason=f"dlq_expired {value!r} is neither true nor false")
            continue
        if name == "ttl_ms" and value.isdigit() and int(value) > limits.TTL_MS_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"ttl_ms is up to {limits.TTL_MS_MAX}")
        if name == "compression":
            if value not in compression.IDS:
                raise BraidError("INVALID_ARGUMENT", reason=f"compression {value!r} is not one of {', '.join(compression.IDS)}")
            if value != "none":
                compression.require(compression.IDS[value])
            continue
        if not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} {value!r} is not a whole number")
        if name == "segment_bytes" and not limits.SEGMENT_BYTES_MIN <= int(value) <= limits.SEGMENT_BYTES_MAX:
            raise BraidError(
                "INVALID_ARGUMENT", reason=f"segment_bytes is {limits.SEGMENT_BYTES_MIN} to {limits.SEGMENT_BYTES_MAX}"
            )


def masked_fields(properties: Mapping[str, str]) -> list[str]:
    """The fields that `mask_fields` lists."""
    return [part.strip() for part in properties.get("mask_fields", "").split(",") if part.strip()]


_ROW_WITHOUT_NUMBER: Final = 5


class TopicTable:
    """All topics by name. Ids are never used again, so that what belonged to a deleted topic stays dead."""

    def __init__(self, topics_max: int = limits.TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._sorted: list[Topic] | None = None
        """In the order of their names, until one comes or goes."""
        self.next_id = 1
        self._next_partition = 0
        self.version = 0
        """Grows with every change."""

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def by_id(self, topic_id: int) -> Topic | None:
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        """In the order of their names; the list is the caller's own."""
        if self._sorted is None:
            self._sorted = [self._by_name[name] for name in sorted(self._by_name)]
        return self._sorted[:]

    # --- commands

    def create(self, name: str, partitions: int, now_ms: int, properties: Mapping[str, str]) -> list[Any]:
        """The command carries the limit of its day: a replay under another one must decide as it was decided then."""
        return ["create", name, partitions, now_ms, dict(properties), self._topics_max]

    @staticmethod
    def delete(name: str) -> list[Any]:
        return ["delete", name]

    @staticmethod
    def configure(name: str, properties: Mapping[str, str]) -> list[Any]:
        """Set properties; an empty value takes the topic's own away."""
        return ["configure", name, dict(properties)]

    def apply(self, command: list[Any]) -> Topic | None:
        """Carry out one command.

        `create` returns the topic, new or as it was; `configure` the topic; `delete` the topic that is gone, if any.
        """
        self.version += 1
        match command:
            case ["create", str(name), int(partitions), int(created_ms), dict(properties), int(topics_max)]:
                known = self._by_name.get(name)
                if known is not None:
                    return known
                if len(self._by_name) >= topics_max:
                    raise BraidError("TOPIC_LIMIT", limit=topics_max)
                return self._insert(Topic(name, self.next_id, partitions, created_ms, properties, self._next_partition))
            case ["delete", str(name)]:
                gone = self._by_name.pop(name, None)
                if gone is not None:
                    del self._by_id[gone.id]
                    self._sorted = None
                return gone
            case ["configure", str(name), dict(properties)]:
                topic = self._by_name.get(name)
                if topic is None:
                    raise BraidError("TOPIC_NOT_FOUND", topic=name)
                for key, value in properties.items():
                    if value or key == "compression":
                        # Batches that were compressed before stay so, and need their decoder.
                        topic.properties[key] = value or "none"
                    else:
                        topic.properties.pop(key, None)
                return topic
        raise AssertionError(f"unknown metadata command {command[:1]}")

    def _insert(self, topic: Topic) -> Topic:
        self._sorted = None
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self.next_id = max(self.next_id, topic.id + 1)
        self._next_partition = max(self._next_partition, topic.first_partition + topic.partitions)
        return topic

    # --- snapshots

    def snapshot(self) -> Any:
        # Of a topic only its properties change, and there the dict stays: it is copied.
        topics = [(topic, topic.properties.copy()) for topic in self._by_name.values()]
        return {
            "next_id": self.next_id,
            "next_partition": self._next_partition,
            "topics": Deferred(
                lambda: (
                    [t.name, t.id, t.partitions, t.created_ms, properties, t.first_partition] for t, properties in topics
                )
            ),
        }

    def restore(self, document: Any) -> None:
        if "next_partition" not in document:
            # A snapshot from before partitions were numbered: number them in the order in which the topics came.
            document["topics"].sort(key=lambda row: int(row[1]))
        for row in document["topics"]:
            topic = Topic(*row)
            if len(row) == _ROW_WITHOUT_NUMBER:
                topic.first_partition = self._next_partition
            self._insert(topic)
        self.next_id = document["next_id"]
        self._next_partition = document.get("next_partition", self._next_partition)
