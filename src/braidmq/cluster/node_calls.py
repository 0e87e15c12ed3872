"""What nodes ask each other about partitions that one of them leads: where they end, what is in them, records for them, and decided
work.

Whoever leads does it; whoever does not lead any more says who does, and nothing happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.peers import NodeInfo, PartitionInfo, PartitionReading
from braidmq.broker.topics import Topic
from braidmq.cluster.journals import JournalGroup
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.partition_state import LogKey
from braidmq.cluster.replica_table import ReplicaTable
from braidmq.cluster.transport import ClusterOp, Transport
from braidmq.hot import layout

if TYPE_CHECKING:
    from braidmq.cluster.node import Replicating
    from braidmq.cluster.node_settings import NodeSettings

_CALL_S: Final = 10.0
_WORK_S: Final = 30.0
_ASK_AGAIN_S: Final = 0.1

logger = logging.getLogger("braidmq.cluster")


class NodeCalls:
    """What of a node this needs; `ClusterNode` keeps it."""

    node: str
    settings: NodeSettings
    broker: Broker
    table: ReplicaTable
    transport: Transport
    journals: JournalGroup
    suspects: set[str]
    clock: Clock
    replication: Replicating

    @property
    def coordinates(self) -> bool:
        raise NotImplementedError

    @property
    def trouble(self) -> str:
        raise NotImplementedError

    def check_coordinates(self) -> None:
        raise NotImplementedError

    def _leader(self) -> str:
        raise NotImplementedError

    def leads(self, topic_id: int, partition: int) -> bool:
        raise NotImplementedError

    def leader_of(self, topic_id: int, partition: int) -> str:
        raise NotImplementedError

    def not_leader(self, topic_id: int, partition: int) -> BraidError:
        raise NotImplementedError

    def coordinator_node(self) -> str:
        raise NotImplementedError

    def client_address(self, node: str) -> str:
        raise NotImplementedError

    # --- where partitions begin and end

    async def places(self, topic: Topic) -> list[tuple[int, int]]:
        """Where each partition begins and ends, as its leader says; where none answers, as far as it is known here."""
        asked: dict[str, list[int]] = {}
        found: list[tuple[int, int]] = []
        for partition in range(topic.partitions):
            log = self.broker.log_of(topic, partition)
            found.append((log.log_start, log.high_watermark))
            state = self.table.state((topic.id, partition))
            if state is not None and state.leader not in ("", self.node):
                asked.setdefault(state.leader, []).append(partition)

        async def ask(leader: str, partitions: list[int]) -> None:
            try:
                document = {"topic": topic.id, "partitions": partitions}
                payload = await self.transport.call(leader, ClusterOp.NODE_STATUS, pack(document), self.settings.suspect_s)
            except BraidError as error:
                logger.info("where %s ends: %s", topic.name, error)
                return
            for partition, place in zip(partitions, unpack(payload)[0]["places"], strict=True):
                found[partition] = (place[0], place[1])

        await asyncio.gather(*(ask(leader, partitions) for leader, partitions in asked.items()))
        return found

    async def leader_places(self, topics: Sequence[Topic]) -> list[list[tuple[int, int, int]]]:
        """Where each partition of each topic begins and ends and how many bytes it has, as its leader says. Raises where no leader
        answers: what this node has of a partition may be older, or nothing."""
        asked: dict[str, list[tuple[int, int]]] = {}
        for topic in topics:
            for partition in range(topic.partitions):
                asked.setdefault(self.leader_of(topic.id, partition), []).append((topic.id, partition))
        found: dict[LogKey, tuple[int, int, int]] = {}

        async def ask(leader: str, keys: list[LogKey]) -> None:
            if leader == self.node:
                said = [self.place_led(*key) for key in keys]
            else:
                payload = await self.transport.call(leader, ClusterOp.PARTITION_PLACES, pack(keys), _CALL_S)
                said = [(start, end, size) for start, end, size in unpack(payload)[0]]
            found.update(zip(keys, said, strict=True))

        await asyncio.gather(*(ask(leader, keys) for leader, keys in asked.items()))
        return [[found[topic.id, partition] for partition in range(topic.partitions)] for topic in topics]

    async def leader_places_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        return pack([self.place_led(topic_id, partition) for topic_id, partition in unpack(payload)[0]])

    def place_led(self, topic_id: int, partition: int) -> tuple[int, int, int]:
        topic = self.broker.topics.by_id(topic_id)
        if topic is None or not self.leads(topic_id, partition):
            raise self.not_leader(topic_id, partition)
        if not self.replication.knows_end((topic_id, partition)):
            # Readers may have seen more under the leader before.
            reason = f"the leader has not heard its replicas yet, partition={partition}"
            raise BraidError("NOT_LEADER", reason=reason)
        log = self.broker.log_of(topic, partition)
        return log.log_start, log.high_watermark, log.size_bytes

    async def look_at_journals(self) -> None:
        """See to it that the journals here are applied as far as those of the coordinator are now."""
        if not self.coordinates:
            payload = await self.transport.call(self._leader(), ClusterOp.NODE_STATUS, pack({}), _CALL_S)
            applied = unpack(payload)[0]["applied"]
            if applied is None:
                raise BraidError("NOT_LEADER", reason="no leader elected")
            await self.caught_up(applied, _CALL_S)

    def applied(self) -> dict[str, int]:
        """How far the journals are applied here."""
        return {name: journal.applied for name, journal in self.broker.journals.items()}

    async def caught_up(self, applied: dict[str, int], timeout_s: float) -> None:
        """Wait until the journals here are as far as those of another node were; not longer than `timeout_s`."""
        journals = self.broker.journals
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for name, offset in applied.items():
                    await journals[name].caught_up(offset)

    # --- what others have

    def holds(self, topic_id: int, partition: int) -> bool:
        state = self.table.state((topic_id, partition))
        return state is not None and self.node in (state.leader, *state.isr)

    def serves_readers(self, topic_id: int, partition: int) -> bool:
        """Only where nothing is in doubt: the table names this node as in sync, its leader was heard a moment ago, and whoever
        decides about both is within reach, as far as was noticed (`quorum_watch.py` looks every few seconds). A leader that was
        replaced unnoticed, and its followers, reach nobody who decides."""
        state = self.table.state((topic_id, partition))
        if not self.settings.follower_reads or state is None or not state.leader or self.node not in state.isr:
            return False
        return not self.trouble and self.replication.is_fresh((topic_id, partition))

    def readers(self) -> list[NodeInfo]:
        return [node for node in self.nodes() if node.status == "alive" and node.about.get("reads") == "replica"]

    async def read(
        self, topic: Topic, partition: int, offset: int, bytes_max: int, wait_s: float, *, raw: bool
    ) -> PartitionReading:
        document = [topic.id, partition, offset, bytes_max, round(wait_s * 1000), raw]
        leader = self.leader_of(topic.id, partition)
        if leader == self.node:
            return await self._read(document)
        payload = await self.transport.call(leader, ClusterOp.PARTITION_READ, pack(document), wait_s + _CALL_S)
        (log_start, high_watermark, next_offset), batches = unpack(payload)
        return PartitionReading(log_start, high_watermark, next_offset, batches)

    async def read_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        read = await self._read(unpack(payload)[0])
        return pack([read.log_start, read.high_watermark, read.next_offset], read.batches)

    async def _read(self, document: list[Any]) -> PartitionReading:
        """Read for another node. A replica in sync will do as well as the leader: readers see the same in both."""
        topic_id, partition, offset, bytes_max, wait_ms, raw = document
        topic = self._topic(topic_id)
        if not self.holds(topic_id, partition):
            raise self.not_leader(topic_id, partition)
        log = self.broker.log_of(topic, partition)
        if wait_ms and offset >= log.high_watermark:
            await self.broker.tail_moved(log, wait_ms / 1000)
        found: list[Buffer] = []
        following = offset
        if bytes_max and log.log_start <= offset < log.high_watermark:
            read = await self.broker.read_whole(log, offset, bytes_max, raw=raw)
            found, following = read.slices, read.next_offset
        if log.removed:
            raise self.not_leader(topic_id, partition)
        return PartitionReading(log.log_start, log.high_watermark, following, b"".join(found))

    # --- records and work for partitions that are led elsewhere

    async def produce(
        self, topic: Topic, partition: int, batch: Buffer, hidden: Collection[int] = ()
    ) -> tuple[int, int, int, bool]:
        document = {"topic": topic.id, "partition": partition, "hidden": list(hidden)}
        leader = self.leader_of(topic.id, partition)
        payload = await self.transport.call(leader, ClusterOp.FORWARD_PRODUCE, pack(document, batch), _CALL_S)
        offset, records, timestamp, duplicate = unpack(payload)[0]
        return offset, records, timestamp, duplicate

    async def _produce_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        document, batch = unpack(payload)
        topic = self._topic(document["topic"])
        staged = self.broker.stage_batch(topic, document["partition"], batch, document["hidden"])
        await staged.durability()
        return pack([staged.base_offset, staged.records, staged.timestamp, staged.duplicate])

    def _topic(self, topic_id: int) -> Topic:
        topic = self.broker.topics.by_id(topic_id)
        if topic is None:
            raise BraidError("TOPIC_NOT_FOUND", topic=f"number {topic_id}")
        return topic

    async def work_done(self, topic: Topic, partition: int, number: int) -> int:
        document = {"topic": topic.id, "partition": partition, "number": number}
        payload = await self.transport.call(self.leader_of(topic.id, partition), ClusterOp.WORK_WRITE, pack(document), _CALL_S)
        return int(unpack(payload)[0])

    async def write_work(self, topic: Topic, partition: int, batches: Sequence[bytes]) -> None:
        for batch in batches:
            number, decided = layout.read_header(batch).producer_id, self.applied()["work"]
            document = {"topic": topic.id, "partition": partition, "number": number, "decided": decided}
            leader = self.leader_of(topic.id, partition)
            await self.transport.call(leader, ClusterOp.WORK_WRITE, pack(document, batch), _WORK_S)

    async def _work_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        """Append a batch of a piece of work, unless it is there; says how many records of the work are."""
        document, batch = unpack(payload)
        if len(batch):
            # What a partition knew of work that is done is forgotten, so it is asked whether there is anything left to do: a
            # coordinator that stood still for a while may go on with what another one has done in its place.
            await self.caught_up({"work": document["decided"]}, _CALL_S)
            if document["number"] not in self.broker.work.table.work:
                raise BraidError("COORDINATOR_MOVED")
        topic, partition = self._topic(document["topic"]), document["partition"]
        if not self.leads(topic.id, partition):
            raise self.not_leader(topic.id, partition)
        log = self.broker.log_of(topic, partition)
        log.check_writable()
        known = log.producers.work_records(document["number"])
        if len(batch):
            head = layout.read_header(batch)
            if head.base_sequence > known:
                raise BraidError("INVALID_BATCH", reason=f"work {head.producer_id} goes on at {head.base_sequence}, not at {known}")
            if head.base_sequence == known:
                log.stage_work(batch, self.broker.commit.now_ms())
                self.broker.commit.touch(log)
                known += head.records
        # What came before may still be on its way to the others.
        await self.broker.durable(log, log.accumulator.next_offset)
        return pack(known)

    async def let_go(self, topic: Topic, partition: int, end: int) -> None:
        leader = self.leader_of(topic.id, partition)
        await self.transport.call(leader, ClusterOp.PARTITION_LET_GO, pack([topic.id, partition, end]), _CALL_S)

    async def let_go_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        topic_id, partition, end = unpack(payload)[0]
        topic = self._topic(topic_id)
        if not self.leads(topic_id, partition):
            raise self.not_leader(topic_id, partition)
        await self.broker.dead_letters.reads.let_go_here(self.broker.log_of(topic, partition), end)
        return pack({})

    # --- what is pushed, and by whom

    async def ask_for(self, node: str, group: str) -> bool:
        payload = await self.transport.call(node, ClusterOp.HAND_OVER, pack(group), _CALL_S)
        return bool(unpack(payload)[0])

    async def _hand_over_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        return pack(await self.broker.push.serving.hand_over(unpack(payload)[0], node))

    # --- commands for the journals

    async def submit(self, journal: str, command: list[Any]) -> Any:
        return await self.broker.journals[journal].submitted(partial(self._append_elsewhere, journal, command))

    async def _append_elsewhere(self, journal: str, command: list[Any]) -> int:
        deadline_s = self.clock.monotonic() + _WORK_S
        while True:
            try:
                if self.coordinates:
                    return await self._append(journal, command)
                payload = await self.transport.call(
                    self._leader(), ClusterOp.JOURNAL_SUBMIT, pack([journal, command]), _WORK_S
                )
                return int(unpack(payload)[0])
            except BraidError as error:
                if error.code != "NOT_LEADER" or self.clock.monotonic() > deadline_s:
                    raise
                # Nothing happened there: whoever leads now is asked.
                await asyncio.sleep(_ASK_AGAIN_S)

    async def _append(self, name: str, command: list[Any]) -> int:
        """Append a command; its offset once it is applied here, whatever the machine thinks of it."""
        journal = self.broker.journals[name]
        offset, outcome = journal.append(command)
        await asyncio.wait([outcome])
        error = outcome.exception()
        if journal.applied <= offset and error is not None:
            raise error
        return offset

    async def _submitted(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        self.check_coordinates()
        journal, command = unpack(payload)[0]
        return pack(await self._append(journal, command))

    # --- telling

    @property
    def cluster_id(self) -> str:
        return self.settings.cluster_id

    @property
    def epoch(self) -> int:
        return 0 if self.journals.state is None else self.journals.state.epoch

    @property
    def applied_commands(self) -> int:
        return self.broker.journals["metadata"].applied

    def nodes(self) -> list[NodeInfo]:
        """Every node that the cluster knows, in the order of their names."""
        leader = self.coordinator_node()
        found = []
        for name, record in sorted(self.table.brokers.items()):
            status = "leaving" if record.live and record.retired else "alive" if record.live else "dead"
            if record.live and name in self.suspects:
                status = "suspect"
            about = record.about
            found.append(NodeInfo(name, about.get("client", ""), about.get("cluster", ""), status, name == leader, dict(about)))
        return found

    def partition_info(self, topic_id: int, partition: int) -> PartitionInfo:
        key = (topic_id, partition)
        state = self.table.state(key)
        if state is None:
            return PartitionInfo("", "", 0, "offline", (), ())
        name = "reassigning" if key in self.table.targets and state.leader else state.name
        return PartitionInfo(
            state.leader, self.client_address(state.leader), state.epoch, name, state.replicas, state.isr, state.elr,
            self.table.targets.get(key, ()),
        )
