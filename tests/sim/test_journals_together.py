"""The journals have one isr: whoever comes into it is waited for in each of them, from before that is written until it is known."""

from __future__ import annotations

import pytest

from braidmq.cluster.journals import INTERNAL_KEYS, JournalGroup
from braidmq.cluster.partition_state import PartitionState
from braidmq.cluster.replication import Replication
from braidmq.sim.nodes import NodeWorld
from braidmq.sim.scenario import simulate

SEEDS = (0, 5, 29)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_into_the_journals_is_waited_for_in_each_of_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, PartitionState]] = []
    write = JournalGroup._write
    replications: dict[JournalGroup, Replication] = {}
    worlds: list[NodeWorld] = []

    class Watched(NodeWorld):
        def start(self, name: str) -> None:
            worlds[:] = [self]
            super().start(name)

    def replication_of(group: JournalGroup) -> Replication:
        for node in worlds[0].nodes.values():
            found = node.clustering.node
            assert isinstance(found.replication, Replication)
            replications[found.journals] = found.replication
        return replications[group]

    async def checked(self: JournalGroup, state: PartitionState) -> bool:
        before = self.state
        if before is not None and before.epoch == state.epoch and not set(state.isr) <= set(before.isr):
            led = replication_of(self)._led
            for key in INTERNAL_KEYS:
                assert set(state.isr) <= set(led[key].counted()), f"{key} goes on without one of {state.isr}"
            written.append((self._node, state))
        return await write(self, state)

    monkeypatch.setattr(JournalGroup, "_write", checked)
    assert not simulate(Watched, seed).history.complaints
    assert written, "somebody came in"
