"""How many partitions a topic has, and how a producer makes one that does not exist."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.client.faults import ServerError, lacks_opcode
from braidmq.wire import flymq

from .asking import Asker


async def partition_count(asker: Asker, topic: str) -> int:
    """The number of partitions; 0 when there is no such topic."""
    try:
        answer = await asker.ask(flymq.Metadata(topic), flymq.TopicMetadata)
    except ServerError as fault:
        if fault.code == "TOPIC_NOT_FOUND":
            return 0
        raise
    if not answer.partitions:
        raise BraidError("UNEXPECTED_REPLY", reason="METADATA without partitions")
    await asker.leaders.learn(answer, asker.settings.timeout_s)
    return len(answer.partitions)


async def create_as_producer(asker: Asker, topic: str) -> bool:
    """Have the server create a topic as it does for producers, with its own number of partitions; False if it cannot.

    An empty batch names the topic, which creates it, and holds nothing that could be stored: sent twice it still does no
    harm, which a first record would.
    """
    try:
        await asker.ask(flymq.ProduceBatch(topic, 0, b""), flymq.BatchProduced)
    except ServerError as fault:
        if lacks_opcode(fault):
            return False
        if fault.code != "INVALID_BATCH":
            raise
    return True
