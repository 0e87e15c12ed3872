"""Schemas, 10 to 15: versions of a definition under a name, and producing against one.

PRODUCE_WITH_SCHEMA is published in two orders that nothing but the payload's length tells apart, and a third form is our own; see
`_ProduceWithSchema`. For the others the layouts are the same in both dialects.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Final

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.answers import OK, RECORD_METADATA
from braidmq.wire.flymq.dialect import Dialect
from braidmq.wire.flymq.layout import (
    BOOL,
    BYTES,
    I32,
    STR,
    STR8,
    TRAILING_STR,
    U32,
    Extended,
    Layout,
    Many,
    Sink,
    Source,
    WireType,
)
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.shape import shape


@shape
class RegisterSchema:
    """Add a version."""

    op: ClassVar[Op] = Op.REGISTER_SCHEMA
    name: str
    type: str
    definition: bytes
    compatibility: str = ""
    """Our own addition; empty leaves it as it is, which for a new name is `backward`."""


@shape
class GetSchema:
    op: ClassVar[Op] = Op.GET_SCHEMA
    name: str
    version: int = 0
    """0 means the latest."""


@shape
class ListSchemas:
    op: ClassVar[Op] = Op.LIST_SCHEMAS
    name: str = ""
    """Empty means all."""


@shape
class ValidateSchema:
    """Check a message without producing it."""

    op: ClassVar[Op] = Op.VALIDATE_SCHEMA
    name: str
    message: bytes


class SchemaOrder(Enum):
    """In which form PRODUCE_WITH_SCHEMA came or goes."""

    KEYED = "keyed"
    """Our own: schema, data, key, partition."""
    SCHEMA_FIRST = "schema first"
    """What the published Go client sends: schema, data."""
    DATA_FIRST = "data first"
    """What the published Python and Java clients send: data, schema."""


@shape
class ProduceWithSchema:
    """Append one record if it is valid. Key and partition are as in PRODUCE, and travel only in our own form."""

    op: ClassVar[Op] = Op.PRODUCE_WITH_SCHEMA
    topic: str
    schema: str
    data: bytes
    key: bytes = b""
    partition: int = -1
    order: SchemaOrder = SchemaOrder.KEYED


@shape
class DeleteSchema:
    op: ClassVar[Op] = Op.DELETE_SCHEMA
    name: str
    version: int
    """0 means all."""


SchemaRequest = RegisterSchema | GetSchema | ListSchemas | ValidateSchema | ProduceWithSchema | DeleteSchema


@shape
class SchemaRegistered:
    name: str
    type: str
    version: int


@shape
class SchemaDefinition:
    name: str
    type: str
    version: int
    definition: bytes = b""
    compatibility: str = ""


@shape
class SchemaEntry:
    id: str
    """`<name>-v<version>`, as published clients show it."""
    type: str
    version: int


@shape
class Schemas:
    schemas: tuple[SchemaEntry, ...]


@shape
class Validation:
    valid: bool
    errors: tuple[str, ...] = ()


SchemaResponse = SchemaRegistered | SchemaDefinition | Schemas | Validation


class _ProduceWithSchema:
    """PRODUCE_WITH_SCHEMA, whose form shows in its length: what each form announces has to reach exactly to the end.

        schema first   str topic, str schema, bytes data
        data first     str topic, bytes data, str schema
        keyed          str topic, str schema, bytes data, bytes key, i32 partition

    Where both published orders fit, it is schema first unless that schema has no name. A request that fits only one of them shows a
    published client. Ours is neither, so that a documented connection can send it and stays what it is.
    """

    size_min = 8
    _FORMS: Final[dict[SchemaOrder, Layout[ProduceWithSchema]]] = {
        SchemaOrder.SCHEMA_FIRST: Layout(ProduceWithSchema, topic=STR, schema=STR, data=BYTES),
        SchemaOrder.DATA_FIRST: Layout(ProduceWithSchema, topic=STR, data=BYTES, schema=STR),
        SchemaOrder.KEYED: Layout(ProduceWithSchema, topic=STR, schema=STR, data=BYTES, key=BYTES, partition=I32),
    }

    def read(self, source: Source) -> ProduceWithSchema:
        topic = STR.read(source)
        data, start, end = source.data, source.position, source.end
        named = start + 2 <= end and int.from_bytes(data[start : start + 2], "big") > 0
        after = _skip(data, _skip(data, start, 2, end), 4, end)
        schema_first = after == end
        keyed = _skip(data, after, 4, end) == end - 4
        data_first = _skip(data, _skip(data, start, 4, end), 2, end) == end
        if schema_first and (named or not data_first):
            order = SchemaOrder.SCHEMA_FIRST
        elif keyed and (named or not data_first):
            order = SchemaOrder.KEYED
        elif data_first:
            order = SchemaOrder.DATA_FIRST
        else:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"the {end - start} bytes after the topic fit no order of schema and data")
        if order is not SchemaOrder.KEYED and schema_first != data_first:
            source.dialect = Dialect.V126
        if order is SchemaOrder.DATA_FIRST:
            body = BYTES.read(source)
            return ProduceWithSchema(topic, STR.read(source), body, order=order)
        schema = STR.read(source)
        body = BYTES.read(source)
        if order is SchemaOrder.SCHEMA_FIRST:
            return ProduceWithSchema(topic, schema, body, order=order)
        key = BYTES.read(source)
        return ProduceWithSchema(topic, schema, body, key, I32.read(source))

    def write(self, sink: Sink, value: ProduceWithSchema, name: str) -> None:
        if value.order is not SchemaOrder.KEYED and (value.key or value.partition != -1):
            raise BraidError("INVALID_ARGUMENT", reason=f"no key or partition in {value.order.value} order")
        self._FORMS[value.order].write(sink, value)


def _skip(data: bytes | memoryview, start: int, prefix: int, end: int) -> int:
    """Where the field ends that begins at `start` with a length of `prefix` bytes; past `end` if it does not fit."""
    if start + prefix > end:
        return end + 1
    return start + prefix + int.from_bytes(data[start : start + prefix], "big")


class _SchemaDefinition:
    """GET_SCHEMA's answer: a list of one entry, which is all that published clients read, then what they do not ask for."""

    size_min = 4
    _ENTRY: Final = Layout(SchemaRegistered, name=STR, type=STR8, version=U32)

    def read(self, source: Source) -> SchemaDefinition:
        count = U32.read(source)
        if count != 1:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"{count} schemas where one was asked for")
        entry = self._ENTRY.read(source)
        if not source.left:
            return SchemaDefinition(entry.name, entry.type, entry.version)
        definition = BYTES.read(source)
        return SchemaDefinition(entry.name, entry.type, entry.version, definition, STR8.read(source))

    def write(self, sink: Sink, value: SchemaDefinition, name: str) -> None:
        U32.write(sink, 1, "count")
        self._ENTRY.write(sink, SchemaRegistered(value.name, value.type, value.version))
        BYTES.write(sink, value.definition, "definition")
        STR8.write(sink, value.compatibility, "compatibility")


REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.REGISTER_SCHEMA: Extended(RegisterSchema, {"compatibility": STR8}, name=STR, type=STR8, definition=BYTES),
    Op.GET_SCHEMA: Layout(GetSchema, name=STR, version=U32),
    Op.LIST_SCHEMAS: Layout(ListSchemas, name=TRAILING_STR),
    Op.VALIDATE_SCHEMA: Layout(ValidateSchema, name=STR, message=BYTES),
    Op.PRODUCE_WITH_SCHEMA: _ProduceWithSchema(),
    Op.DELETE_SCHEMA: Layout(DeleteSchema, name=STR, version=U32),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.REGISTER_SCHEMA: Layout(SchemaRegistered, name=STR, type=STR8, version=U32),
    Op.GET_SCHEMA: _SchemaDefinition(),
    Op.LIST_SCHEMAS: Layout(Schemas, schemas=Many(Layout(SchemaEntry, id=STR, type=STR8, version=U32))),
    Op.VALIDATE_SCHEMA: Layout(Validation, valid=BOOL, errors=Many(STR)),
    Op.PRODUCE_WITH_SCHEMA: RECORD_METADATA,
    Op.DELETE_SCHEMA: OK,
}
