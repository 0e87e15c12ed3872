"""Partitions of topics, and offsets in them, as lists of our own operations carry them."""

from __future__ import annotations

from typing import Final

from braidmq.wire.flymq.layout import I32, STR, U64, Layout
from braidmq.wire.shape import shape


@shape
class TopicPartition:
    topic: str
    partition: int


@shape
class TopicOffset:
    """In a commit: the next offset to read."""

    topic: str
    partition: int
    offset: int


TOPIC_PARTITION: Final = Layout(TopicPartition, topic=STR, partition=I32)
TOPIC_OFFSET: Final = Layout(TopicOffset, topic=STR, partition=I32, offset=U64)
