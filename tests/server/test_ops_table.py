"""The table of operations is whole: nothing that can be asked lacks a handler or a rule."""

from __future__ import annotations

import pytest

from braidmq.security.rules import OPCODE_PERMISSIONS, Rule
from braidmq.server.operations import OPERATIONS
from braidmq.wire.flymq import Op

ANSWERS = {Op.AUTH_RESPONSE, Op.ERROR}
"""Opcodes that only ever answer."""


@pytest.mark.parametrize("op", sorted(set(Op) - ANSWERS), ids=lambda op: op.name)
def test_every_opcode_has_a_handler_and_a_rule(op: Op) -> None:
    assert op in OPERATIONS
    assert OPCODE_PERMISSIONS[op] is not Rule.ANSWER


def test_answers_are_no_operations() -> None:
    assert not ANSWERS & set(OPERATIONS)
    assert {op for op, rule in OPCODE_PERMISSIONS.items() if rule is Rule.ANSWER} == ANSWERS
