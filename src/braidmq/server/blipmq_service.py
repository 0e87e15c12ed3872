"""What all BlipMQ connections of a broker share, whichever port they came in by."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from braidmq.base import limits
from braidmq.base.config_settings import Config
from braidmq.broker.broker import Broker
from braidmq.broker.names import INTERNAL_PREFIX
from braidmq.broker.push import Feed, Overflow
from braidmq.broker.topics import Topic
from braidmq.security.authorizer import Principal
from braidmq.security.roles import Permission
from braidmq.server.blipmq_dedup import Dedup
from braidmq.server.blipmq_durables import Durables
from braidmq.server.blipmq_expiry import Expiry
from braidmq.server.blipmq_federation import Federation
from braidmq.server.blipmq_letters import Letters
from braidmq.server.blipmq_login import Login
from braidmq.server.blipmq_records import Form
from braidmq.server.blipmq_subscriber import SharedGroup, Subscriber
from braidmq.wire import blipmq
from braidmq.wire.blipmq import TopicFilter

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession

_TICKS: Final = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class BlipMQService:
    logger = logging.getLogger("braidmq.blipmq")

    def __init__(self, broker: Broker, config: Config) -> None:
        self.broker = broker
        self.config = config
        self.broker_id = config.node_id.replace(",", "_")
        """What brokers elsewhere call this one; ids are listed with commas between them."""
        self.suffix = broker.settings.dlq_suffix
        self.payload_max = config.blipmq_payload_bytes_max
        self.frame_max = self.payload_max + limits.BLIPMQ_FRAME_SPARE_BYTES
        self.ticks_per_s = _TICKS[config.blipmq_timestamp_unit]
        self.overflow = Overflow(config.blipmq_overflow)
        self.batch_records = config.blipmq_max_batch
        self.batch_bytes = config.blipmq_max_batch_bytes
        self.guarded = broker.security.authorizer.enabled
        """Whether rights have to be looked at."""
        self.numbers = count(1)
        """Of connections: a connection writes to one partition of each topic, and its number says which."""
        self.subscription_numbers = count(1)
        """Of subscriptions that are polled."""
        self.takes_runs = config.blipmq_dedup_window_ms == 0 and config.blipmq_default_ttl_ms == 0
        """Whether the parser may take messages: it neither looks for repeated ones nor gives them a time to live."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._forms: dict[tuple[int, frozenset[str], bool], Form] = {}
        self.expiry = Expiry(self)
        self.letters = Letters(self)
        self.durables = Durables(self)
        self.login = Login(broker, config.blipmq_api_keys)
        self.dedup = Dedup(config.blipmq_dedup_window_ms) if config.blipmq_dedup_window_ms else None
        self.shared: dict[str, SharedGroup] = {}
        """Shared groups that are not durable, by their filter."""
        self.federation = Federation(self)
        self._subscribers: dict[Subscriber, None] = {}
        """Everybody who has filters."""
        self._ports = 0

    # --- start and stop

    def started(self) -> None:
        """A port is about to open."""
        self._ports += 1
        if self._ports == 1:
            hub = self.broker.push
            hub.flush_interval_s, hub.flush_records = self.config.blipmq_flush_interval_ms / 1000, self.config.blipmq_max_batch
            self.durables.restore()
            self.federation.start()

    async def stopped(self) -> None:
        """A port is closed."""
        self._ports -= 1
        if self._ports == 0:
            for task in self._tasks:
                task.cancel()
            await self.federation.stop()
            await self.expiry.stop()
            await self.letters.stop()
            await self.durables.stop()
            _SERVICES.pop(self.broker, None)

    # --- names

    def shown(self, name: str) -> str:
        """What BlipMQ calls a topic."""
        return blipmq.shown_name(name, self.suffix)

    def stored(self, topic: str) -> str:
        """What the log calls a topic."""
        return blipmq.stored_name(topic, self.suffix)

    def holds_letters(self, topic: Topic) -> bool:
        return topic.name.endswith(self.suffix)

    def topics_of(self, wanted: TopicFilter) -> list[Topic]:
        """The topics that a filter matches now, in the order in which they came: that of sequence numbers."""
        topics = self.broker.topics
        if not wanted.wild:
            topic = topics.get(self.stored(wanted.pattern))
            return [] if topic is None or topic.name.startswith(INTERNAL_PREFIX) else [topic]
        matching = [
            topic for topic in topics.all() if not topic.name.startswith(INTERNAL_PREFIX) and wanted.matches(self.shown(topic.name))
        ]
        return sorted(matching, key=lambda topic: topic.id)

    def knows(self, wanted: TopicFilter, principal: Principal) -> bool:
        """Whether it is known where all ends that a filter brings."""
        return self.broker.peers is None or self.broker.push.knows(self._ends_needed(wanted, principal))

    async def find_out(self, wanted: TopicFilter, principal: Principal, subscriber: Subscriber | None = None) -> None:
        """See to it that it is known where all ends that a filter brings to a subscriber, on whichever node it is."""
        if self.broker.peers is not None:
            await self.broker.push.find_out(self._ends_needed(wanted, principal, subscriber))

    def _ends_needed(self, wanted: TopicFilter, principal: Principal, subscriber: Subscriber | None = None) -> list[Topic]:
        """Topics that begin at their end (`from_now`): those that may be read and are not read yet."""
        return [
            topic for topic in self.topics_of(wanted)
            if not self.holds_letters(topic) and self.may(principal, Permission.READ, topic.name)
            and (subscriber is None or not subscriber.reads(topic))
        ]  # fmt: skip

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, while there is a port."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def begin(self, wanted: TopicFilter, principal: Principal, action: Callable[[], object]) -> list[bytes]:
        """Find out where what a filter matches ends, and begin to read it; answers nothing itself."""
        await self.find_out(wanted, principal)
        action()
        return []

    def from_now(self, feed: Feed) -> int:
        """Where a new subscriber begins: with what comes, and with all dead letters that are there."""
        return feed.start if self.holds_letters(feed.topic) else feed.tail

    @property
    def subscribers(self) -> list[Subscriber]:
        """Everybody who has filters, also those who are away."""
        return list(self._subscribers)

    # --- topics that come

    def patterns(self, but_not_of: str) -> set[str]:
        """What is wanted here, for brokers elsewhere; what only the subscriber of that name wants does not count."""
        return {
            wanted.filter.pattern
            for subscriber in self._subscribers if subscriber.name != but_not_of
            for wanted in subscriber.filters.values() if not blipmq.is_reserved(wanted.filter.pattern)
        }  # fmt: skip

    def watch(self, subscriber: Subscriber, wanted: TopicFilter) -> None:
        self._subscribers[subscriber] = None
        self.federation.filters_changed()
        self.broker.push.watch(subscriber, None if wanted.wild else (self.stored(wanted.pattern),))

    def unwatch(self, subscriber: Subscriber, gone: TopicFilter) -> None:
        """A filter is gone; those that are left may want to know of the same topics."""
        self.federation.filters_changed()
        left = [wanted.filter for wanted in subscriber.filters.values()]
        if gone.wild:
            if not any(wanted.wild for wanted in left):
                self.broker.push.unwatch(subscriber)
        elif not any(not wanted.wild and self.stored(wanted.pattern) == self.stored(gone.pattern) for wanted in left):
            self.broker.push.unwatch(subscriber, (self.stored(gone.pattern),))

    def unwatch_all(self, subscriber: Subscriber) -> None:
        filters = [wanted.filter for wanted in subscriber.filters.values()]
        self._subscribers.pop(subscriber, None)
        self.federation.filters_changed()
        self.broker.push.unwatch(subscriber)
        self.broker.push.unwatch(subscriber, [self.stored(wanted.pattern) for wanted in filters if not wanted.wild])

    # --- rights

    def may(self, principal: Principal, permission: Permission, topic: str) -> bool:
        return self.broker.security.authorizer.decide(principal, permission, topic) is None

    # --- deliveries

    def form(self, qos: int, accepts: frozenset[str], is_link: bool) -> Form:
        """How deliveries are written; the same object for the same wishes, so that what it made is shared."""
        key = (qos, accepts, is_link)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = Form(qos, self.ticks_per_s, accepts, self.broker_id if is_link else "", self.payload_max)
        return form

    def now_ticks(self) -> int:
        """The time, as clients are told it."""
        return self.broker.commit.now_ms() * self.ticks_per_s // 1000

    # --- connections

    def lost(self, session: BlipMQSession) -> None:
        """A connection is gone, and with it what is not durable."""
        for name, subscriber in list(session.subscribers.items()):
            if subscriber.group:
                self.durables.detached(subscriber, session)
            elif isinstance(subscriber, SharedGroup):
                self.leave_shared(subscriber, session)
            else:
                subscriber.close()
            session.subscribers.pop(name, None)

    def leave_shared(self, group: SharedGroup, session: BlipMQSession) -> None:
        group.detach(session)
        if not group.sessions:
            self.shared.pop(group.name, None)
            group.close()


_SERVICES: Final[dict[Broker, BlipMQService]] = {}


def open_service(broker: Broker) -> BlipMQService | None:
    """The service of a broker that has a BlipMQ port."""
    return _SERVICES.get(broker)


def service_of(broker: Broker, config: Config) -> BlipMQService:
    """The one service of a broker, however many ports it has."""
    service = _SERVICES.get(broker)
    if service is None:
        service = _SERVICES[broker] = BlipMQService(broker, config)
    return service
