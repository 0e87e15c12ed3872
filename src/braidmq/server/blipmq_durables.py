"""Subscribers that outlive their connections: known by client_id, or as shared groups with members that have one.

    attached    a connection takes what comes; the one that subscribed last, where several have the same client_id
    parked      nobody is connected: it goes on collecting, up to its capacity, until it expires

What they are lies in the subscriber table, how far they came in the offsets of their consumer group; both are durable before a
Subscribe is answered. A restart, orderly or not, finds all of them parked. What was delivered and not acknowledged goes out again;
only how often it was tried is forgotten with the process.

When a second connection subscribes with the same client_id, it gets the queue with all that waits in it. The first one goes on as a
subscriber that ends with its connection, and sees what comes from then on.

In a cluster each of them lives on one node at a time (`broker/push/serving.py`). A client_id goes to the node that its client
subscribed at last, by the same rule; a shared group goes to another node when it has no members where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from braidmq.base.errors import BraidError
from braidmq.broker.machines import SUBSCRIBERS
from braidmq.broker.push import Feed
from braidmq.broker.push.subscriber_table import DurableSubscriber
from braidmq.broker.topics import Topic
from braidmq.server.blipmq_subscriber import SharedGroup, Start, Subscriber, Wanted
from braidmq.wire.blipmq import parse_expression, parse_filter
from braidmq.wire.blipmq.topics import SHARE_PREFIX

if TYPE_CHECKING:
    from braidmq.server.blipmq_service import BlipMQService
    from braidmq.server.blipmq_session import BlipMQSession

GROUP_PREFIX: Final = "blipmq:"
_FILTER: Final = "filter"
_ACCEPTS: Final = "accepts"
_ANYBODY: Final = ""


class Durables:
    def __init__(self, service: BlipMQService) -> None:
        self._service = service
        self._table = service.broker.push.subscribers
        self._positions = service.broker.push.positions
        self._serving = service.broker.push.serving
        self._live: dict[str, Subscriber] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One change of a subscriber at a time. A lock is there as long as somebody has it or waits for it."""
        self._expiring: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._live)

    def has(self, name: str) -> bool:
        """Whether there is a durable subscriber of that name, here or on another node."""
        return name in self._live or (not self._serving.alone and self._table.get(name) is not None)

    def find(self, name: str) -> Subscriber | None:
        return self._live.get(name)

    # --- start and stop

    def restore(self) -> None:
        """Go on with everybody the table knows; in a cluster, with those that this node serves."""
        if not self._serving.alone:
            self._serving.own(GROUP_PREFIX[:-1], self)
            return
        for known in self._table.all():
            self._restore(known)

    def _restore(self, known: DurableSubscriber) -> None:
        now_ms = self._service.broker.clock.now_ms()
        subscriber = self._make(known.name)
        # The filter that is older knows better which topics it has seen.
        for text, durable in sorted(known.filters.items(), key=lambda entry: entry[1].topics_from):
            wanted = self._wanted(known.name, text, durable.options)
            if wanted is not None:
                subscriber.want(wanted, self._resume(subscriber.group, durable.topics_from), resumes=True)
        if not known.parked_ms:
            # A crash left open since when nobody is connected.
            self._do(self._submit(self._table.park(known.name, now_ms)))
        self._expire_later(known, now_ms)

    def _resume(self, group: str, topics_from: int) -> Start:
        def start(feed: Feed) -> int:
            committed = self._positions.at(group, feed)
            if committed is not None:
                return committed
            # A topic that came later was never looked at; one that was there had a position until somebody took it away.
            return feed.start if feed.topic.id >= topics_from else feed.tail

        return start

    def _wanted(self, name: str, text: str, options: dict[str, str]) -> Wanted | None:
        try:
            content = parse_expression(options[_FILTER]) if _FILTER in options else None
            pattern = name if name.startswith(SHARE_PREFIX) else text
            return Wanted(parse_filter(pattern), 1, content, frozenset(options.get(_ACCEPTS, "").split(",")) - {""})
        except BraidError as fault:
            self._service.logger.error("filter %r of %s is not served: %s", text, name, fault)
            return None

    async def stop(self) -> None:
        for timer in self._expiring.values():
            timer.cancel()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscriber in self._live.values():
            if subscriber.queue is not None:
                subscriber.queue.moved()

    # --- which node serves whom

    def kept(self) -> list[str]:
        return [GROUP_PREFIX + known.name for known in self._table.all()]

    async def begin(self, group: str, *, given: bool) -> None:
        known = self._table.get(group.removeprefix(GROUP_PREFIX))
        if known is not None:
            await self._service.broker.push.find_out(self._ends_needed(known))
            if known.name not in self._live:
                self._restore(known)

    def _ends_needed(self, known: DurableSubscriber) -> list[Topic]:
        """Topics of which has to be known where they end, for a subscriber to go on (`_resume`)."""
        group = GROUP_PREFIX + known.name
        committed = self._service.broker.groups.committed
        needed: dict[int, Topic] = {}
        for text, durable in known.filters.items():
            wanted = self._wanted(known.name, text, durable.options)
            for topic in [] if wanted is None else self._service.topics_of(wanted.filter):
                if topic.id < durable.topics_from and any(
                    committed(topic.id, group, number) is None for number in range(topic.partitions)
                ):
                    needed[topic.id] = topic
        return list(needed.values())

    def end(self, group: str) -> None:
        subscriber = self._live.pop(group.removeprefix(GROUP_PREFIX), None)
        if subscriber is None:
            return
        self._cancel_expiry(subscriber.name)
        if subscriber.queue is not None:
            self._positions.forget(subscriber.queue)
        for session in list(subscriber.sessions):
            if isinstance(subscriber, SharedGroup):
                # It comes again, and finds out where its group is.
                session.subscribers.pop(subscriber.name, None)
                session.close_when_idle()
            else:
                self._leave_behind(subscriber, session)
        subscriber.close()

    def idle(self, group: str) -> bool:
        name = group.removeprefix(GROUP_PREFIX)
        lock, subscriber = self._locks.get(name), self._live.get(name)
        if lock is not None and lock.locked():
            return False
        # Whoever subscribes last has a client_id; members of a group stay where they are.
        return not (isinstance(subscriber, SharedGroup) and subscriber.sessions)

    async def flush(self, group: str) -> None:
        subscriber = self._live.get(group.removeprefix(GROUP_PREFIX))
        if subscriber is not None and subscriber.queue is not None:
            await self._positions.commit(subscriber.queue)

    # --- changing

    def _do(self, action: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something to its end, whoever goes away meanwhile."""
        task = asyncio.get_running_loop().create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._service.logger.debug("a change of a durable subscriber failed: %s", task.exception())

    async def _submit(self, command: list[Any]) -> Any:
        return await self._service.broker.submit_metadata(SUBSCRIBERS, command)

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _make(self, name: str) -> Subscriber:
        kind = SharedGroup if name.startswith(SHARE_PREFIX) else Subscriber
        subscriber = self._live[name] = kind(self._service, name, GROUP_PREFIX + name)
        return subscriber

    # --- subscribing

    async def subscribe(self, session: BlipMQSession, wanted: Wanted, client_id: str, expiry_s: float) -> Subscriber:
        """Add a filter to a durable subscriber, or make one; it is attached to the connection, and holds back until `open`."""
        return await asyncio.shield(self._do(self._subscribe(session, wanted, client_id, expiry_s)))

    async def _subscribe(self, session: BlipMQSession, wanted: Wanted, client_id: str, expiry_s: float) -> Subscriber:
        shared = wanted.filter.group is not None
        name = wanted.text if shared else client_id
        async with self._lock(name):
            self._check_owner(name, session)
            await self._serving.take(GROUP_PREFIX + name)
            key = client_id if shared else wanted.text
            before = self._table.get(name)
            is_new = before is None or key not in before.filters
            try:
                await self._service.find_out(wanted.filter, session.principal, self._live.get(name))
                if wanted.qos and client_id:
                    options = {_FILTER: wanted.content.text} if wanted.content is not None else {}
                    if wanted.accepts:
                        options[_ACCEPTS] = ",".join(sorted(wanted.accepts))
                    owner = _ANYBODY if shared else session.credential
                    topics_from = self._service.broker.topics.next_id
                    await self._submit(self._table.subscribe(name, owner, key, topics_from, options, round(expiry_s * 1000)))
                elif before is not None:
                    await self._submit(self._table.park(name, 0))
                # It may have taken so long that it is not known any more.
                await self._service.find_out(wanted.filter, session.principal, self._live.get(name))
            except BraidError:
                await self._refused(name, key if is_new else "")
                raise
            subscriber = self._live.get(name) or self._adopt(name, session)
            self._cancel_expiry(name)
            if session.gone:
                if not subscriber.sessions:
                    self._park(subscriber)
                return subscriber
            subscriber.hold(session)
            older = subscriber.filters.get(wanted.text)
            try:
                self._attach(subscriber, session, wanted.qos)
                subscriber.want(wanted, self._service.from_now)
                if subscriber.queue is not None:
                    await self._positions.commit(subscriber.queue)
            except BaseException:
                # What it had before goes on.
                subscriber.open(session)
                raise
            if older is not None and older.qos and not wanted.qos:
                # It was durable and is not any more.
                subscriber = await self._forget_filter(subscriber, wanted.text, self._service.topics_of(wanted.filter), session)
                subscriber.hold(session)
            return subscriber

    async def _refused(self, name: str, key: str) -> None:
        """A filter is not served: nothing of it outlives this, and whoever was there before goes on as it was."""
        known = self._table.get(name)
        if known is not None and key in known.filters:
            await self._submit(self._table.unsubscribe(name, key))
        subscriber = self._live.get(name)
        if self._table.get(name) is None:
            if subscriber is None:
                self._serving.release(GROUP_PREFIX + name)
        elif subscriber is not None and not subscriber.sessions:
            self._park(subscriber)

    def _check_owner(self, name: str, session: BlipMQSession) -> None:
        known = self._table.get(name)
        if known is not None and known.owner not in (_ANYBODY, session.credential):
            raise BraidError("CLIENT_OF_ANOTHER", client=name)

    def _adopt(self, name: str, session: BlipMQSession) -> Subscriber:
        """A subscriber that is durable from now on; one that its connection has already brings its filters."""
        subscriber = self._make(name)
        before = self._service.shared.pop(name, None) or session.subscribers.get(name)
        if before is None:
            return subscriber
        for member in before.sessions:
            member.subscribers[name] = subscriber
            if isinstance(before, SharedGroup) and isinstance(subscriber, SharedGroup):
                subscriber.join(member, before.qos_of(member))
            else:
                subscriber.attach(member)
        for wanted in before.filters.values():
            subscriber.want(wanted, before.place_of)
        before.close()
        return subscriber

    def _attach(self, subscriber: Subscriber, session: BlipMQSession, qos: int) -> None:
        if isinstance(subscriber, SharedGroup):
            subscriber.join(session, qos)
        elif session not in subscriber.sessions:
            for older in list(subscriber.sessions):
                self._leave_behind(subscriber, older)
            subscriber.attach(session)
        session.subscribers[subscriber.name] = subscriber

    def _leave_behind(self, subscriber: Subscriber, older: BlipMQSession) -> None:
        """Another connection took over: the older one goes on with what comes from now on."""
        alone = Subscriber(self._service, subscriber.name)
        alone.attach(older)
        for wanted in subscriber.filters.values():
            # What waits in the queue is the other's; what is on its way at QoS 0 is not.
            alone.want(wanted, lambda feed: feed.tail if subscriber.is_queued(feed) else subscriber.place_of(feed))
        subscriber.detach(older)
        older.subscribers[subscriber.name] = alone

    # --- unsubscribing

    async def unsubscribe(self, session: BlipMQSession, text: str, client_id: str) -> bool:
        """Take a filter away from a durable subscriber, which ends with its last one; False when it had no such filter."""
        return await asyncio.shield(self._do(self._unsubscribe(session, text, client_id)))

    async def _unsubscribe(self, session: BlipMQSession, text: str, client_id: str) -> bool:
        shared = text.startswith(SHARE_PREFIX)
        name = text if shared else client_id
        async with self._lock(name):
            self._check_owner(name, session)
            await self._serving.take(GROUP_PREFIX + name)
            subscriber = self._live.get(name)
            if subscriber is None:
                return False
            if not shared:
                dropped = subscriber.unwant(text)
                if dropped is not None:
                    await self._forget_filter(subscriber, text, dropped, session)
                return dropped is not None
            member = session in subscriber.sessions
            if member:
                subscriber.detach(session)
                session.subscribers.pop(name, None)
            known = self._table.get(name)
            member = member or (known is not None and client_id in known.filters)
            await self._forget_filter(subscriber, client_id, (), session)
            return member

    async def _forget_filter(
        self, subscriber: Subscriber, key: str, topics: Iterable[Topic], session: BlipMQSession
    ) -> Subscriber:
        """A filter is not durable any more; returns who serves the connection from then on."""
        name = subscriber.name
        await self._submit(self._table.unsubscribe(name, key))
        if self._table.get(name) is None:
            await self._end(subscriber)
            return session.subscribers.get(name, subscriber)
        for topic in topics:
            if subscriber.queue is None or not subscriber.queue.has_topic(topic.id):
                await self._positions.remove(subscriber.group, topic.name)
        return subscriber

    async def _end(self, subscriber: Subscriber) -> None:
        """Nothing of a subscriber is durable any more."""
        name = subscriber.name
        self._live.pop(name, None)
        self._cancel_expiry(name)
        if subscriber.queue is not None:
            self._positions.forget(subscriber.queue)
        for session in list(subscriber.sessions):
            session.subscribers.pop(name, None)
            if not isinstance(subscriber, SharedGroup) and subscriber.filters:
                # What it wants at QoS 0 goes on for as long as the connection does.
                alone = session.subscribers[name] = Subscriber(self._service, name)
                alone.attach(session)
                for wanted in subscriber.filters.values():
                    alone.want(wanted, subscriber.place_of)
        subscriber.close()
        await self._positions.remove(subscriber.group)
        self._serving.release(subscriber.group)

    # --- parking

    def detached(self, subscriber: Subscriber, session: BlipMQSession) -> None:
        """A connection is gone."""
        subscriber.detach(session)
        if not subscriber.sessions:
            self._park(subscriber)

    def _park(self, subscriber: Subscriber) -> None:
        known = self._table.get(subscriber.name)
        if known is None:
            return
        now_ms = self._service.broker.clock.now_ms()
        self._do(self._note_parked(subscriber, now_ms))
        self._expire_later(known, now_ms)

    async def _note_parked(self, subscriber: Subscriber, now_ms: int) -> None:
        if subscriber.queue is not None:
            await self._positions.commit(subscriber.queue)
        if not subscriber.sessions and self._table.get(subscriber.name) is not None:
            await self._submit(self._table.park(subscriber.name, now_ms))

    def _expire_later(self, known: DurableSubscriber, now_ms: int) -> None:
        self._cancel_expiry(known.name)
        left_s = known.expiry_ms / 1000 - max(0, now_ms - (known.parked_ms or now_ms)) / 1000
        loop = asyncio.get_running_loop()
        self._expiring[known.name] = loop.call_later(max(0.0, left_s), lambda: self._do(self._expire(known.name)))

    def _cancel_expiry(self, name: str) -> None:
        timer = self._expiring.pop(name, None)
        if timer is not None:
            timer.cancel()

    async def _expire(self, name: str) -> None:
        async with self._lock(name):
            subscriber = self._live.get(name)
            if subscriber is None or subscriber.sessions or name not in self._expiring:
                return
            self._service.logger.info("durable subscriber %s expired", name)
            await self._submit(self._table.remove(name))
            await self._end(subscriber)
