"""What is in a topic: counts, sizes, rates, keys, fields, and how they changed.

The records are those between the ends of the partitions at the moment of asking, so all figures speak of the same ones however long
the passes over them take. Sums are made by Spark; what comes to the driver is small.

A field has drifted when it came, went, or changed its kind. Fields that are rare by nature come and go without meaning: a field
counts as new only where, had it been there before as often as after, missing it in all earlier records would be next to
impossible.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.spark.products.fields import SUMS, sum_batches
from braidmq.spark.products.page import Piece, bars, columns, heading, page, paragraph, table
from braidmq.spark.products.times import day_and_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICES: Final = 48
TOP_KEYS: Final = 20
QUANTILES: Final = (0.5, 0.9, 0.99)
_CERTAIN: Final = 9.0
"""Expected sightings before a field's absence means something: exp(-9) is about one in ten thousand."""
_NOTHING_MS: Final = 0


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    partition: int
    records: int
    bytes: int
    first_ms: int
    last_ms: int


@dataclass(slots=True)
class FieldProfile:
    """A field of JSON values."""

    path: str
    kinds: dict[str, int] = field(default_factory=dict)
    slices: dict[int, int] = field(default_factory=dict)
    first_ms: dict[str, int] = field(default_factory=dict)
    last_ms: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.kinds.values())

    @property
    def nulls(self) -> int:
        return self.kinds.get("null", 0)


@dataclass(frozen=True, slots=True)
class Drift:
    path: str
    what: str
    moment_ms: int


@dataclass(slots=True)
class Profile:
    topic: str
    taken_ms: int
    partitions: list[PartitionProfile]
    sizes: dict[str, int]
    """Quantiles of the sizes of values, in bytes."""
    counts: list[int]
    """Records a slice of time."""
    keyless: int
    keys: int
    """Distinct keys, about."""
    top_keys: list[tuple[str, int]]
    values: dict[str, int]
    """What values are: JSON of some kind, or not."""
    fields: list[FieldProfile]
    drifts: list[Drift]

    @property
    def records(self) -> int:
        return sum(part.records for part in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.partitions)

    @property
    def first_ms(self) -> int:
        return min((part.first_ms for part in self.partitions if part.records), default=_NOTHING_MS)

    @property
    def last_ms(self) -> int:
        return max((part.last_ms for part in self.partitions if part.records), default=_NOTHING_MS)

    @property
    def rate(self) -> float:
        """Records a second, over the time that they span."""
        return self.records / max((self.last_ms - self.first_ms) / 1000, 1.0)

    @property
    def peak_rate(self) -> float:
        """Records a second in the busiest slice."""
        return max(self.counts, default=0) / max((self.last_ms - self.first_ms) / 1000 / SLICES, 1.0)

    @property
    def key_skew(self) -> float:
        """How much of the keyed records the most frequent key has; 0 without keys."""
        keyed = self.records - self.keyless
        return self.top_keys[0][1] / keyed if keyed and self.top_keys else 0.0

    @property
    def objects(self) -> int:
        return self.values.get("object", 0)

    def rows(self) -> list[tuple[str, str, str, float]]:
        """All figures as rows (section, name, metric, value), for a table."""
        rows: list[tuple[str, str, str, float]] = [
            ("topic", self.topic, "records", self.records), ("topic", self.topic, "bytes", self.bytes),
            ("topic", self.topic, "records_per_second", self.rate),
            ("topic", self.topic, "peak_records_per_second", self.peak_rate),
            ("topic", self.topic, "keys_about", self.keys), ("topic", self.topic, "keyless", self.keyless),
            ("topic", self.topic, "key_skew", self.key_skew), ("topic", self.topic, "drifts", len(self.drifts)),
        ]  # fmt: skip
        rows += [("size", self.topic, name, value) for name, value in self.sizes.items()]
        rows += [
            ("partition", str(part.partition), metric, value)
            for part in self.partitions
            for metric, value in (("records", part.records), ("bytes", part.bytes))
        ]
        rows += [("key", key, "records", count) for key, count in self.top_keys]
        rows += [("value", kind, "records", count) for kind, count in self.values.items()]
        for found in self.fields:
            rows.append(("field", found.path, "present_share", found.count / self.objects if self.objects else 0.0))
            rows.append(("field", found.path, "null_share", found.nulls / found.count if found.count else 0.0))
            rows += [("field", found.path, f"kind_{kind}", count) for kind, count in found.kinds.items()]
        return rows

    def html(self) -> str:
        """A report that is one file and needs nothing else."""
        summary = f"{self.records:,} records, {self.bytes:,} bytes, {day_and_time(self.first_ms)} to {day_and_time(self.last_ms)}"
        ends = day_and_time(self.first_ms), day_and_time(self.last_ms)
        pieces: list[Piece] = [
            table(
                ("records", "bytes", "records/s", "peak/s", "distinct keys, about", "without key", "share of the top key"),
                [(self.records, self.bytes, self.rate, self.peak_rate, self.keys, self.keyless, self.key_skew)],
            ),
            heading("Over time"), columns("records", self.counts, *ends),
            heading("Partitions"), bars("records by partition", [(str(part.partition), part.records) for part in self.partitions]),
            table(
                ("partition", "records", "bytes", "first", "last"),
                [(p.partition, p.records, p.bytes, day_and_time(p.first_ms), day_and_time(p.last_ms)) for p in self.partitions],
            ),
            heading("Sizes of values"), table(("quantile", "bytes"), self.sizes.items()),
            heading("Keys"),
            bars("records by key", self.top_keys) if self.top_keys else paragraph("No record has a key."),
            heading("Values"), table(("kind", "records"), self.values.items()),
        ]  # fmt: skip
        if self.fields:
            pieces += [heading("Fields"), table(("field", "present", "null", "kinds", "first", "last"), self._field_rows())]
        pieces.append(heading("Schema drift"))
        pieces.append(
            table(("field", "what", "when"), [(each.path, each.what, day_and_time(each.moment_ms)) for each in self.drifts])
            if self.drifts
            else paragraph("No field came, went or changed its kind.")
        )
        return page(f"Profile of {self.topic}", summary, pieces)

    def _field_rows(self) -> list[tuple[object, ...]]:
        return [
            (
                found.path, f"{found.count / max(self.objects, 1):.1%}", f"{found.nulls / max(found.count, 1):.1%}",
                ", ".join(sorted(found.kinds)), day_and_time(min(found.first_ms.values())),
                day_and_time(max(found.last_ms.values())),
            )
            for found in self.fields
        ]  # fmt: skip


