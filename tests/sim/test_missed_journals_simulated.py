"""Among the histories that the simulator plays are some in which a node missed more of the journals than is kept; and it is noticed
when such a node does not come back."""

from __future__ import annotations

import pytest

from braidmq.base.errors import BraidError
from braidmq.cluster.journal_transfer import JournalTransfer
from braidmq.sim.nodes import NodeWorld
from braidmq.sim.scenario import simulate

SEEDS_MAX = 60


def first_that_misses() -> int:
    for seed in range(SEEDS_MAX):
        told: list[str] = []
        world = simulate(NodeWorld, seed, told.append)
        assert not world.history.complaints
        if any("missed" in line and "commands of" in line for line in told):
            assert any("begins anew at offset" in line for line in told)
            return seed
    raise AssertionError("nobody ever misses more than is kept")


def test_a_node_that_missed_more_than_is_kept_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = first_that_misses()

    async def refused(self: JournalTransfer, missed: int, name: str) -> None:
        raise BraidError("CORRUPT_LOG", path=name, position=0, offset=0, reason="begin with an empty data directory")

    monkeypatch.setattr(JournalTransfer, "_replace_all", refused)
    assert any(text.startswith("stuck") for text in simulate(NodeWorld, seed).history.complaints)
