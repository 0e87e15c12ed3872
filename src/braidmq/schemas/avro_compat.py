"""Whether an Avro reader schema can read what a writer schema wrote: the resolution rules of the Avro specification."""

from __future__ import annotations

from typing import Any, Final

from braidmq.base import limits
from braidmq.schemas.schema import invalid

_PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class AvroReading:
    """One comparison; the named types of both sides are given, because a type may only be named."""

    def __init__(self, reader_named: dict[str, Any], writer_named: dict[str, Any]) -> None:
        self._reader_named = reader_named
        self._writer_named = writer_named
        self._open: set[tuple[str, str]] = set()
        self._done: dict[tuple[str, str], list[str]] = {}
        self._steps = 0

    def faults(self, reader: Any, writer: Any) -> list[str]:
        try:
            return self._compare(reader, writer, "")[: limits.SCHEMA_ERRORS_MAX]
        except RecursionError as error:
            raise invalid("avro", "types nest too deeply to be compared") from error

    def _compare(self, reader: Any, writer: Any, path: str) -> list[str]:
        self._steps += 1
        if self._steps > limits.SCHEMA_EVALUATIONS_MAX:
            raise invalid("avro", "too complex to be compared with another version")
        reader, writer = _resolve(reader, self._reader_named), _resolve(writer, self._writer_named)
        where = path or "$"
        if isinstance(writer, list):
            faults = []
            for branch in writer:
                if self._compare(reader, branch, path):
                    faults.append(f"{where} may be {_name(branch)}, which the reader does not accept")
            return faults
        if isinstance(reader, list):
            if any(not self._compare(branch, writer, path) for branch in reader):
                return []
            return [f"no branch of the reader's union at {where} accepts {_name(writer)}"]
        read, written = reader["type"], writer["type"]
        if read != written:
            if read in _PROMOTIONS.get(written, ()):
                return []
            return [f"type of {where} changed: {_name(writer)} cannot be read as {_name(reader)}"]
        if read in ("record", "error", "enum", "fixed"):
            return self._named(reader, writer, path)
        if read == "array":
            return self._compare(reader["items"], writer["items"], f"{path}[]")
        if read == "map":
            return self._compare(reader["values"], writer["values"], f"{path}{{}}")
        return _decimals(reader, writer, where)

    def _named(self, reader: Any, writer: Any, path: str) -> list[str]:
        where = path or "$"
        names = {_short(reader["name"]), *(_short(alias) for alias in reader.get("aliases", ()))}
        if _short(writer["name"]) not in names:
            return [f"type of {where} is named {reader['name']}, was {writer['name']}"]
        pair = reader["name"], writer["name"]
        if pair in self._open:
            return []
        if pair not in self._done:
            self._open.add(pair)
            known = len(self._done)
            if reader["type"] == "fixed":
                faults = _decimals(reader, writer, where)
                if reader["size"] != writer["size"]:
                    faults.append(f"size of {where} changed from {writer['size']} to {reader['size']}")
            elif reader["type"] == "enum":
                faults = _enum(reader, writer, where)
            else:
                faults = self._record(reader, writer, path)
            self._open.discard(pair)
            while faults and len(self._done) > known:
                # Found while this pair was taken to read, which it does not.
                self._done.popitem()
            self._done[pair] = faults
        return self._done[pair]

    def _record(self, reader: Any, writer: Any, path: str) -> list[str]:
        written = {field["name"]: field for field in writer["fields"]}
        faults = []
        for field in reader["fields"]:
            inner = f"{path}.{field['name']}" if path else field["name"]
            source = next((written[name] for name in (field["name"], *field.get("aliases", ())) if name in written), None)
            if source is not None:
                faults += self._compare(field["type"], source["type"], inner)
            elif "default" not in field:
                faults.append(f"field {inner} has no default and is not in what was written")
        return faults


def _resolve(schema: Any, named: dict[str, Any]) -> Any:
    """A type as a dictionary, or as a list where it is a union."""
    while not isinstance(schema, list):
        if isinstance(schema, str):
            if schema not in named:
                return {"type": schema}
            schema = named[schema]
        elif isinstance(schema["type"], str):
            return named.get(schema["type"], schema)
        else:
            schema = schema["type"]
    return schema


def _enum(reader: Any, writer: Any, where: str) -> list[str]:
    gone = [symbol for symbol in writer["symbols"] if symbol not in set(reader["symbols"])]
    if not gone or "default" in reader:
        return []
    return [f"enum {where} no longer has {', '.join(gone[:5])} and has no default"]


def _decimals(reader: Any, writer: Any, where: str) -> list[str]:
    if "decimal" not in (reader.get("logicalType"), writer.get("logicalType")):
        return []
    alike = reader.get("logicalType") == writer.get("logicalType") and reader.get("scale", 0) == writer.get("scale", 0)
    if alike and reader["precision"] >= writer["precision"]:
        return []
    return [f"decimal of {where} changed its scale or lost precision"]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _name(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return "a union" if isinstance(schema, list) else str(schema.get("name", schema["type"]))
