"""Schemas: what `braid schema` does."""

from __future__ import annotations

import difflib
import json
from typing import Final, Literal

from braidmq.base.errors import BraidError
from braidmq.wire import flymq

from .asking import Asker

Rule = Literal["reject", "dead-letter"]
BOUND_SCHEMA: Final = "schema"
"""The property of a topic that names the schema its records have to fit."""
BOUND_RULE: Final = "schema_rule"
"""The property that says what happens to one that does not."""


class Schemas:
    """`client.schema`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self, name: str = "") -> list[flymq.SchemaEntry]:
        """All versions of all schemas, or of one."""
        return list((await self._asker.ask(flymq.ListSchemas(name), flymq.Schemas)).schemas)

    async def put(
        self, name: str, definition: bytes, type: str = "json", *, compatibility: str = ""
    ) -> flymq.SchemaRegistered:
        """Register a version: `json`, `avro` or `protobuf`. The same definition again is the same version.

        `compatibility` is `none`, `backward`, `forward`, `full`, or one of these with `_transitive`; empty keeps what there is.
        """
        return await self._asker.ask(flymq.RegisterSchema(name, type, definition, compatibility), flymq.SchemaRegistered)

    async def get(self, name: str, version: int = 0) -> flymq.SchemaDefinition:
        """One version; 0 is the latest."""
        return await self._asker.ask(flymq.GetSchema(name, version), flymq.SchemaDefinition)

    async def check(self, name: str, message: bytes) -> flymq.Validation:
        """Whether a message fits the latest version, and what is wrong with it."""
        return await self._asker.ask(flymq.ValidateSchema(name, message), flymq.Validation)

    async def diff(self, name: str, old: int, new: int = 0) -> str:
        """The lines that differ between two versions, as `diff -u` writes them; empty when none do."""
        first, second = await self.get(name, old), await self.get(name, new)
        before, after = (_lines(version.definition, version.type) for version in (first, second))
        titles = [f"{name} version {version.version}" for version in (first, second)]
        return "".join(difflib.unified_diff(before, after, titles[0], titles[1]))

    async def rm(self, name: str, version: int = 0) -> None:
        """Delete one version; 0 deletes all."""
        await self._asker.ask(flymq.DeleteSchema(name, version), flymq.Ok, again=False)

    async def bind(self, topic: str, schema: str, rule: Rule = "reject") -> dict[str, str]:
        """Have every record of a topic checked, whoever writes it; returns the topic's properties.

        A record that does not fit is refused, or kept as a dead letter. With an empty schema nothing is checked any more.
        """
        if rule not in ("reject", "dead-letter"):
            raise BraidError("INVALID_ARGUMENT", reason=f"rule {rule!r} is neither reject nor dead-letter")
        wanted = ((BOUND_SCHEMA, schema), (BOUND_RULE, rule)) if schema else ((BOUND_SCHEMA, ""),)
        return dict((await self._asker.ask(flymq.TopicConfig(topic, wanted), flymq.TopicProperties)).properties)


def _lines(definition: bytes, kind: str) -> list[str]:
    """A definition as lines that can be compared; JSON is laid out anew, so that only meaning differs."""
    text = definition.decode("utf-8", "replace")
    if kind in ("json", "avro"):
        try:
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return text.splitlines(keepends=True)
    return [line + "\n" for line in text.splitlines()]
