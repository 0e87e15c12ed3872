"""Protocol Buffers by columns: messages are parsed by the runtime (upb), then each field is taken of all messages at once.

    32-bit int, 64-bit bigint (unsigned 64-bit decimal)    float, double double    bool boolean    string string    bytes binary
    enum string (its name, or its number where it has none)    message struct    repeated array    map map
    google.protobuf.Timestamp timestamp    a message within itself: its bytes

A field that is not set and says so (a message, an optional field) is null; others have their default, as everywhere in Protobuf.
A message that lacks a required field is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from braidmq.base.limits import SCHEMA_ERRORS_MAX
from braidmq.schemas.proto_runtime import runtime
from braidmq.schemas.proto_schema import ProtobufSchema
from braidmq.spark.decode import fitted

_SCALARS: Final = {
    1: pa.float64(), 2: pa.float64(), 3: pa.int64(), 4: pa.decimal128(20, 0), 5: pa.int32(), 6: pa.decimal128(20, 0), 7: pa.int64(),
    8: pa.bool_(), 9: pa.string(), 12: pa.binary(), 13: pa.int64(), 15: pa.int32(), 16: pa.int64(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
_ENUM: Final = 14
_MESSAGE: Final = 11
_FIRST_S: Final = -62_135_596_800
_LAST_S: Final = 253_402_300_799
"""What a Timestamp may be, by its own definition: the years 1 to 9999."""
_TIMESTAMP: Final = "google.protobuf.Timestamp"

Column = Callable[[list[Any]], pa.Array]
"""From values of one field, None for those that are not set, to a column."""


class ProtobufDecoder:
    def __init__(self, definition: bytes) -> None:
        self._schema = ProtobufSchema(definition)
        self._message = runtime("message_factory").GetMessageClass(self._schema.descriptor)
        self._fault: type[Exception] = runtime("message").DecodeError
        self.type, self._column = _message(self._schema.descriptor, ())
        self._requires = _requires(self._schema.descriptor, set())

    def __call__(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        make, fault = self._message.FromString, self._fault
        found: list[Any] = []
        errors: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                found.append(make(value))
            except (fault, TypeError) as error:
                found.append(None)
                errors[row] = "there is no value" if value is None else f"invalid Protobuf message: {error}"
        if self._requires:
            for row, message in enumerate(found):
                if message is not None and not message.IsInitialized():
                    found[row] = None
                    errors[row] = f"missing required field: {', '.join(message.FindInitializationErrors()[:SCHEMA_ERRORS_MAX])}"
        return fitted(found, errors, self._column)


def _requires(descriptor: Any, seen: set[str]) -> bool:
    """Whether a message, or one within it, has fields that must be there: only the second version of the language has."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.is_required or (field.message_type is not None and _requires(field.message_type, seen)) for field in descriptor.fields
    )


def _message(descriptor: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    if descriptor.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC"), _timestamps
    if descriptor.full_name in above:
        return pa.binary(), lambda found: pa.array([None if one is None else one.SerializeToString() for one in found], pa.binary())
    inner = (*above, descriptor.full_name)
    parts = [(field.name, *_field(field, inner)) for field in descriptor.fields]
    kind = pa.struct([(name, each) for name, each, _ in parts])
    empty = not parts

    def column(found: list[Any]) -> pa.Array:
        missing = [one is None for one in found]
        mask = pa.array(missing, pa.bool_()) if any(missing) else None
        if empty:
            return pa.array([None if gone else {} for gone in missing], kind)
        return pa.StructArray.from_arrays([make(found) for _, _, make in parts], fields=list(kind), mask=mask)

    return kind, column


def _field(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map(field, above)
    kind, convert = _one(field, above)
    if _repeated(field):
        return pa.list_(pa.field("element", kind)), _lists(name, kind, convert)
    if field.has_presence:
        return kind, lambda found: convert(
            [getattr(one, name) if one is not None and one.HasField(name) else None for one in found]
        )
    return kind, lambda found: convert([None if one is None else getattr(one, name) for one in found])


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _one(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    if field.type == _MESSAGE:
        return _message(field.message_type, above)
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda found: pa.array(
            [None if one is None else names.get(one, str(one)) for one in found], pa.string()
        )
    kind = _SCALARS[field.type]
    return kind, lambda found: pa.array(found, kind)


def _lists(name: str, kind: pa.DataType, convert: Column) -> Column:
    def column(found: list[Any]) -> pa.Array:
        ends, items = [0], []
        for one in found:
            if one is not None:
                items.extend(getattr(one, name))
            ends.append(len(items))
        whole = pa.list_(pa.field("element", kind))
        return pa.Array.from_buffers(whole, len(found), [None, pa.array(ends, pa.int32()).buffers()[1]], children=[convert(items)])

    return column


def _map(field: Any, above: tuple[str, ...]) -> tuple[pa.DataType, Column]:
    keys, values = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    key_kind, key_column = _one(keys, above)
    value_kind, value_column = _one(values, above)
    name = field.name

    def column(found: list[Any]) -> pa.Array:
        ends, names, items = [0], [], []
        for one in found:
            if one is not None:
                for key, value in getattr(one, name).items():
                    names.append(key)
                    items.append(value)
            ends.append(len(names))
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), key_column(names), value_column(items))

    return pa.map_(key_kind, value_kind), column


def _timestamps(found: list[Any]) -> pa.Array:
    for one in found:
        if one is not None and not (_FIRST_S <= one.seconds <= _LAST_S and 0 <= one.nanos < 1_000_000_000):
            raise ValueError(f"a timestamp of {one.seconds} s and {one.nanos} ns is not between the years 1 and 9999")
    micros = [None if one is None else one.seconds * 1_000_000 + one.nanos // 1000 for one in found]
    return pa.array(micros, pa.timestamp("us", "UTC"))
