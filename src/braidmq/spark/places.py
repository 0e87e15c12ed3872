"""Which topics a query reads, and where each of their partitions begins and ends: all that planning asks the broker."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.options import EARLIEST, LATEST, Options, Positions


@dataclass(frozen=True, slots=True)
class Place:
    """One partition as it is at the moment."""

    oldest: int
    newest: int
    """The next offset to be written."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicPlaces:
    id: int
    """It is never used again: a topic that was deleted and made anew has another."""
    partitions: tuple[Place, ...]


Places = dict[str, TopicPlaces]


def topics_of(client: Client, options: Options, known: Iterable[str] = ()) -> list[str]:
    """The topics of a query, in order; those that it has read from before are `known`."""
    if options.has("subscribe") == options.has("subscribePattern"):
        reason = "give either `subscribe` or `subscribePattern`"
        raise BraidError("CONFIG_INVALID_VALUE", key="subscribe", origin="the options", reason=reason)
    if options.has("subscribe"):
        return list(options.get("subscribe"))
    pattern = re.compile(options.get("subscribePattern"))
    # A node that has not heard of a topic yet does not list it: what the query knows is asked for by name, or it seems deleted.
    return sorted(name for name in {*client.list_topics(), *known} if pattern.fullmatch(name))


def places_of(client: Client, topics: list[str]) -> Places:
    """Where these topics begin and end; those that do not exist are left out."""
    found = client.places(topics) if topics else {}
    return {
        topic: TopicPlaces(info.id, tuple(Place(part.oldest, part.newest, part.size_bytes) for part in info.partitions))
        for topic, info in found.items()
    }


def existing(client: Client, options: Options) -> Places:
    """The topics of a query as they are now; raises TOPIC_NOT_FOUND for one that was named and does not exist."""
    topics = topics_of(client, options)
    places = places_of(client, topics)
    for topic in topics:
        if topic not in places:
            raise BraidError("TOPIC_NOT_FOUND", topic=topic)
    return places


def resolve(client: Client, options: Options, places: Places, positions: Positions, default: int) -> dict[str, list[int]]:
    """One offset a partition, for what an option says. Partitions that offsets do not mention get `default`.

    `places` is brought up to date where a group is ahead of it.
    """
    group = options.get("group")
    if positions == "group" and group is None:
        reason = "it needs the option `group`"
        raise BraidError("CONFIG_INVALID_VALUE", key="startingOffsets", origin="the options", reason=reason)
    if isinstance(positions, dict):
        for topic, parts in positions.items():
            if topic not in places:
                reason = f"offsets name the topic {topic}, which is not among those that are read"
                raise BraidError("INVALID_ARGUMENT", reason=reason)
            for partition in parts:
                if partition >= len(places[topic].partitions):
                    raise BraidError("PARTITION_NOT_FOUND", partition=partition)
    resolved: dict[str, list[int]] = {}
    for topic in list(places):
        count = len(places[topic].partitions)
        if isinstance(positions, dict):
            given = positions.get(topic, {})
            wanted = [given.get(number, default) for number in range(count)]
        elif positions == "group":
            wanted = _committed(client, topic, group, places)
        else:
            wanted = [EARLIEST if positions == "earliest" else LATEST] * count
        resolved[topic] = [_absolute(offset, place) for offset, place in zip(wanted, places[topic].partitions, strict=True)]
    return resolved


def not_written(topic: str, partition: int, offset: int, place: Place) -> BraidError:
    reason = f"offset {offset} of {topic}/{partition} was not written yet; it ends at {place.newest}"
    return BraidError("INVALID_ARGUMENT", reason=reason)


def _committed(client: Client, topic: str, group: str, places: Places) -> list[int]:
    """What a group has committed, also where it is gone by now; where that is nothing, the earliest."""
    try:
        known = client.group.committed(group, topic)
    except BraidError as fault:
        if fault.code != "GROUP_NOT_FOUND":
            raise
        known = {}
    if any(known.get(number, 0) > place.newest for number, place in enumerate(places[topic].partitions)):
        # It read on since the ends of the topic were looked at.
        places |= places_of(client, [topic])
    return [known.get(number, place.oldest) for number, place in enumerate(places[topic].partitions)]


def _absolute(offset: int, place: Place) -> int:
    return {EARLIEST: place.oldest, LATEST: place.newest}.get(offset, offset)


def since(client: Client, places: Places, timestamp_ms: int) -> dict[str, list[int]]:
    """The first offset of each partition that was written at or after a time."""
    return {
        topic: client.offsets_since(topic, range(len(info.partitions)), timestamp_ms)
        for topic, info in places.items()
    }
