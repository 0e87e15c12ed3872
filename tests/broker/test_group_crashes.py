"""A crash at every step of every change to offsets: it happened, or it did not, and never by half."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from group_bench import GroupBench

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash

Offsets = dict[tuple[str, str, int], int]
Change = Callable[[GroupBench], Coroutine[Any, Any, object]]


async def _snapshot(bench: GroupBench) -> None:
    bench.snapshot()


async def _joined(bench: GroupBench) -> None:
    joined = await bench.coordinator.members.join("g", "", ["t"])
    offsets = [("t", number, 50 + number) for number in joined.assignment["t"]]
    await bench.coordinator.commit("g", joined.member, joined.generation, offsets)


async def _transaction(bench: GroupBench) -> None:
    groups = bench.coordinator
    rows = [groups.row("t", "g", 0, 70), groups.row("u", "h", 0, 71)]
    assert await groups.commit_rows(rows, 5) or bench.committed()["u", "h", 0] == 71


def _without(offsets: Offsets, group: str, topic: str = "") -> Offsets:
    return {key: offset for key, offset in offsets.items() if key[1] != group or topic not in ("", key[0])}


STEPS: list[tuple[str, Change, Callable[[Offsets], Offsets]]] = [
    ("commit", lambda b: b.coordinator.commit_offset("t", "g", 0, 3), lambda o: {**o, ("t", "g", 0): 3}),
    (
        "reset of all partitions", lambda b: b.coordinator.reset("t", "g", None, "offset", 9),
        lambda o: {**o, ("t", "g", 0): 9, ("t", "g", 1): 9},
    ),
    ("seek", lambda b: b.coordinator.seek("t", "h", 1, 1 << 60), lambda o: {**o, ("t", "h", 1): 2}),
    ("snapshot", _snapshot, lambda o: o),
    ("commit of a member", _joined, lambda o: {**o, ("t", "g", 0): 50, ("t", "g", 1): 51}),
    ("offsets of a transaction", _transaction, lambda o: {**o, ("t", "g", 0): 70, ("u", "h", 0): 71}),
    ("deletion on one topic", lambda b: b.coordinator.delete("t", "h"), lambda o: _without(o, "h", "t")),
    ("second snapshot", _snapshot, lambda o: o),
    ("commit after it", lambda b: b.coordinator.commit_offset("u", "g", 0, 4), lambda o: {**o, ("u", "g", 0): 4}),
    ("deletion on all topics", lambda b: b.coordinator.delete("", "g"), lambda o: _without(o, "g")),
    ("last commit", lambda b: b.coordinator.commit_offset("t", "g", 1, 1), lambda o: {**o, ("t", "g", 1): 1}),
]


def prepared() -> GroupBench:
    bench = GroupBench(FaultyDisk(), ManualClock()).start()
    bench.create("t", 2)
    bench.create("u", 1)
    bench.produce("t", 1, b"one", b"two")
    return bench


def operations_of_a_run() -> int:
    bench = prepared()
    before = bench.disk.operations
    expected: Offsets = {}
    for _, change, effect in STEPS:
        bench.run(change(bench))
        expected = effect(expected)
        assert bench.committed() == expected
    bench.close()
    return bench.disk.operations - before


OPERATIONS = operations_of_a_run()


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("crash_at", range(OPERATIONS))
def test_a_crash_at_any_operation_leaves_all_or_nothing(crash_at: int, power: bool) -> None:
    bench = prepared()
    bench.disk.crash_after(crash_at)
    expected: Offsets = {}
    crashes = 0
    for name, change, effect in STEPS:
        after = effect(expected)
        try:
            bench.run(change(bench))
        except SimulatedCrash:
            crashes += 1
            bench = bench.crashed(crash_at, power=power)
            assert bench.committed() in (expected, after), name
            if bench.committed() != after:
                bench.run(change(bench))
        expected = after
        assert bench.committed() == expected, name
    assert crashes == 1
    again = bench.crashed(crash_at, power=power)
    assert again.committed() == expected
    again.close()
