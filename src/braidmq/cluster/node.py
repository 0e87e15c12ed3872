"""One broker as a node of a cluster: how it comes in, which part it plays, and how it leaves.

    start      it announces itself in the quorum, follows the journals (or founds them), and waits until the coordinator has
               registered it: then it knows every topic and every state, and may serve clients
    running    it leads and follows partitions as the table of replicas says (`replica_table.py`); whichever node leads the journals
               coordinates (`coordinator.py`)
    leaving    its partitions and the journals get other leaders first, then it goes

Who is not here any more says its session, or sooner `suspicion.py`; who leads the journals then, `succession.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.topics import Topic
from braidmq.cluster.coordinator import Coordinator
from braidmq.cluster.journal_transfer import JournalTransfer
from braidmq.cluster.journals import INTERNAL, INTERNAL_KEYS, STATE_KEY, JournalGroup
from braidmq.cluster.leader_looks import LeaderLooks
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.node_calls import NodeCalls
from braidmq.cluster.node_lists import NodeLists
from braidmq.cluster.node_settings import NodeSettings
from braidmq.cluster.overview import Overview
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.quorum import SESSIONS, Changed, MetaQuorum, Session, SessionRecord
from braidmq.cluster.replica_table import ReplicaTable
from braidmq.cluster.steering import Steering
from braidmq.cluster.stepping_aside import SteppingAside
from braidmq.cluster.succession import Succession
from braidmq.cluster.suspicion import Suspicion
from braidmq.cluster.transport import AddressBook, ClusterOp, Transport
from braidmq.cluster.what_comes import WhatComes
from braidmq.log.partition import PartitionLog

REPLICAS: Final = "replicas"
"""The name of the table of replicas among the machines of the metadata journal."""

_CALL_S: Final = 10.0
_SUBMIT_S: Final = 30.0
_PLACED_S: Final = 30.0
_ASK_AGAIN_S: Final = 0.1
_LEAVE_S: Final = 10.0

logger = logging.getLogger("braidmq.cluster")


async def _nobody_counts(node: str) -> None:
    """Where the nodes run no etcd, there is nothing that a node could be missing from."""


class Replicating(Protocol):
    """What the node asks of replication (`replication/`)."""

    def assign(self, key: LogKey, state: PartitionState | None, *, observe: bool = False) -> None: ...

    def progress(self, key: LogKey) -> Any: ...

    def leads(self, log: PartitionLog) -> bool: ...

    def is_fresh(self, key: LogKey) -> bool: ...

    def knows_end(self, key: LogKey) -> bool: ...


class ClusterNode(NodeCalls):
    """The cluster, as its broker sees it: `broker.peers`."""

    def __init__(
        self, settings: NodeSettings, broker: Broker, table: ReplicaTable, quorum: MetaQuorum, transport: Transport,
        clock: Clock, addresses: AddressBook,
    ) -> None:
        self.settings = settings
        self.node = settings.node
        if settings.follower_reads:
            settings.about["reads"] = "replica"
        self.broker = broker
        self.table = table
        self.quorum = quorum
        self.transport = transport
        self.clock = clock
        self.addresses = addresses
        self.replication: Replicating
        """Set before `start`."""
        self.journals = JournalGroup(settings.node, quorum, settings.min_insync, self._journals_changed)
        self.sessions: dict[str, SessionRecord] = {}
        """Nodes that have announced themselves."""
        self._session: Session | None = None
        self.coordinator = Coordinator(self)
        self.steering = Steering(self)
        self.overview = Overview(self)
        self.transfer = JournalTransfer(self)
        self.outdated = asyncio.Event()
        """Set when this node has to begin anew: it lies ready on its disk what the cluster decided without it."""
        self.lists_of_others = NodeLists(self).of_others
        self.come = WhatComes(self).ask
        looks = LeaderLooks(self)
        self.look, self.offsets_since = looks.look, looks.offsets_since
        SteppingAside(self)
        self.quorum_fault = ""
        """Why the quorum does not answer; empty while it does."""
        self._coordinates = False
        self._serving = False
        """Whether the table is known to be new enough to act by it."""
        self._role: asyncio.Task[None] | None = None
        self._wanted_epoch = 0
        self.moved = asyncio.Event()
        """Set, and another one put in its place, whenever something changed that is waited for."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.forgotten: Callable[[str], Awaitable[object]] = _nobody_counts
        """Called before a node that does not come back is forgotten."""
        self.watchers: list[Callable[[], None]] = []
        """Told when nodes may have come or gone."""
        self.stopping = False
        table.on_change = self._partition_changed
        table.on_brokers = self.pulse
        for op, handler in {
            ClusterOp.JOURNAL_SUBMIT: self._submitted,
            ClusterOp.ALTER_ISR: self._isr_asked,
            ClusterOp.WORK_WRITE: self._work_asked,
            ClusterOp.FORWARD_PRODUCE: self._produce_asked,
            ClusterOp.PARTITION_READ: self.read_asked,
            ClusterOp.PARTITION_PLACES: self.leader_places_asked,
            ClusterOp.PARTITION_LET_GO: self.let_go_asked,
            ClusterOp.END_EPOCH: self._leave_asked,
            ClusterOp.NODE_STATUS: self._status_asked,
            ClusterOp.HAND_OVER: self._hand_over_asked,
        }.items():
            transport.serve(op, handler)
        self.suspicion = Suspicion(self)
        self.suspects = self.suspicion.suspects
        self._succession = Succession(self)

    # --- coming in

    async def start(self) -> None:
        """Become part of the cluster; when this returns, clients may come."""
        await self.journals.found()
        await self._read_sessions()
        await self._open_session()
        self.keep(self._watch_quorum())
        self.keep(self._succession.run())
        self.keep(self._mind_session())
        for journal in self.broker.journals.values():
            journal.follow()
        # Whatever was led before the restart ends with it. Where the quorum does not say whether it did, it is asked again.
        while self.coordinator_node() == self.node:
            with contextlib.suppress(BraidError):
                if await self.journals.take_over(self.live()):
                    break
            await asyncio.sleep(_ASK_AGAIN_S)
        state = self.journals.state
        assert state is not None
        if state.leader != self.node:
            self._journals_changed(state)
        await self.until(lambda: self._registered() or self.outdated.is_set())
        if self.outdated.is_set():
            raise BraidError("NODE_OUTDATED")
        self._serving = True
        # Opening thousands of logs takes longer than a session lasts: the loop gets turns in between, and the table may change.
        for key, _ in list(self.table.items()):
            self._assign(key, self.table.state(key))
            await asyncio.sleep(0)
        self._remove_strangers()

    async def _open_session(self) -> None:
        about = json.dumps(self.settings.about).encode()
        self._session = await self.quorum.session(self.node, self.settings.session_s, about)

    @property
    def session(self) -> Session:
        """That this node is here."""
        assert self._session is not None, "it has come in"
        return self._session

    @property
    def generation(self) -> int:
        """Of this node's life; 0 until it has announced itself."""
        return 0 if self._session is None else self._session.generation

    def begin_again(self) -> None:
        """This node cannot go on from what it knows. Whoever runs it starts it anew."""
        self.outdated.set()
        for journal in self.broker.journals.values():
            # Clients know this one, and ask again.
            journal.give_up(BraidError("COORDINATOR_MOVED"))
        self.pulse()

    def _registered(self) -> bool:
        record = self.table.brokers.get(self.node)
        return record is not None and record.live and record.generation == self.session.generation

    def _remove_strangers(self) -> None:
        """Forget what was moved away or deleted while this node was not here."""
        store, topics = self.broker.store, self.broker.topics
        store.remove_leftovers(lambda topic_id: topics.by_id(topic_id) is not None, topics.next_id)
        for topic_id, partitions in list(store.partitions_on_disk()):
            for partition in partitions:
                state = self.table.state((topic_id, partition))
                if state is not None and self.node not in state.replicas:
                    # What the checkpoint knows of it goes, too: if it comes back, it begins at its leader's beginning.
                    store.retire_partition(topic_id, partition)
                    store.remove_partition(topic_id, partition)

    async def _read_sessions(self) -> int:
        reading = await self.quorum.read(SESSIONS)
        self.sessions = {
            key.removeprefix(SESSIONS): SessionRecord.decode(entry.value) for key, entry in reading.entries.items()
        }
        self._learn_addresses()
        return reading.revision

    def _learn_addresses(self) -> None:
        for node, record in self.sessions.items():
            address = self.about(node, record).get("cluster")
            if address and node != self.node:
                self.addresses.learn(node, address)

    @staticmethod
    def about(node: str, record: SessionRecord) -> dict[str, str]:
        try:
            found = json.loads(record.about)
        except ValueError:
            logger.warning("%s says nothing of itself that is understood", node)
            return {}
        return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}

    async def announce(self, about: dict[str, str]) -> None:
        """Tell others more of this node; when this returns, they know it."""
        self.settings.about.update(about)
        await self.session.tell(json.dumps(self.settings.about).encode())

        def known() -> bool:
            record = self.table.brokers.get(self.node)
            return self.outdated.is_set() or (record is not None and record.about.items() >= about.items())

        await self.until(known)

    # --- leaving

    async def leave(self) -> None:
        """Let others lead what this node leads, as far as there are any."""
        self.stopping = True
        with contextlib.suppress(BraidError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._hand_over()

    async def _hand_over(self) -> None:
        if len(self.live()) < 2:
            return
        if self._coordinates:
            await self.coordinator.retire_leaders(self.node)
            await self._stop_coordinating()
            await self.journals.hand_over(self.live())
            return
        leader = self.journals.state.leader if self.journals.state is not None else ""
        await self.transport.call(leader, ClusterOp.END_EPOCH, pack({"generation": self.session.generation}), _CALL_S)
        await self.until(
            lambda: self.outdated.is_set() or not any(state.leader == self.node for _, state in self.table.items())
        )

    async def step_down(self) -> None:
        """Let others lead what this node leads. It stays a replica, and may lead again when leaders are spread anew."""
        if self._coordinates:
            await self.coordinator.move_leaders(self.node)
            await self.journals.hand_over(self.live(), stays=True)
            return
        document = {"generation": self.session.generation, "stays": True}
        await self.transport.call(self._leader(), ClusterOp.END_EPOCH, pack(document), _CALL_S)

    async def stop(self) -> None:
        """Go. What this node was to the others ends now."""
        self.stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop_coordinating()
        if self._session is not None:
            await self._session.close()

    def keep(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the cluster failed", exc_info=task.exception())

    # --- waiting for the table

    def pulse(self) -> None:
        """Nodes, leaders or states may have changed."""
        self.moved.set()
        self.moved = asyncio.Event()
        self.coordinator.wake()
        for told in self.watchers:
            told()

    async def until(self, reached: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait until something is true that depends on the table, or on what the quorum says."""
        async with asyncio.timeout(timeout_s):
            while not reached():
                await self.moved.wait()

    # --- the journals, and who leads them

    def _journals_changed(self, state: PartitionState) -> None:
        self.pulse()
        if not self._tasks:
            # Not started yet.
            return
        observe = self.node not in state.replicas
        for key in INTERNAL_KEYS:
            self.replication.assign(key, state, observe=observe)
        if self._role is None or self._role.done():
            self._role = self.keep(self._take_role())

    async def _take_role(self) -> None:
        """Coordinate where this node leads the journals, stop where it does not."""
        while not self.stopping:
            state = self.journals.state
            assert state is not None
            epoch = state.epoch if state.leader == self.node else 0
            if epoch == self._wanted_epoch:
                return
            self._wanted_epoch = epoch
            await self._stop_coordinating()
            if epoch and not await self._begin_to_coordinate(epoch):
                # Perhaps because another node leads by now: then there is no further turn.
                await self._stop_coordinating()
                self._wanted_epoch = 0
                await asyncio.sleep(_ASK_AGAIN_S)

    async def _begin_to_coordinate(self, epoch: int) -> bool:
        """False when it has to be tried again."""
        journals = self.broker.journals
        ends = {name: log.log_end for name, log in self.broker.internal_logs().items()}
        for name, log in self.broker.internal_logs().items():
            # What leaders before appended has to be known to all that are in sync, and applied, before anything is decided. What is
            # staged has to be readable: a decision that finds nothing where its records lie counts them as lost.
            shown = journals[name].caught_up(ends[name]) if name in journals else _shown(log, ends[name])
            reached = asyncio.ensure_future(shown)
            while not reached.done():
                moved = asyncio.ensure_future(self.moved.wait())
                await asyncio.wait([reached, moved], return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                state = self.journals.state
                if state is None or (state.leader, state.epoch) != (self.node, epoch):
                    reached.cancel()
                    return True
        self._coordinates = True
        try:
            await self.broker.coordinate()
        except BraidError as error:
            logger.warning("could not begin to coordinate: %s", error)
            return False
        self.coordinator.start()
        self.pulse()
        return True

    async def _stop_coordinating(self) -> None:
        if self._coordinates:
            self._coordinates = False
            await self.coordinator.stop()
            await self.broker.resign()
            logger.info("this node does not coordinate any more")

    async def _watch_quorum(self) -> None:
        """Follow what the quorum says of sessions and of the journals."""
        while True:
            try:
                # What changes after this revision is told by the watch: nothing may be read before it.
                revision = await self._read_sessions()
                await self.journals.read()
                self.pulse()
                await self._follow_quorum(revision)
            except BraidError as error:
                logger.warning("%s", error)
                await asyncio.sleep(_ASK_AGAIN_S)

    async def _follow_quorum(self, revision: int) -> None:
        async for event in self.quorum.watch("", revision):
            if not isinstance(event, Changed):
                return
            if event.key == STATE_KEY:
                self.journals.adopt(event.entry)
            elif event.key.startswith(SESSIONS):
                node = event.key.removeprefix(SESSIONS)
                if event.entry is None:
                    self.sessions.pop(node, None)
                else:
                    self.sessions[node] = SessionRecord.decode(event.entry.value)
                    self.suspicion.clear(node)
                    self._learn_addresses()
                self.pulse()

    def live(self) -> set[str]:
        """Nodes that are here, as far as this one can tell."""
        return (set(self.sessions) - self.suspects) | {self.node}

    async def _mind_session(self) -> None:
        """Announce this node anew when its session was lost while it was away."""
        while True:
            reason = await self.session.lost()
            logger.warning("the session of this node is over: %s", reason)
            while True:
                try:
                    await self._open_session()
                    break
                except BraidError as error:
                    logger.warning("%s", error)
                    await asyncio.sleep(1.0)

    # --- partitions of topics

    def _partition_changed(self, key: LogKey, state: PartitionState | None) -> None:
        if self._serving:
            self._assign(key, state)
        self.moved.set()
        self.moved = asyncio.Event()

    def _assign(self, key: LogKey, state: PartitionState | None) -> None:
        mine = state is not None and self.node in state.replicas
        if mine:
            self.replication.assign(key, state)
        else:
            self.replication.assign(key, None)
            if self.broker.topics.by_id(key[0]) is not None and self.broker.store.opened(*key) is not None:
                self.broker.drop_partition(*key)

    def log_of(self, key: LogKey) -> PartitionLog | None:
        """The log of a key, for replication."""
        if key[0] == 0:
            return self.broker.internal_logs()[INTERNAL[key[1]]]
        topic = self.broker.topics.by_id(key[0])
        return None if topic is None or key[1] >= topic.partitions else self.broker.log_of(topic, key[1])

    def min_insync(self, key: LogKey) -> int:
        return self.journals.min_insync if key[0] == 0 else self.table.min_insync(key[0])

    async def alter_isr(self, key: LogKey, state: PartitionState, isr: tuple[str, ...]) -> PartitionState | None:
        """Have it agreed who has all of a log that this node leads; the state as it is then, None when that is not known."""
        if key[0] == 0:
            # Whoever is not here cannot come in, whatever it was heard to say.
            able = tuple(name for name in isr if name in state.isr or name in self.live())
            return await self.journals.alter_isr(state, able)
        document = {"key": key, "epoch": state.epoch, "version": state.version, "isr": isr, "settle": set(isr) == set(state.isr)}
        if self._coordinates:
            return await self._alter(document)
        try:
            payload = await self.transport.call(self._leader(), ClusterOp.ALTER_ISR, pack(document), _CALL_S)
        except BraidError as error:
            logger.debug("the isr of %s: %s", key, error)
            return None
        found, min_insync = unpack(payload)[0]
        if found is None or min_insync != self.table.min_insync(key[0]):
            # A state counts by the `min_insync` that held when it was made, and the journal here lacks a change of that.
            return None
        return PartitionState.of(found)

    async def _alter(self, document: dict[str, Any]) -> PartitionState | None:
        place = [*document["key"], document["epoch"], document["version"]]
        command = ["settle", *place] if document.get("settle") else ["isr", *place, list(document["isr"])]
        state: PartitionState | None = await self.broker.submit_metadata(REPLICAS, command)
        return state

    async def _isr_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        self.check_coordinates()
        document = unpack(payload)[0]
        state = await self._alter(document)
        return pack([None if state is None else state.document(), self.table.min_insync(document["key"][0])])

    # --- what the broker asks (`broker/peers.py`)

    @property
    def coordinates(self) -> bool:
        return self._coordinates

    def _leader(self) -> str:
        state = self.journals.state
        if state is None or not state.leader:
            raise BraidError("NOT_LEADER", reason="no leader elected")
        return state.leader

    def client_address(self, node: str) -> str:
        record = self.table.brokers.get(node)
        return "" if record is None else record.about.get("client", "")

    def coordinator_node(self) -> str:
        return self.journals.state.leader if self.journals.state is not None else ""

    def check_coordinates(self) -> None:
        if not self._coordinates:
            leader = self.coordinator_node()
            raise BraidError("NOT_LEADER", reason=f"leader_id={leader} leader_addr={self.client_address(leader)}")

    def leads(self, topic_id: int, partition: int) -> bool:
        state = self.table.state((topic_id, partition))
        return state is not None and state.leader == self.node and self._serving

    def leader_of(self, topic_id: int, partition: int) -> str:
        """Who leads a partition; NOT_LEADER when nobody does."""
        state = self.table.state((topic_id, partition))
        if state is None or not state.leader:
            raise BraidError("NOT_LEADER", reason=f"no leader elected, partition={partition}")
        return state.leader

    def not_leader(self, topic_id: int, partition: int) -> BraidError:
        try:
            leader = self.leader_of(topic_id, partition)
        except BraidError as error:
            return error
        address = self.client_address(leader)
        reason = f"not partition leader: partition={partition} leader_id={leader} leader_addr={address}"
        return BraidError("NOT_LEADER", reason=reason)

    async def placed(self, topic: Topic) -> None:
        self.coordinator.wake()

        def has_leaders() -> bool:
            if self.broker.topics.by_id(topic.id) is None:
                return True
            states = (self.table.state((topic.id, partition)) for partition in range(topic.partitions))
            return all(state is not None and state.leader for state in states)

        try:
            await self.until(has_leaders, _PLACED_S)
        except TimeoutError:
            raise BraidError("NOT_LEADER", reason=f"no leader elected for {topic.name}") from None

    async def _leave_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        self.check_coordinates()
        if unpack(payload)[0].get("stays"):
            await self.coordinator.move_leaders(node)
        else:
            await self.coordinator.retire_leaders(node)
        return pack(True)

    # --- telling

    async def _status_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        document, _ = unpack(payload)
        places = []
        topic = self.broker.topics.by_id(document.get("topic", 0))
        for partition in document.get("partitions", ()):
            log = None if topic is None else self.broker.log_of(topic, partition)
            places.append([0, 0] if log is None else [log.log_start, log.high_watermark])
        about = {"node": self.node, "coordinator": self.coordinator_node(), "serving": self._serving, "places": places}
        return pack(about | {"applied": self.applied() if self._coordinates else None})

    async def steer(self, verb: str, words: list[str]) -> dict[str, Any]:
        return await self.steering.steer(verb, words)

    @property
    def trouble(self) -> str:
        """Why the cluster can change nothing at the moment; empty when it can."""
        if self.quorum_fault:
            return f"the metadata quorum is lost: {self.quorum_fault}"
        if standing := self.transfer.standing:
            return f"this node is not up to date: {standing}"
        leader = self.coordinator_node()
        if leader not in self.live():
            return f"nobody coordinates: {leader or 'no node'} is away, and no replica of the journals that may lead is here"
        state, needed = self.journals.state, self.journals.min_insync
        if state is not None and len(state.isr) < needed:
            return f"the journals have {len(state.isr)} of the {needed} replicas in sync that they need: {', '.join(state.isr)}"
        return ""

    async def document(self) -> dict[str, Any]:
        return await self.overview.document()


async def _shown(log: PartitionLog, end: int) -> None:
    """Wait until readers see everything below `end`."""
    moved = asyncio.Event()
    log.watch_tail(moved, moved.set)
    try:
        while log.high_watermark < end:
            moved.clear()
            await moved.wait()
    finally:
        log.unwatch_tail(moved)
