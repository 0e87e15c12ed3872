"""What programs hold of a BlipMQ client: publishes on their way, subscriptions, and deliveries to settle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.blipmq_buffers import Settlement
from braidmq.wire.blipmq import AT_LEAST_ONCE, META_ATTEMPT, Envelope, ErrorCode, Message, Metadata

REJECTED: Final = 100
"""The code of `reject` where none is given: the first that is free for users."""


class Settles(Protocol):
    """Who tells the broker what became of a delivery."""

    async def settle(self, settlement: Settlement) -> None: ...


class Publication:
    """A publish on its way: `wait` for its outcome, or ask for its `result`."""

    __slots__ = ("_fault", "_settled", "acknowledged", "done", "frame", "message_id", "sequence")

    def __init__(self, frame: bytes, sequence: int, message_id: str | None, acknowledged: bool) -> None:
        self.frame = frame
        self.sequence = sequence
        self.message_id = message_id
        self.acknowledged = acknowledged
        """Whether the broker answers it: QoS 1. One with QoS 0 has no outcome, and is done when it was taken."""
        self.done = not acknowledged
        self._fault: BraidError | None = None
        self._settled = backend.Signal() if acknowledged else None

    def settle(self, fault: BraidError | None) -> None:
        self._fault = fault
        self.done = True
        if self._settled is not None:
            self._settled.set()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the outcome is known within the time; it does not raise what the outcome is."""
        return self.done or self._settled is None or await self._settled.wait(timeout_s)

    async def result(self, timeout_s: float | None = None) -> None:
        """Return when the broker has taken responsibility. Raises what it has against the message, or TIMED_OUT."""
        if not await self.wait(timeout_s):
            raise BraidError("TIMED_OUT", what="the acknowledgement of a message", seconds=timeout_s or 0)
        if self._fault is not None:
            raise self._fault


class Subscription:
    """What the client asked to be sent. It is made again after reconnecting."""

    __slots__ = ("metadata", "pattern", "qos")

    def __init__(self, pattern: str, qos: int, metadata: Metadata) -> None:
        self.pattern = pattern
        self.qos = qos
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"Subscription({self.pattern!r}, qos={self.qos})"


class ReceivedMessage:
    """A delivery. With QoS 1 it has to be settled; with QoS 0 settling does nothing."""

    __slots__ = (
        "_client", "_link", "_open", "attempt", "message_id", "metadata", "payload", "qos", "sequence", "timestamp", "topic",
    )  # fmt: skip

    def __init__(self, client: Settles, link: int, envelope: Envelope, message: Message, payload: bytes) -> None:
        self.topic = message.topic
        self.payload = payload
        self.message_id = message.message_id
        self.qos = message.qos
        self.timestamp = message.timestamp
        """When the broker accepted it, in the broker's unit: seconds, unless its operator chose another."""
        self.sequence = envelope.sequence
        """The same for every receiver and every further attempt."""
        self.metadata: Mapping[str, str] = dict(reversed(envelope.metadata))
        attempt = self.metadata.get(META_ATTEMPT, "1")
        self.attempt = int(attempt) if attempt.isascii() and attempt.isdigit() else 1
        """1 for the first delivery."""
        self._client = client
        self._link = link
        self._open = message.qos == AT_LEAST_ONCE

    async def ack(self) -> None:
        """It is done with, and need not come again."""
        await self._settle(ErrorCode.NONE)

    async def retry(self) -> None:
        """It could not be done with; the broker delivers it again after a while, a few times at most."""
        await self._settle(ErrorCode.SERVER_ERROR)

    async def reject(self, code: int = REJECTED) -> None:
        """It never will be done with: it becomes a dead letter, with this code (100 to 255 are free for users)."""
        if not 0 < code < 256 or code == ErrorCode.SERVER_ERROR:
            raise BraidError("INVALID_ARGUMENT", reason=f"{code} is not a code to reject with")
        await self._settle(code)

    async def _settle(self, code: int) -> None:
        if self._open:
            self._open = False
            await self._client.settle(Settlement(self.message_id or "", code, self.sequence, self._link))

    def __repr__(self) -> str:
        return f"ReceivedMessage({self.topic!r}, {self.payload[:32]!r}, qos={self.qos}, sequence={self.sequence})"
