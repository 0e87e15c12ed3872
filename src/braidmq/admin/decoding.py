"""What values of a topic say to the caller: decoded by the schema of the topic, with masked fields masked.

A value that fits no version of the schema is not hidden: the reason stands beside its bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from braidmq.admin.call import Call
from braidmq.admin.masking import Mask, mask_of
from braidmq.base import limits
from braidmq.broker.topics import Topic
from braidmq.schemas.reading import VERSIONS_TRIED, Reading, as_json, read_message, title_of
from braidmq.schemas.schema import Schema

DECODED_BYTES_MAX: Final = 1 * limits.MIB


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads values of a topic; may be used beside the loop."""

    versions: tuple[tuple[str, Schema], ...]
    """The newest first; none where the topic has no schema."""
    mask: Mask | None

    def read(self, value: bytes) -> Reading:
        """By the schema, or as JSON where that is what it is."""
        if len(value) > DECODED_BYTES_MAX:
            return Reading(errors=(f"{len(value)} bytes are more than are decoded here, which is {DECODED_BYTES_MAX}",))
        found = read_message(self.versions, value)
        if not found.read_as:
            try:
                document = json.loads(value)
            except (ValueError, RecursionError):
                return found
            if not isinstance(document, (dict, list)):
                return found
            found = Reading(as_json(document), "JSON", found.errors)
        return found if self.mask is None else Reading(self.mask.document(found.document), found.read_as, found.errors)


async def decoder_of(call: Call[Any, Any], topic: Topic) -> Decoder:
    name = topic.properties.get("schema", "")
    schemas = call.broker.schemas
    versions = []
    for known in reversed(schemas.table.list_versions(name)[-VERSIONS_TRIED:] if name else []):
        compiled = await schemas.find(name, known.version)
        if compiled is not None:
            versions.append((title_of(known.kind, name, known.version), compiled))
    return Decoder(tuple(versions), mask_of(call, topic))
