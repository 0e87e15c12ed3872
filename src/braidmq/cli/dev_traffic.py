"""Sample traffic: one shop whose orders come in by three protocols.

The web shop speaks FlyMQ, the tills in the stores BlipMQ, the partners fq. All send the same JSON, a few of them orders that no
pipeline should let through, so that dead letters have something to show. Each sender is a thread with a client as any program would
have one; when the broker is away it says so once and goes on when it is back.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from braidmq.base.errors import BraidError

logger = logging.getLogger("braidmq.dev")

SCHEMA: Final = "demo-order"
SCHEMA_TEXT: Final = json.dumps(
    {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "country": {"type": "string"},
            "product": {"type": "string"},
            "amount": {"type": "number"},
        },
        "required": ["order_id", "country", "amount"],
    }
)
TOPICS: Final[Mapping[str, str]] = {"flymq": "demo.web", "blipmq": "demo/tills", "fq": "demo.partners"}
"""Where each protocol's orders go."""
ORDERS_PER_SECOND: Final[Mapping[str, int]] = {"flymq": 50, "blipmq": 30, "fq": 20}
_TICKS_PER_SECOND: Final = 5
_COUNTRIES: Final = ("DE", "FR", "IT", "JP", "KE", "PE", "US")
_PRODUCTS: Final = ("braid", "rope", "thread", "yarn")
_BAD_ONE_IN: Final = 50
_AWAY_PAUSE_S: Final = 1.0


class Sender(ABC, threading.Thread):
    """Sends orders by one protocol until it is stopped."""

    protocol: str

    def __init__(self, address: str, stop: threading.Event) -> None:
        super().__init__(name=f"dev-{self.protocol}", daemon=True)
        self.address = address
        self.fault: str | None = None
        """Why nothing can be sent at the moment."""
        self._ended = stop
        self._random = random.Random()
        self._number = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._send_until_stopped()
                self.fault = None
            except (BraidError, OSError) as fault:
                if self.fault is None:
                    logger.info("%s: %s", self.protocol, fault)
                self.fault = str(fault)
                self._ended.wait(_AWAY_PAUSE_S)

    @abstractmethod
    def _send_until_stopped(self) -> None: ...

    def tick(self) -> bool:
        """Wait for the next turn; False when there is none."""
        return not self._ended.wait(1 / _TICKS_PER_SECOND)

    @property
    def a_tick(self) -> int:
        return ORDERS_PER_SECOND[self.protocol] // _TICKS_PER_SECOND

    def took(self) -> None:
        """The broker has what was sent."""
        self.fault = None

    def order(self) -> tuple[bytes, bytes]:
        """The next order: its country as the key, and JSON. Now and then it has a negative amount, or is no JSON at all."""
        self._number += 1
        country = self._random.choice(_COUNTRIES)
        order = {
            "order_id": f"{self.protocol}-{self._random.getrandbits(40):010x}",
            "country": country,
            "product": self._random.choice(_PRODUCTS),
            "amount": round(self._random.lognormvariate(3, 1), 2),
        }
        if self._number % _BAD_ONE_IN == 0:
            order["amount"] = -1.0
        text = json.dumps(order)
        return country.encode(), (text[:-7] if self._number % _BAD_ONE_IN == _BAD_ONE_IN // 2 else text).encode()


class FlyMQSender(Sender):
    protocol = "flymq"

    def _send_until_stopped(self) -> None:
        from braidmq.client import sync

        with sync.connect(self.address) as client, client.producer() as producer:
            while self.tick():
                for _ in range(self.a_tick):
                    key, value = self.order()
                    producer.send(TOPICS["flymq"], value, key=key)
                producer.flush()
                self.took()


class BlipMQSender(Sender):
    protocol = "blipmq"

    def _send_until_stopped(self) -> None:
        from braidmq.client.blipmq import sync

        with sync.connect(self.address) as client:
            while self.tick():
                for _ in range(self.a_tick):
                    client.publish(TOPICS["blipmq"], self.order()[1], qos=1)
                self.took()


class FqSender(Sender):
    protocol = "fq"

    def _send_until_stopped(self) -> None:
        from braidmq.client.fq import sync

        with sync.connect(self.address, user="demo") as client:
            while self.tick():
                for _ in range(self.a_tick):
                    key, value = self.order()
                    client.publish(TOPICS["fq"], f"order.{key.decode().lower()}", value)
                client.flush()
                self.took()


SENDERS: Final[tuple[type[Sender], ...]] = (FlyMQSender, BlipMQSender, FqSender)


def prepare(address: str) -> None:
    """The sample topics and their schema; what exists stays."""
    from braidmq.client import sync

    with sync.connect(address) as client:
        for topic in TOPICS.values():
            client.create_topic(topic, 2)
        client.schema.put(SCHEMA, SCHEMA_TEXT.encode(), "json")
