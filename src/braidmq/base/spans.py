"""Offsets of one partition as people write them: `topic:partition:first-end`, the end not included."""

from __future__ import annotations

import re
from typing import Final

from braidmq.base.errors import BraidError

_SPAN: Final = re.compile(r"(?P<topic>.+):(?P<partition>[0-9]{1,9}):(?P<first>[0-9]{1,18})-(?P<end>[0-9]{1,18})")


def read_span(text: str) -> tuple[str, int, int, int]:
    """Topic, partition, first offset, and the one behind the last."""
    found = _SPAN.fullmatch(text)
    if found is None or int(found["first"]) >= int(found["end"]):
        raise BraidError("INVALID_ARGUMENT", reason=f"{text[:200]!r} is not topic:partition:first-end, as orders:0:100-200")
    return found["topic"], int(found["partition"]), int(found["first"]), int(found["end"])
