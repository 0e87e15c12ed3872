"""What both the API and the metrics look at: logs of partitions. On the broker's loop."""

from __future__ import annotations

from typing import Final

from braidmq.broker.broker import Broker
from braidmq.broker.pace import Pace
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog

_OPENING_STEPS: Final = 5
"""To open a partition takes as long as so many other things."""


async def open_log(broker: Broker, topic: Topic, partition: int, pace: Pace) -> PartitionLog | None:
    """The log of a partition; None where nothing was ever written, so that looking at a topic opens nothing."""
    await pace.step()
    if broker.store.opened(topic.id, partition) is None:
        if broker.store.is_unused(topic.id, partition) or broker.topics.by_id(topic.id) is None:
            return None
        await pace.step(_OPENING_STEPS)
    return broker.log_of(topic, partition) if broker.topics.by_id(topic.id) is not None else None


async def open_logs(broker: Broker, topic: Topic, pace: Pace) -> list[PartitionLog | None]:
    """The logs of all partitions of a topic, as `open_log` has them; none where the topic goes meanwhile."""
    await pace.step(topic.partitions)
    opened, is_unused = broker.store.opened, broker.store.is_unused
    found = [opened(topic.id, number) for number in range(topic.partitions)]
    waited = False
    for number, log in enumerate(found):
        if log is None and not is_unused(topic.id, number):
            found[number] = await open_log(broker, topic, number, pace)
            waited = True
    return [] if waited and broker.topics.by_id(topic.id) is None else found
