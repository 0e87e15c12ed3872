"""Schemas in use: registering and deleting them, and checking messages against them, whichever protocol brings them.

The table (`schema_table.py`) holds definitions; here they are compiled, once, and kept as long as they are used. Compiling and
comparing run beside the loop, and so does checking whatever is large. A small message is checked on the loop: handing it to
a thread would take longer than the check.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.errors import BraidError
from braidmq.broker.schema_table import SchemaTable, SchemaVersion
from braidmq.broker.topics import TopicTable
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.schema import Schema

T = TypeVar("T")
RunBeside = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs something slow beside the loop and gives its result."""


class SchemaRegistry:
    def __init__(
        self, topics: TopicTable, clock: Clock, submit: Callable[[list[Any]], Awaitable[Any]], beside: RunBeside,
        *, compiled_max: int = limits.SCHEMA_COMPILED_MAX,
    ) -> None:
        self.table = SchemaTable()
        self._topics = topics
        self._clock = clock
        self._submit = submit
        self._beside = beside
        self._compiled_max = compiled_max
        self._compiled: OrderedDict[str, Schema] = OrderedDict()
        """By fingerprint, the one used longest ago first."""

    # --- registering and deleting

    async def register(self, name: str, kind: str, definition: bytes, compatibility: str = "") -> SchemaVersion:
        """Add a version, unless it is there; returns it."""
        planned = self.table.plan(name, kind, definition, compatibility, self._clock.now_ms())
        version: SchemaVersion = await self._submit(await self._beside(planned.decide))
        return version

    async def delete(self, name: str, version: int = 0) -> list[SchemaVersion]:
        """Delete one version, or with 0 all of them. The last one of a schema that a topic is bound to stays."""
        command = self.table.delete(name, version)
        if not version or len(self.table.list_versions(name)) == 1:
            for topic in self._topics.all():
                if topic.properties.get("schema") == name:
                    raise BraidError("SCHEMA_IN_USE", name=name, topic=topic.name)
        gone: list[SchemaVersion] = await self._submit(command)
        return gone

    # --- checking

    async def find(self, name: str, number: int = 0) -> Schema | None:
        """A version, with 0 the newest, compiled; None when there is none."""
        version = self.table.find(name, number)
        if version is None:
            return None
        known = self._compiled.get(version.fingerprint)
        if known is None:
            known = await self._beside(partial(compile_schema, version.kind, version.definition))
            self._compiled[version.fingerprint] = known
            while len(self._compiled) > self._compiled_max:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(version.fingerprint)
        return known

    def ready(self, name: str) -> Schema | None:
        """The newest version where it is compiled already."""
        version = self.table.find(name)
        return None if version is None else self._compiled.get(version.fingerprint)

    async def require(self, name: str) -> Schema:
        found = await self.find(name)
        if found is None:
            raise BraidError("SCHEMA_NOT_FOUND", name=name)
        return found

    async def errors(self, schema: Schema, value: bytes) -> list[str]:
        """What is wrong with a message; nothing when it fits."""
        if len(value) <= limits.SCHEMA_LIGHT_BYTES_MAX:
            return schema.check(value)
        found: list[str] = await self._beside(partial(schema.check, value))
        return found

    async def faults(self, schema: Schema, values: Sequence[bytes]) -> dict[int, list[str]]:
        """What is wrong with each of some messages, by their number; those that fit are left out."""
        small = len(values) <= limits.SCHEMA_LOOP_RECORDS_MAX and sum(map(len, values)) <= limits.SCHEMA_LIGHT_BYTES_MAX
        if small:
            return _faults(schema, values)
        found: dict[int, list[str]] = await self._beside(partial(_faults, schema, values))
        return found


def _faults(schema: Schema, values: Sequence[bytes]) -> dict[int, list[str]]:
    return {number: errors for number, value in enumerate(values) if (errors := schema.check(value))}