def profile(
    spark: SparkSession,
    topic: str,
    options: Mapping[str, str] | None = None,
    *,
    schema: str | None = None,
    since_ms: int | None = None,
) -> Profile:
    """Profile a topic. `options` are those of the data source, such as `servers`; `schema` decodes values that are no JSON."""
    from pyspark.sql import functions as F

    frame = _pinned(spark, topic, dict(options or {}), schema, since_ms)
    moment = F.unix_millis("timestamp")
    size = F.length("value")
    sums = (
        frame.groupBy("partition")
        .agg(
            F.count("*"), F.sum(size + F.coalesce(F.length("key"), F.lit(0))), F.min(moment), F.max(moment),
        )
        .orderBy("partition").collect()
    )  # fmt: skip
    parts = [PartitionProfile(*(int(value or 0) for value in row)) for row in sums]
    first, last = (min(p.first_ms for p in parts), max(p.last_ms for p in parts)) if parts else (0, 0)
    width = max((last - first) / SLICES, 1.0)
    slices = F.least(F.floor((moment - F.lit(first)) / F.lit(width)), F.lit(SLICES - 1)).cast("int")
    counts = [0] * SLICES
    for number, count in frame.groupBy(slices.alias("slice")).count().collect():
        counts[number] = count
    overall = frame.agg(
        F.percentile_approx(size, list(QUANTILES)), F.max(size), F.sum(F.when(F.coalesce(F.length("key"), F.lit(0)) == 0, 1)),
        F.approx_count_distinct(F.when(F.length("key") > 0, F.col("key"))),
    ).first()  # fmt: skip
    assert overall is not None
    quantiles = overall[0] or [0] * len(QUANTILES)
    sizes = {f"p{share * 100:g}": int(value) for share, value in zip(QUANTILES, quantiles, strict=True)} | {"max": overall[1] or 0}
    # No filter: where pushdown is on, Spark would keep it for the queries below.
    keyed = F.when(F.length("key") > 0, F.col("key")).alias("key")
    keys = frame.groupBy(keyed).count().orderBy(F.desc("count"), "key").limit(TOP_KEYS + 1).collect()
    values, fields = _fields(frame, slices, moment, schema is not None)
    return Profile(
        topic, time.time_ns() // 1_000_000, parts, sizes, counts, int(overall[2] or 0), int(overall[3] or 0),
        [(bytes(row[0]).decode("utf-8", "backslashreplace"), row[1]) for row in keys if row[0] is not None][:TOP_KEYS],
        values, fields, find_drift(fields, counts),
    )  # fmt: skip


