"""What the server's tests share: one broker that stays up for all that need no other, in three dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flymq_peer import LISTENERS, Peer
from running_broker import RunningBroker


def _standing(path_factory: pytest.TempPathFactory, env: dict[str, str]) -> Iterator[RunningBroker]:
    flags = (*LISTENERS, "--durability", "os", "--retention-interval", "0.05s")
    broker = RunningBroker(path_factory.mktemp("standing") / "data", flags, env)
    broker.start()
    try:
        yield broker
        assert "bug in an operation" not in broker.log, broker.log
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture(scope="session")
def compiled_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    yield from _standing(tmp_path_factory, {})


@pytest.fixture(scope="session")
def pure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    yield from _standing(tmp_path_factory, {"BRAID_PURE": "1"})


@pytest.fixture(params=["compiled", "pure"])
def standing(request: pytest.FixtureRequest) -> RunningBroker:
    """A broker that others use too; both hot paths. Topics and groups need names of their own (`new_topic`)."""
    broker: RunningBroker = request.getfixturevalue(f"{request.param}_broker")
    return broker


@pytest.fixture
def peer(standing: RunningBroker) -> Iterator[Peer]:
    """A connection to the standing broker's `auto` listener."""
    with Peer(standing.address) as connected:
        yield connected
