"""Records that another node leads: what the leader refuses for the moment is brought once more, the rest is an error."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest
from work_bench import run_broker

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.machines import TOPICS
from braidmq.broker.peers import Peers
from braidmq.broker.topics import Topic


class Behind:
    """Others lead, and the leader has not learned of the topic yet when it is asked for the first time."""

    coordinates = True

    def __init__(self, broker: Broker, *, deleted: bool) -> None:
        self._broker = broker
        self._deleted = deleted
        self.asked = 0

    def leads(self, topic_id: int, partition: int) -> bool:
        return False

    async def produce(
        self, topic: Topic, partition: int, batch: Buffer, hidden: Collection[int] = ()
    ) -> tuple[int, int, int, bool]:
        self.asked += 1
        if self._deleted:
            await self._broker.submit_metadata(TOPICS, self._broker.topics.delete(topic.name))
        if self._deleted or self.asked == 1:
            raise BraidError("TOPIC_NOT_FOUND", topic="number 1")
        return 7, 1, 1, False


@pytest.mark.parametrize("deleted", [False, True])
def test_a_leader_that_does_not_know_a_new_topic_is_asked_again(deleted: bool) -> None:
    async def script(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        others = Behind(broker, deleted=deleted)
        broker.peers = cast(Peers, others)
        try:
            if deleted:
                with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
                    await broker.append(topic, 0, b"", b"value")
            else:
                assert (await broker.append(topic, 0, b"", b"value"))[:2] == (0, 7)
        finally:
            broker.peers = None
        assert others.asked == (1 if deleted else 2)

    run_broker(script)
