"""Whether messages of one Protocol Buffers definition can be read with another.

The wire carries numbers and wire types, not names, so those decide. Types that share an encoding and a meaning may be swapped
(int32 for int64, string for bytes); a field the reader does not know is refused unless its number is reserved, because a
message with unknown fields does not pass a check; a field that is required to the reader must be required to the writer.
"""

from __future__ import annotations

from typing import Any, Final

from braidmq.base import limits
from braidmq.schemas.proto_runtime import runtime
from braidmq.schemas.schema import invalid

_TYPE_NAMES: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string", 10: "group",
    11: "message", 12: "bytes", 13: "uint32", 14: "enum", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
_FAMILIES: Final = {
    5: "varint", 3: "varint", 13: "varint", 4: "varint", 8: "varint", 14: "varint", 17: "zigzag", 18: "zigzag", 7: "32 bits",
    15: "32 bits", 6: "64 bits", 16: "64 bits", 9: "bytes", 12: "bytes",
}  # fmt: skip
_PACKABLE: Final = frozenset(_TYPE_NAMES) - {9, 10, 11, 12}


class ProtoReading:
    """One comparison."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def faults(self, reader: Any, writer: Any) -> list[str]:
        try:
            return self._messages(reader, writer, "")[: limits.SCHEMA_ERRORS_MAX]
        except RecursionError as error:
            raise invalid("protobuf", "messages nest too deeply to be compared") from error

    def _messages(self, reader: Any, writer: Any, path: str) -> list[str]:
        pair = reader.full_name, writer.full_name
        if pair in self._seen:
            return []
        self._seen.add(pair)
        known, written = reader.fields_by_number, writer.fields_by_number
        reserved = _reserved(reader)
        faults = []
        for number, old in written.items():
            if number in known:
                faults += self._fields(known[number], old, path)
            elif not any(first <= number < last for first, last in reserved):
                faults.append(f"field {path}{old.name} ({number}) was removed without reserving its number")
        for number, new in known.items():
            if new.is_required and number not in written:
                faults.append(f"field {path}{new.name} ({number}) is required but messages of the other schema do not have it")
        once_reserved = _reserved(writer)
        for number, new in known.items():
            if number not in written and any(first <= number < last for first, last in once_reserved):
                faults.append(f"field {path}{new.name} uses the number {number}, which is reserved")
        return faults

    def _fields(self, reader: Any, writer: Any, path: str) -> list[str]:
        where = f"field {path}{writer.name} ({writer.number})"
        if reader.is_required and not writer.is_required:
            return [f"{where} is now required"]
        if reader.is_repeated != writer.is_repeated and not _one_of_many(reader, writer):
            return [f"{where} changed between one value and many"]
        if reader.type != writer.type:
            family = _FAMILIES.get(reader.type)
            if family is None or family != _FAMILIES.get(writer.type) or (reader.type, writer.type) == (9, 12):
                return [f"{where} changed its type from {_TYPE_NAMES[writer.type]} to {_TYPE_NAMES[reader.type]}"]
        if writer.containing_oneof is None and reader.containing_oneof is not None and len(reader.containing_oneof.fields) > 1:
            return [f"{where} moved into oneof {reader.containing_oneof.name}"]
        if reader.message_type is not None:
            return self._messages(reader.message_type, writer.message_type, f"{path}{writer.name}.")
        if reader.enum_type is not None and reader.enum_type.is_closed:
            if writer.enum_type is None or not writer.enum_type.is_closed:
                return [f"{where} may have values that enum {reader.enum_type.name} does not know"]
            gone = [value.name for value in writer.enum_type.values if value.number not in reader.enum_type.values_by_number]
            return [f"{where}: enum {reader.enum_type.name} no longer has {', '.join(gone[:5])}"] if gone else []
        return []


def _one_of_many(reader: Any, writer: Any) -> bool:
    """A single value may be read as the only one of many, and the last of many as the one; packed numbers may not."""
    many = reader if reader.is_repeated else writer
    return many.type not in _PACKABLE and not (many.message_type is not None and many.message_type.GetOptions().map_entry)


def _reserved(message: Any) -> list[tuple[int, int]]:
    proto = runtime("descriptor_pb2").DescriptorProto()
    message.CopyToProto(proto)
    return [(each.start, each.end) for each in proto.reserved_range]
