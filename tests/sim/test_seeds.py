"""Seeds of the simulator: nothing that was acknowledged is lost, doubled, reordered or torn, whatever goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from mutants import MUTANTS, WHOLE_NODE_MUTANTS
from proof_length import length

from braidmq.cli.main import main
from braidmq.sim.history import History, Sent, value_of
from braidmq.sim.moving import MovingWorld
from braidmq.sim.nodes import NodeWorld
from braidmq.sim.replicas import ReplicaWorld
from braidmq.sim.scenario import Scenario, simulate

AT_ONCE = 10
SCENARIOS: dict[str, type[Scenario]] = {"replicas": ReplicaWorld, "nodes": NodeWorld}
KEY = (1, 0)


@pytest.mark.parametrize("first", range(0, length(100, 2000), AT_ONCE))
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_acknowledged_is_lost(name: str, first: int) -> None:
    acked = 0
    for seed in range(first, first + AT_ONCE):
        world = simulate(SCENARIOS[name], seed)
        acked += world.history.records_acked
        assert not world.history.complaints, f"braid sim --seed {seed} --scenario {name}: {world.history.complaints[:5]}"
    assert acked > 100, "clients got something done"


# The first four had half a transaction, a record lost on its way through nodes, and delayed records that became letters.
@pytest.mark.parametrize("seed", [3, 65, 71, 90, *range(10, length(20, 1000))])
def test_what_was_decided_happens_once_while_partitions_move(seed: int) -> None:
    world = simulate(MovingWorld, seed)
    assert not world.history.complaints, f"braid sim --seed {seed} --scenario moving: {world.history.complaints[:5]}"
    assert world.decided, "clients got something done"


class BereftWorld(NodeWorld):
    loses_one = True


@pytest.mark.parametrize("seed", [20, 27, 29, 32, 57, 84, 116])
def test_nothing_waits_for_a_node_that_left(seed: int) -> None:
    """A leader proposed a node for the isr, did not learn what came of it, and the node went: it must not count for ever. Nor may
    one that was in sync be forgotten when another takes over, and then be missing from those that may lead."""
    assert not simulate(BereftWorld, seed).history.complaints


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(200):
        if any(not complaint.startswith(("stuck", "fault")) for complaint in simulate(ReplicaWorld, seed).history.complaints):
            return
    raise AssertionError(f"no seed noticed {name}")


@pytest.mark.parametrize("name", WHOLE_NODE_MUTANTS)
def test_a_mutant_of_whole_nodes_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WHOLE_NODE_MUTANTS[name](monkeypatch)
    for seed in range(200):
        if any(not complaint.startswith(("stuck", "fault")) for complaint in simulate(NodeWorld, seed).history.complaints):
            return
    raise AssertionError(f"no seed noticed {name}")


@pytest.mark.parametrize("name", SCENARIOS)
def test_one_seed_is_one_history(name: str) -> None:
    """Also in a process that orders its sets in another way."""
    here = simulate(SCENARIOS[name], 7).fingerprint
    command = [sys.executable, "-m", "braidmq", "sim", "--seed", "7", "--scenario", name, "-o", "json"]
    found = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "4711"}, capture_output=True, text=True, check=True, timeout=120
    )
    assert here in found.stdout
    assert simulate(SCENARIOS[name], 8).fingerprint != here


def test_the_command_says_how_to_look_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    MUTANTS["no truncation"](monkeypatch)
    assert main(["sim", "--seeds", "6", "--scenario", "replicas", "--trace"]) == 1
    told = capsys.readouterr()
    assert "again: braid sim --seed" in told.out and "crash" in told.err
    monkeypatch.undo()
    assert main(["sim", "--scenario", "replicas"]) == 0
    assert "seed 0 replicas" in capsys.readouterr().out


# --- the checker itself


def checked(final: dict[int, bytes], log_start: int = 0) -> list[str]:
    history = History()
    sent = [Sent(1, number) for number in range(4)]
    history.note_sent(KEY, sent)
    history.note_acked(KEY, 0, sent[:3])
    history.note_seen(KEY, "a", [(0, value_of(sent[0], 30))])
    history.check(KEY, final, log_start)
    return [complaint.split(":")[0] for complaint in history.complaints]


def test_the_checker_knows_every_fault() -> None:
    values = [value_of(Sent(1, number), 30) for number in range(4)]
    good = dict(enumerate(values))
    assert checked(good) == [] and checked({0: values[0], 1: values[1], 2: values[2]}) == []
    assert checked({1: values[1], 2: values[2]}, log_start=1) == [], "retention is no loss"
    assert checked({0: values[0], 1: values[1]}) == ["lost"]
    assert checked({**good, 4: values[3]}) == ["duplicate"]
    assert "reordered" in checked({0: values[0], 1: values[1], 2: values[2], 3: value_of(Sent(1, 5), 30), 4: values[3]})
    assert checked({**good, 4: value_of(Sent(2, 0), 30)}) == ["phantom"]
    assert checked({**good, 3: values[3][:-3] + b"???"}) == ["torn"]
    assert "unsteady" in checked({**good, 0: value_of(Sent(1, 9), 30)})


def test_two_readers_must_see_the_same() -> None:
    history = History()
    history.note_seen(KEY, "a", [(0, b"one")])
    history.note_seen(KEY, "b", [(0, b"two")])
    history.note_acked(KEY, 0, [Sent(1, 0)])
    history.note_acked(KEY, 0, [Sent(1, 1)])
    assert [complaint.split(":")[0] for complaint in history.complaints] == ["unsteady", "lost"]
