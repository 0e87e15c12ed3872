"""What the two older framings have in common: length-prefixed frames that are taken one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.log.partition import PartitionLog
from braidmq.server.blipmq_outlet import Outlet
from braidmq.server.blipmq_publishing import Incoming, Publishing
from braidmq.wire.blipmq import Malformed

if TYPE_CHECKING:
    from braidmq.server.blipmq_session import BlipMQSession

_LENGTH_BYTES: Final = 4


class OlderConversation(ABC):
    def __init__(self, session: BlipMQSession) -> None:
        self.session = session
        self.service = session.service
        self.publishing = Publishing(session)

    # --- what a framing supplies

    @abstractmethod
    def measure(self, data: bytearray | memoryview, position: int) -> int:
        """How many bytes follow the length at `position`; `Malformed` for one out of range."""

    @abstractmethod
    def run(self, body: memoryview) -> bool:
        """Do what a frame says; False when it has to wait until earlier answers are out. `Malformed` ends the connection."""

    @abstractmethod
    def error(self, error: BraidError) -> bytes: ...

    @abstractmethod
    def outlet(self, qos: int) -> Outlet: ...

    @abstractmethod
    def after(self) -> None:
        """Everything that came was taken."""

    @abstractmethod
    def writable(self) -> None:
        """The connection takes deliveries again."""

    # --- frames

    def take(self, data: memoryview, position: int, stop: int) -> int:
        session = self.session
        while stop - position >= _LENGTH_BYTES:
            try:
                end = position + _LENGTH_BYTES + self.measure(data, position)
                if end > stop or not self.run(data[position + _LENGTH_BYTES : end]):
                    break
            except Malformed as fault:
                # The published servers close without a word, and their clients expect it.
                session.listener.logger.info("%s: %s", session.address, fault)
                session.close_when_idle()
                return stop
            session.last_frame_at = session.listener.now
            if session.metered:
                session.charge(end - position, 1)
            position = end
            if session.blocked:
                break
        self.after()
        return position

    def awaits_more(self, held: bytearray) -> bool:
        if len(held) < _LENGTH_BYTES:
            return False
        try:
            return len(held) < _LENGTH_BYTES + self.measure(held, 0)
        except Malformed:
            # A wrong length is for `take` to refuse, at once.
            return False

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        raise AssertionError("these framings have no runs")

    # --- publishing

    def publish(self, message: Incoming) -> bool:
        """Take a message in."""
        self.publishing.check(message)
        if self.publishing.take(message):
            return True
        return self.start(lambda: self.publishing.take_later(message), message.refuse)

    def start(
        self, operation: Callable[[], Awaitable[Sequence[bytes]]], refuse: Callable[[BraidError], bytes],
        ended: Callable[[], None] | None = None,
    ) -> bool:
        """Run something that takes time, when every earlier answer is out."""
        session = self.session
        if session.must_wait():
            return False
        session.run(operation(), lambda fault: refuse(session.plain_error(fault)), ended)
        return True

    def timed(self, operation: str, handler: Callable[[], bool]) -> bool:
        """Run what is answered at once, and count how long it took; not if it has to wait."""
        ended = self.session.measured(operation)
        try:
            done = handler()
        except BraidError:
            ended()
            raise
        if done:
            ended()
        return done
