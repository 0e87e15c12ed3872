"""All fq queues: who uses them, what is bound to them, and what of that outlives clients and broker.

A queue exists from the first client that names it. A transient one goes with its last client, and with it all that was bound; a
permanent one stays, over restarts too. Whatever a client was told has been made durable before (`fq_table.py`): a queue that is
permanent now is permanent after a kill, and so is a binding.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.fq_binding import Binding
from braidmq.broker.fq_exchanges import Exchanges
from braidmq.broker.fq_queue import GROUP_PREFIX, FqQueue, Member, queue_group
from braidmq.broker.fq_table import Places, QueueTable, StoredQueue
from braidmq.broker.machines import QUEUES
from braidmq.broker.push import Feed
from braidmq.broker.push.serving import Serving
from braidmq.broker.topics import Topic
from braidmq.wire.fq.auth import DISK, QueueDetail, check_same_queue
from braidmq.wire.fq.commands import REFUSED
from braidmq.wire.fq.messages import NO_SENDER, encode_tail
from braidmq.wire.fq.naming import exchange_topic, topic_exchange
from braidmq.wire.fq.program import parse_program

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_NOWHERE: Final = Places(0, {})

logger = logging.getLogger("braidmq.fq")


def _name_of(group: str) -> bytes:
    return topic_exchange(group.removeprefix(GROUP_PREFIX))


def _chooses(text: bytes, route: bytes, payload: bytes) -> bool:
    """Whether a stored program chooses a message; the node that serves its queue says so if it does not understand it."""
    try:
        return parse_program(text).matches(route, payload)
    except BraidError:
        return False


def _ends_needed(stored: StoredQueue) -> list[bytes]:
    """Exchanges of which has to be known where they end, for a queue to go on. What is kept on disk goes on where it was, and a
    partition without a leader holds up nothing else."""
    if stored.detail.kind != DISK:
        return [kept.exchange for kept in stored.bindings]
    return [kept.exchange for kept in stored.bindings if not kept.permanent and kept.ends is None]


class FqQueues:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.table = QueueTable()
        self.exchanges = Exchanges()
        self._queues: dict[bytes, FqQueue] = {}
        self._bound: dict[str, dict[FqQueue, None]] = {}
        """Queues that wait for a topic of that name, or read it."""
        self._opening: dict[int, asyncio.Event] = {}
        """For topics that a queue has no room for: set when there is."""
        self._last_route = 0
        self._default_tail = encode_tail(NO_SENDER, (bytes(4),))
        self._members_max = 1
        self._open = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- start

    def open(self, node: bytes, members_max: int) -> bool:
        """Set up again what was permanent; False where that was done. `node` is this broker's name among fq brokers."""
        if self._open:
            return False
        self._open = True
        self._default_tail = encode_tail(NO_SENDER, (node,))
        self._members_max = members_max
        if self._serving.alone:
            for stored in self.table.all():
                self._restore(stored, restarted=True)
        else:
            self._serving.own(GROUP_PREFIX[:-1], self)
        return True

    # --- which node of a cluster serves a permanent queue

    @property
    def _serving(self) -> Serving:
        return self._broker.push.serving

    async def take(self, detail: QueueDetail) -> None:
        """See to it that a queue that is permanent, or is to be, is served here; NOT_LEADER where clients use it elsewhere."""
        if detail.permanent or self.table.get(detail.name) is not None:
            await self._serving.take(queue_group(detail.name))

    def kept(self) -> list[str]:
        return [queue_group(stored.detail.name) for stored in self.table.all()]

    async def begin(self, group: str, *, given: bool) -> None:
        stored = self.table.get(_name_of(group))
        if stored is not None:
            await self._find_out(_ends_needed(stored))
            if stored.detail.name not in self._queues:
                self._restore(stored, restarted=not given)

    def end(self, group: str) -> None:
        queue = self._queues.get(_name_of(group))
        if queue is None:
            return
        self._broker.push.positions.forget(queue)
        members = list(queue.members)
        self._vanish(queue)
        for member in members:
            # It comes again, and finds out where its queue is.
            member.dismiss()

    def idle(self, group: str) -> bool:
        queue = self._queues.get(_name_of(group))
        return queue is None or not queue.members

    async def flush(self, group: str) -> None:
        queue = self._queues.get(_name_of(group))
        if queue is not None and queue.kept:
            await self._broker.push.positions.commit(queue)

    def _restore(self, stored: StoredQueue, *, restarted: bool) -> None:
        """Go on with a queue; `restarted` says that the broker is gone that it was served by."""
        queue = self._make(stored.detail)
        queue.permanent = True
        for kept in stored.bindings:
            try:
                program = parse_program(kept.program)
            except BraidError as error:
                # An earlier version understood it. Whoever runs the broker has to decide; the others still work.
                logger.error("queue %s has a binding that is not understood any more: %s", queue.group, error)
                continue
            binding = Binding(
                self._new_route(), kept.exchange, program, peer=kept.peer, permanent=kept.permanent, begins=kept.begins,
                ends=kept.ends,
            )  # fmt: skip
            if restarted and not binding.permanent and binding.ends is None:
                # It goes with the broker it was made in. What it chose until then is in the queue all the same.
                binding.ends = self._behind_all(binding.topic_name)
                self._beside(self._submit(self.table.unbind(queue.detail.name, kept.exchange, kept.program, binding.ends)))
            queue.bind(binding)
            if binding.ends is None:
                self._join(queue, binding)
        for name in {binding.topic_name for binding in queue.remembered()}:
            topic = self._broker.topics.get(name)
            if topic is None:
                continue
            if queue.on_disk:
                queue.resume(topic, partial(self._resume_at, queue))
            else:
                queue.add_topic(topic, lambda feed: feed.tail)

    def _resume_at(self, queue: FqQueue, feed: Feed) -> int:
        committed = self._broker.push.positions.at(queue.group, feed)
        if committed is not None:
            return committed
        return min(b.first(feed) for b in queue.remembered() if b.topic_name == feed.topic.name)

    # --- queues

    def get(self, name: bytes) -> FqQueue | None:
        return self._queues.get(name)

    def all(self) -> list[FqQueue]:
        return [self._queues[name] for name in sorted(self._queues)]

    def choosing(self, exchange: bytes, route: bytes, payload: bytes) -> int | None:
        """How many queues choose a message, those here and the permanent ones of other nodes; None where nothing is bound to it."""
        chosen: int | None = None
        for queue in self._queues.values():
            programs = [binding.program for binding in queue.bindings.values() if binding.exchange == exchange]
            if programs:
                chosen = (chosen or 0) + any(program.matches(route, payload) for program in programs)
        for stored in self.table.all():
            texts = [kept.program for kept in stored.bindings if kept.exchange == exchange and kept.ends is None]
            if texts and stored.detail.name not in self._queues:
                chosen = (chosen or 0) + any(_chooses(text, route, payload) for text in texts)
        return chosen

    def _make(self, detail: QueueDetail) -> FqQueue:
        broker = self._broker
        queue = FqQueue(
            broker.push, detail, self.exchanges, self._default_tail, broker.clock.monotonic, self._binding_drained
        )
        self._queues[detail.name] = queue
        return queue

    async def attach(self, detail: QueueDetail, member: Member) -> FqQueue:
        """Make somebody a client of a queue, which is created when missing; durable when this returns."""
        queue = self._queues.get(detail.name)
        if queue is None:
            queue = self._make(detail)
        else:
            check_same_queue(detail, queue.detail, len(queue.members))
            if len(queue.members) >= self._members_max:
                raise BraidError("QUEUE_CLIENT_LIMIT")
        queue.members[member] = None
        self._show_member(queue, member)
        if detail.permanent is not None and detail.permanent != queue.permanent:
            try:
                await self._set_permanent(queue, detail.permanent)
            except BaseException as fault:
                self.leave(queue, member)
                if isinstance(fault, BraidError) and fault.code != "QUEUE_LIMIT":
                    logger.error("queue %s cannot be kept: %s", queue.group, fault)
                    raise BraidError("QUEUE_UNAVAILABLE") from fault
                raise
        return queue

    async def _set_permanent(self, queue: FqQueue, permanent: bool) -> None:
        queue.permanent = permanent
        if not permanent:
            await self._submit(self.table.forget(queue.detail.name))
            self._serving.release(queue.group)
            if queue.on_disk:
                self._broker.push.positions.forget(queue)
                await self._broker.push.positions.remove(queue.group)
            return
        try:
            if queue.on_disk:
                for member in queue.members:
                    self._show_member(queue, member)
                await self._broker.push.positions.commit(queue)
            await self._submit(self.table.keep(queue.detail, [binding.stored for binding in queue.remembered()]))
        except BaseException:
            queue.permanent = False
            raise

    def leave(self, queue: FqQueue, member: Member) -> None:
        """A client is gone."""
        queue.members.pop(member, None)
        if queue.kept:
            for topic_id in {feed.topic.id for feed in queue.cursors}:
                self._broker.unsubscribe(topic_id, queue.group, member)
        if not queue.members and not queue.permanent and self._queues.get(queue.detail.name) is queue:
            self._vanish(queue)

    def _vanish(self, queue: FqQueue) -> None:
        del self._queues[queue.detail.name]
        for binding in list(queue.bindings.values()):
            del queue.bindings[binding.route_id]
            self._part(queue, binding)
        queue.close()

    def _show_member(self, queue: FqQueue, member: Member) -> None:
        """Let the list of groups name those that read for a queue with positions."""
        if queue.kept:
            for topic in {feed.topic.name for feed in queue.cursors}:
                self._broker.subscribe(topic, queue.group, 0, "latest", member, member.address)

    # --- bindings

    async def bind(self, queue: FqQueue, exchange: bytes, text: bytes, *, peer: bool, permanent: bool | None) -> int:
        """Bind, or change what is bound; returns the route id once everything is durable. Raises where it is refused."""
        known = queue.find(exchange, text)
        if known is None:
            program = parse_program(text)
            await self._find_out([exchange])
            # Meanwhile the queue may have ended here, and another client may have bound the same.
            self._check_here(queue)
            known = queue.find(exchange, text)
        if known is not None:
            if permanent is not None and permanent != known.permanent:
                known.permanent = permanent
                await self._remember(queue, known)
            return known.route_id
        if len(queue.bindings) >= limits.FQ_QUEUE_BINDINGS_MAX:
            raise BraidError("QUEUE_LIMIT", what="the queue", limit=limits.FQ_QUEUE_BINDINGS_MAX, things="bindings")
        begins = self._tails(exchange_topic(exchange))
        binding = Binding(self._new_route(), exchange, program, peer=peer, permanent=bool(permanent), begins=begins)
        queue.bind(binding)
        self._join(queue, binding)
        topic = self._broker.topics.get(binding.topic_name)
        if topic is not None:
            self._read(queue, topic, lambda feed: feed.tail)
        try:
            if queue.kept:
                await self._broker.push.positions.commit(queue)
            await self._remember(queue, binding)
        except BraidError:
            # It may have gone with its queue meanwhile. A client that is gone leaves it: it may be durable already.
            if binding.route_id in queue.bindings:
                self._take_back(queue, binding)
            raise
        return binding.route_id

    def _check_here(self, queue: FqQueue) -> None:
        if self._queues.get(queue.detail.name) is not queue:
            raise BraidError("NOT_LEADER", reason=f"{queue.group} is not served here any more")

    async def _remember(self, queue: FqQueue, binding: Binding) -> None:
        if not queue.permanent:
            return
        if binding.permanent or queue.on_disk:
            await self._submit(self.table.bind(queue.detail.name, binding.stored))
        else:
            await self._submit(self.table.unbind(queue.detail.name, binding.exchange, binding.program.text, None))

    async def unbind(self, queue: FqQueue, route_id: int, exchange: bytes) -> bool:
        """Take a binding of this queue back; False when it has no such one there."""
        binding = queue.bindings.get(route_id)
        if binding is None or binding.exchange != exchange:
            return False
        # It holds for what is there by now.
        await self._find_out([exchange])
        if queue.bindings.get(route_id) is not binding:
            return False
        self._take_back(queue, binding)
        if queue.permanent and (binding.permanent or queue.on_disk):
            drained = binding not in queue.remembered()
            ends = None if drained or not queue.on_disk else binding.ends
            await self._submit(self.table.unbind(queue.detail.name, exchange, binding.program.text, ends))
        return True

    def _take_back(self, queue: FqQueue, binding: Binding) -> None:
        binding.ends = self._tails(binding.topic_name) or _NOWHERE
        queue.unbind(binding)
        self._part(queue, binding)

    def _join(self, queue: FqQueue, binding: Binding) -> None:
        """Note that a queue waits for a topic."""
        self.exchanges.bound(binding.exchange).queues[queue] = None
        if binding.topic_name not in self._bound:
            self._broker.push.watch(self, [binding.topic_name])
        self._bound.setdefault(binding.topic_name, {})[queue] = None

    def _part(self, queue: FqQueue, binding: Binding) -> None:
        """A binding is gone, perhaps the last one of the queue for its exchange."""
        if queue.is_bound(binding.exchange):
            return
        self.exchanges.bound(binding.exchange).queues.pop(queue, None)
        for feed in [feed for feed in queue.cursors if feed.topic.name == binding.topic_name]:
            self.exchanges.looked(feed)
        waiting = self._bound[binding.topic_name]
        waiting.pop(queue, None)
        if not waiting:
            del self._bound[binding.topic_name]
            self._broker.push.unwatch(self, [binding.topic_name])

    def _binding_drained(self, queue: FqQueue, binding: Binding) -> None:
        if queue.permanent:
            self._beside(self._forget_drained(queue, binding))

    async def _forget_drained(self, queue: FqQueue, binding: Binding) -> None:
        await self._submit(self.table.drained(queue.detail.name, binding.exchange, binding.program.text))
        if any(other.topic_name == binding.topic_name for other in queue.remembered()):
            return
        try:
            await self._broker.coordinator.delete(binding.topic_name, queue.group)
        except BraidError as error:
            if error.code != "GROUP_NOT_FOUND":
                raise

    def _new_route(self) -> int:
        self._last_route = self._last_route % (REFUSED - 1) + 1
        return self._last_route

    # --- topics

    def topic_created(self, topic: Topic) -> None:
        """Let every queue that waits for a topic read it from its beginning. One that reads it goes on where it is."""
        for queue in list(self._bound.get(topic.name, ())):
            if not queue.has_topic(topic.id):
                self._read(queue, topic, lambda _feed: 0)
                if queue.kept:
                    self._broker.push.positions.moved(queue)

    async def wait_for_room(self, topic: Topic) -> None:
        """Wait until no queue asks publishers of a topic to wait."""
        if not self._broker.push.is_blocked(topic.id):
            return
        opened = self._opening.get(topic.id)
        if opened is None:
            # One for all who wait: publishers that come and go while it is full leave nothing behind.
            opened = self._opening[topic.id] = asyncio.Event()
            self._broker.push.when_open(topic.id, partial(self._opened, topic.id))
        await opened.wait()

    def _opened(self, topic_id: int) -> None:
        self._opening.pop(topic_id).set()

    def _read(self, queue: FqQueue, topic: Topic, start: Callable[[Feed], int]) -> None:
        queue.add_topic(topic, start)
        for member in queue.members:
            self._show_member(queue, member)

    async def _find_out(self, exchanges: Iterable[bytes]) -> None:
        """See to it that it is known where what is to be read ends, on whichever node it is."""
        found = [self._broker.topics.get(exchange_topic(exchange)) for exchange in exchanges]
        await self._broker.push.find_out([topic for topic in found if topic is not None])

    def _tails(self, topic_name: str) -> Places | None:
        """Where a topic's partitions end, None when there is no such topic."""
        topic = self._broker.topics.get(topic_name)
        if topic is None:
            return None
        return Places(topic.id, {number: self._broker.push.tail(topic, number) for number in range(topic.partitions)})

    def _behind_all(self, topic_name: str) -> Places:
        """Where a topic's partitions ended at most when a broker was lost."""
        topic = self._broker.topics.get(topic_name)
        if topic is None:
            return _NOWHERE
        return Places(topic.id, {number: self._broker.push.behind_all(topic, number) for number in range(topic.partitions)})

    # --- the journal

    async def stop(self) -> None:
        """Wait until everything that nobody waits for is durable."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _submit(self, command: list[Any]) -> Any:
        return await self._broker.submit_metadata(QUEUES, command)

    def _beside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let something become durable that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a change of a queue was not written: %s", task.exception())
