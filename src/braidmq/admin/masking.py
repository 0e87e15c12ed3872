"""Fields that only administrators see, in what the API and the console show of records.

A topic lists them (`mask_fields`): names of fields of its JSON at any depth, paths with dots, names of headers, and `$key` for
the key. A value that is no JSON cannot be taken apart and is masked as a whole. Filters see what the caller sees, so nobody finds
out a masked value by guessing. Masking is for people who look; who may not have the values at all gets no right to read the topic.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from braidmq.admin.call import Call
from braidmq.broker.topics import Topic, masked_fields
from braidmq.security.rules import Rule

MASK: Final = "•••"
_KEY: Final = "$key"


@dataclass(frozen=True, slots=True)
class Mask:
    fields: frozenset[str]

    def key(self, key: bytes | None) -> bytes | None:
        return MASK.encode() if key is not None and _KEY in self.fields else key

    def value(self, value: bytes) -> bytes:
        try:
            return json.dumps(self.document(json.loads(value)), ensure_ascii=False).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError):
            return MASK.encode()

    def headers(self, headers: dict[str, str]) -> dict[str, str]:
        return {name: MASK if name in self.fields else text for name, text in headers.items()}

    def document(self, document: Any, path: str = "") -> Any:
        """A document with its fields masked."""
        if isinstance(document, dict):
            return {name: self._field(str(name), part, path) for name, part in document.items()}
        if isinstance(document, (list, tuple)):
            return [self.document(item, path) for item in document]
        return document

    def _field(self, name: str, part: Any, path: str) -> Any:
        inner = f"{path}.{name}" if path else name
        return MASK if name in self.fields or inner in self.fields else self.document(part, inner)


def mask_of(call: Call[Any, Any], topic: Topic | None) -> Mask | None:
    """What the caller must not see of a topic; None where there is nothing of the kind."""
    fields = masked_fields(topic.properties) if topic is not None else []
    return Mask(frozenset(fields)) if fields and not call.may(Rule.ADMIN) else None
