"""What `braid produce` sends messages through: one request a message, or batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.terminal import Progress

if TYPE_CHECKING:
    from braidmq.cli.messages import Message
    from braidmq.client.models import RecordMetadata
    from braidmq.client.sync import Client, Delivery, Producer

UNCONFIRMED_MAX: Final = 10_000
"""Deliveries kept before the oldest is waited for; the producer's own buffer bounds the bytes."""
INTERRUPTED_FLUSH_SECONDS: Final = 5.0
"""How long Ctrl-C waits for messages that are on their way."""


class Sender(ABC):
    """Sends messages and counts their outcomes, in the order in which they were sent."""

    outcome = "acknowledged"
    """What is known of the messages in `acked`."""

    def __init__(self, topic: str, partition: int | None, total: int | None) -> None:
        self.sent = 0
        self.acked = 0
        self.last: RecordMetadata | None = None
        self.fault: BraidError | OSError | None = None
        self.interrupted = False
        self.delayed_ids: list[str] = []
        self._topic = topic
        self._partition = partition
        self._progress = Progress("messages", total)

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send one message, or take note of why it could not be sent."""

    def finish(self) -> None:
        """Wait for everything that was sent."""
        self._progress.close()


class SingleSender(Sender):
    """One request a message."""

    def __init__(
        self, client: Client, topic: str, partition: int | None, schema: str | None, delay_ms: int | None, total: int | None
    ) -> None:
        super().__init__(topic, partition, total)
        self._client = client
        self._schema = schema
        self._delay_ms = delay_ms

    def send(self, message: Message) -> None:
        self.sent += 1
        try:
            self.last = self._client.produce(
                self._topic, message.value, key=message.key, partition=self._partition, schema=self._schema,
                delay_ms=self._delay_ms,
            )  # fmt: skip
        except BraidError as fault:
            self.fault = fault
            return
        self.acked += 1
        if self.last.delayed_id:
            self.delayed_ids.append(self.last.delayed_id)
        self._progress.update(self.acked)


class BatchSender(Sender):
    """Batches, through a producer."""

    def __init__(
        self, producer: Producer, topic: str, partition: int | None, headers: dict[str, bytes], ttl_ms: int, total: int | None
    ) -> None:
        super().__init__(topic, partition, total)
        self._producer = producer
        self._headers = headers or None
        self._ttl_ms = ttl_ms
        self._waiting: deque[Delivery] = deque()

    def send(self, message: Message) -> None:
        delivery = self._producer.send(
            self._topic, message.value, key=message.key, partition=self._partition, headers=self._headers,
            ttl_ms=self._ttl_ms,
        )  # fmt: skip
        self.sent += 1
        self._waiting.append(delivery)
        if len(self._waiting) >= UNCONFIRMED_MAX:
            self._waiting[0].wait()
        self._collect()
        self._progress.update(self.acked)

    def _collect(self) -> None:
        """Count the outcomes that are known."""
        waiting = self._waiting
        while waiting and waiting[0].done():
            try:
                self.last = waiting.popleft().result()
                self.acked += 1
            except BraidError as fault:
                self.fault = self.fault or fault

    def finish(self) -> None:
        try:
            self._producer.flush(INTERRUPTED_FLUSH_SECONDS if self.interrupted else None)
        except BraidError as fault:
            self.fault = self.fault or fault
        self._collect()
        super().finish()
