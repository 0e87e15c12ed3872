"""What is wrong with a definition as a whole, found before Spark starts.

`check_definition` needs nothing but the definition and the files beside it; `check_broker` asks a broker whether what is named
there exists. Both add to the problems of a reading, so that everything is shown at once and with its line. What only Spark can tell
(whether the columns of a query exist) is found by `braid pipeline plan`.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.client.sync import Client
from braidmq.spark.pipeline.definition import (
    ConsoleSink,
    Decode,
    Deduplicate,
    Expectation,
    Join,
    MirrorSink,
    Pipeline,
    PostgresSink,
    PythonStep,
    Source,
    Sql,
    TableSink,
    TopicSink,
    Trigger,
    Validate,
    Window,
)
from braidmq.spark.pipeline.kinds import Complaint, Path
from braidmq.spark.pipeline.ordering import order_of
from braidmq.spark.pipeline.query_text import keeps, puts_together
from braidmq.spark.pipeline.reading import Reading
from braidmq.spark.pipeline.sections import Section

_RECORD: Final = ("topic", "partition", "offset", "key", "value")
_EXTRAS: Final = {
    "delta": ("deltalake", "spark"), "iceberg": ("pyiceberg", "iceberg"), "postgres": ("psycopg", "postgres"),
    "tracing": ("opentelemetry", "otel"),
}  # fmt: skip
_QUOTES: Final = "'\"`"


def check_definition(reading: Reading) -> None:
    """Add what is wrong; a definition that could not be read has said so already."""
    pipeline = reading.pipeline
    if pipeline is None:
        return
    for complaint in _all(pipeline, str(reading.folder)):
        reading.complain(complaint)


def _all(pipeline: Pipeline, folder: str) -> Iterator[Complaint]:
    assert isinstance(pipeline.source, Source)
    assert isinstance(pipeline.trigger, Trigger)
    yield from _source(pipeline.source, folder)
    yield from _trigger(pipeline.trigger)
    yield from _steps(pipeline, pipeline.source, folder)
    yield from _sinks(pipeline, pipeline.source)
    if pipeline.tracing:
        yield from _installed("tracing", ("tracing",))


# --- source and trigger


def _source(source: Source, folder: str) -> Iterator[Complaint]:
    given = [name for name in ("topics", "table", "files") if getattr(source, name) is not None]
    if len(given) != 1:
        yield Complaint(f"has {' and '.join(given) or 'none'} of topics, table and files; one is needed", ("source",))
        return
    (kind,) = given
    allowed = {"topics": (), "table": ("parquet", "delta", "iceberg"), "files": ("json", "csv", "parquet")}[kind]
    if source.format is not None and source.format not in allowed:
        known = f"; {kind} are {', '.join(allowed)}" if allowed else ""
        yield Complaint(f"{source.format} does not go with `{kind}`{known}", ("source", "format"))
    followed = kind == "table" and source.format != "parquet"
    """Whether its log is followed, which knows more than a folder does."""
    if kind != "topics":
        allowed_too = ("starting", "max_records") if followed else ()
        for name in ("starting", "since", "group", "max_records", "max_bytes"):
            if getattr(source, name) != ("earliest" if name == "starting" else None) and name not in allowed_too:
                yield Complaint(f"`{name}` goes with `topics` only", ("source", name))
    elif source.since is not None and source.starting != "earliest":
        yield Complaint("`starting` and `since` exclude each other", ("source", "since"))
    if followed:
        yield from _followed(source, folder)
        return
    if source.catalog:
        yield Complaint("only Iceberg has a catalog", ("source", "catalog"))
    if source.skip_changes:
        yield Complaint("only Delta and Iceberg tables know their changes", ("source", "skip_changes"))


def _followed(source: Source, folder: str) -> Iterator[Complaint]:
    form = source.format or "delta"
    assert source.table is not None
    if source.starting not in ("earliest", "latest"):
        yield Complaint("a table is read from `earliest` or from `latest`", ("source", "starting"))
    if source.options:
        yield Complaint(f"a {form} table has no further options", ("source", "options"))
    if form == "iceberg":
        if "uri" not in source.catalog:
            yield Complaint("an Iceberg table needs a `catalog` with its `uri`", ("source",))
    else:
        if source.catalog:
            yield Complaint("only Iceberg has a catalog", ("source", "catalog"))
        place = os.path.join(folder, source.table)
        if "://" not in source.table and not os.path.exists(os.path.join(place, "_delta_log")):
            yield Complaint(f"there is no delta table at {place}", ("source", "table"))
    yield from _installed(form, ("source",))


def _trigger(trigger: Trigger) -> Iterator[Complaint]:
    given = [name for name in ("every", "once", "continuous") if getattr(trigger, name)]
    if len(given) > 1:
        yield Complaint(f"{' and '.join(given)} exclude each other", ("trigger",))


def _installed(form: str, path: Path) -> Iterator[Complaint]:
    package, extra = _EXTRAS.get(form, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        yield Complaint(f"{form} needs the package {package}: install braidmq[{extra}]", path)


# --- steps


def _steps(pipeline: Pipeline, source: Source, folder: str) -> Iterator[Complaint]:
    schema = source.schema is not None and source.topics is not None
    lost = ""
    """The step that dropped what a dead letter needs; empty while it is there."""
    last_stateful = max((index for index, step in enumerate(pipeline.steps) if _remembers(step)), default=-1)
    for index, step in enumerate(pipeline.steps):
        path: Path = ("steps", index)
        match step:
            case Decode():
                schema = True
            case Validate():
                yield from _validate(step, (*path, "validate"), pipeline, source, schema, lost, index < last_stateful)
                schema = False
            case Sql():
                yield from _query(step.query, (*path, "sql"))
                if index > last_stateful and not step.per_batch and (words := puts_together(step.query)):
                    yield Complaint(
                        f"makes one row of several ({words}), of each batch alone: rows of a later batch make rows of their own. "
                        "A `window` is of all batches; `per_batch: true` says that a batch is meant",
                        (*path, "sql"),
                    )
                if not keeps(step.query, _RECORD):
                    lost = f"the SQL of step {index + 1}"
            case PythonStep():
                yield from _function(step.function, folder, (*path, "python"))
            case Window():
                lost = f"the window of step {index + 1}"
                yield from _window(step, (*path, "window"))
            case Join():
                yield from _join(step, (*path, "join"), folder)
            case _:
                pass


def _remembers(step: Section) -> bool:
    return isinstance(step, Deduplicate | Window) or (isinstance(step, Join) and step.topic is not None)


def _validate(
    step: Validate, path: Path, pipeline: Pipeline, source: Source, schema: bool, lost: str, before_stateful: bool
) -> Iterator[Complaint]:
    actions = [(step.schema, (*path, "schema"))] if schema else []
    for number, each in enumerate(step.expect):
        assert isinstance(each, Expectation)
        actions.append((each.on_fail, (*path, "expect", number, "on_fail")))
        yield from _balanced(each.sql, (*path, "expect", number, "sql"))
        names = [other.name for other in step.expect[:number] if isinstance(other, Expectation)]
        if each.name in names:
            yield Complaint(f"there are two expectations with the name {each.name}", (*path, "expect", number, "name"))
    if not actions:
        yield Complaint("has nothing to check: no schema was decoded before it, and it expects nothing", path)
    for action, place in actions:
        if action == "dead-letter" and lost and source.topics is not None:
            needs = ", ".join(_RECORD)
            yield Complaint(f"dead letters need the columns {needs}, which {lost} drops: validate before it, or keep them", place)
        if action == "dead-letter" and source.topics is None and pipeline.dead_letters is None:
            yield Complaint("rows of tables and files become dead letters of a topic that `dead_letters` names", place)
        if action == "fail" and before_stateful:
            yield Complaint("`fail` cannot stand before a step that remembers rows; put it behind that step", place)


def _query(query: str, path: Path) -> Iterator[Complaint]:
    words = re.findall(r"\w+", query.lower())
    if not words or words[0] not in ("select", "with", "from", "values"):
        yield Complaint(f"is no query: it begins with {words[0].upper() if words else 'nothing'}, not with SELECT or WITH", path)
    elif "input" not in words:
        yield Complaint("does not read `input`, the rows that come in", path)
    yield from _balanced(query, path)


def _balanced(sql: str, path: Path) -> Iterator[Complaint]:
    """Quotes and parentheses that are not closed; everything else is for Spark's own parser."""
    depth, quote = 0, ""
    for c in sql:
        if quote:
            quote = "" if c == quote else quote
        elif c in _QUOTES:
            quote = c
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if depth < 0:
                break
    if quote:
        yield Complaint(f"a quote {quote} is not closed", path)
    elif depth:
        yield Complaint("a parenthesis is not closed" if depth > 0 else "a parenthesis is closed that was not opened", path)


