"""The table of permanent queues: what commands do to it, and that every way to rebuild it leads to the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.fq_table import Places, QueueTable, StoredBinding
from braidmq.wire.fq.auth import QueueDetail

DETAIL = QueueDetail(b"q\xff\0", "disk", False, "block", -1, True)
BINDING = StoredBinding(b"\0ex", b"prefix:\xff", False, True, Places(4, {0: 7, 2: 9}))


def replayed(commands: list[list[Any]]) -> QueueTable:
    """A table after commands that went through a journal."""
    table = QueueTable()
    for command in commands:
        table.apply(json.loads(json.dumps(command)))
    return table


def restored(table: QueueTable) -> QueueTable:
    copy = QueueTable()
    copy.restore(json.loads(json.dumps(table.snapshot())))
    return copy


def test_a_queue_is_kept_as_it_is() -> None:
    table = QueueTable()
    table.apply(table.keep(DETAIL, [BINDING]))
    table.apply(table.keep(QueueDetail(DETAIL.name, "mem"), []))
    for each in (table, restored(table)):
        stored = each.get(DETAIL.name)
        assert stored is not None and stored.detail == DETAIL and stored.bindings == [BINDING]
    table.apply(table.forget(DETAIL.name))
    assert len(table) == 0 and restored(table).all() == []


def test_a_binding_is_kept_changed_ended_and_drained() -> None:
    table = QueueTable()
    table.apply(table.keep(DETAIL, []))
    name = DETAIL.name
    table.apply(table.bind(name, BINDING))
    changed = StoredBinding(BINDING.exchange, BINDING.program, True, False, Places(9, {0: 99}))
    table.apply(table.bind(name, changed))
    (kept,) = table.get(name).bindings  # type: ignore[union-attr]
    assert (kept.peer, kept.permanent, kept.begins) == (True, False, BINDING.begins), "only the flags change"
    ends = Places(4, {0: 20, 1: 0})
    table.apply(table.unbind(name, BINDING.exchange, BINDING.program, ends))
    table.apply(table.bind(name, BINDING))
    assert [b.ends for b in restored(table).get(name).bindings] == [ends, None]  # type: ignore[union-attr]
    table.apply(table.drained(name, BINDING.exchange, BINDING.program))
    assert [b.ends for b in table.get(name).bindings] == [None]  # type: ignore[union-attr]
    table.apply(table.unbind(name, BINDING.exchange, BINDING.program, None))
    assert table.get(name).bindings == []  # type: ignore[union-attr]


def test_what_concerns_nobody_leads_to_nothing() -> None:
    table = QueueTable()
    for command in (
        table.forget(b"x"), table.bind(b"x", BINDING), table.unbind(b"x", b"e", b"p", None), table.drained(b"x", b"e", b"p"),
        table.set_checkpoint(b"x", "c", []),
    ):  # fmt: skip
        assert table.apply(command) is None
    with pytest.raises(AssertionError):
        table.apply(["nonsense"])


def test_checkpoints_have_names() -> None:
    table = QueueTable()
    table.apply(table.keep(DETAIL, []))
    assert table.apply(table.set_checkpoint(DETAIL.name, "c", [(1, 0, 5)])) is True
    assert restored(table).get(DETAIL.name).checkpoints == {"c": [(1, 0, 5)]}  # type: ignore[union-attr]
    assert table.apply(table.set_checkpoint(DETAIL.name, "c", None)) is True
    assert table.apply(table.set_checkpoint(DETAIL.name, "c", None)) is False


def test_permanent_queues_have_a_limit_which_a_command_carries() -> None:
    table = QueueTable(queues_max=2)
    commands = [table.keep(QueueDetail(b"%d" % number), []) for number in range(3)]
    for command in commands[:2]:
        table.apply(command)
    with pytest.raises(BraidError, match="QUEUE_LIMIT"):
        table.apply(commands[2])
    with pytest.raises(BraidError, match="QUEUE_LIMIT"):
        # A later broker with another limit decides as it was decided then.
        replayed(commands)
    assert QueueTable().keep(DETAIL, [])[-1] == limits.FQ_QUEUES_KEPT_MAX


@pytest.mark.parametrize("seed", range(20))
def test_replay_and_snapshot_agree_with_what_was_applied(seed: int) -> None:
    chance = random.Random(seed)
    table = QueueTable()
    commands: list[list[Any]] = []
    names = [b"a", b"\xff", b""]
    cut = chance.randrange(60)
    middle: QueueTable | None = None
    for number in range(60):
        queue, exchange, program = chance.choice(names), chance.choice(names), chance.choice(names)
        places = Places(chance.randrange(3), {chance.randrange(3): chance.randrange(100)})
        binding = StoredBinding(exchange, program, chance.random() < 0.5, chance.random() < 0.5, chance.choice((None, places)))
        command = chance.choice((
            table.keep(QueueDetail(queue, chance.choice(("mem", "disk"))), [binding]), table.forget(queue),
            table.bind(queue, binding),
            table.unbind(queue, exchange, program, chance.choice((None, places))), table.drained(queue, exchange, program),
            table.set_checkpoint(queue, "c", chance.choice((None, [(1, 2, 3)]))),
        ))  # fmt: skip
        commands.append(command)
        table.apply(command)
        if number == cut:
            middle = restored(table)
    assert middle is not None
    for command in commands[cut + 1 :]:
        middle.apply(json.loads(json.dumps(command)))
    assert replayed(commands).snapshot() == middle.snapshot() == table.snapshot()