def _pinned(spark: SparkSession, topic: str, options: dict[str, str], schema: str | None, since_ms: int | None) -> DataFrame:
    """The topic from where it begins, or from a time on, to where it ends now."""
    from braidmq.spark.connecting import client_of
    from braidmq.spark.options import Options

    ends = {part.partition: part.newest for part in client_of(Options(options)).metadata(topic).partitions}
    options |= {"subscribe": json.dumps([topic]), "endingOffsets": json.dumps({topic: ends}), "failOnDataLoss": "false"}
    if since_ms is not None:
        options["startingTimestamp"] = str(since_ms)
    if schema is not None:
        options["schema"] = schema
    return spark.read.format("braid").options(**options).load()


def _fields(frame: DataFrame, slices: Any, moment: Any, decoded: bool) -> tuple[dict[str, int], list[FieldProfile]]:
    """What values are, and what their fields are."""
    from pyspark.sql import functions as F

    value = F.to_json("data", {"ignoreNullFields": "false"}).cast("binary") if decoded else F.col("value")
    decodable = F.col("error").isNull() if decoded else F.lit(True)
    named = frame.select(value.alias("value"), decodable.alias("decodable"), slices.alias("slice"), moment.alias("moment_ms"))
    sums = (
        named.mapInArrow(sum_batches, SUMS)
        .groupBy("path", "kind", "slice")
        .agg(F.sum("count"), F.min("first_ms"), F.max("last_ms"))
        .collect()
    )
    values: dict[str, int] = {}
    fields: dict[str, FieldProfile] = {}
    for path, kind, number, count, first_ms, last_ms in sums:
        if not path:
            values[kind] = values.get(kind, 0) + count
            continue
        found = fields.setdefault(path, FieldProfile(path))
        found.kinds[kind] = found.kinds.get(kind, 0) + count
        found.slices[number] = found.slices.get(number, 0) + count
        found.first_ms[kind] = min(found.first_ms.get(kind, first_ms), first_ms)
        found.last_ms[kind] = max(found.last_ms.get(kind, last_ms), last_ms)
    ordered = sorted(fields.values(), key=lambda each: (-each.count, each.path))
    return dict(sorted(values.items(), key=lambda item: -item[1])), ordered


def find_drift(fields: list[FieldProfile], counts: list[int]) -> list[Drift]:
    """Fields that came, went or changed their kind, in the order of time."""
    found = []
    for each in fields:
        kinds = sorted((kind for kind in each.kinds if kind != "null"), key=lambda kind: each.first_ms[kind])
        begun, ended = min(each.slices), max(each.slices)
        if _surely_missing(sum(counts[:begun]), each.count, sum(counts[begun:])):
            found.append(Drift(each.path, "came", min(each.first_ms.values())))
        if _surely_missing(sum(counts[ended + 1 :]), each.count, sum(counts[: ended + 1])):
            found.append(Drift(each.path, "went", max(each.last_ms.values())))
        for before, after in pairwise(kinds):
            if {before, after} != {"integer", "number"}:
                both = each.last_ms[before] > each.first_ms[after]
                what = f"was {before}, is {after} too" if both else f"{before} became {after}"
                found.append(Drift(each.path, what, each.first_ms[after]))
    return sorted(found, key=lambda drift: (drift.moment_ms, drift.path))


def _surely_missing(records: int, seen: int, among: int) -> bool:
    """Whether a field that `seen` of `among` records have would have shown among so many other records."""
    return bool(among) and records * min(seen / among, 1.0) > _CERTAIN


def write_table(found: Profile, path: str) -> None:
    """Append the figures to a Delta table, one profile below the other."""
    try:
        import pyarrow as pa
        from deltalake import write_deltalake
    except ImportError as fault:
        raise BraidError("SPARK_UNAVAILABLE", package=fault.name) from None
    rows = found.rows()
    taken = pa.array([found.taken_ms] * len(rows), pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    arrays = [pa.array([row[at] for row in rows], pa.string()) for at in range(3)]
    values = pa.array([float(row[3]) for row in rows], pa.float64())
    names = ["taken", "topic", "section", "name", "metric", "value"]
    topics = pa.array([found.topic] * len(rows), pa.string())
    write_deltalake(path, pa.Table.from_arrays([taken, topics, *arrays, values], names=names), mode="append")
