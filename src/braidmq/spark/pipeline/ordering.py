"""Which of two rows with the same key is the later one. Sinks that keep one row a key decide by it, in a batch and in a replay.

Records of one partition follow each other by their offsets. Their times do not say so: clocks jump, and another node may come to
lead. Records of different partitions have no order but their time. So rows need the columns `partition`, `offset` and `timestamp`,
and `topic` where several are read, or columns that the definition names in `order_by`, such as a version of their own; between
rows that are equal in these the place of their records decides, where rows have it. Where nothing decides between two different
rows there is no right one, and the batch fails.

Rows behind a window or a `deduplicate` without an end may have each key only once: then there is nothing to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.definition import (
    Decode,
    Deduplicate,
    Mask,
    Pipeline,
    PostgresSink,
    Source,
    TableSink,
    TopicSink,
    Validate,
    Window,
)
from braidmq.spark.pipeline.sections import Section

PLACE: Final = ("partition", "offset", "timestamp")
"""Columns that say where a record stands among others of its topic."""

Named = Callable[[str], str]
"""A column of one of two rows, as SQL."""


@dataclass(frozen=True, slots=True)
class Order:
    keys: tuple[str, ...]
    by: tuple[str, ...] = ()
    """Columns that the definition names."""
    topics: int = 1
    """How many topics rows come from."""
    unique: bool = False
    """Whether no key comes twice."""

    def has_place(self, columns: Sequence[str]) -> bool:
        """Whether rows with these columns say which record they come from."""
        return all(name in columns for name in ("partition", "offset", *(("topic",) if self.topics > 1 else ())))

    def lacking(self, columns: Sequence[str]) -> str:
        """Why rows with these columns have no order; empty when they have."""
        missing = [name for name in self.by if name not in columns]
        if missing:
            return f"there is no column {', '.join(missing)}, which `order_by` names"
        if self.by or self.unique or (self.has_place(columns) and "timestamp" in columns):
            return ""
        return (
            f"nothing says which of two rows with the same {', '.join(self.keys)} is the later one: keep the columns "
            f"{', '.join(self.needed)}, or name others in `order_by`"
        )

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that give rows an order, without `order_by`."""
        return ("topic", *PLACE) if self.topics > 1 else PLACE

    def require(self, columns: Sequence[str], label: str) -> None:
        reason = self.lacking(columns)
        if reason:
            raise BraidError("INVALID_ARGUMENT", reason=f"{label}: {reason}")

    def refuses(self, columns: Sequence[str], label: str) -> str:
        """Why a replay could put old rows over new ones here; empty when it cannot."""
        reason = self.lacking(columns)
        if not reason and not self.has_place(columns):
            wanted = ", ".join(name for name in self.needed if name != "timestamp")
            reason = f"rows do not have {wanted}, so a record cannot be told from a later one with the same key"
        return f"{label}: {reason}" if reason else ""

    def later(self, columns: Sequence[str], first: Named, second: Named) -> str:
        """Whether the first of two rows is later than the second, as SQL that is NULL where a column is."""
        place = self._place(columns) if self.has_place(columns) else []
        parts = list(place)
        same = " AND ".join(f"{first(name)} = {second(name)}" for name in parts)
        found = ""
        if place:
            across = [*(["timestamp"] if "timestamp" in columns else []), *place]
            found = f"({same} AND {first('offset')} > {second('offset')}) OR (NOT ({same}) AND ({_lexical(across, first, second)}))"
        return _lexical(self.by, first, second, found) if self.by else found

    def is_later(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
        """The same for two rows that are here."""
        if any(first[name] is None for name in first):
            return False
        for name in self.by:
            if first[name] != second[name]:
                return bool(first[name] > second[name])
        columns = list(first)
        if not self.has_place(columns):
            return False
        place = self._place(columns)
        if all(first[name] == second[name] for name in place):
            return bool(first["offset"] > second["offset"])
        across = [*(["timestamp"] if "timestamp" in columns else []), *place]
        return [first[name] for name in across] > [second[name] for name in across]

    def columns(self, columns: Sequence[str]) -> list[str]:
        """Those of the columns that decide."""
        place = [name for name in ("topic", *PLACE) if name in columns] if self.has_place(columns) else []
        return list(dict.fromkeys((*self.by, *place)))

    def stages(self, columns: Sequence[str]) -> list[tuple[list[str], list[str]]]:
        """How to come to the latest row of a key: columns within which to choose besides the key, and those that are highest."""
        found: list[tuple[list[str], list[str]]] = [([], list(self.by))] if self.by else []
        if self.has_place(columns):
            place = self._place(columns)
            across = [*(["timestamp"] if "timestamp" in columns else []), *place]
            found += [(place, ["offset"]), ([], across)]
        return found

    def _place(self, columns: Sequence[str]) -> list[str]:
        """The columns that name a partition."""
        return [name for name in ("topic", "partition") if name in columns]


def _lexical(names: Sequence[str], first: Named, second: Named, last: str = "") -> str:
    """Whether the first row is higher: by the first column in which they differ, else as `last` says."""
    found = last or "FALSE"
    for name in reversed(names):
        found = f"{first(name)} > {second(name)} OR ({first(name)} = {second(name)} AND ({found}))"
    return found


def order_of(wanted: Section, pipeline: Pipeline) -> Order | None:
    """The order of rows in a sink; None where it keeps all of them."""
    match wanted:
        case TableSink() | PostgresSink() if wanted.key:
            keys = tuple(wanted.key)
        case TopicSink(latest=True) if wanted.key is not None:
            keys = (wanted.key,)
        case _:
            return None
    assert isinstance(pipeline.source, Source)
    return Order(keys, tuple(wanted.order_by), len(pipeline.source.topics or ("",)), _comes_once(pipeline, keys))


def _comes_once(pipeline: Pipeline, keys: Sequence[str]) -> bool:
    """Whether the steps see to it that no two rows have the same key, in the whole life of the pipeline."""
    for step in reversed(pipeline.steps):
        match step:
            case Window():
                return set(step.group_by) <= set(keys) and not {"window_start", "window_end"}.isdisjoint(keys)
            case Deduplicate(within=None):
                return set(step.keys) <= set(keys)
            case Mask() if {name.partition(".")[0] for name in step.columns} & set(keys):
                return False
            case Validate() | Decode() | Mask():
                continue
            case _:
                return False
    return False
