"""Protocol Buffers: a definition is a .proto file or a compiled descriptor, and messages are really decoded.

The runtime decodes with a depth limit of its own and keeps what it does not understand as unknown fields: numbers the message
does not have, known numbers with another wire type, values a closed enum does not have. Here all of those are errors.

A definition describes the message that a line `// message: Name` in it names, else the first message in the file (of a set of
descriptors: in the last file, which is the one the others are there for).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.proto_compat import ProtoReading
from braidmq.schemas.proto_runtime import runtime
from braidmq.schemas.proto_text import ENUM, MESSAGE, parse_proto
from braidmq.schemas.schema import Schema, fingerprint_of, invalid, unavailable

_FILE_NAME: Final = "definition.proto"
_WELL_KNOWN: Final = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type", "wrappers",
)  # fmt: skip
_LINE_CHARACTERS: Final = b"\t\n\v\f\r"


class ProtobufSchema:
    kind: Final = "protobuf"

    __slots__ = ("_decode_error", "_message", "_unknown", "definition", "descriptor", "fingerprint")

    def __init__(self, definition: bytes) -> None:
        try:
            descriptors = runtime("descriptor_pb2")
            unknown_fields = runtime("unknown_fields")
        except ImportError as missing:
            raise unavailable(self.kind, missing) from missing
        self.definition = definition
        self._decode_error: type[Exception] = runtime("message").DecodeError
        self._unknown: Any = unknown_fields.UnknownFieldSet
        try:
            if _is_text(definition):
                files, chosen = _files_of_text(definition, descriptors)
            else:
                files, chosen = _files_of_descriptor(definition, descriptors, self._decode_error), ""
            pool = runtime("descriptor_pool").DescriptorPool()
            added: set[str] = set()
            for file in files:
                _add(pool, file, added)
            name = chosen or _first_message(files[-1])
            self.descriptor: Any = pool.FindMessageTypeByName(name)
        except BraidError:
            raise
        except RecursionError as error:
            raise invalid(self.kind, "messages nest too deeply") from error
        except KeyError as error:
            raise invalid(self.kind, f"there is no message {error}") from error
        except (TypeError, ValueError) as error:
            raise invalid(self.kind, error) from error
        self._message: Any = runtime("message_factory").GetMessageClass(self.descriptor)
        canonical = b"\0".join([*(file.SerializeToString(deterministic=True) for file in files), name.encode()])
        self.fingerprint = fingerprint_of(self.kind, canonical)

    def check(self, value: bytes) -> list[str]:
        if len(value) > limits.SCHEMA_MESSAGE_BYTES_MAX:
            return [f"invalid Protobuf message: {len(value)} bytes are more than {limits.SCHEMA_MESSAGE_BYTES_MAX}"]
        message = self._message()
        try:
            message.MergeFromString(value)
        except self._decode_error as error:
            return [f"invalid Protobuf message: {error}"]
        if not message.IsInitialized():
            missing = [f"missing required field: {path}" for path in message.FindInitializationErrors()[: limits.SCHEMA_ERRORS_MAX]]
            return missing or ["missing required field"]
        # The runtime finds unknown fields at any depth far faster than a walk through the message: without them it is smaller.
        size = message.ByteSize()
        message.DiscardUnknownFields()
        return [] if message.ByteSize() == size else self._explain(value)

    def decode(self, value: bytes) -> Any:
        message = self._message()
        message.MergeFromString(value)
        return runtime("json_format").MessageToDict(message, preserving_proto_field_name=True)

    def reads(self, writer: Schema) -> list[str]:
        assert isinstance(writer, ProtobufSchema)
        return ProtoReading().faults(self.descriptor, writer.descriptor)

    def _explain(self, value: bytes) -> list[str]:
        if len(value) > limits.SCHEMA_LIGHT_BYTES_MAX:
            return ["unexpected field: somewhere in a large message"]
        message = self._message()
        message.MergeFromString(value)
        return list(itertools.islice(self._unexpected(message, ""), limits.SCHEMA_ERRORS_MAX))

    def _unexpected(self, message: Any, path: str) -> Iterator[str]:
        by_number = message.DESCRIPTOR.fields_by_number
        for unknown in self._unknown(message):
            field = by_number.get(unknown.field_number)
            if field is None:
                yield f"unexpected field: {path}{unknown.field_number}"
            elif field.enum_type is not None and unknown.wire_type == 0:
                yield f"invalid value at {path}{field.name}: the enum has no {unknown.data}"
            else:
                yield f"type mismatch at {path}{field.name}: wire type {unknown.wire_type} does not fit"
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                if field.message_type.fields_by_name["value"].message_type is not None:
                    for key, child in value.items():
                        yield from self._unexpected(child, f"{path}{field.name}[{key}].")
            elif field.is_repeated:
                for number, child in enumerate(value):
                    yield from self._unexpected(child, f"{path}{field.name}[{number}].")
            else:
                yield from self._unexpected(value, f"{path}{field.name}.")


def _is_text(definition: bytes) -> bool:
    """A descriptor always holds control characters (its tags and lengths); a text never does."""
    return not any(byte < 32 and byte not in _LINE_CHARACTERS for byte in set(definition))


def _files_of_text(definition: bytes, descriptors: Any) -> tuple[list[Any], str]:
    file = descriptors.FileDescriptorProto(name=_FILE_NAME)
    parsed = parse_proto(definition.decode(), file)
    known: dict[str, int] = {}
    for dependency in file.dependency:
        imported = descriptors.FileDescriptorProto.FromString(_well_known(dependency).serialized_pb)
        known |= _names(imported)
    known |= _names(file)
    for message, full in parsed.scopes:
        for field in message.field:
            if field.type_name and not field.HasField("type"):
                field.type_name = _resolved(field.type_name, full, known)
                field.type = known[field.type_name[1:]]
    if not file.message_type:
        raise invalid("protobuf", "the file has no message")
    chosen = parsed.chosen
    if chosen and known.get(chosen) != MESSAGE:
        chosen = f"{file.package}.{chosen}"
    return [file], chosen


def _names(file: Any) -> dict[str, int]:
    """Messages and enums of a file by full name, with what a field that names them has for its type."""
    found: dict[str, int] = {}
    pending = [(file.package, file.message_type, file.enum_type)]
    while pending:
        scope, messages, enums = pending.pop()
        prefix = f"{scope}." if scope else ""
        found |= {prefix + enum.name: ENUM for enum in enums}
        for message in messages:
            found[prefix + message.name] = MESSAGE
            pending.append((prefix + message.name, message.nested_type, message.enum_type))
    return found


def _resolved(name: str, scope: str, known: dict[str, int]) -> str:
    """The full name a relative one means: it is looked for in the scope and then in each one around it."""
    if name.startswith("."):
        if name[1:] in known:
            return name
        raise invalid("protobuf", f"unknown type {name}")
    while True:
        candidate = f"{scope}.{name}" if scope else name
        if candidate in known:
            return f".{candidate}"
        if not scope:
            raise invalid("protobuf", f"unknown type {name}")
        scope = scope.rpartition(".")[0]


def _files_of_descriptor(definition: bytes, descriptors: Any, decode_error: type[Exception]) -> list[Any]:
    for shape in (descriptors.FileDescriptorSet, descriptors.FileDescriptorProto):
        try:
            found = shape.FromString(definition)
        except decode_error:
            continue
        files = list(found.file) if shape is descriptors.FileDescriptorSet else [found]
        if files and all(file.name for file in files) and files[-1].message_type:
            return files
    raise invalid("protobuf", "neither a .proto text nor a file descriptor with a message")


def _first_message(file: Any) -> str:
    name = file.message_type[0].name
    return f"{file.package}.{name}" if file.package else str(name)


def _add(pool: Any, file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependency:
        if dependency in added:
            continue
        known = _well_known(dependency)
        _add(pool, _proto_of(known), added)
    pool.AddSerializedFile(file.SerializeToString())


def _proto_of(known: Any) -> Any:
    return runtime("descriptor_pb2").FileDescriptorProto.FromString(known.serialized_pb)


def _well_known(path: str) -> Any:
    name = path.removeprefix("google/protobuf/").removesuffix(".proto")
    if name not in _WELL_KNOWN or path != f"google/protobuf/{name}.proto":
        raise invalid("protobuf", f"import {path!r} is not a well-known type; register a descriptor set that holds it")
    return runtime(f"{name}_pb2").DESCRIPTOR
