"""What this node asks others about all the partitions that it is pushed from and has no replica of.

A leader holds a question back until something comes. One for each partition would fill the link between two nodes, and what keeps
the cluster together would wait behind them. So one question is for many partitions, and few of them wait at a leader at a time:

    a partition that is new       is asked about at once, whatever waits already
    few are asked about together  while other questions wait, it ends with them, within a second, and all are asked together next
    something came                the answer says of which partitions, and brings a part of it along

What was brought is kept within a bound for all partitions together.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.peers import PartitionReading, Peers
from braidmq.broker.topics import Topic

if TYPE_CHECKING:
    from braidmq.broker.push.distant_log import DistantLog, Key

_WAIT_S: Final = 10.0
"""How long a leader may hold a question back; then each partition is looked at alone, in case another one leads."""
_TOGETHER_S: Final = 1.0
_GATHER_S: Final = 0.01
"""Answers to questions that ended together come one after the other."""


class _Question:
    __slots__ = ("answer", "bytes_max", "offset", "partition", "topic_id", "until_s")

    def __init__(self, topic_id: int, partition: int, offset: int, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.bytes_max = bytes_max
        self.until_s = loop.time() + _WAIT_S
        self.answer: asyncio.Future[PartitionReading | None] = loop.create_future()


class DistantReads:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._asked: list[_Question] = []
        self._soon = False
        self.waiting: Counter[str] = Counter()
        """Questions that wait, by the node that was asked."""
        self._calls: set[asyncio.Task[None]] = set()
        self._pieces: OrderedDict[tuple[DistantLog, Key], int] = OrderedDict()
        """What was brought and is kept, the oldest first, and how large it is."""
        self.kept_bytes = 0
        self._stopped = False

    async def stop(self) -> None:
        """Nobody is asked any more."""
        self._stopped = True
        calls = list(self._calls)
        for task in calls:
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    # --- asking

    async def come(self, topic: Topic, partition: int, offset: int, bytes_max: int) -> PartitionReading | None:
        """Wait for something at `offset` of a partition. None where nothing came for a while, or where it has to be asked alone."""
        if self._peers.leader_of(topic.id, partition) == self._peers.node:
            return await self._peers.read(topic, partition, offset, 0, _WAIT_S, raw=False)
        question = _Question(topic.id, partition, offset, bytes_max, self._loop)
        self._asked.append(question)
        self._send_soon()
        return await question.answer

    def _send_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._soon = False
        if self._stopped:
            return
        asked, self._asked = self._asked, []
        by_leader: dict[str, list[_Question]] = {}
        for question in asked:
            if question.answer.done():
                continue
            try:
                leader = self._peers.leader_of(question.topic_id, question.partition)
            except BraidError as error:
                question.answer.set_exception(error)
                continue
            by_leader.setdefault(leader, []).append(question)
        for leader, questions in by_leader.items():
            while questions and self.waiting[leader] < limits.AWAY_QUESTIONS_MAX:
                # Where many wait, more come together, and none for long.
                busy = self.waiting[leader] >= limits.AWAY_QUESTIONS_MAX // 2
                most = limits.AWAY_QUESTION_PARTITIONS_MAX * (10 if busy else 1)
                several, questions = questions[:most], questions[most:]
                alone = not self.waiting[leader]
                whole = len(several) == most and not busy
                wait_s = _WAIT_S if alone or whole else _TOGETHER_S - self._loop.time() % _TOGETHER_S
                self.waiting[leader] += 1
                task = self._loop.create_task(self._call(leader, several, wait_s))
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
            # The others as soon as one of those that wait is answered.
            self._asked += questions

    async def _call(self, leader: str, several: list[_Question], wait_s: float) -> None:
        came = False
        try:
            rows = [(each.topic_id, each.partition, each.offset, each.bytes_max) for each in several]
            found = await self._peers.come(leader, rows, wait_s)
            now_s = self._loop.time()
            for question, reading in zip(several, found, strict=True):
                if question.answer.done():
                    continue
                if reading is None and now_s < question.until_s:
                    self._asked.append(question)
                else:
                    came = True
                    question.answer.set_result(reading)
        except Exception as fault:
            came = True
            for question in several:
                if not question.answer.done():
                    question.answer.set_exception(fault)
        finally:
            self.waiting[leader] -= 1
            if came:
                # Behind those who have their answer now, and ask for what comes next.
                self._send_soon()
            else:
                self._loop.call_later(_GATHER_S, self._send)

    # --- keeping

    def keep(self, log: DistantLog, key: Key, size: int) -> None:
        self._pieces[(log, key)] = size
        self.kept_bytes += size
        while self.kept_bytes > limits.AWAY_READS_BYTES_MAX and len(self._pieces) > 1:
            (old, begin), gone = self._pieces.popitem(last=False)
            self.kept_bytes -= gone
            old.forget(begin)

    def drop(self, log: DistantLog, key: Key) -> None:
        self.kept_bytes -= self._pieces.pop((log, key), 0)
