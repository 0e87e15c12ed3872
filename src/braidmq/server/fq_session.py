"""One connection to an fq port. Its first bytes say what it is; a stream of that kind does the rest.

    command     a client says who it is, binds and asks               fq_command.py
    data, peer  messages, both ways                                   fq_data.py
    HTTP        messages in, figures and files out                    fq_http.py

A client is two connections, one of commands and one of messages. What they share, and what is left when one of them goes, is in
`fq_client.py`. A connection that does not say in time what it is is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.base.tracing import Traced
from braidmq.log.commit import Outcome
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.server.session import Due, Session
from braidmq.wire.fq.commands import encode_error
from braidmq.wire.fq.modes import read_opening

if TYPE_CHECKING:
    from braidmq.server.fq_listener import FqListener

logger: Final = logging.getLogger("braidmq.fq")


class _Silent:
    """Something to wait for that leads to no answer."""

    def __init__(self, outcome: Coroutine[Any, Any, None]) -> None:
        self._outcome = outcome

    def __await__(self) -> Generator[Any, None, list[bytes]]:
        yield from self._outcome.__await__()
        return []

    def close(self) -> None:
        self._outcome.close()


class Stream:
    """What a connection does once it is known what it is."""

    __slots__ = ("session",)

    def __init__(self, session: FqSession) -> None:
        self.session = session

    @property
    def established(self) -> bool:
        """Whether it has done what it has to do in time."""
        raise NotImplementedError

    def take(self, data: memoryview, position: int, stop: int) -> int:
        """As `Session.take`."""
        raise NotImplementedError

    def awaits_more(self, held: bytearray) -> bool:
        return False

    def on_writable(self) -> None:
        """As in `Session`."""

    def lost(self) -> None:
        """The connection is gone."""

    def error_bytes(self, error: BraidError) -> bytes:
        """As in `Session`."""
        return encode_error(error)


class FqSession(Session):
    __slots__ = ("since", "stream")

    answers_past_high = 256 * limits.KIB
    listener: FqListener

    def __init__(self, listener: FqListener) -> None:
        super().__init__(listener)
        self.stream: Stream | None = None
        self.since = listener.now
        """When what has to be done in time began."""

    def made(self) -> None:
        self.since = self.listener.now

    @property
    def established(self) -> bool:
        return self.stream is not None and self.stream.established

    @property
    def hop(self) -> bytes:
        """The peer's address as messages name it; four zeros where it is no IPv4 address."""
        parts = self.ip.rpartition(":")[2].split(".")
        if len(parts) != 4 or not all(part.isdigit() and int(part) < 256 for part in parts):
            return bytes(4)
        return bytes(map(int, parts))

    def take(self, data: memoryview, position: int, stop: int) -> int:
        if self.stream is None:
            try:
                opening = read_opening(data[position:stop])
            except BraidError as fault:
                logger.info("%s: %s", self.address, fault)
                self.close_when_idle()
                return stop
            if opening is None:
                return position
            self.stream = self.listener.stream_for(self, opening)
            if self.stream is None:
                self.close_when_idle()
                return stop
            position += opening.size
            if self.blocked:
                return position
        return self.stream.take(data, position, stop)

    # --- what a session needs to know of its stream

    def awaits_more(self, held: bytearray) -> bool:
        return self.stream is not None and self.stream.awaits_more(held)

    def on_writable(self) -> None:
        if self.stream is not None:
            self.stream.on_writable()

    def lost(self) -> None:
        if self.stream is not None:
            self.stream.lost()

    def error_bytes(self, error: BraidError) -> bytes:
        return b"" if self.stream is None else self.stream.error_bytes(error)

    def failed_run(self, answers: bytes, failures: Mapping[PartitionLog, BraidError]) -> bytes:
        return answers

    def wait(self, outcome: Coroutine[Any, Any, None]) -> None:
        """Read nothing more until something is done that has no answer."""
        self.run(_Silent(outcome))

    # --- records without answers

    def commit_run(self, size: int, level: Level) -> None:
        """Let records that were taken become durable. As long as they are not, their `size` counts as owed to the peer."""
        due = self.due(b"")
        due.size = size
        self._due_bytes += size
        traced = None if self.broker.commit.tracing is None else self.traced_produce()
        self.broker.commit.join(level, lambda cycle: self._committed(due, cycle, traced))

    def _committed(self, due: Due, cycle: Outcome, traced: Traced | None) -> None:
        self.listener.produced_s.observe(cycle.done_s - cycle.joined_s)
        if traced is not None:
            traced.end(next((error.code for error in cycle.failures.values()), ""), message_bytes=due.size)
        for log in cycle.failures:
            self.broker.fq.exchanges.failed(log)
        self.settle(due)