def _function(reference: str, folder: str, path: Path) -> Iterator[Complaint]:
    where, _, name = reference.rpartition(":")
    if not where or not name.isidentifier():
        yield Complaint(f"{reference!r} is not `module:function` or `file.py:function`", path)
        return
    if where.endswith(".py"):
        file = FilePath(folder) / where
        if not file.is_file():
            yield Complaint(f"there is no file {file}", path)
            return
        found = file
    else:
        sys.path.insert(0, folder)
        try:
            spec = importlib.util.find_spec(where)
        except (ImportError, ValueError) as fault:
            yield Complaint(f"module {where} cannot be found: {fault}", path)
            return
        finally:
            sys.path.remove(folder)
        if spec is None:
            yield Complaint(f"there is no module {where}", path)
            return
        if spec.origin is None or not spec.origin.endswith(".py"):
            return
        found = FilePath(spec.origin)
    try:
        tree = ast.parse(found.read_text())
    except (SyntaxError, OSError) as fault:
        yield Complaint(f"{found.name} cannot be read: {fault}", path)
        return
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {
        target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)
    }
    names |= {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    if name not in names:
        yield Complaint(f"{where} has no function {name}", path)


def _window(step: Window, path: Path) -> Iterator[Complaint]:
    if step.slide is not None and int(step.slide) > int(step.size):
        yield Complaint("windows that begin further apart than they are long leave rows out", (*path, "slide"))
    for name in step.aggregates:
        if name in (*step.group_by, "window_start", "window_end"):
            yield Complaint(f"`{name}` is there already", (*path, "aggregates", name))
        yield from _balanced(step.aggregates[name], (*path, "aggregates", name))


def _join(step: Join, path: Path, folder: str) -> Iterator[Complaint]:
    if (step.table is None) == (step.topic is None):
        yield Complaint("needs one of `table` and `topic`", path)
    elif step.topic is not None:
        if step.within is None:
            yield Complaint("a join of streams needs `within`: how far apart in time partners may be", path)
    elif step.format == "iceberg":
        if "uri" not in step.catalog:
            yield Complaint("an Iceberg table needs a `catalog` with its `uri`", (*path, "catalog"))
        yield from _installed("iceberg", path)
    elif step.table is not None and "://" not in step.table:
        place = os.path.join(folder, step.table)
        if not os.path.exists(os.path.join(place, "_delta_log") if step.format == "delta" else place):
            yield Complaint(f"there is no {step.format} table at {place}", (*path, "table"))


# --- sinks


def _sinks(pipeline: Pipeline, source: Source) -> Iterator[Complaint]:
    seen: set[tuple[str, str]] = set()
    for index, sink in enumerate(pipeline.sinks):
        path: Path = ("sinks", index)
        match sink:
            case TableSink():
                yield from _table_sink(sink, (*path, "table"))
                yield from _order(pipeline, sink, (*path, "table"))
                label = ("table", sink.path)
            case TopicSink():
                label = ("topic", sink.name)
                yield from _order(pipeline, sink, (*path, "topic"))
                if source.topics is not None and sink.name in source.topics and sink.servers is None:
                    yield Complaint(
                        f"writes to {sink.name}, which the pipeline reads: it would never end", (*path, "topic", "name")
                    )
                if sink.latest and sink.key is None:
                    yield Complaint("`latest` needs a `key`", (*path, "topic", "latest"))
            case MirrorSink():
                label = ("mirror", sink.servers)
                if source.topics is None:
                    yield Complaint("only topics can be mirrored", (*path, "mirror"))
            case PostgresSink():
                label = ("postgres", sink.table)
                yield from _order(pipeline, sink, (*path, "postgres"))
                yield from _installed("postgres", (*path, "postgres"))
            case ConsoleSink():
                label = ("console", "")
            case _:
                raise AssertionError(f"no sink: {sink}")
        if label in seen:
            yield Complaint(f"is the same as an earlier one: {' '.join(label).strip()}", path)
        seen.add(label)


def _order(pipeline: Pipeline, sink: Section, path: Path) -> Iterator[Complaint]:
    """Whether a sink that keeps one row a key can tell which is the latest, as far as the text tells."""
    order = order_of(sink, pipeline)
    if order is None:
        if sink.order_by:  # type: ignore[attr-defined]
            yield Complaint("`order_by` says which row of a key is later: it needs a `key`", (*path, "order_by"))
        return
    source = pipeline.source
    assert isinstance(source, Source)
    if order.by or order.unique or source.topics is None:
        return
    for index, step in enumerate(pipeline.steps):
        lost = isinstance(step, Window) or (isinstance(step, Sql) and not keeps(step.query, order.needed))
        if lost:
            reason = order.lacking(())
            yield Complaint(f"{reason}; step {index + 1} drops some of them", path)
            return


def _table_sink(sink: TableSink, path: Path) -> Iterator[Complaint]:
    if sink.format == "parquet" and sink.key:
        yield Complaint("rows of Parquet files cannot be replaced: `key` needs `format: delta` or `iceberg`", (*path, "key"))
    if sink.format != "delta" and sink.compact_every is not None:
        yield Complaint("only Delta tables are compacted", (*path, "compact_every"))
    if sink.delete_when is not None:
        if sink.format != "delta" or not sink.key:
            yield Complaint("rows are deleted from Delta tables with a `key`", (*path, "delete_when"))
        yield from _balanced(sink.delete_when, (*path, "delete_when"))
    if sink.format == "iceberg":
        if "uri" not in sink.catalog:
            yield Complaint("an Iceberg table needs a `catalog` with its `uri`", (*path, "catalog"))
        if "." not in sink.path:
            yield Complaint(f"the name of an Iceberg table has a namespace, as `lake.{sink.path}`", (*path, "path"))
    elif sink.catalog:
        yield Complaint("only Iceberg has a catalog", (*path, "catalog"))
    yield from _installed(sink.format, path)


# --- with a broker


def check_broker(reading: Reading, client: Client) -> None:
    """Add what is named in the definition and does not exist on the broker."""
    pipeline = reading.pipeline
    if pipeline is None:
        return
    assert isinstance(pipeline.source, Source)
    source = pipeline.source
    topics = set(client.list_topics())
    named: list[tuple[str, Path]] = [(name, ("source", "topics", index)) for index, name in enumerate(source.topics or ())]
    schemas: list[tuple[str, Path]] = []
    if source.topics is not None and source.schema is not None:
        schemas.append((source.schema, ("source", "schema")))
    for index, step in enumerate(pipeline.steps):
        if isinstance(step, Join) and step.topic is not None:
            named.append((step.topic, ("steps", index, "join", "topic")))
            if step.schema is not None:
                schemas.append((step.schema, ("steps", index, "join", "schema")))
        elif isinstance(step, Decode):
            schemas.append((step.schema, ("steps", index, "decode", "schema")))
    for name, path in named:
        if name not in topics:
            reading.complain(Complaint(f"there is no topic {name}", path))
    for name, path in schemas:
        try:
            client.schema.get(name)
        except BraidError as fault:
            if fault.code != "SCHEMA_NOT_FOUND":
                raise
            reading.complain(Complaint(f"there is no schema {name} in the registry", path))
