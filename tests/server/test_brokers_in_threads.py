"""Several brokers in one process, each in a thread of its own, as programs embed them: none gets what was sent to another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import Peer

from braidmq.base.disk_faulty import FaultyDisk

VALUES = 40
VALUE_BYTES = 100_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as possible."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval_s)


def test_each_broker_stores_what_it_was_sent(hasty: None) -> None:
    faults: list[BaseException] = []

    def talk(number: int, address: str) -> None:
        value = bytes([number]) * VALUE_BYTES
        try:
            with Peer(address) as peer:
                topic = peer.create("own")
                for _ in range(VALUES):
                    peer.produce(topic, value)
                found = {item.value for item in peer.fetch_all(topic)}
                assert found == {value}, "bytes of another broker's client"
        except BaseException as fault:
            faults.append(fault)

    with EmbeddedBroker(FaultyDisk()) as first, EmbeddedBroker(FaultyDisk()) as second, EmbeddedBroker(FaultyDisk()) as third:
        threads = [
            threading.Thread(target=talk, args=(number, broker.address)) for number, broker in enumerate((first, second, third))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults, faults
