"""How `braid consume` writes records: text for people, JSON lines for programs, raw bytes for pipes.

text  the value and a newline; with `--show-offset` and `--show-key` in front of it, separated by tabs
json  one object a line. A key or value that is UTF-8 is text, any other stands in `key_base64` or `value_base64`: nothing is lost
raw   the values as they are, nothing between them

With a schema, text is the value as it reads it, as JSON in one line, and JSON has it in `decoded` beside the value; where the value
does not fit, `schema_errors` says why, and text is the value as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.cli.decoding import SchemaReader
    from braidmq.client.models import Record


def formatter(name: str, show_key: bool, show_offset: bool, reader: SchemaReader | None = None) -> Callable[[Record], bytes]:
    """The function that turns a record into the bytes to print."""
    if name == "json":
        return _json if reader is None else lambda record: _json(record, reader)
    if name == "raw":
        return lambda record: record.value

    def value_of(record: Record) -> bytes:
        if reader is None:
            return record.value
        reading = reader.read(record)
        return json.dumps(reading.document, ensure_ascii=False).encode() if reading.read_as else record.value

    if not show_key and not show_offset:
        return lambda record: value_of(record) + b"\n"

    def text(record: Record) -> bytes:
        parts = [b"%d:%d" % (record.partition, record.offset)] if show_offset else []
        if show_key:
            parts.append(b"-" if record.key is None else record.key)
        return b"\t".join([*parts, value_of(record)]) + b"\n"

    return text


def _json(record: Record, reader: SchemaReader | None = None) -> bytes:
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    put_bytes(document, "key", record.key)
    put_bytes(document, "value", record.value)
    if record.attrs:
        headers: dict[str, object] = {}
        for name, value in record.headers.items():
            put_bytes(headers, name, value)
        document["headers"] = headers
    if reader is not None:
        reading = reader.read(record)
        if reading.read_as:
            document |= {"decoded": reading.document, "decoded_as": reading.read_as}
        else:
            document["schema_errors"] = reading.errors
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def put_bytes(document: dict[str, object], name: str, value: bytes | None) -> None:
    """Add bytes to a JSON document: as text where they are UTF-8, else in base64 under a name that says so."""
    if value is None:
        document[name] = None
        return
    try:
        document[name] = value.decode("utf-8")
    except UnicodeDecodeError:
        import base64

        document[f"{name}_base64"] = base64.b64encode(value).decode("ascii")
