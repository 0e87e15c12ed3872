"""Which logs this node leads and follows, and the talk between leaders and followers.

    assign     a partition has another state: lead it, follow its leader, or let go of it
    leading    (`leading.py`) a gate for each log that is led here; fetches of followers come in, and what they lack goes out
    following  (`following.py`) one fetch at a time to each node that leads something of ours

A fetch that there is nothing for waits until something is written, or readers may see more. So a record goes to the followers while
it is synced here, and the next fetches say that it is durable everywhere.

Faults: messages may be lost, repeated, late and out of order; nodes may die, stop and come back, and believe in an old state. A
fetch counts in its own epoch only, in the life of the node that sent it, and in the order of its session. Whoever is fenced
changes nothing until it knows the new state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.journals import is_journal
from braidmq.cluster.partition_state import LogKey, PartitionState
from braidmq.cluster.replication.fetching import ANSWER_ROOM_BYTES, PART_BYTES, FetchRequest, Part, Place, Verdict, encode_answer
from braidmq.cluster.replication.following import Followed, Follower
from braidmq.cluster.replication.leading import LedPartition
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.replication.throttle import Throttle
from braidmq.cluster.transport import ClusterOp, Transport
from braidmq.log.commit import GroupCommit
from braidmq.log.partition import PartitionLog
from braidmq.log.partition_reads import Cold
from braidmq.log.partition_replica import CLOSED_GATE
from braidmq.log.segment import Segment

AlterIsr = Callable[[LogKey, PartitionState, tuple[str, ...]], Awaitable[PartitionState | None]]
"""Has it agreed who is in sync; the state as it is then, whether it was changed or not, None when that is not known."""

logger = logging.getLogger("braidmq.replication")


class FetchSession:
    """What a leader remembers of the fetches of one follower."""

    __slots__ = ("generation", "heard_s", "id", "news", "node", "number", "places", "put_off", "woken")

    def __init__(self, number: int, node: str, generation: int) -> None:
        self.id = number
        self.node = node
        self.generation = generation
        self.number = 1
        """That of the next fetch."""
        self.places: dict[LogKey, Place] = {}
        self.news: dict[LogKey, None] = {}
        """Partitions of which there may be something to say, in order."""
        self.put_off: LogKey | None = None
        """One that did not fit beside others: it is the first of the next answer, or others could keep it out for ever."""
        self.woken = asyncio.Event()
        self.heard_s = 0.0

    def tell(self, key: LogKey) -> None:
        if key in self.places:
            self.news[key] = None
            self.woken.set()


class Replication:
    def __init__(
        self, transport: Transport, clock: Clock, commit: GroupCommit, log_of: Callable[[LogKey], PartitionLog | None],
        alter_isr: AlterIsr, settings: ReplicationSettings, *, min_insync: Callable[[LogKey], int],
        refusal: Callable[[LogKey], BraidError], generation: Callable[[], int],
        beside: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        """`refusal` is what producers are told where this node does not lead, `generation` that of this node's life."""
        self.transport = transport
        self.node = transport.node
        self.clock = clock
        self.commit = commit
        self.settings = settings
        self.generation = generation
        self.beside = beside
        self.throttle = Throttle(clock, settings.catch_up_bytes_per_s)
        self.begin_anew: Callable[[LogKey, PartitionLog, int], Awaitable[Callable[[], None] | None]] = _begin_anew
        """What to do with a log of which nothing is in the leader's any more; journals need a snapshot for it. Gives what is
        left to do on the loop, or None when nothing is to be done any more."""
        self._min_insync = min_insync
        self._refusal = refusal
        self._log_of = log_of
        self._alter_isr = alter_isr
        self._states: dict[LogKey, PartitionState] = {}
        self._led: dict[LogKey, LedPartition] = {}
        self._followed: dict[LogKey, str] = {}
        """The leader of each log that is followed; empty while there is none."""
        self._followers: dict[str, Follower] = {}
        """By the node that is followed."""
        self._sessions: dict[str, FetchSession] = {}
        """By the node that follows."""
        self._generations: dict[str, int] = {}
        self._last_session = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        transport.serve(ClusterOp.REPLICA_FETCH, self._fetch_asked)
        self._keep(self._mind_isrs())

    def stop(self) -> None:
        """Ask and answer nothing more."""
        self._stopped = True
        for follower in self._followers.values():
            follower.stop()
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of replication failed", exc_info=task.exception())

    def min_insync(self, key: LogKey) -> int:
        state = self._states.get(key)
        wanted = self._min_insync(key)
        return wanted if state is None else min(wanted, len(state.replicas))

    # --- what this node leads and follows

    def assign(self, key: LogKey, state: PartitionState | None, *, observe: bool = False) -> None:
        """A partition has this state now; None lets go of it. States that are older than what is known change nothing."""
        known = self._states.get(key)
        if self._stopped or (state is not None and known is not None and _age(state) < _age(known)):
            return
        log = self._log_of(key) if state is not None else None
        if state is None or log is None or not (observe or self.node in state.replicas):
            self._let_go(key)
            return
        self._states[key] = state
        if state.leader == self.node:
            self._lead(key, log, state)
        else:
            self._follow(key, log, state)

    def _lead(self, key: LogKey, log: PartitionLog, state: PartitionState) -> None:
        self._unfollow(key)
        led = self._led.get(key)
        if led is None or led.state.epoch != state.epoch or led.log is not log:
            led = self._led[key] = LedPartition(self, key, log, state)
            log.gate = led
            log.lead(state.epoch)
            logger.info("leading %s/%d in epoch %d from offset %d", log.topic, log.partition, state.epoch, log.log_end)
        led.update(state)
        self.tell_followers(key)

    def _follow(self, key: LogKey, log: PartitionLog, state: PartitionState) -> None:
        follower = self._followers.get(self._followed.get(key, ""))
        if follower is not None and self._followed[key] == state.leader and follower.goes_on(key, log, state.epoch):
            follower.in_sync(key, self.node in state.isr)
            return
        self._led.pop(key, None)
        log.gate = CLOSED_GATE
        log.follow(state.epoch, self._refusal(key))
        self._unfollow(key)
        self._followed[key] = state.leader
        # Whoever believed that this node leads learns by its next fetch that it does not.
        self.tell_followers(key)
        if state.leader:
            follower = self._followers.get(state.leader)
            if follower is None:
                follower = self._followers[state.leader] = Follower(self, state.leader)
            follower.follow(key, Followed(log, state.epoch, self.node in state.isr, is_journal(key)))

    def _unfollow(self, key: LogKey) -> None:
        follower = self._followers.get(self._followed.pop(key, ""))
        if follower is not None:
            follower.forget(key)

    def _let_go(self, key: LogKey) -> None:
        self._states.pop(key, None)
        self._unfollow(key)
        led = self._led.pop(key, None)
        if led is not None and not led.log.removed:
            led.log.gate = CLOSED_GATE
            led.log.follow(led.state.epoch, self._refusal(key))
        self.tell_followers(key)

    def started_at(self, key: LogKey, log_start: int) -> None:
        """The leader's log begins at `log_start`: what lies before need not be kept here either."""
        # Journals let go for themselves.
        log = self._log_of(key) if key[0] else None
        if log is not None and log_start > log.log_start and len(log.segments) > 1 and log.segments[1].base_offset <= log_start:
            self._keep(self._removed(log.let_go_below(log_start)))

    async def _removed(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            await self.beside(segment.remove)

    # --- followers ask

    def tell_followers(self, key: LogKey) -> None:
        """There may be something to say about a partition."""
        for session in self._sessions.values():
            session.tell(key)

    async def _fetch_asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        request = FetchRequest.decode(payload)
        session = None if self._stopped or not self.generation() else self._session_of(node, request)
        if session is None:
            return encode_answer(0, [])
        now_s = session.heard_s = self.clock.monotonic()
        for key in request.forgotten:
            session.places.pop(key, None)
            session.news.pop(key, None)
        missed: list[LedPartition] = []
        for place in request.places:
            session.places[place.key] = place
            session.news[place.key] = None
            led = self._led.get(place.key)
            if led is not None and led.judge(place) is None:
                led.heard(node, place, now_s)
                if led.misses(node):
                    missed.append(led)
        if missed:
            self._look_at_each(missed)
        parts = await self._gathered(session, request.bytes_max)
        if not parts and request.wait_ms:
            session.woken.clear()
            if not session.news:
                waiting = asyncio.ensure_future(session.woken.wait())
                await asyncio.wait([waiting], timeout=request.wait_ms / 1000)
                waiting.cancel()
            parts = await self._gathered(session, request.bytes_max)
        if self._sessions.get(node) is not session:
            return encode_answer(0, [])
        return encode_answer(session.id, parts)

    def _session_of(self, node: str, request: FetchRequest) -> FetchSession | None:
        """The session that a fetch belongs to; None where it does not go on with one."""
        if request.generation < self._generations.get(node, 0):
            # From an earlier life of the node: whatever it says is not true any more.
            return None
        self._generations[node] = request.generation
        session = self._sessions.get(node)
        if not request.session:
            self._last_session += 1
            # Another life of this node may not have known its number: sessions of it must not be taken for ours.
            number = (self.generation() << 32) + self._last_session
            session = self._sessions[node] = FetchSession(number, node, request.generation)
            return session
        if session is None or (session.id, session.number, session.generation) != (
            request.session, request.number, request.generation,
        ):  # fmt: skip
            return None
        session.number += 1
        return session

    async def _gathered(self, session: FetchSession, bytes_max: int) -> list[Part]:
        """What there is to say to a follower, in the order of how much others wait for it.

        A part has at least a batch, however large, and an answer is one frame. Data that does not fit beside that of others goes
        with the next answer; that there is more is told at once, or the follower would take what it has for all there is.
        """
        parts: list[Part] = []
        left, room = bytes_max, ANSWER_ROOM_BYTES
        for key in self._in_order(session):
            if left <= 0 or room < PART_BYTES:
                break
            place = session.places.get(key)
            session.news.pop(key, None)
            if place is None:
                continue
            part = await self._said(session, place, left)
            if part is None:
                continue
            if parts and part.size > room - PART_BYTES:
                part.data, part.size = [], 0
                session.news[key] = None
                session.put_off = session.put_off or key
            left -= part.size
            room -= part.size + PART_BYTES
            parts.append(part)
        return parts

    def _in_order(self, session: FetchSession) -> list[LogKey]:
        """Partitions of which there is news: commands first, then what others wait for, then staged records, then the rest."""

        def rank(key: LogKey) -> int:
            led = self._led.get(key)
            in_sync = led is not None and session.node in led.state.isr
            return 0 if is_journal(key) else 1 if in_sync else 2 if key[0] == 0 else 3

        put_off, session.put_off = session.put_off, None
        return sorted(session.news, key=lambda key: -1 if key == put_off else rank(key))

    async def _said(self, session: FetchSession, place: Place, bytes_left: int) -> Part | None:
        key = place.key
        led = self._led.get(key)
        if led is None:
            return Part(key, Verdict.FENCED, 0, 0, 0)
        judged = led.judge(place)
        if judged is not None:
            return judged
        log, epoch = led.log, led.state.epoch
        part = Part(key, Verdict.DATA, epoch, log.high_watermark, log.log_start)
        if place.end < log.log_end and place.bytes_max:
            bytes_max = min(place.bytes_max, bytes_left)
            read = log.read_stored(place.end, bytes_max)
            if isinstance(read, Cold):
                await self.beside(read.warm_up)
                if self._led.get(key) is not led or led.judge(place) is not None:
                    return Part(key, Verdict.FENCED, 0, 0, 0)
                read = log.read_stored(place.end, bytes_max, warmed=True)
                assert not isinstance(read, Cold)
            part.data, part.size = read.slices, read.size
        elif log.high_watermark <= place.watermark:
            return None
        # What readers see may have moved while something was brought into memory.
        part.watermark = log.high_watermark
        if session.places.get(key) is place:
            session.places[key] = replace(place, watermark=part.watermark)
        return part

    # --- who is in sync

    async def _mind_isrs(self) -> None:
        while True:
            await asyncio.sleep(self.settings.lag_s / 4)
            self.look_at_isrs()

    def look_at_isrs(self) -> None:
        """Have it agreed who is in sync, where that is not what is known."""
        self._look_at_each(list(self._led.values()))

    def _look_at_each(self, some: list[LedPartition]) -> None:
        if any(led.key[0] == 0 for led in some):
            self._look_at([led for key, led in self._led.items() if key[0] == 0])
        for led in some:
            if led.key[0] != 0:
                self._look_at([led])

    def _look_at(self, together: list[LedPartition]) -> None:
        """The same for one log, or for logs that have one state together, as the broker's own: a replica comes in when it has all
        of each, and from then on each of them waits for it."""
        now_s, before = self.clock.monotonic(), together[0].state
        for led in together:
            self._refresh(led)
            busy = led.altering or led.log.failure is not None or led.state != before
            if busy or self._stopped or self._led.get(led.key) is not led:
                return
        wanted, *others = [led.wanted_isr(now_s, self.settings.lag_s) for led in together]
        isr = tuple(node for node in wanted if all(node in other for other in others))
        # An outcome that is unknown has to become known, also where nothing else is wanted: until then a replica counts that may
        # never come back.
        if set(isr) != set(before.isr) or any(led.unsure for led in together):
            self._propose(together, isr)

    def _refresh(self, led: LedPartition) -> None:
        """Followers that have everything say nothing more of a partition; that they ask at all is enough."""
        for node, progress in led.followers.items():
            session = self._sessions.get(node)
            place = None if session is None else session.places.get(led.key)
            if session is None or place is None or place.epoch != led.state.epoch:
                continue
            if progress.end >= led.log.log_end:
                progress.caught_up_s = max(progress.caught_up_s, session.heard_s)

    def _propose(self, together: list[LedPartition], isr: tuple[str, ...]) -> None:
        for led in together:
            led.proposed = (*led.proposed, *(node for node in isr if node not in led.proposed))
            led.altering = True
        self._keep(self._altered(together, isr))

    async def _altered(self, together: list[LedPartition], isr: tuple[str, ...]) -> None:
        key, before = together[0].key, together[0].state
        state = None
        try:
            state = await self._alter_isr(key, before, isr)
        except BraidError as error:
            logger.info("the isr of %s stays unknown: %s", key, error)
        except Exception:
            # A bug of ours is to freeze no isr.
            logger.exception("the isr of %s stays unknown", key)
        finally:
            for led in together:
                led.altering = False
        led = together[0]
        if self._led.get(key) is not led or led.state != before:
            return
        if state is None:
            self._settle_soon(together)
        elif _age(state) > _age(before):
            logger.info("%s/%d: in sync are %s", led.log.topic, led.log.partition, ", ".join(state.isr))
            for led in together:
                self.assign(led.key, state)
        else:
            for led in together:
                if not led.unsure:
                    led.proposed = ()
                    led.advance()

    def _settle_soon(self, together: list[LedPartition]) -> None:
        """Whoever was proposed counts until it is known what came of it, and may be gone: find out. Not all at once and for ever
        where nobody answers."""
        for led in together:
            led.unsure = True
            led.setbacks += 1
        pause_s = min(self.settings.settle_s * 2.0 ** min(together[0].setbacks - 1, 10), self.settings.lag_s / 4)
        asyncio.get_running_loop().call_later(pause_s, self._look_at, together)

    # --- telling

    def leads(self, log: PartitionLog) -> bool:
        return any(led.log is log for led in self._led.values())

    def is_fresh(self, key: LogKey) -> bool:
        """Whether this node follows a partition in sync, and so closely that readers may be served from its copy."""
        follower = self._followers.get(self._followed.get(key, ""))
        return follower is not None and follower.is_fresh(key)

    def knows_end(self, key: LogKey) -> bool:
        """Whether this node leads a partition and knows how far readers may have seen."""
        led = self._led.get(key)
        return led is not None and led.knows_end

    def progress(self, key: LogKey) -> dict[str, Any]:
        """How far a partition's replicas are, as this node knows it."""
        led = self._led.get(key)
        log = self._log_of(key)
        if log is None:
            return {}
        document: dict[str, Any] = {"log_end": log.log_end, "high_watermark": log.high_watermark, "epoch": log.leader_epoch}
        if led is not None:
            now_s = self.clock.monotonic()
            document["replicas"] = {
                node: {"end": found.end, "lag": log.log_end - found.end, "caught_up_s": round(now_s - found.caught_up_s, 3)}
                for node, found in led.followers.items()
            }
        return document


def _age(state: PartitionState) -> tuple[int, int]:
    return state.epoch, state.version


async def _begin_anew(key: LogKey, log: PartitionLog, offset: int) -> Callable[[], None] | None:
    return partial(log.reset, offset)
