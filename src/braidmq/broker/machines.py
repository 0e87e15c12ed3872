"""Several state machines behind one journal, each addressed by its name.

A command is `[machine, verb, ...]`; the machine sees `[verb, ...]`. What one journal orders, a restart replays in that order: a
topic is there before the ACL that was set after it.

A journal of version 0.1 held the commands and the snapshots of one machine alone. They are still understood: whatever
names no machine is for the first one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from braidmq.broker.journal import StateMachine

TOPICS: Final = "topics"
USERS: Final = "users"
ROLES: Final = "roles"
ACLS: Final = "acls"
SCHEMAS: Final = "schemas"
SUBSCRIBERS: Final = "subscribers"
QUEUES: Final = "queues"
PIPELINES: Final = "pipelines"
METADATA: Final = (TOPICS, USERS, ROLES, ACLS, SCHEMAS, SUBSCRIBERS, QUEUES, PIPELINES)
"""The machines of the metadata journal."""

_STATES: Final = "machines"


class MachineGroup:
    def __init__(self, machines: Mapping[str, StateMachine], passed_over: Collection[str] = ()) -> None:
        """Commands for the names in `passed_over` are none of the caller's business, and lead to nothing."""
        self._machines = dict(machines)
        self._first = next(iter(self._machines.values()))
        self._passed_over = frozenset(passed_over)

    def apply(self, command: list[Any]) -> Any:
        name = command[0]
        machine = self._machines.get(name)
        if machine is not None:
            return machine.apply(command[1:])
        return None if name in self._passed_over else self._first.apply(command)

    def snapshot(self) -> Any:
        return {_STATES: {name: machine.snapshot() for name, machine in self._machines.items()}}

    def restore(self, document: Any) -> None:
        states = document.get(_STATES) if isinstance(document, dict) else None
        if states is None:
            self._first.restore(document)
            return
        for name, machine in self._machines.items():
            # A machine that is newer than the snapshot begins empty.
            if name in states:
                machine.restore(states[name])
