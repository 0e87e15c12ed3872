"""One BlipMQ connection: which framing it speaks, who it is, what it subscribed to, and when it has to end.

The first bytes say which framing a connection speaks, once and for ever; a *conversation* then takes its frames. What all three
have in common is here: subscribers and the window of unsettled deliveries, the limits on errors and refusals, keepalive, and
the orderly end, in which a connection stays until it was given, and has acknowledged, all that it is owed.

    accepted --framing known--> open                   where nobody has to log in
                            \\-> stranger --key--> open
    stranger --wrong key, three frames without one, or too late--> closing
    open --malformed frame, silence, too many errors, client's end, broker's end--> closing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.push.window import Settling, Window
from braidmq.broker.topics import Topic
from braidmq.log.partition import PartitionLog
from braidmq.security.authorizer import Principal
from braidmq.security.roles import Permission
from braidmq.server.blipmq_binary1 import Binary1Conversation
from braidmq.server.blipmq_flat import FlatConversation
from braidmq.server.blipmq_legacy import LegacyConversation
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.session import Session
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Framing

if TYPE_CHECKING:
    from braidmq.server.blipmq_listener import BlipMQListener
    from braidmq.server.blipmq_subscriber import Subscriber

_NO_ROUTES: Final = hot.RouteTable()
_TURN_BYTES: Final = 192 * limits.KIB
_FIRST_BYTES: Final = 8
"""At most so many tell which framing it is."""


class Conversation(Protocol):
    """A framing, as a connection speaks it."""

    def take(self, data: memoryview, position: int, stop: int) -> int: ...

    def awaits_more(self, held: bytearray) -> bool: ...

    def error(self, error: BraidError) -> bytes:
        """An error that answers nothing in particular."""

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes: ...

    def outlet(self, qos: int) -> Outlet:
        """Where a subscription of this connection delivers to."""

    def writable(self) -> None:
        """The connection takes deliveries again."""


class BlipMQSession(Session):
    __slots__ = (
        "_careful", "_careful_version", "_conversation", "_errors", "_errors_since", "_key_user", "_refusals", "_turn_bytes",
        "closing_since", "gone", "is_link", "keepalive_s", "known", "lane", "service", "since", "stalled_since", "subscribers",
        "unsent_before", "window",
    )  # fmt: skip

    write_high = 1 * limits.MIB
    write_low = 256 * limits.KIB
    answers_past_high = 256 * limits.KIB

    listener: BlipMQListener

    def __init__(self, listener: BlipMQListener) -> None:
        super().__init__(listener)
        service = self.service = listener.service
        self._conversation: Conversation | None = None
        self.lane = next(service.numbers)
        """Which partition of each topic it writes to."""
        self.known = not service.login.required
        """Whether it may do anything."""
        self._key_user = ""
        self.is_link = False
        """Whether the other end is a broker."""
        self.subscribers: dict[str, Subscriber] = {}
        """By client_id, by filter for shared groups."""
        self.window = Window(listener.config.blipmq_max_inflight)
        self.keepalive_s = listener.config.blipmq_keepalive_s
        self.gone = False
        self._turn_bytes = 0
        self._refusals = 0
        self._errors = 0
        self._errors_since = 0.0
        self._careful: hot.RouteTable | None = None
        self._careful_version = -1
        self.since = listener.now
        self.closing_since = 0.0
        self.unsent_before = 0
        self.stalled_since = 0.0

    def made(self) -> None:
        # A certificate that names a user is as good as a key.
        self.known = self.known or not self.principal.anonymous

    def lost(self) -> None:
        self.gone = True
        self.service.lost(self)

    @property
    def running(self) -> bool:
        """Whether an operation is under way."""
        return self._running is not None

    @property
    def credential(self) -> str:
        """Whose client_ids it may use."""
        return self._key_user or self.principal.name

    # --- framing

    def take(self, data: memoryview, position: int, stop: int) -> int:
        conversation = self._conversation
        if conversation is None:
            conversation = self._begin(data, position, stop)
            if conversation is None:
                return position
        taken = conversation.take(data, position, stop)
        self._give_way(taken - position)
        return taken

    def _give_way(self, size: int) -> None:
        """Let subscribers have their turn: a publisher that sends without end is read so much at a time."""
        self._turn_bytes += size
        if self._turn_bytes > _TURN_BYTES and not self._resuming:
            self._turn_bytes = 0
            self._pause_reading()
            self._resume_soon()

    def _begin(self, data: memoryview, position: int, stop: int) -> Conversation | None:
        """The conversation that the first bytes ask for; None when there are too few of them, or none is served."""
        service = self.service
        first = bytes(data[position : min(stop, position + _FIRST_BYTES)])
        served = service.config.blipmq_framings
        framing = blipmq.detect(first, legacy="legacy" in served, frame_max=service.frame_max)
        if framing is None:
            return None
        self.last_frame_at = self.listener.now
        if framing.value in served:
            match framing:
                case Framing.FLATBUFFERS:
                    self._conversation = FlatConversation(self)
                case Framing.BINARY1:
                    self._conversation = Binary1Conversation(self)
                case Framing.LEGACY:
                    self._conversation = LegacyConversation(self)
        if self._conversation is None:
            self.listener.logger.info("%s begins with %s, which is not served here", self.address, first.hex(" "))
            if framing is not Framing.TLS:
                self.answer(self.error_bytes(blipmq.unknown_framing(first, service.frame_max)))
            self.close_when_idle()
        return self._conversation

    def awaits_more(self, held: bytearray) -> bool:
        return self._conversation is not None and self._conversation.awaits_more(held)

    def outlet(self, qos: int) -> Outlet:
        assert self._conversation is not None, "whoever subscribes has spoken"
        return self._conversation.outlet(qos)

    # --- errors

    def error_bytes(self, error: BraidError) -> bytes:
        if self._conversation is not None:
            return self._conversation.error(error)
        return blipmq.encode(blipmq.error_envelope(error, timestamp=self.service.now_ticks()))

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        assert self._conversation is not None, "whoever is answered has spoken"
        return self._conversation.failed_run(answers, failures)

    def refuse(self, frame: bytes) -> None:
        """Answer with an error; a client that gets too many of them is closed."""
        self.answer(frame)
        now_s = self.listener.loop_time()
        if now_s - self._errors_since >= 1.0:
            self._errors_since, self._errors = now_s, 0
        self._errors += 1
        if self._errors > limits.BLIPMQ_ERRORS_PER_S_MAX:
            self.listener.logger.info("closing %s: more than %d errors a second", self.address, limits.BLIPMQ_ERRORS_PER_S_MAX)
            self.close_when_idle()

    # --- who it is

    def refuse_stranger(self) -> bool:
        """Count a frame without a key; True when that was one too many."""
        self._refusals += 1
        return self._refusals >= limits.BLIPMQ_REFUSALS_MAX

    def logged_in(self, principal: Principal) -> None:
        super().logged_in(principal)
        self._key_user = principal.name
        self.known = True

    def authorize(self, permission: Permission, topic: str, action: str) -> None:
        """Refuse what the user may not do, and write the refusal down."""
        security = self.broker.security
        refused = security.authorizer.decide(self.principal, permission, topic)
        if refused is not None:
            security.note("access.denied", self.principal, self.ip, topic, action, "denied", reason=refused.text)
            raise refused

    # --- publishing

    def routes(self) -> hot.RouteTable:
        """Topics that the parser may take messages for without asking: none that is full or makes publishers wait."""
        service = self.service
        if not self.known or not service.takes_runs or self.listener.stopping:
            return _NO_ROUTES
        hub = self.broker.push
        if not hub.holds_up:
            return super().routes()
        version = hub.full_version + self.broker.routes_version + self.broker.security.authorizer.version
        if self._careful is None or version != self._careful_version:
            self._careful = hot.RouteTable()
            self._careful_version = version
        return self._careful

    def remember_route(self, topic: Topic | None) -> None:
        super().remember_route(topic)
        hub = self.broker.push
        if self._careful is None or topic is None or not is_open(topic):
            return
        if not hub.is_full(topic.id) and not hub.is_blocked(topic.id):
            self._careful.add(self.broker.route(topic))

    # --- deliveries

    def acked(self, ids: list[bytes]) -> None:
        """Deliveries were acknowledged; ids that are not under way are passed over."""
        found = self.window.take_many(ids)
        for (queue, feed), offsets in found.items():
            queue.acked(feed, offsets)
        self.settled(dict.fromkeys(queue for queue, _ in found))

    def settled(self, queues: Mapping[Settling, None]) -> None:
        """Something of these queues was settled, so there is room for more, of any of this connection."""
        for queue in queues:
            queue.moved()
        self.deliver()
        if self.listener.stopping:
            self.leave()

    def deliver(self) -> None:
        for subscriber in list(self.subscribers.values()):
            subscriber.deliver()

    def on_writable(self) -> None:
        self.deliver()
        if self._conversation is not None:
            self._conversation.writable()
        if self.listener.stopping:
            self.leave()

    # --- the end

    @property
    def owed(self) -> bool:
        """Whether it is to get something, or to acknowledge something."""
        return any(subscriber.owed for subscriber in self.subscribers.values())

    def leave(self) -> None:
        """The broker stops: close as soon as nothing is owed."""
        if not self.owed:
            self.close_when_idle()
