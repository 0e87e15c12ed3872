"""How many partitions a topic has, and how a producer makes one that does not exist."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.client.faults import ServerError, lacks_opcode
from braidmq.wire import flymq

from .connection import answers, encode
from .pool import Pool


async def partition_count(pool: Pool, topic: str, timeout_s: float) -> int:
    """The number of partitions; 0 when there is no such topic."""
    request = flymq.Metadata(topic)
    try:
        answer = answers([request], await pool.call([encode(request)], timeout_s, again=True))[0]
    except ServerError as fault:
        if fault.code == "TOPIC_NOT_FOUND":
            return 0
        raise
    if not isinstance(answer, flymq.TopicMetadata) or not answer.partitions:
        raise BraidError("UNEXPECTED_REPLY", reason="METADATA without partitions")
    return len(answer.partitions)


async def create_as_producer(pool: Pool, topic: str, timeout_s: float) -> bool:
    """Have the server create a topic as it does for producers, with its own number of partitions; False if it cannot.

    An empty batch names the topic, which creates it, and holds nothing that could be stored: sent twice it still does no
    harm, which a first record would.
    """
    request = flymq.ProduceBatch(topic, 0, b"")
    try:
        answers([request], await pool.call([encode(request)], timeout_s, again=True))
    except ServerError as fault:
        if lacks_opcode(fault):
            return False
        if fault.code != "INVALID_BATCH":
            raise
    return True
