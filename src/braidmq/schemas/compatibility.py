"""Which versions of a schema must read which: the modes, as data.

Backward: readers with the new schema read messages of the old one, so readers are changed first. Forward: readers with the old
schema read messages of the new one, so writers are. Full: both. Transitive: not only against the latest version, but all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.schema import Schema


@dataclass(frozen=True, slots=True)
class Mode:
    new_reads_old: bool
    old_reads_new: bool
    all_versions: bool


MODES: Final[dict[str, Mode]] = {
    "none": Mode(False, False, False),
    "backward": Mode(True, False, False),
    "forward": Mode(False, True, False),
    "full": Mode(True, True, False),
    "backward_transitive": Mode(True, False, True),
    "forward_transitive": Mode(False, True, True),
    "full_transitive": Mode(True, True, True),
}
DEFAULT_MODE: Final = "backward"


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise BraidError("INVALID_ARGUMENT", reason=f"compatibility {mode!r} is none of {', '.join(MODES)}")


def incompatibilities(new: Schema, versions: Sequence[tuple[int, Schema]], mode: str) -> list[str]:
    """Why `new` may not follow `versions` (in rising order) under `mode`; nothing when it may."""
    rule = MODES[mode]
    reasons: list[str] = []
    for number, old in reversed(versions[-1:] if not rule.all_versions else versions):
        if not (rule.new_reads_old or rule.old_reads_new):
            break
        if old.kind != new.kind:
            reasons.append(f"version {number} is {old.kind}, not {new.kind}")
            continue
        if rule.new_reads_old:
            reasons += [f"messages of version {number}: {reason}" for reason in new.reads(old)]
        if rule.old_reads_new:
            reasons += [f"readers with version {number}: {reason}" for reason in old.reads(new)]
        if len(reasons) >= limits.SCHEMA_ERRORS_MAX:
            break
    return reasons[: limits.SCHEMA_ERRORS_MAX]
