"""What brokers tell each other besides records: a JSON document, and bytes behind it where there are any.

    u32 length of the document | the document | the rest

These are calls that happen now and then; what carries every record (`replication/`) has layouts of its own.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError

_LENGTH: Final = struct.Struct(">I")


def pack(document: Any, *rest: Buffer) -> list[Buffer]:
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return [_LENGTH.pack(len(body)) + body, *rest]


def unpack(payload: Buffer) -> tuple[Any, memoryview]:
    """The document, and what is behind it."""
    view = memoryview(payload)
    if len(view) < _LENGTH.size:
        raise BraidError("INVALID_ARGUMENT", reason="a message between nodes is cut off")
    (length,) = _LENGTH.unpack_from(view)
    body = view[_LENGTH.size : _LENGTH.size + length]
    if len(body) < length:
        raise BraidError("INVALID_ARGUMENT", reason="a message between nodes is cut off")
    try:
        return json.loads(bytes(body).decode("utf-8", "surrogatepass")), view[_LENGTH.size + length :]
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"a message between nodes is no JSON: {fault}") from fault
