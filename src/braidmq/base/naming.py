"""What every name in the broker has to be, whatever it names: there, not too long, and fit to be shown."""

from __future__ import annotations

import re
from typing import Final

PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A pipeline's name is also part of a path and of a group's name."""
PIPELINE_GROUP_START: Final = "pipeline-"
"""How the group of a pipeline begins that names none; the name of the pipeline follows."""

DEAD_LETTER_ENDING: Final = ".dlq"
"""What the topic of a topic's dead letters is called: its name, and this behind it."""


def name_fault(name: str, bytes_max: int) -> str:
    """Why `name` cannot be a name, or ""."""
    if not name:
        return "empty"
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        return f"{size} bytes are more than {bytes_max}"
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "control characters are not allowed"
    return ""
