"""A subscriber: a set of filters, and what serves the topics they match.

One message reaches a subscriber once, however many of its filters match. So each topic is in one of two subscriptions: the queue if
any filter that matches asks for QoS 1, else the stream. Filters come and go, topics come and go, rights come and go; every time the
topics concerned are *placed* anew, and go on where they were.

Without a client_id the subscriber is the connection and ends with it. With one, its part at QoS 1 outlives the connection
(`blipmq_durables.py`): it is then attached to the connection that subscribed last, or to none. A shared group is a subscriber with
one queue that several connections take from in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.push import Feed
from braidmq.broker.topics import Topic
from braidmq.security.authorizer import Principal
from braidmq.security.roles import Permission
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_queue import Queue
from braidmq.server.blipmq_stream import Stream
from braidmq.wire.blipmq import ContentFilter, TopicFilter

if TYPE_CHECKING:
    from braidmq.server.blipmq_service import BlipMQService
    from braidmq.server.blipmq_session import BlipMQSession

Start = Callable[[Feed], int]
"""Where to begin to read a partition."""

_AGAIN_S: Final = 1.0
"""Pause before it is asked again where a topic ends that nobody leads."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one Subscribe asked for."""

    filter: TopicFilter
    qos: int
    content: ContentFilter | None = None
    accepts: frozenset[str] = frozenset()
    """Compressions that the client understands."""

    @property
    def text(self) -> str:
        return self.filter.text


def from_the_beginning(feed: Feed) -> int:
    """Everything that is there."""
    return feed.start


