"""Schemas: registering, showing and deleting them, checking a message, and producing one that has to fit."""

from __future__ import annotations

from braidmq.base.errors import BraidError
from braidmq.schemas.schema import Schema
from braidmq.server.operations.calling import Answer, Caller, auto_created, note, respond
from braidmq.wire import flymq


async def register_schema(caller: Caller, request: flymq.RegisterSchema) -> Answer:
    version = await caller.broker.schemas.register(request.name, request.type, request.definition, request.compatibility)
    note(caller, "schema.register", request.name, "register", version=str(version.version), type=version.kind)
    return respond(caller, request, flymq.SchemaRegistered(request.name, request.type, version.version))


def get_schema(caller: Caller, request: flymq.GetSchema) -> Answer:
    table = caller.broker.schemas.table
    found = table.get(request.name, request.version)
    return respond(
        caller, request,
        flymq.SchemaDefinition(found.name, found.kind, found.version, found.definition, table.compatibility(found.name)),
    )  # fmt: skip


def list_schemas(caller: Caller, request: flymq.ListSchemas) -> Answer:
    """Those that the caller may read."""
    broker = caller.broker
    versions = broker.schemas.table.list_versions(request.name)
    names = dict.fromkeys(version.name for version in versions)
    shown = set(broker.security.authorizer.visible(caller.principal, names))
    entries = (flymq.SchemaEntry(each.id, each.kind, each.version) for each in versions if each.name in shown)
    return respond(caller, request, flymq.Schemas(tuple(entries)))


async def validate_schema(caller: Caller, request: flymq.ValidateSchema) -> Answer:
    schema = await _named(caller, request.name)
    errors = [] if schema is None else await caller.broker.schemas.errors(schema, request.message)
    return respond(caller, request, flymq.Validation(not errors, tuple(errors)))


async def produce_with_schema(caller: Caller, request: flymq.ProduceWithSchema) -> Answer:
    """The named schema refuses what does not fit; after that the topic's own rules apply."""
    broker = caller.broker
    schema = await _named(caller, request.schema)
    errors = [] if schema is None else await broker.schemas.errors(schema, request.data)
    if errors:
        raise BraidError("SCHEMA_VALIDATION_FAILED", errors=", ".join(errors))
    topic = await auto_created(caller, request.topic)
    stored = await broker.admission.produce(
        topic, request.partition, request.key, request.data, checked="" if schema is None else request.schema
    )
    return respond(
        caller, request,
        flymq.RecordMetadata(
            stored.topic, stored.partition, stored.offset, stored.timestamp, len(request.key) or -1, len(request.data)
        ),
    )  # fmt: skip


async def _named(caller: Caller, name: str) -> Schema | None:
    """The schema that a request names. Published clients count on one that is not there to fit everything."""
    schemas = caller.broker.schemas
    return await (schemas.require(name) if caller.broker.settings.schema_strict else schemas.find(name))


async def delete_schema(caller: Caller, request: flymq.DeleteSchema) -> Answer:
    for gone in await caller.broker.schemas.delete(request.name, request.version):
        note(caller, "schema.delete", request.name, "delete", version=str(gone.version))
    return respond(caller, request, flymq.Ok())
