"""Topics and their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from braidmq.admin.call import Call, Nothing, PageQuery
from braidmq.admin.looking import open_logs
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.pace import Pace
from braidmq.broker.topics import PROPERTIES, Topic


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition."""

    partition: int
    oldest_offset: Annotated[int, "the first offset that is still there"]
    newest_offset: Annotated[int, "the offset that the next record gets, as far as readers see it"]
    messages: Annotated[int, "records between the two"]
    size_bytes: int
    segments: int
    pending_bytes: Annotated[int, "records that are not written yet"]
    read_only: Annotated[str | None, "why it takes no records any more"] = None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic."""

    name: str
    partitions: int
    replica_factor: int
    message_count: int
    retention_bytes: Annotated[int, "bytes that a partition keeps; 0 keeps everything"]
    retention_ms: Annotated[int, "age up to which records are kept; 0 keeps everything"]
    created_at: str
    size_bytes: int
    durability: str
    read_only_partitions: int


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """A topic with its partitions and properties."""

    name: str
    partitions: int
    replica_factor: int
    message_count: int
    retention_bytes: int
    retention_ms: int
    created_at: str
    size_bytes: int
    durability: str
    read_only_partitions: int
    properties: Annotated[dict[str, str], "what was set for this topic"]
    partition_details: list[PartitionRow]


@dataclass(frozen=True, slots=True)
class TopicQuery(PageQuery):
    """Which topics."""

    prefix: Annotated[str, "only topics whose names begin like this"] = ""
    search: Annotated[str, "only topics whose names hold this, in upper or lower case"] = ""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What a topic is to be like; what is left out is the broker's default."""

    partitions: Annotated[int, Bounds(0, limits.PARTITIONS_MAX)] = 0
    replica_factor: Annotated[int, Bounds(0, 1), "one broker has one replica"] = 1
    retention_bytes: Annotated[int | None, Bounds(0, 1 << 59)] = None
    retention_ms: Annotated[int | None, Bounds(0, 1 << 52)] = None
    properties: Annotated[dict[str, str], f"any of {', '.join(PROPERTIES)}"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made."""

    name: Annotated[str, Bounds(1, limits.TOPIC_NAME_BYTES_MAX)]
    options: TopicOptions = field(default_factory=TopicOptions)


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Properties to be set; an empty value is the broker's default again."""

    properties: dict[str, str]


async def list_topics(call: Call[TopicQuery, Nothing]) -> list[TopicRow]:
    """The topics that the caller may read, by name. A header `Link` leads to the next page where there is one."""
    shown, cursor = topic_page(call)
    call.link_next(cursor)
    pace = Pace()
    rows = []
    for topic in map(call.broker.topics.get, shown):
        if topic is not None:
            rows.append(_row(call.broker, topic, await partition_rows(call.broker, topic, pace)))
    return rows


def topic_page(call: Call[TopicQuery, Nothing]) -> tuple[list[str], str | None]:
    """The names that a query asks for, and the cursor of the next ones. Names are chosen first: rights take longer to look up."""
    query, wanted = call.query, call.query.search.casefold()
    names = call.broker.topic_names()
    if query.prefix:
        names = [name for name in names if name.startswith(query.prefix)]
    if wanted:
        names = [name for name in names if wanted in name.casefold()]
    return call.page_of(names, call.visible, query)


async def create_topic(call: Call[Nothing, NewTopic]) -> TopicDetail:
    """Create a topic. One that exists stays as it is."""
    options = call.body.options
    properties = dict(options.properties)
    for name, value in (("retention_bytes", options.retention_bytes), ("retention_age_ms", options.retention_ms)):
        if value is not None:
            properties[name] = str(value)
    topic = await call.broker.create_topic(call.body.name, options.partitions, properties, by=call.account)
    return await _detail(call.broker, topic)


async def get_topic(call: Call[Nothing, Nothing]) -> TopicDetail:
    """One topic, with its partitions and properties."""
    return await _detail(call.broker, call.broker.topic(call.path["topic"]))


async def delete_topic(call: Call[Nothing, Nothing]) -> None:
    """Delete a topic with its records and the offsets of its groups."""
    name = call.path["topic"]
    if not await call.broker.delete_topic(name):
        raise BraidError("TOPIC_NOT_FOUND", topic=name)
    call.note("topic.delete", name, "delete")


async def configure_topic(call: Call[Nothing, TopicChange]) -> TopicDetail:
    """Set properties of a topic; they apply at once."""
    topic = await call.broker.configure_topic(call.path["topic"], call.body.properties)
    if call.body.properties:
        call.note("config.change", topic.name, "configure topic", "success", **call.body.properties)
    return await _detail(call.broker, topic)


# --- measuring


async def partition_rows(broker: Broker, topic: Topic, pace: Pace) -> list[PartitionRow]:
    rows = []
    for number, log in enumerate(await open_logs(broker, topic, pace)):
        if log is None:
            rows.append(PartitionRow(number, 0, 0, 0, 0, 0, 0))
            continue
        messages = log.high_watermark - log.log_start
        failure = None if log.failure is None else log.failure.text
        rows.append(
            PartitionRow(
                number, log.log_start, log.high_watermark, messages, log.size_bytes, len(log.segments), log.pending_bytes, failure
            )
        )
    return rows


def _row(broker: Broker, topic: Topic, partitions: list[PartitionRow]) -> TopicRow:
    settings = topic.settings(broker.settings.defaults)
    return TopicRow(
        name=topic.name,
        partitions=topic.partitions,
        replica_factor=1,
        message_count=sum(row.messages for row in partitions),
        retention_bytes=settings.retention_bytes,
        retention_ms=settings.retention_age_ms,
        created_at=rfc3339(topic.created_ms),
        size_bytes=sum(row.size_bytes for row in partitions),
        durability=settings.level.name.lower(),
        read_only_partitions=sum(row.read_only is not None for row in partitions),
    )


async def _detail(broker: Broker, topic: Topic) -> TopicDetail:
    partitions = await partition_rows(broker, topic, Pace())
    row = _row(broker, topic, partitions)
    return TopicDetail(
        **{name: getattr(row, name) for name in TopicRow.__dataclass_fields__},
        properties=dict(topic.properties), partition_details=partitions,
    )  # fmt: skip
