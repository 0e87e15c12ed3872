"""Schemas and their versions. By convention a schema is named after its topic, and whoever may read the one may read the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from braidmq.admin.call import Call, Nothing, PageQuery
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.schema_table import SchemaVersion


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """A version of a schema."""

    name: str
    version: int
    type: str
    schema: Annotated[str, "the definition"]
    created_at: str
    compatibility: str


@dataclass(frozen=True, slots=True)
class NewSchema:
    """A schema to be registered; one that is there gets another version."""

    name: Annotated[str, Bounds(1, limits.SCHEMA_NAME_BYTES_MAX)]
    schema: Annotated[str, "the definition"]
    type: Literal["json", "avro", "protobuf", "proto"] = "json"
    compatibility: Annotated[str, Bounds(0, 64), "empty leaves it as it is, or is `backward` for a new one"] = ""


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """A message to be checked."""

    value: str


@dataclass(frozen=True, slots=True)
class SchemaVerdict:
    """Whether a message fits."""

    valid: bool
    errors: list[str]


def list_schemas(call: Call[PageQuery, Nothing]) -> list[SchemaRow]:
    """The newest version of each schema that the caller may read, by name."""
    newest = {version.name: version for version in call.broker.schemas.table.list_versions()}
    names, cursor = call.page(call.visible(sorted(newest)), lambda name: name, call.query)
    call.link_next(cursor)
    return [_row(call, newest[name]) for name in names]


async def register_schema(call: Call[Nothing, NewSchema]) -> SchemaRow:
    """Register a schema, or another version of it."""
    body = call.body
    made = await call.broker.schemas.register(body.name, body.type, body.schema.encode(), body.compatibility)
    call.note("schema.register", body.name, "register", version=str(made.version), type=made.kind)
    return _row(call, made)


def get_schema(call: Call[Nothing, Nothing]) -> SchemaRow:
    """The newest version of a schema."""
    return _row(call, call.broker.schemas.table.get(call.path["name"]))


async def delete_schema(call: Call[Nothing, Nothing]) -> None:
    """Delete the newest version of a schema."""
    newest = call.broker.schemas.table.get(call.path["name"])
    await _delete(call, newest.version)


def list_schema_versions(call: Call[Nothing, Nothing]) -> list[SchemaRow]:
    """All versions of a schema, the oldest first."""
    versions = call.broker.schemas.table.list_versions(call.path["name"])
    if not versions:
        raise BraidError("SCHEMA_NOT_FOUND", name=call.path["name"])
    return [_row(call, version) for version in versions]


def get_schema_version(call: Call[Nothing, Nothing]) -> SchemaRow:
    """One version of a schema."""
    return _row(call, call.broker.schemas.table.get(call.path["name"], _version(call)))


async def delete_schema_version(call: Call[Nothing, Nothing]) -> None:
    """Delete one version of a schema."""
    await _delete(call, _version(call))


async def validate_message(call: Call[Nothing, SchemaCheck]) -> SchemaVerdict:
    """Check a message against the newest version of a schema."""
    schemas = call.broker.schemas
    errors = await schemas.errors(await schemas.require(call.path["name"]), call.body.value.encode())
    return SchemaVerdict(not errors, list(errors))


async def _delete(call: Call[Nothing, Nothing], version: int) -> None:
    for gone in await call.broker.schemas.delete(call.path["name"], version):
        call.note("schema.delete", gone.name, "delete", version=str(gone.version))


def _version(call: Call[Nothing, Nothing]) -> int:
    text = call.path["version"]
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) == 0:
        raise BraidError("INVALID_ARGUMENT", reason="a version is a number from 1 on")
    return int(text)


def _row(call: Call[Nothing, Nothing] | Call[PageQuery, Nothing] | Call[Nothing, NewSchema], found: SchemaVersion) -> SchemaRow:
    definition = found.definition.decode("utf-8", "replace")
    mode = call.broker.schemas.table.compatibility(found.name)
    return SchemaRow(found.name, found.version, found.kind, definition, rfc3339(found.created_ms), mode)
