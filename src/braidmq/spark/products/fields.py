"""What JSON values are made of: which fields, of which kinds, how often, and when.

Workers walk the values of a batch and hand on sums a field, a kind and a slice of time; so what goes through Spark is a few rows a
batch, whatever the topic holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

SUMS: Final = "path string, kind string, slice int, count bigint, first_ms bigint, last_ms bigint"
NOT_JSON: Final = "not JSON"
UNDECODED: Final = "does not fit the schema"
_DEPTH_MAX: Final = 4
_ITEMS_MAX: Final = 20
"""Items of an array that are looked at."""
_PATHS_MAX: Final = 2000
"""Fields that are told apart; objects used as maps would have one a record."""
_OTHER_PATHS: Final = "(further fields)"

Sums = dict[tuple[str, str, int], list[int]]


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def kinds_in(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every path of a value with its kind; the root has the empty path, and items of arrays end in `[]`."""
    yield path, kind_of(value)
    if depth == _DEPTH_MAX:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from kinds_in(inner, f"{path}.{name}" if path else str(name), depth + 1)
    elif isinstance(value, list):
        # An array counts each kind of item once: ten numbers are one observation.
        found = dict.fromkeys(pair for item in value[:_ITEMS_MAX] for pair in kinds_in(item, f"{path}[]", depth + 1))
        yield from found


def add_value(sums: Sums, value: bytes | None, decodable: bool, slice_number: int, moment_ms: int) -> None:
    import msgspec

    if not decodable:
        pairs: Iterable[tuple[str, str]] = (("", UNDECODED),)
    else:
        try:
            pairs = kinds_in(msgspec.json.decode(value or b""))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pairs = (("", NOT_JSON),)
    for path, kind in pairs:
        key = (path, kind, slice_number)
        found = sums.get(key)
        if found is None:
            if len(sums) >= _PATHS_MAX and path:
                key = (_OTHER_PATHS, kind, slice_number)
            found = sums.setdefault(key, [0, moment_ms, moment_ms])
        found[0] += 1
        found[1] = min(found[1], moment_ms)
        found[2] = max(found[2], moment_ms)


def sum_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """What `mapInArrow` runs: columns value, decodable, slice and moment_ms to rows of SUMS."""
    import pyarrow as pa

    sums: Sums = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("value", "decodable", "slice", "moment_ms")]
        for value, decodable, slice_number, moment_ms in zip(*columns, strict=True):
            add_value(sums, value, decodable, slice_number, moment_ms)
    rows = [(*key, *found) for key, found in sums.items()]
    kinds = (pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int64())
    names = [column.split()[0] for column in SUMS.split(", ")]
    columns_out = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns_out, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=names)
