"""Definitions: what is wrong is said with file, line and column, all of it at once; and Python says the same as YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.checking import check_definition
from braidmq.spark.pipeline.definition import Deduplicate, Pipeline, Source, Sql, TableSink, TopicSink, Trigger, Validate
from braidmq.spark.pipeline.kinds import Fault, Millis
from braidmq.spark.pipeline.reading import Reading, read_file, read_yaml

WHOLE = """\
name: orders
source: {topics: [orders], schema: order, starting: earliest}
steps:
  - validate: {}
  - sql: SELECT data.*, timestamp FROM input WHERE data.amount > 0
  - deduplicate: {keys: [order_id], within: 1 hour}
sinks:
  - table: {path: lake/orders, format: delta, partition_by: [day]}
  - topic: {name: orders.clean, key: order_id}
trigger: {every: 10 seconds}
"""


def read(text: str, **environ: str) -> Reading:
    reading = read_yaml(text, "p.yaml", environ)
    check_definition(reading)
    return reading


def test_yaml_and_python_are_the_same() -> None:
    pipeline = Pipeline(
        name="orders",
        source=Source(topics=["orders"], schema="order", starting="earliest"),
        steps=[
            Validate(),
            Sql("SELECT data.*, timestamp FROM input WHERE data.amount > 0"),
            Deduplicate(["order_id"], within="1 hour"),
        ],
        sinks=[TableSink("lake/orders", partition_by=["day"]), TopicSink("orders.clean", key="order_id")],
        trigger=Trigger(every="10 seconds"),
    )
    reading = read(WHOLE)
    assert reading.problems == [] and reading.require() == pipeline
    assert isinstance(pipeline.trigger, Trigger) and pipeline.trigger.every == Millis(10_000)


HEAD = "name: p\nsource: {topics: [a]}\n"
TAIL = "\nsinks: [console]\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "p.yaml:1:1: is empty"),
        ("- a", "p.yaml:1:1: a definition is a mapping"),
        ("name: [", "p.yaml:1:8: not YAML"),
        ("name: p\nname: q\n" + HEAD[8:] + TAIL, "p.yaml:2:1: name: `name` stands here twice"),
        ("name: a b\nsource: {topics: [a]}" + TAIL, "p.yaml:1:7: name: 'a b' is not a name"),
        ("name: p" + TAIL, "`source` is missing: where rows come from"),
        (HEAD + "sinks: []", "p.yaml:3:8: sinks: is empty"),
        (HEAD + "sink: [console]" + TAIL, "p.yaml:3:1: sink: unknown key `sink` (did you mean `sinks`?)"),
        ("name: p\nsource: {topic: [a]}" + TAIL, "p.yaml:2:10: source.topic: unknown key `topic` (did you mean `topics`?)"),
        ("name: p\nsource: {topics: []}" + TAIL, "p.yaml:2:18: source.topics: is empty"),
        ("name: p\nsource: {topics: {a: 1}}" + TAIL, "expected a list, found a mapping"),
        ("name: p\nsource: 5" + TAIL, "p.yaml:2:9: source: expected a mapping, found 5"),
        ("name: p\nsource: {}" + TAIL, "has none of topics, table and files"),
        ("name: p\nsource: {topics: [a], files: b}" + TAIL, "has topics and files of topics"),
        ("name: p\nsource: {topics: [a], starting: soon}" + TAIL, "p.yaml:2:33: source.starting: 'soon' is not `earliest`"),
        ("name: p\nsource: {topics: [a], since: then}" + TAIL, "expected a time such as"),
        ("name: p\nsource: {topics: [a], since: 2025-01-01, starting: latest}" + TAIL, "exclude each other"),
        ("name: p\nsource: {topics: [a], max_records: 0}" + TAIL, "0 is less than 1"),
        ("name: p\nsource: {topics: [a], max_records: many}" + TAIL, "expected a whole number, found 'many'"),
        ("name: p\nsource: {topics: [a], max_bytes: 5 apples}" + TAIL, "`apples` is not a unit of size"),
        ("name: p\nsource: {topics: [a], max_bytes: 5}" + TAIL, "5 is less than 1KiB"),
        ("name: p\nsource: {table: a, max_bytes: 1MiB}" + TAIL, "`max_bytes` goes with `topics` only"),
        ("name: p\nsource: {files: a, group: g}" + TAIL, "`group` goes with `topics` only"),
        ("name: p\nsource: {files: a, format: delta}" + TAIL, "delta does not go with `files`"),
        ("name: p\nsource: {table: a.b, format: iceberg}" + TAIL, "source: an Iceberg table needs a `catalog` with its `uri`"),
        ("name: p\nsource: {table: a}" + TAIL, "p.yaml:2:17: source.table: there is no delta table at"),
        ("name: p\nsource: {table: a, starting: group}" + TAIL, "a table is read from `earliest` or from `latest`"),
        ("name: p\nsource: {table: a, options: {a: b}}" + TAIL, "a delta table has no further options"),
        ("name: p\nsource: {table: a, format: parquet, max_records: 5}" + TAIL, "`max_records` goes with `topics` only"),
        (HEAD.replace("]}", "], skip_changes: true}") + TAIL, "only Delta and Iceberg tables know their changes"),
        ("name: p\nsource: {table: a, format: parquet, catalog: {uri: x}}" + TAIL, "only Iceberg has a catalog"),
        (HEAD + "trigger: {every: 5}" + TAIL, "p.yaml:3:18: trigger.every: expected a length of time such as"),
        (HEAD + "trigger: {every: 0.1 ms}" + TAIL, "is shorter than a millisecond"),
        (HEAD + "trigger: {once: maybe}" + TAIL, "expected true or false, found 'maybe'"),
        (HEAD + "trigger: {once: true, every: 5 s}" + TAIL, "every and once exclude each other"),
        (HEAD + "steps:\n  - sqll: SELECT 1" + TAIL, "p.yaml:4:5: steps.0.sqll: unknown key `sqll` (did you mean `sql`?)"),
        (HEAD + "steps:\n  - {sql: SELECT 1, mask: x}" + TAIL, "expected exactly one of"),
        (HEAD + "steps: [sql]" + TAIL, "`query` is missing"),
        (HEAD + "steps: [{sql: ' '}]" + TAIL, "is empty"),
        (HEAD + "steps: [{sql: DELETE FROM input}]" + TAIL, "it begins with DELETE"),
        (HEAD + "steps: [{sql: SELECT 1}]" + TAIL, "does not read `input`"),
        (HEAD + "steps: [{sql: SELECT (1 FROM input}]" + TAIL, "a parenthesis is not closed"),
        (HEAD + "steps: [{sql: SELECT 1) FROM input}]" + TAIL, "a parenthesis is closed that was not opened"),
        (HEAD + "steps: [{sql: \"SELECT 'x FROM input\"}]" + TAIL, "a quote ' is not closed"),
        (HEAD + "steps: [{validate: {}}]" + TAIL, "has nothing to check"),
        (HEAD + "steps: [{validate: {expect: [{name: a, sql: x, on_fail: explode}]}}]" + TAIL, "'explode' is not one of"),
        (HEAD + "steps: [{validate: {expect: [{name: a, sql: x}, {name: a, sql: y}]}}]" + TAIL, "two expectations with the name a"),
        (HEAD + "steps: [{sql: SELECT data.* FROM input}, {validate: {expect: [{name: a, sql: x}]}}]" + TAIL,
         "steps.1.validate.expect.0.on_fail: dead letters need the columns topic"),
        (HEAD + "steps: [{window: {size: 1 m, aggregates: {n: count(*)}}}, {validate: {expect: [{name: a, sql: x}]}}]" + TAIL,
         "which the window of step 1 drops"),
        (HEAD + "steps: [{validate: {expect: [{name: a, sql: x, on_fail: fail}]}}, {deduplicate: [x]}]" + TAIL,
         "`fail` cannot stand before"),
        ("name: p\nsource: {files: a}\nsteps: [{validate: {expect: [{name: a, sql: x}]}}]" + TAIL, "that `dead_letters` names"),
        (HEAD + "steps: [{python: f}]" + TAIL, "is not `module:function`"),
        (HEAD + "steps: [{python: nowhere.py:f}]" + TAIL, "there is no file"),
        (HEAD + "steps: [{python: no_such_module_here:f}]" + TAIL, "there is no module"),
        (HEAD + "steps: [{python: json:dumpz}]" + TAIL, "json has no function dumpz"),
        (HEAD + "steps: [{deduplicate: {within: 1 hour}}]" + TAIL, "`keys` is missing"),
        (HEAD + "steps: [{window: {size: 1 m, slide: 1 h, aggregates: {n: count(*)}}}]" + TAIL, "leave rows out"),
        (HEAD + "steps: [{window: {size: 1 m, group_by: [n], aggregates: {n: count(*)}}}]" + TAIL, "`n` is there already"),
        (HEAD + "steps: [{window: {size: 1 m, aggregates: {}}}]" + TAIL, "aggregates: is empty"),
        (HEAD + "steps: [{join: {on: x}}]" + TAIL, "needs one of `table` and `topic`"),
        (HEAD + "steps: [{join: {on: x, topic: t}}]" + TAIL, "a join of streams needs `within`"),
        (HEAD + "steps: [{join: {on: x, table: nowhere}}]" + TAIL, "there is no delta table at"),
        (HEAD + "steps: [{join: {on: x, table: a.b, format: iceberg}}]" + TAIL, "needs a `catalog`"),
        (HEAD + "steps: [{mask: {columns: [], how: hash}}]" + TAIL, "columns: is empty"),
        (HEAD + "steps: [{mask: {columns: [a], how: shred}}]" + TAIL, "'shred' is not one of hash, redact, null, last4"),
        (HEAD + "sinks: [table]", "`path` is missing"),
        (HEAD + "sinks: [{table: {path: a, format: dleta}}]", "(did you mean `delta`?)"),
        (HEAD + "sinks: [{table: {path: a, format: parquet, key: x}}]", "`key` needs `format: delta`"),
        (HEAD + "sinks: [{table: {path: a, format: parquet, compact_every: 3}}]", "only Delta tables are compacted"),
        (HEAD + "sinks: [{table: {path: a, format: iceberg, catalog: {uri: x}}}]", "has a namespace, as `lake.a`"),
        (HEAD + "sinks: [{table: {path: a.b, format: iceberg}}]", "needs a `catalog`"),
        (HEAD + "sinks: [{table: {path: a, catalog: {uri: x}}}]", "only Iceberg has a catalog"),
        (HEAD + "sinks: [{topic: a}]", "it would never end"),
        (HEAD + "sinks: [console, console]", "p.yaml:3:18: sinks.1: is the same as an earlier one"),
        (HEAD + "sinks: [{postgres: {table: t, dsn: 'password=${NOPE}'}}]", "the environment variable NOPE is not set"),
        (HEAD + "steps: [{sql: 'SELECT data.*, timestamp FROM input'}]\nsinks: [{table: {path: a, key: id}}]",
         "p.yaml:4:17: sinks.0.table: nothing says which of two rows with the same id is the later one"),
        (HEAD + "steps: [{sql: 'SELECT data.*, offset FROM input'}]\nsinks: [{topic: {name: b, key: id, latest: true}}]",
         "keep the columns partition, offset, timestamp, or name others in `order_by`; step 1 drops some of them"),
        (HEAD.replace("[a]", "[a, b]") + "steps: [{sql: 'SELECT id, partition, offset, timestamp FROM input'}]\n"
         "sinks: [{postgres: {table: t, dsn: d, key: id}}]", "keep the columns topic, partition, offset, timestamp"),
        (HEAD + "steps: [{window: {size: 1 m, group_by: [n], aggregates: {c: count(*)}}}]\nsinks: [{table: {path: a, key: n}}]",
         "step 1 drops some of them"),
        (HEAD + "sinks: [{table: {path: a, order_by: x}}]", "sinks.0.table.order_by: `order_by` says which row of a key"),
        (HEAD + "steps: [{sql: 'SELECT key, count(*) AS n FROM input GROUP BY key'}]" + TAIL,
         "steps.0.sql: makes one row of several (GROUP BY), of each batch alone"),
        (HEAD + "steps: [{deduplicate: [key]}, {sql: SELECT DISTINCT key FROM input}]" + TAIL, "one row of several (DISTINCT)"),
        (HEAD + "steps: [{sql: 'SELECT sum(length(value)) AS n FROM input'}]" + TAIL, "one row of several (an aggregate)"),
        (HEAD + "steps: [{sql: 'SELECT *, row_number() OVER (PARTITION BY key ORDER BY key) AS n FROM input'}]" + TAIL, "(OVER)"),
        (HEAD + "steps: [{sql: SELECT * FROM input LIMIT 5}]" + TAIL, "(LIMIT)"),
        (HEAD + "spark: {a: [1]}" + TAIL, "spark.a: expected text, found a list"),
        (HEAD + "steps: &x [*x]" + TAIL, "is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, told: str) -> None:
    problems = [str(problem) for problem in read(text).problems]
    assert any(told in problem for problem in problems), problems
    assert all(problem.startswith("p.yaml:") for problem in problems)


@pytest.mark.parametrize(
    "text",
    [
        # A sink that keeps one row a key, and rows that have an order, or need none.
        "sinks: [{table: {path: a, key: key}}]",
        "steps: [{sql: 'SELECT key, partition, offset, timestamp FROM input'}]\nsinks: [{table: {path: a, key: key}}]",
        "steps: [{sql: 'SELECT data.* FROM input'}]\nsinks: [{table: {path: a, key: id, order_by: [changed, id]}}]",
        "steps: [{sql: 'SELECT data.* FROM input'}, {deduplicate: [id]}, {mask: {columns: [mail]}}]\n"
        "sinks: [{table: {path: a, key: [id, x]}}]",
        "steps: [{window: {size: 1 m, group_by: [n], aggregates: {c: count(*)}}}]\n"
        "sinks: [{postgres: {table: t, dsn: d, key: [n, window_end]}}]",
        "steps: [{sql: 'SELECT data.* FROM input'}]\nsinks: [{topic: {name: b, key: id}}]",
        # Queries that make one row of one, and one that is meant to group.
        "steps: [{sql: \"SELECT *, 'count(x) GROUP BY' AS c, least(1, partition) AS `max(y)` FROM input -- limit 1\"}]" + TAIL,
        "steps: [{sql: {query: SELECT key FROM input GROUP BY key, per_batch: true}}]" + TAIL,
        "steps: [{sql: 'SELECT timestamp, count(*) AS n FROM input GROUP BY timestamp'}, {deduplicate: [n]}]" + TAIL,
    ],
)
def test_what_is_right_is_let_pass(text: str) -> None:
    assert [str(problem) for problem in read(HEAD + text).problems] == []


def test_everything_is_said_at_once() -> None:
    reading = read("name: a b\nsource: {topic: [a]}\nsteps: [{sqll: x}, {deduplicate: {within: 1}}]\nsinks: [{table: {}}]\n")
    assert [problem.place.line for problem in reading.problems if problem.place] == [1, 2, 3, 3, 3, 4]
    with pytest.raises(BraidError) as caught:
        reading.require()
    assert caught.value.code == "PIPELINE_INVALID"


def test_secrets_come_from_the_environment_and_stay_there() -> None:
    text = HEAD + "sinks: [{postgres: {table: t, dsn: 'host=${HOST} password=${PASSWORD} x=$${y}'}}]"
    reading = read(text, HOST="h", PASSWORD="secret")
    assert reading.require().sinks[0].dsn == "host=h password=secret x=${y}"
    assert "secret" not in reading.text


def test_python_files(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(
        "from braidmq.spark.pipeline import Pipeline, Source, ConsoleSink\n"
        "pipeline = Pipeline(name='p', source=Source(topics=['a']), sinks=[ConsoleSink()])\n"
    )
    assert read_file(str(file), {}).require().name == "p"
    file.write_text(
        "from braidmq.spark.pipeline import Pipeline, Source\n\npipeline = Pipeline(name='p', source={'topic': 1}, sinks=[])\n"
    )
    problems = [str(problem) for problem in read_file(str(file), {}).problems]
    assert len(problems) == 2 and all(problem.startswith(f"{file}:3:1: ") for problem in problems), problems
    for text, told in (("x = 1", "has no variable `pipeline`"), ("1 +", "not Python"), ("1 / 0", "ZeroDivisionError")):
        file.write_text(text)
        assert told in str(read_file(str(file), {}).problems[0])


def test_a_value_that_does_not_fit_says_where() -> None:
    with pytest.raises(Fault) as caught:
        Pipeline(name="p", source={"topics": ["a"]}, sinks=[{"table": {"path": "x", "format": "y"}}])
    assert "sinks.0.table.format: 'y' is not one of" in str(caught.value)


def test_a_definition_has_a_size(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(b"#" * (limits.PIPELINE_DEFINITION_BYTES_MAX + 1))
    assert "are more than" in str(read_file(str(file), {}).problems[0])
    file.write_bytes(b"\xff")
    assert "not UTF-8" in str(read_file(str(file), {}).problems[0])
