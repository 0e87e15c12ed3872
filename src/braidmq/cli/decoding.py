"""Values as a schema of the broker's registry reads them, for the commands that print records.

A value that fits no version of the schema is printed as it is, and why it does not fit is said on standard error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.output import printable, warn
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.reading import VERSIONS_TRIED, Reading, read_message, title_of

if TYPE_CHECKING:
    from braidmq.client.models import Record
    from braidmq.client.sync import Client
    from braidmq.schemas.schema import Schema


class SchemaReader:
    def __init__(self, client: Client, name: str) -> None:
        """SCHEMA_NOT_FOUND, or SCHEMA_UNAVAILABLE where the extra is missing, before anything is read."""
        self._client = client
        self._name = name
        numbers = sorted((entry.version for entry in client.schema.ls(name)), reverse=True)
        if not numbers:
            raise BraidError("SCHEMA_NOT_FOUND", name=name)
        self._untried = numbers[:VERSIONS_TRIED]
        self._known: list[tuple[str, Schema]] = []
        next(self._versions())

    def read(self, record: Record) -> Reading:
        found = read_message(self._versions(), record.value)
        if not found.read_as:
            where = f"{printable(record.topic)} {record.partition}:{record.offset}"
            warn(f"{where} does not fit {printable(self._name)}: {printable('; '.join(found.errors))}")
        return found

    def _versions(self) -> Iterator[tuple[str, Schema]]:
        """The newest first; older ones are asked for when a value needs them."""
        yield from self._known
        while self._untried:
            found = self._client.schema.get(self._name, self._untried[0])
            self._known.append((title_of(found.type, self._name, found.version), compile_schema(found.type, found.definition)))
            del self._untried[0]
            yield self._known[-1]
