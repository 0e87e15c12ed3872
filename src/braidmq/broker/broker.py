"""The broker: topics, partitions and groups behind one set of rules, whichever protocol asks.

Everything runs on one event loop. A method that may wait (for a sync, for cold data, for new records) is a coroutine; all
others answer at once. The hot path of PRODUCE does not come through here message by message: a session gets a `Route`
once, and the compiled parser adds rows to its accumulators.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.disk import Disk
from braidmq.base.errors import BraidError
from braidmq.base.figures import Figures
from braidmq.base.steady_clock import SteadyClock
from braidmq.broker.admission import Admission, is_open
from braidmq.broker.away import Away
from braidmq.broker.backups import Backups
from braidmq.broker.broker_reads import BrokerReads
from braidmq.broker.broker_writes import BrokerWrites
from braidmq.broker.dead_letters import DeadLetters
from braidmq.broker.delayed import Delayed
from braidmq.broker.expired_letters import ExpiredLetters
from braidmq.broker.features import BROKER, SYSTEM, Security
from braidmq.broker.fq_queues import FqQueues
from braidmq.broker.group_offsets import GroupOffsets
from braidmq.broker.groups import GroupCoordinator
from braidmq.broker.journal import Journal, StateMachine
from braidmq.broker.machines import PIPELINES, QUEUES, SCHEMAS, TOPICS, MachineGroup
from braidmq.broker.names import INTERNAL_PREFIX, check_topic
from braidmq.broker.pace import Pace
from braidmq.broker.peers import Peers
from braidmq.broker.pipelines import Pipelines
from braidmq.broker.push import Hub
from braidmq.broker.schema_registry import SchemaRegistry
from braidmq.broker.settings import BrokerSettings as BrokerSettings
from braidmq.broker.stages import Stages
from braidmq.broker.store import CheckpointDraft, LogStore
from braidmq.broker.time_file import TimeFile
from braidmq.broker.topics import PROPERTIES, Topic, TopicTable, check_properties
from braidmq.broker.transactions import Transactions
from braidmq.broker.work import WorkEngine
from braidmq.log.commit import GroupCommit, Syncer, SyncJob, ThreadSyncer
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.security.accounts import Caller
from braidmq.security.audit import audit_settings

_WORK_CHECK_SECONDS: Final = 1.0
_LATE_CHECKS: Final = 4
"""Intervals after which a check of members comes so late that the broker was not there to hear them."""
_OPENED_PER_RETENTION: Final = 500
"""Unused partitions opened for retention at a time, so that not all of them are open after one look."""
_OPENING_STEPS: Final = 5
"""To open a partition takes as long as so many other things."""

logger = logging.getLogger("braidmq.broker")


class Broker(BrokerReads, BrokerWrites):
    def __init__(
        self, settings: BrokerSettings, disk: Disk, clock: Clock, *, syncer: Syncer | None = None,
        machines: Mapping[str, StateMachine] | None = None,
    ) -> None:
        """`syncer` stands in for the thread that syncs, where there are no threads. `machines` are more machines of the metadata
        journal, by name, for a broker that belongs to a cluster: its logs are replicated.
        """
        self.settings = settings
        self.clock = clock
        self.disk = disk
        self.steady = SteadyClock(clock)
        """What delays and expiry are measured by."""
        self._time_file = TimeFile(disk, settings.data_dir, self.steady)
        self._loop = asyncio.get_running_loop()
        self._io = ThreadPoolExecutor(2, thread_name_prefix="braid-io")
        self._cpu = ThreadPoolExecutor(2, thread_name_prefix="braid-cpu")
        """Passwords and schemas: nobody who reads waits behind them."""
        self.figures = Figures()
        syncer = syncer or ThreadSyncer(disk, self._loop.call_soon_threadsafe, clock, self.figures.sync_s.observe)
        self.commit = GroupCommit(clock, syncer, self._loop.call_soon, self.figures)
        self.commit.on_failure = _log_failure
        self.store = LogStore(
            disk, settings.data_dir, settings.load_keys, encrypt=settings.encryption_enabled, now=self.steady.now_ms,
            replicated=machines is not None,
        )
        self.topics = TopicTable(settings.topics_max)
        self.groups = GroupOffsets()
        self.coordinator = GroupCoordinator(
            self.groups, self.topics, self._log, clock, self._submit_offsets,
            lambda action: self._loop.run_in_executor(self._io, action), lambda: self.peers,
        )
        self.security = Security(settings.security, clock, self.figures)
        self.schemas = SchemaRegistry(self.topics, clock, partial(self.submit_metadata, SCHEMAS), self.compute)
        self.pipelines = Pipelines(clock, partial(self.submit_metadata, PIPELINES))
        self.admission = Admission(self)
        self._routes: dict[int, hot.Route] = {}
        self.routes = hot.RouteTable()
        """Topics that any client may produce to with no further question, where nobody has to log in."""
        self.routes_version = 0
        """Grows when a route must not be used any more."""
        # Topics are always synced: one of level `fsync` on a broker of level `os` must not vanish with its records.
        self._metadata_settings = LogSettings(
            Level.FSYNC, settings.journal_segment_bytes, retention_bytes=0, retention_age_ms=0
        )
        self._internal_settings = LogSettings(
            max(Level.OS, settings.defaults.level), settings.journal_segment_bytes, retention_bytes=0, retention_age_ms=0,
            gapless=True,
        )
        self._metadata: Journal
        self._offsets: Journal
        self._more_machines = machines or {}
        self.peers: Peers | None = None
        """The cluster this broker belongs to; None for one that runs alone. Set before `recover`."""
        self.away = Away(self)
        self.work = WorkEngine(self)
        self.transactions = Transactions(self, settings.transaction_timeout_s)
        self.stages = Stages(self, settings.stage_timeout_s)
        self.delayed = Delayed(self, settings.delay_ms_max)
        self.dead_letters = DeadLetters(self, settings.dlq_suffix, settings.dlq_attempts_max, settings.dlq_retry_ms)
        self.expired_letters = ExpiredLetters(self)
        self.push = Hub(self)
        self.fq = FqQueues(self)
        self.backups = Backups(self)
        self.documents: dict[str, Callable[[], Awaitable[Any]]] = {}
        """What can be asked about the process that the broker runs in, by name. The server fills it."""
        self.lists: dict[str, Callable[[Sequence[str], int], list[Any]]] = {}
        """Lists of what only this node has, by name: so many rows behind a place. The server fills it, and other nodes ask."""
        self._housekeeping: list[asyncio.Task[None]] = []
        self._coordinating: list[asyncio.Task[None]] = []
        """What only runs where the broker coordinates."""
        self._members_checked_s = 0.0
        self._members_excused = False
        self._deletions: set[asyncio.Task[bool]] = set()
        self._removals: set[asyncio.Task[None]] = set()
        """Files of deleted topics and partitions on their way out."""
        self._topics_leaving: dict[int, asyncio.Task[None]] = {}
        """Those of whole topics, by id, until they are gone; or, where that failed, until who deleted it has been told."""
        self._polls: set[asyncio.Event] = set()
        self._stopping = False

    # --- start and stop

    async def start(self) -> None:
        """Recover everything and coordinate; when this returns, clients may come. For a broker that runs alone."""
        await self.recover()
        try:
            await self.coordinate()
        except BaseException:
            self._abandon()
            raise

    async def recover(self) -> None:
        """Find what the disk holds. In a cluster this is only what is certain: snapshots, and logs whose ends others may
        correct."""
        self.store.open()
        try:
            self.backups.remove_leftovers()
            self._time_file.resume()
            await self._keep_time()
            await self._loop.run_in_executor(self._io, self._recover)
        except BaseException:
            self._abandon()
            raise
        self._metadata.on_applied = self._metadata_applied
        self.work.journal.on_applied = self.work.applied
        self._housekeeping = [
            asyncio.create_task(self._every(self.settings.checkpoint_interval_s, self.checkpoint)),
            asyncio.create_task(self._every(self.settings.retention_interval_s, self.apply_retention)),
        ]
        self.security.note("system.start", SYSTEM, "", self.security.settings.node_id, "start")
        report = self.store.report
        logger.info(
            "%s start: %d topics, %d partitions opened, %d bytes checked, %d bytes removed",
            "clean" if report.clean else "recovered", len(self.topics), report.partitions_opened, report.bytes_checked,
            report.bytes_truncated,
        )

    def _abandon(self) -> None:
        for task in self._housekeeping:
            task.cancel()
        self.store.abandon()
        self.commit.close()
        self._io.shutdown()
        self._cpu.shutdown()

    async def coordinate(self) -> None:
        """Begin with what one broker does for all: groups, transactions, delayed messages, letters, decided work."""
        # Behind the marks of expired letters nothing may expire any more.
        self.steady.at_least(self.work.table.letters.latest_expiry_ms)
        await self.work.start(wait=self.peers is None)
        try:
            await self.security.ensure_admin()
        except BraidError as error:
            if self.peers is None or error.retriable:
                raise
            # A cluster is not to be without a coordinator for a password that cannot be one.
            logger.error("no administrator was created: %s", error)
        self._coordinating = [
            asyncio.create_task(self._every(limits.MEMBERS_CHECK_SECONDS, self._check_members)),
            asyncio.create_task(self._every(_WORK_CHECK_SECONDS, self._check_work)),
        ]
        self.delayed.start()

    async def resign(self) -> None:
        """Another broker coordinates: forget what lives in memory only, and carry on nothing."""
        tasks, self._coordinating = self._coordinating, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        error = BraidError("COORDINATOR_MOVED")
        for journal in self.journals.values():
            journal.give_up_posted(error)
        await self.delayed.stop()
        self.transactions.resign()
        self.coordinator.members.close()
        await self.work.resign()

    def _recover(self) -> None:
        store = self.store
        security = self.security
        push = {**self.push.machines(), QUEUES: self.fq.table, PIPELINES: self.pipelines.table, **self._more_machines}
        machines = MachineGroup({TOPICS: self.topics, **security.machines(), SCHEMAS: self.schemas.table, **push})
        alone = self.peers is None
        after = self.settings.journal_snapshot_commands
        self._metadata = Journal(self.disk, store.internal("metadata", self._metadata_settings), self.commit, machines, after)
        self._offsets = Journal(self.disk, store.internal("offsets", self._internal_settings), self.commit, self.groups, after)
        for journal in (self._metadata, self._offsets):
            journal.replay() if alone else journal.load()
        if alone:
            self.groups.keep_topics(lambda topic_id: self.topics.by_id(topic_id) is not None)
        self.work.open(self._metadata_settings, alone=alone)
        trail = None
        wanted = security.settings
        if wanted.audit_enabled:
            kept = audit_settings(self.settings.defaults.level, wanted.audit_retention_days, wanted.audit_retention_bytes)
            trail = store.internal("audit", kept)
        security.open(trail, self.commit, self.submit_metadata, self.beside, self.compute)
        if not alone:
            # What topics there are is known when the journals have caught up with the cluster.
            return
        store.remove_leftovers(lambda topic_id: self.topics.by_id(topic_id) is not None, self.topics.next_id)
        if not store.report.clean:
            for topic_id, partitions in list(store.partitions_on_disk()):
                topic = self.topics.by_id(topic_id)
                if topic is not None:
                    for partition in partitions:
                        if partition < topic.partitions:
                            self._log(topic, partition)

    async def _keep_time(self) -> None:
        await self.beside(partial(self._time_file.keep, self.steady.kept()))

    async def stop(self) -> None:
        """Make everything durable and say so; afterwards a start reads nothing."""
        self.coordinator.members.close()
        self.security.note("system.stop", SYSTEM, "", self.security.settings.node_id, "stop")
        for task in (*self._housekeeping, *self._coordinating):
            task.cancel()
        await asyncio.gather(*self._housekeeping, *self._coordinating, *self._deletions, return_exceptions=True)
        await asyncio.gather(*self._removals, return_exceptions=True)
        await self.backups.stop()
        await self._finish_work()
        self.commit.flush()
        # Acks of the last cycles are posted to the loop before the syncer ends, so they go out before we go on.
        await self._loop.run_in_executor(None, self.commit.close)
        changed = self.store.changed_since_checkpoint()
        job = SyncJob(self.store.unsynced_files(), set())
        await self._loop.run_in_executor(self._io, job.run, self.disk)
        await self._keep_time()
        self._fail_unsynced(changed, job)
        try:
            if any(log.failure is not None for log in self.store.open_partitions()):
                raise OSError("a partition failed before")
            for journal in self.journals.values():
                await journal.save_snapshot_beside(self.beside)
            self.store.close()
        except OSError as fault:
            # Everything acknowledged is safe; only the shortcut for the next start is missing.
            logger.error("the stop could not be recorded (%s): the next start will check the log", fault)
            self.store.abandon()
        self._io.shutdown()
        self._cpu.shutdown()

    async def _every(self, interval_s: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await action()
            except OSError as fault:
                logger.error("housekeeping failed: %s", fault)

    async def checkpoint(self) -> None:
        """Note how far every partition is whole, so that a crash after now costs less recovery, and what time it is."""
        await self._keep_time()
        for journal in self.journals.values():
            if journal.snapshot_due:
                await journal.save_snapshot_beside(self.beside)
        draft = CheckpointDraft()
        pace = Pace()
        for _ in self.store.draft_checkpoint(draft):
            await pace.step()
        if draft.changed:
            job = SyncJob(draft.files, draft.names)
            await self._loop.run_in_executor(self._io, self.store.save, self.store.drafted(), job)
            self._fail_unsynced(draft.changed, job)

    async def _check_members(self) -> None:
        self.figures.fold()
        now_s = self._loop.time()
        late = now_s - self._members_checked_s > _LATE_CHECKS * limits.MEMBERS_CHECK_SECONDS
        self._members_checked_s = now_s
        # Where the broker itself was held up, what members said meanwhile is read first, and they are judged the next time.
        self._members_excused = late and not self._members_excused
        if not self._members_excused:
            self.coordinator.members.tick()

    async def _check_work(self) -> None:
        """What transactions, delayed messages and dead letters need now and then."""
        self.transactions.abort_overdue()
        await self.stages.collect()
        await self.work.tick()
        await self.expired_letters.sweep()

    async def _finish_work(self) -> None:
        """Let what was decided come to its end, before the disk is closed."""
        await self.delayed.stop()
        await self.push.stop()
        await self.fq.stop()
        await self.transactions.stop()
        await self.work.stop()

    async def beside(self, action: Callable[[], None]) -> None:
        """Run something that blocks, beside the loop."""
        await self._loop.run_in_executor(self._io, action)

    async def compute(self, action: Callable[[], Any]) -> Any:
        """Run something that takes long, beside the loop and beside what waits for the disk; returns its result."""
        return await self._loop.run_in_executor(self._cpu, action)

    async def submit_metadata(self, machine: str, command: list[Any]) -> Any:
        """Make a command of one of the metadata machines durable and apply it. The journal exists only after recovery."""
        return await self.submit("metadata", [machine, *command])

    async def submit(self, journal: str, command: list[Any]) -> Any:
        """Have a command appended to one of the journals, on whichever node that happens; what its machine here answers."""
        if self.peers is None or self.peers.coordinates:
            return await self.journals[journal].submit(command)
        return await self.peers.submit(journal, command)

    @property
    def journals(self) -> dict[str, Journal]:
        return {"metadata": self._metadata, "offsets": self._offsets, "work": self.work.journal}

    def _fail_unsynced(self, logs: list[PartitionLog], job: SyncJob) -> None:
        """Partitions below level `fsync` learn only here that their disk fails."""
        for log in logs:
            fault = next((job.failed[file] for file in log.unsynced_files() if file in job.failed), None)
            if fault is not None and log.failure is None:
                _log_failure(log, log.fail(f"sync failed: {fault}"))

    async def apply_retention(self) -> None:
        """Let go of what topics need not keep, also of those that nobody has used since the start."""
        pace = Pace()
        for topic_id, partition in self.store.unopened()[:_OPENED_PER_RETENTION]:
            topic = self.topics.by_id(topic_id)
            if topic is not None:
                self._log(topic, partition)
                await pace.step(_OPENING_STEPS)
        for name in self.store.opened_names():
            await pace.step()
            unknown = self.store.needed_index(name)
            if unknown is not None:
                await self.beside(unknown.prepare_index)
            for segment in self.store.apply_retention(name, self.clock.now_ms(), *self._held(name)):
                await self._loop.run_in_executor(self._io, segment.remove)
        self.security.apply_retention(self.clock.now_ms())

    def _held(self, name: str) -> tuple[int | None, int]:
        """From where on groups hold a partition back from retention, and up to how many bytes."""
        area, _, place = name.partition("/")
        topic = self.topics.by_id(int(place.partition("/")[0])) if area == "topics" else None
        if topic is None:
            return None, 0
        partition = int(place.partition("/")[2])
        held = [self.groups.committed(topic.id, group, partition) or 0 for group in topic.holders()]
        return min(held, default=None), topic.hold_bytes

    # --- topics

    def topic(self, name: str) -> Topic:
        """The topic, or TOPIC_NOT_FOUND."""
        topic = self.topics.get(name)
        if topic is None:
            raise BraidError("TOPIC_NOT_FOUND", topic=name)
        return topic

    async def create_topic(
        self, name: str, partitions: int = 0, properties: Mapping[str, str] | None = None, *, by: Caller = BROKER,
        action: str = "create",
    ) -> Topic:
        """Create the topic; one that exists stays as it is. 0 partitions means 1, as FlyMQ has it. `by` is for the trail."""
        check_topic(name)
        if not 0 <= partitions <= limits.PARTITIONS_MAX:
            raise BraidError("INVALID_PARTITIONS", partitions=partitions, most=limits.PARTITIONS_MAX)
        check_properties(properties or {})
        self._check_binding(properties or {})
        known = self.topics.get(name)
        if known is not None:
            return known
        command = self.topics.create(name, partitions or 1, self.clock.now_ms(), properties or {})
        topic: Topic = await self.submit_metadata(TOPICS, command)
        self.security.note("topic.create", by.principal, by.address, name, action, partitions=str(topic.partitions))
        if self.peers is not None:
            await self.peers.placed(topic)
        return topic

    def _metadata_applied(self, command: list[Any], outcome: Any) -> None:
        """Follow a change of the topics, whoever made it."""
        match command:
            case ["topics", "create", *_]:
                self.coordinator.topic_changed(outcome.name)
                self.push.topic_created(outcome)
            case ["topics", "configure", *_]:
                self._topic_configured(outcome)
            case ["topics", "delete", *_] if outcome is not None:
                self._drop_route(outcome)
                self.store.retire_topic(outcome.id, outcome.partitions)
                self.coordinator.topic_removed(outcome)
                self._topics_leaving[outcome.id] = self._remove_beside(
                    partial(self.store.remove_topic_files, outcome.id), partial(self._topics_leaving.pop, outcome.id, None)
                )

    def _remove_beside(self, action: Callable[[], None], removed: Callable[[], object] | None = None) -> asyncio.Task[None]:
        """Remove files beside the loop; what stays is explained in the log, and goes with the next start."""
        removal = asyncio.create_task(self.beside(action))
        self._removals.add(removal)

        def done(task: asyncio.Task[None]) -> None:
            self._removals.discard(task)
            if task.cancelled():
                return
            if task.exception() is not None:
                logger.error("files of a deleted topic or partition stay until the next start: %s", task.exception())
            elif removed is not None:
                removed()

        removal.add_done_callback(done)
        return removal

    async def auto_create(self, name: str, partitions: int | None = None, by: Caller = BROKER) -> Topic:
        """The topic a producer named, created when missing and allowed."""
        known = self.topics.get(name)
        if known is not None:
            return known
        origin = self.dead_letters.origin_of(name)
        if origin != name and self.topics.get(origin) is not None:
            # A pipeline writes letters of its own: they go where ours would.
            return await self.dead_letters.topic_for(origin)
        if not self.settings.auto_create_topics:
            raise BraidError("TOPIC_NOT_FOUND", topic=name)
        return await self.create_topic(name, partitions or self.settings.default_partitions, by=by, action="produce")

    async def delete_topic(self, name: str) -> bool:
        """Delete the topic with its data and its groups' offsets; False when there was none."""
        check_topic(name)
        if self.topics.get(name) is None:
            return False
        # Whoever asked may go away meanwhile; a topic that is gone for readers has to be gone for producers and on disk too.
        deletion = asyncio.create_task(self._delete_topic(name))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        return await asyncio.shield(deletion)

    async def _delete_topic(self, name: str) -> bool:
        gone: Topic | None = await self.submit_metadata(TOPICS, self.topics.delete(name))
        if gone is None:
            return False
        await self.submit("offsets", self.groups.forget_topic(gone.id))
        await self.work.forget_topic(gone.id)
        # Readers and producers know already; whoever asked may count on the files being gone, too.
        removal = self._topics_leaving.pop(gone.id, None)
        if removal is not None:
            await removal
        return True

    async def configure_topic(self, name: str, properties: Mapping[str, str]) -> Topic:
        """Set properties of a topic, which apply at once; an empty value is the broker's default again."""
        check_topic(name)
        if not properties:
            return self.topic(name)
        check_properties({key: value for key, value in properties.items() if value or key not in PROPERTIES})
        self._check_binding(properties)
        topic: Topic = await self.submit_metadata(TOPICS, self.topics.configure(name, properties))
        return topic

    def _topic_configured(self, topic: Topic) -> None:
        # What came in before belongs to the settings before.
        self.commit.flush()
        self._drop_route(topic)
        settings = topic.settings(self.settings.defaults)
        for partition in range(topic.partitions):
            self.store.reconfigure(topic.id, partition, settings)
        self.expired_letters.look_again()

    def _check_binding(self, properties: Mapping[str, str]) -> None:
        """A topic can only be bound to a schema that is there."""
        if properties.get("schema"):
            self.schemas.table.get(properties["schema"])

    def _drop_route(self, topic: Topic) -> None:
        """Let producers of a topic that changed come the long way once more."""
        self._routes.pop(topic.id, None)
        self.routes.remove(topic.name.encode())
        self.routes_version += 1

    def topic_names(self) -> list[str]:
        return [topic.name for topic in self.topics.all() if not topic.name.startswith(INTERNAL_PREFIX)]

    def route(self, topic: Topic) -> hot.Route:
        """The topic's way into the parser, for producers; one that is bound to a schema has none there."""
        route = self._routes.get(topic.id)
        if route is None:
            accumulators = [self._log(topic, partition).accumulator for partition in range(topic.partitions)]
            route = hot.Route(topic.name.encode(), accumulators, int(topic.settings(self.settings.defaults).level))
            self._routes[topic.id] = route
            if is_open(topic):
                self.routes.add(route)
        return route

    # --- partitions

    def _log(self, topic: Topic, partition: int) -> PartitionLog:
        log = self.store.opened(topic.id, partition)
        if log is None:
            if self.topics.by_id(topic.id) is None:
                # Whoever holds on to a deleted topic must not bring its files back.
                raise BraidError("TOPIC_NOT_FOUND", topic=topic.name)
            log = self.store.partition(topic.id, topic.name, partition, topic.settings(self.settings.defaults))
        return log

    def internal_logs(self) -> dict[str, PartitionLog]:
        """The broker's own logs that a cluster replicates, by name."""
        work = self.work
        journals = {name: journal.log for name, journal in self.journals.items()}
        return journals | {"staging": work.staging.log, "delayed": work.delayed.log, "stages": work.stages.log}

    def drop_partition(self, topic_id: int, partition: int) -> None:
        """This broker does not have a partition any more: others do."""
        place = self.store.drop_partition(topic_id, partition)
        topic = self.topics.by_id(topic_id)
        if topic is not None:
            self._drop_route(topic)
        self._remove_beside(partial(self.store.remove_dropped, place))

    def log_of(self, topic: Topic, partition: int) -> PartitionLog:
        """The log of a partition that the topic has."""
        return self._log(topic, partition)

    # --- groups; everything else about them is asked of `coordinator`

    def subscribe(self, name: str, group: str, partition: int, mode: str, member: object, address: str) -> int:
        """Where the group begins to read; the member counts as connected until `unsubscribe`."""
        return self.coordinator.subscribe(name, group, partition, mode, member, address)

    def unsubscribe(self, topic_id: int, group: str, member: object) -> None:
        self.coordinator.unsubscribe(topic_id, group, member)

    async def commit_offset(self, name: str, group: str, partition: int, offset: int) -> None:
        """Store a group's position; durable when this returns."""
        await self.coordinator.commit_offset(name, group, partition, offset)

    def post_offsets(self, command: list[Any]) -> asyncio.Future[Any]:
        """Commit offsets in the same write as what else this turn brings."""
        if self.peers is None or self.peers.coordinates:
            return self._offsets.post(command)
        return asyncio.ensure_future(self.peers.submit("offsets", command))

    async def _submit_offsets(self, command: list[Any]) -> Any:
        """The journal exists only after recovery, the coordinator before it."""
        return await self.submit("offsets", command)

    # --- what the outside may ask

    def recovery(self) -> dict[str, object]:
        """The `recovery` document: how this broker came up."""
        return self.store.report.document()


def _log_failure(partition: PartitionLog, error: BraidError) -> None:
    logger.error("%s/%d: %s", partition.topic, partition.partition, error)
