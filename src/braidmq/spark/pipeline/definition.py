"""A pipeline as data: where rows come from, what happens to them, where they go, and when.

The same classes are what YAML is read into and what a Python program writes:

    Pipeline(
        name="orders",
        source=Source(topics=["orders"], schema="order", starting="earliest"),
        steps=[Validate(), Sql("SELECT data.*, timestamp FROM input"), Deduplicate(["order_id"], within="1 hour")],
        sinks=[TableSink("lake/orders"), TopicSink("orders.clean", key="order_id")],
        trigger=Trigger(every="10 seconds"),
    )

A field that does not fit raises `Fault`, which says where. What only several fields together show is found by `checking.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from braidmq.spark.pipeline.kinds import Choice, Count, Duration, Flag, Many, Moment, Name, Pairs, Size, Start, Text
from braidmq.spark.pipeline.sections import Inner, OneOf, Section, field_of

ON_FAIL: Final = ("dead-letter", "drop", "fail")
TABLE_FORMATS: Final = ("delta", "iceberg", "parquet")
FILE_FORMATS: Final = ("json", "csv", "parquet")

_COLUMNS: Final = Many(Text())


# --- where rows come from


@dataclass(frozen=True)
class Source(Section):
    """Where rows come from: topics, a table, or files that arrive in a folder."""

    topics: Sequence[str] | None = field_of(Many(Text()), "topics to read, of any protocol", None)
    table: str | None = field_of(Text(), "path (delta, parquet) or name (iceberg) of a table, whose new rows are followed", None)
    files: str | None = field_of(Text(), "folder or pattern of files", None)
    format: str | None = field_of(
        Choice("delta", "iceberg", "parquet", "json", "csv"), "form of the table [`delta`] or of the files [`json`]", None
    )
    schema: str | None = field_of(
        Text(), "topics: name in the schema registry, decodes `value` into `data`; files: columns as SQL declares them", None
    )
    starting: str | Mapping[str, Any] = field_of(
        Start(), "topics, delta, iceberg: where the first run begins; for tables `earliest` (all they hold) or `latest`", "earliest"
    )
    since: int | str | None = field_of(Moment(), "topics: begin at this time on the first run", None)
    group: str | None = field_of(Text(), "topics: consumer group that shows position and lag [`pipeline-` and the name]", None)
    max_records: int | None = field_of(
        Count(), "topics: most records in one batch; delta, iceberg: about so many rows, by whole files", None
    )
    max_bytes: int | str | None = field_of(
        Size(), "topics: about how many stored bytes one batch reads [what is about 256MiB when it is read]", None
    )
    catalog: Mapping[str, str] = field_of(Pairs(Text(), 0), "iceberg: properties of the catalog, with `uri`", {})
    skip_changes: bool = field_of(
        Flag(), "delta, iceberg: pass over versions that change or remove rows, instead of failing at them", False
    )
    options: Mapping[str, str] = field_of(Pairs(Text(), 0), "further options of the reader, as Spark takes them", {})


# --- what happens to them


@dataclass(frozen=True)
class Decode(Section):
    """Decode bytes by a schema of the registry."""

    short: ClassVar[str] = "schema"
    schema: str = field_of(Text(), "name in the schema registry")
    column: str = field_of(Text(), "column that holds the bytes", "value")
    into: str = field_of(Text(), "column for the decoded struct; what could not be decoded says why in `error`", "data")


@dataclass(frozen=True)
class Expectation(Section):
    """Something that has to be true of every row."""

    name: str = field_of(Name(), "its name, which is the reason of the dead letter")
    sql: str = field_of(Text(), "SQL condition; a row where it is not true has failed")
    on_fail: str = field_of(Choice(*ON_FAIL), "what happens to a row that failed", "dead-letter")


@dataclass(frozen=True)
class Validate(Section):
    """Check rows against their schema and against expectations."""

    schema: str = field_of(Choice(*ON_FAIL), "what happens to a row that does not fit its schema", "dead-letter")
    expect: Sequence[Expectation | Mapping[str, Any]] = field_of(Many(Inner(Expectation), 0), "expectations, in order", ())


@dataclass(frozen=True)
class Sql(Section):
    """Transform with a query; the rows before it are the view `input`."""

    short: ClassVar[str] = "query"
    query: str = field_of(Text(), "SELECT over `input`")
    per_batch: bool = field_of(Flag(), "the query groups, counts or cuts the rows of each batch alone, and that is meant", False)


@dataclass(frozen=True)
class PythonStep(Section):
    """Transform with a function that takes a DataFrame and returns one."""

    short: ClassVar[str] = "function"
    function: str = field_of(Text(), "`module:function`, or `file.py:function` beside the definition")
    arguments: Mapping[str, str] = field_of(Pairs(Text(), 0), "keyword arguments for it", {})


@dataclass(frozen=True)
class Deduplicate(Section):
    """Keep the first row of each key."""

    short: ClassVar[str] = "keys"
    keys: Sequence[str] | str = field_of(_COLUMNS, "columns that tell rows apart")
    within: int | str | None = field_of(Duration(), "how far apart duplicates may come; without it keys are kept for ever", None)
    time: str = field_of(Text(), "column with the time of a row", "timestamp")


@dataclass(frozen=True)
class Window(Section):
    """Aggregate over windows of time."""

    size: int | str = field_of(Duration(), "length of a window")
    aggregates: Mapping[str, str] = field_of(Pairs(Text()), "columns to make, each from an SQL aggregate as `sum(amount)`")
    time: str = field_of(Text(), "column with the time of a row", "timestamp")
    slide: int | str | None = field_of(Duration(), "how far apart windows begin [as long as they are]", None)
    group_by: Sequence[str] | str = field_of(Many(Text(), 0), "columns to group by besides", ())
    late: int | str = field_of(Duration(), "how late a row may come and still be counted", "1 minute")


@dataclass(frozen=True)
class Join(Section):
    """Join with a table, or with another stream of topics."""

    on: Sequence[str] | str = field_of(_COLUMNS, "columns of the same name on both sides")
    table: str | None = field_of(Text(), "path (delta, parquet, json, csv) or name (iceberg) of a table", None)
    format: str = field_of(Choice("delta", "iceberg", "parquet", "json", "csv"), "form of the table", "delta")
    topic: str | None = field_of(Text(), "topic to join with, as a stream", None)
    schema: str | None = field_of(Text(), "topic: name in the schema registry; the fields of `data` become columns", None)
    how: str = field_of(Choice("inner", "left"), "whether rows without a partner stay", "inner")
    within: int | str | None = field_of(Duration(), "topic: how far apart in time partners may be", None)
    catalog: Mapping[str, str] = field_of(Pairs(Text(), 0), "iceberg: properties of the catalog, with `uri`", {})


@dataclass(frozen=True)
class Mask(Section):
    """Hide fields that not everybody may see."""

    columns: Sequence[str] | str = field_of(_COLUMNS, "columns, also inside structs as `data.email`")
    how: str = field_of(Choice("hash", "redact", "null", "last4"), "SHA-256, `***`, nothing, or the last four characters", "hash")
    salt: str | None = field_of(Text(), "hash: goes in front of each value; keep it in the environment as `${NAME}`", None)


STEPS: Final[dict[str, type[Section]]] = {
    "decode": Decode, "validate": Validate, "sql": Sql, "python": PythonStep, "deduplicate": Deduplicate, "window": Window,
    "join": Join, "mask": Mask,
}  # fmt: skip


# --- where they go


@dataclass(frozen=True)
class TableSink(Section):
    """A table: Delta unless another format is asked for."""

    short: ClassVar[str] = "path"
    path: str = field_of(Text(), "path (delta, parquet) or name (iceberg)")
    format: str = field_of(Choice(*TABLE_FORMATS), "form of the table", "delta")
    partition_by: Sequence[str] | str = field_of(
        Many(Text(), 0), "columns; `day`, `hour` and `month` are made from `timestamp` where they are missing", ()
    )
    key: Sequence[str] | str = field_of(
        Many(Text(), 0), "delta, iceberg: columns that name a row; a row replaces the one before", ()
    )
    delete_when: str | None = field_of(
        Text(), "delta, with `key`: SQL condition; a row where it is true deletes the one with its key instead", None
    )
    compact_every: int | None = field_of(Count(2), "delta: join small files after so many batches", None)
    catalog: Mapping[str, str] = field_of(Pairs(Text(), 0), "iceberg: properties of the catalog, with `uri`", {})
    order_by: Sequence[str] | str = field_of(
        Many(Text(), 0), "delta, iceberg, with `key`: columns that say which of two rows is later [the place of their records]", ()
    )


@dataclass(frozen=True)
class TopicSink(Section):
    """A topic, exactly once."""

    short: ClassVar[str] = "name"
    name: str = field_of(Text(), "topic to write to")
    key: str | None = field_of(Text(), "column that becomes the key", None)
    value: str | None = field_of(Text(), "column that becomes the value [all columns as a JSON object]", None)
    headers: str | None = field_of(Text(), "column that becomes the headers, an array of key and value", None)
    latest: bool = field_of(Flag(), "of the rows of a batch with the same `key` only the last", False)
    servers: str | None = field_of(Text(), "another broker [the pipeline's]", None)
    order_by: Sequence[str] | str = field_of(
        Many(Text(), 0), "with `latest`: columns that say which of two rows is later [the place of their records]", ()
    )
    options: Mapping[str, str] = field_of(
        Pairs(Text(), 0), "how to reach it: options of the data source; take passwords from the environment as `${NAME}`", {}
    )


@dataclass(frozen=True)
class MirrorSink(Section):
    """The same topics of another broker, with records as they are: partition, key, value, headers and order."""

    short: ClassVar[str] = "servers"
    servers: str = field_of(Text(), "the other broker, as host:port")
    prefix: str | None = field_of(Text(), "goes before the names of topics there", None)
    options: Mapping[str, str] = field_of(
        Pairs(Text(), 0), "how to reach it: options of the data source; take passwords from the environment as `${NAME}`", {}
    )


@dataclass(frozen=True)
class PostgresSink(Section):
    """A table of PostgreSQL, exactly once."""

    dsn: str = field_of(Text(), "connection string; take the password from the environment as `${NAME}`")
    table: str = field_of(Text(), "table, also as `schema.table`; it is created when it is missing")
    key: Sequence[str] | str = field_of(Many(Text(), 0), "columns that name a row; a row replaces the one before", ())
    order_by: Sequence[str] | str = field_of(
        Many(Text(), 0), "with `key`: columns that say which of two rows is later [the place of their records]", ()
    )


@dataclass(frozen=True)
class ConsoleSink(Section):
    """The terminal, to look at rows."""

    short: ClassVar[str] = "rows"
    rows: int = field_of(Count(), "most rows of a batch that are shown", 20)


SINKS: Final[dict[str, type[Section]]] = {
    "table": TableSink, "topic": TopicSink, "mirror": MirrorSink, "postgres": PostgresSink, "console": ConsoleSink,
}  # fmt: skip


# --- when, and all of it


@dataclass(frozen=True)
class Trigger(Section):
    """When batches begin: one as soon as the other is done, unless something else is said."""

    every: int | str | None = field_of(Duration(), "at most one batch in this time", None)
    once: bool = field_of(Flag(), "take what is there, then end", False)
    continuous: bool = field_of(Flag(), "one batch after the other, without a pause", False)


@dataclass(frozen=True)
class Pipeline(Section):
    """A whole pipeline."""

    name: str = field_of(Name(), "its name, on the broker and in the checkpoint")
    source: Source | Mapping[str, Any] = field_of(Inner(Source), "where rows come from")
    sinks: Sequence[Any] = field_of(Many(OneOf(SINKS)), "where rows go; each gets every row once")
    steps: Sequence[Any] = field_of(Many(OneOf(STEPS), 0), "what happens to rows, in order", ())
    trigger: Trigger | Mapping[str, Any] = field_of(Inner(Trigger), "when batches begin", {})
    description: str | None = field_of(Text(), "what it is for", None)
    servers: str | None = field_of(Text(), "broker, as host:port [`--server`, BRAID_SERVERS]", None)
    checkpoint: str = field_of(Text(), "folder for what Spark remembers; its name is put behind it", "checkpoints")
    dead_letters: str | None = field_of(
        Text(), "topic whose dead letters rows of tables and files become [none: they cannot become any]", None
    )
    tracing: bool = field_of(Flag(), "make a span of each batch, with OpenTelemetry", False)
    spark: Mapping[str, str] = field_of(Pairs(Text(), 0), "settings of Spark, as `spark.sql.shuffle.partitions: 2`", {})


SECTIONS: Final[tuple[type[Section], ...]] = (
    Pipeline, Source, *STEPS.values(), Expectation, *SINKS.values(), Trigger,
)  # fmt: skip
"""Every section, as the reference page lists them."""
