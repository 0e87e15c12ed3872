"""What the console's menu shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    path: str
    admin: bool = False
    """Whether only administrators see anything there."""


NAVIGATION: Final[tuple[tuple[str, tuple[Entry, ...]], ...]] = (
    ("", (Entry("Overview", "/console"),)),
    ("Data", (
        Entry("Topics", "/console/topics"),
    )),
)  # fmt: skip
"""Groups of entries, each under its heading."""
