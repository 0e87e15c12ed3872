"""What the client's tests share: one broker for all that only need one, and topics that nobody else uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from running_broker import RunningBroker


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker that stays up for the whole run. Tests that restart or configure one use `start_broker`."""
    broker = RunningBroker(tmp_path_factory.mktemp("client") / "data", ("--durability", "os"))
    broker.start()
    try:
        yield broker.address
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture
def topic() -> str:
    return f"test/{uuid.uuid4().hex}"