class Subscriber:
    def __init__(self, service: BlipMQService, name: str = "", group: str = "") -> None:
        self._service = service
        self.name = name
        """Its client_id."""
        self.group = group
        """The consumer group that keeps its places, of a durable one."""
        self.principal: Principal | None = None
        """Whose rights count; None while nobody is connected."""
        self.filters: dict[str, Wanted] = {}
        self.stream: Stream | None = None
        self.queue: Queue | None = None
        self.sessions: dict[BlipMQSession, Outlet | None] = {}
        """Connections, each with where the queue delivers to it. More than one of a shared group only."""
        self._placed: dict[int, Stream | Queue] = {}
        """Topics, and what serves them."""
        self._held: set[BlipMQSession] = set()
        """Connections that get nothing until an Ack is out."""
        self._rights = -1
        """The version of all rights when they were last looked at."""
        self._beginning: set[int] = set()
        """Topics that may be read, and begin as soon as it is known where they end."""

    @property
    def owed(self) -> bool:
        """Whether something is to be delivered, or to be acknowledged."""
        queue, stream = self.queue, self.stream
        return bool((queue and (queue.pending or queue.inflight.count)) or (stream and stream.pending))

    @property
    def accepts(self) -> frozenset[str]:
        return frozenset[str]().union(*(wanted.accepts for wanted in self.filters.values()))

    # --- filters

    def want(self, wanted: Wanted, start: Start, *, resumes: bool = False) -> None:
        """Add a filter, or replace the one with the same text. Topics that are new begin at `start`; if that `resumes`, it does not
        matter where they end, and otherwise they wait until that is known."""
        known = self.filters.get(wanted.text)
        if known is None and len(self.filters) >= limits.SUBSCRIBER_FILTERS_MAX:
            raise BraidError("SUBSCRIBER_LIMIT", what="filters of a subscriber", limit=limits.SUBSCRIBER_FILTERS_MAX)
        self.filters[wanted.text] = wanted
        if known is None:
            self._service.watch(self, wanted.filter)
        for session in self.sessions:
            for outlet in self._outlets_of(session):
                outlet.accept(self.accepts)
        for topic in self._service.topics_of(wanted.filter):
            if resumes:
                self._place(topic, start)
            else:
                self._begin(topic, start)

    def unwant(self, text: str) -> list[Topic] | None:
        """Take a filter away; the topics that left the queue with it, or None when there was no such filter."""
        gone = self.filters.pop(text, None)
        if gone is None:
            return None
        self._service.unwatch(self, gone.filter)
        dropped = []
        for topic in self._service.topics_of(gone.filter):
            before = self._placed.get(topic.id)
            self._place(topic, self._service.from_now)
            if before is not None and before is self.queue and self._placed.get(topic.id) is not before:
                dropped.append(topic)
        return dropped

    def topic_created(self, topic: Topic) -> None:
        """A topic is new, and may be one of ours."""
        try:
            self._place(topic, from_the_beginning)
        except BraidError as fault:
            self._service.logger.error("%s does not get %s: %s", self.name or "a subscriber", topic.name, fault)

    # --- placing topics

    def _matching(self, topic: Topic) -> list[Wanted]:
        if self.principal is not None and not self._service.may(self.principal, Permission.READ, topic.name):
            return []
        shown = self._service.shown(topic.name)
        return [wanted for wanted in self.filters.values() if wanted.filter.matches(shown) or wanted.filter.pattern == topic.name]

    def _place(self, topic: Topic, start: Start) -> None:
        """Let a topic be served as the filters that match it say."""
        matching = self._matching(topic)
        before = self._placed.get(topic.id)
        target = self._target(max((wanted.qos for wanted in matching), default=-1))
        if before is not None and before is not target:
            # It goes on where it was, whatever serves it.
            places = {feed: before.settled(feed) for feed in before.cursors if feed.topic.id == topic.id}
            start = lambda feed: places.get(feed, feed.tail)  # noqa: E731
            before.remove_topic(topic)
            del self._placed[topic.id]
        if target is None:
            return
        unfiltered = any(wanted.content is None for wanted in matching)
        target.want(topic, () if unfiltered else [wanted.content for wanted in matching if wanted.content is not None])
        self._placed[topic.id] = target
        target.add_topic(topic, start)
        if target is self.queue:
            for session in self.sessions:
                self._join(topic, session)

    def _target(self, qos: int) -> Stream | Queue | None:
        """What serves topics that are wanted at a QoS."""
        if qos < 0:
            return None
        return self._the_stream() if qos == 0 else self._the_queue()

    def make_outlet(self, qos: int) -> Outlet:
        """Where it delivers to at a QoS; of the one connection that it has."""
        if qos:
            self._the_queue()
            return next(outlet for outlet in self.sessions.values() if outlet is not None)
        stream = self._the_stream()
        assert stream is not None, "it has a connection"
        return stream.outlet

    def _the_stream(self) -> Stream | None:
        for session in self.sessions:
            if self.stream is None:
                self.stream = Stream(self._service, self._outlet(session, 0))
                self.stream.owner = self
        return self.stream

    def _the_queue(self) -> Queue:
        if self.queue is None:
            config = self._service.config
            capacity = config.blipmq_durable_capacity if self.group else config.blipmq_subscriber_capacity
            self.queue = Queue(self._service, capacity, self.group)
            self.queue.owner = self
            for session in self.sessions:
                self._connect(session, self.queue)
        return self.queue

    def place_of(self, feed: Feed) -> int:
        """Where it would go on in a partition."""
        for subscription in (self.queue, self.stream):
            if subscription is not None and feed in subscription.cursors:
                return subscription.settled(feed)
        return feed.tail

    def reads(self, topic: Topic) -> bool:
        return topic.id in self._placed

    def is_queued(self, feed: Feed) -> bool:
        """Whether the queue serves a partition."""
        return self.queue is not None and feed in self.queue.cursors

    def check_rights(self) -> None:
        """Rights may have changed: begin what may be read by now, and end what may not."""
        version = self._service.broker.security.authorizer.version
        if version == self._rights:
            return
        self._rights = version
        topics = {topic.id: topic for wanted in self.filters.values() for topic in self._service.topics_of(wanted.filter)}
        # What may not be read any more ends first, and waits for nothing.
        for topic in topics.values():
            if topic.id in self._placed and not self._matching(topic):
                self._place(topic, self._service.from_now)
        for topic in topics.values():
            if topic.id not in self._placed:
                self._begin(topic, self._service.from_now)

    def _begin(self, topic: Topic, start: Start) -> None:
        """Let a topic be served if it matches, as soon as it is known where it ends: now, or in a moment."""
        service = self._service
        needed = topic.id not in self._placed and not service.holds_letters(topic) and not service.broker.push.knows([topic])
        if not needed or not self._matching(topic):
            self._place(topic, start)
        elif topic.id not in self._beginning:
            self._beginning.add(topic.id)
            service.beside(self._begin_later(topic))

    async def _begin_later(self, topic: Topic) -> None:
        try:
            # It may have been deleted, and may not be wanted or not be readable any more.
            while self._matching(topic) and self._service.broker.topics.by_id(topic.id) is not None:
                try:
                    await self._service.broker.push.find_out([topic])
                    self._place(topic, self._service.from_now)
                    return
                except BraidError as fault:
                    self._service.logger.warning("%s does not get %s yet: %s", self.name or "a subscriber", topic.name, fault)
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._beginning.discard(topic.id)

    # --- connections

    def attach(self, session: BlipMQSession) -> None:
        """Serve a connection."""
        self.sessions[session] = None
        self.principal = session.principal
        if self.queue is not None:
            self._connect(session, self.queue)
        for topic_id, target in self._placed.items():
            topic = self._service.broker.topics.by_id(topic_id)
            if topic is not None and target is self.queue:
                self._join(topic, session)
        if self._service.guarded:
            # While nobody was connected, nobody's rights counted.
            self._rights = -1
            self.check_rights()

    def _connect(self, session: BlipMQSession, queue: Queue) -> None:
        outlet = self.sessions[session] = self._outlet(session, self.qos_of(session))
        queue.attach(outlet)

    def _outlet(self, session: BlipMQSession, qos: int) -> Outlet:
        outlet = session.outlet(qos)
        outlet.accept(self.accepts)
        outlet.open = session not in self._held
        return outlet

    def qos_of(self, session: BlipMQSession) -> int:
        """The highest QoS at which the queue delivers to a connection."""
        return 1

    def detach(self, session: BlipMQSession) -> None:
        """A connection is gone. Its part at QoS 0 ends; the queue goes on collecting."""
        outlet = self.sessions.pop(session)
        self._held.discard(session)
        if not self.sessions:
            self.principal = None
        self._leave(session)
        self._end_stream()
        if self.queue is not None and outlet is not None:
            self.queue.detach(outlet)

    def _end_stream(self) -> None:
        """What is wanted at QoS 0 ends with the connection."""
        for text in [text for text, wanted in self.filters.items() if not wanted.qos]:
            self.unwant(text)
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def close(self) -> None:
        """It ends, with everything it had."""
        self._service.unwatch_all(self)
        self.filters.clear()
        for session in self.sessions:
            self._leave(session)
        self.sessions.clear()
        for subscription in (self.stream, self.queue):
            if subscription is not None:
                subscription.close()
        self.stream = self.queue = None
        self._placed.clear()

    # --- its consumer group has members, for those who list groups

    def _join(self, topic: Topic, session: BlipMQSession) -> None:
        if self.group:
            self._service.broker.subscribe(topic.name, self.group, 0, "latest", session, session.address)

    def _leave(self, session: BlipMQSession) -> None:
        if self.group:
            for topic_id in self._placed:
                self._service.broker.unsubscribe(topic_id, self.group, session)

    # --- delivering

    def hold(self, session: BlipMQSession) -> None:
        """Deliver nothing to a connection until `open`: an Ack has to go out first."""
        self._held.add(session)
        for outlet in self._outlets_of(session):
            outlet.open = False

    def open(self, session: BlipMQSession) -> None:
        """The Ack is out: deliver."""
        self._held.discard(session)
        for outlet in self._outlets_of(session):
            outlet.open = True
        self.deliver()

    def deliver(self) -> None:
        for subscription in (self.queue, self.stream):
            if subscription is not None:
                subscription.deliver()

    def _outlets_of(self, session: BlipMQSession) -> Iterator[Outlet]:
        outlet = self.sessions.get(session)
        if outlet is not None:
            yield outlet
        if self.stream is not None:
            yield self.stream.outlet


class SharedGroup(Subscriber):
    """Members that take turns: each message goes to one of them, at the QoS that this one asked for.

    A topic is read if every member may read it: nobody gets through the others what is not meant for them.
    """

    def __init__(self, service: BlipMQService, name: str, group: str = "") -> None:
        super().__init__(service, name, group)
        self._qos: dict[BlipMQSession, int] = {}

    def join(self, session: BlipMQSession, qos: int) -> None:
        if self._qos.get(session) == qos:
            return
        if session in self.sessions:
            self.detach(session)
        self._qos[session] = qos
        self.attach(session)

    def detach(self, session: BlipMQSession) -> None:
        super().detach(session)
        del self._qos[session]

    def _end_stream(self) -> None:
        """Members at QoS 0 take from the queue like all others."""

    def qos_of(self, session: BlipMQSession) -> int:
        return self._qos[session]

    def _target(self, qos: int) -> Stream | Queue | None:
        return None if qos < 0 else self._the_queue()

    def _matching(self, topic: Topic) -> list[Wanted]:
        if not all(self._service.may(session.principal, Permission.READ, topic.name) for session in self.sessions):
            return []
        return super()._matching(topic)
