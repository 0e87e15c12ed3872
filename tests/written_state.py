"""The state of a machine as a snapshot has it on the disk."""

from __future__ import annotations

import json
from typing import Any

from braidmq.base.json_pieces import json_pieces
from braidmq.broker.journal import StateMachine


def written(machine: StateMachine) -> Any:
    return json.loads("".join(json_pieces(machine.snapshot())))
