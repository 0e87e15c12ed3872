"""What each step does to rows, without a stream: the same plans run in batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pipeline_lab import Lab

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from braidmq.spark.pipeline.compiling import Outcome

ROWS = [("a", 1.0, "2025-01-01 00:00:10"), ("b", 2.0, "2025-01-01 00:00:50"), ("a", 3.0, "2025-01-01 00:01:10"), ("c", None, None)]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "id string, amount double, at string").selectExpr(
        "id", "amount", "to_timestamp(at) AS timestamp"
    )


def apply(frame: DataFrame, folder: Path, *steps: dict[str, Any], servers: str = "127.0.0.1:1", **more: Any) -> Outcome:
    from braidmq.spark.pipeline.compiling import apply_steps
    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.definition import Pipeline

    pipeline = Pipeline(name="p", source=more.pop("source", {"files": "x"}), steps=steps, sinks=["console"], **more)
    return apply_steps(frame, list(enumerate(pipeline.steps)), Context(pipeline, str(folder), servers))


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_queries_functions_and_masks(rows: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def more(frame, by):\n    return frame.withColumn('amount', frame.amount + int(by))\n")
    done = apply(
        rows, tmp_path,
        {"sql": "SELECT * FROM input WHERE amount IS NOT NULL"},
        {"python": {"function": "mine.py:more", "arguments": {"by": "10"}}},
        {"sql": "WITH t AS (SELECT id, amount * 2 AS amount FROM input) SELECT id, amount, named_struct('id', id) AS s FROM t"},
        {"mask": {"columns": ["id"], "how": "redact"}},
        {"mask": {"columns": ["s.id"], "salt": "x"}},
        {"deduplicate": ["amount"]},
    )  # fmt: skip
    found = sorted(collected(done.rows), key=lambda row: row["amount"])
    assert [row["amount"] for row in found] == [22.0, 24.0, 26.0]
    assert {row["id"] for row in found} == {"***"}
    assert len({row["s"]["id"] for row in found}) == 2 and all(len(row["s"]["id"]) == 64 for row in found)


def test_windows(rows: DataFrame, tmp_path: Path) -> None:
    window = {"size": "1 minute", "group_by": "id", "aggregates": {"n": "count(*)", "total": "sum(amount)"}}
    found = collected(apply(rows, tmp_path, {"window": window}).rows)
    assert sorted((row["id"], row["n"], row["total"], row["window_start"].minute) for row in found) == [
        ("a", 1, 1.0, 0), ("a", 1, 3.0, 1), ("b", 1, 2.0, 0),
    ]  # fmt: skip


def test_joins_with_tables(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps({"id": "a", "name": "Anna", "amount": 99}))
    step = {"join": {"table": "names.json", "format": "json", "on": "id", "how": "left"}}
    found = collected(apply(rows, tmp_path, step).rows)
    assert sorted((row["id"], row["name"], row["amount"]) for row in found if row["amount"]) == [
        ("a", "Anna", 1.0), ("a", "Anna", 3.0), ("b", None, 2.0),
    ]  # fmt: skip


def test_expectations(rows: DataFrame, tmp_path: Path) -> None:
    expect = [
        {"name": "has_amount", "sql": "amount IS NOT NULL"},
        {"name": "small", "sql": "amount < 3", "on_fail": "drop"},
        {"name": "never", "sql": "id != 'b'", "on_fail": "fail"},
    ]
    done = apply(rows, tmp_path, {"validate": {"expect": expect}}, dead_letters="rows")
    assert [row["id"] for row in collected(done.rows)] == ["a"]
    (letters,) = done.letters
    ((letter,),) = [collected(letters)]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["reason"]) == ("rows", -1, -1, "has_amount")
    assert json.loads(letter["value"]) == {"id": "c"}
    ((step, fatal),) = done.fatal
    ((row,),) = [collected(fatal)]
    assert step == "step 1 (validate)" and row["reason"] == "never" and json.loads(row["row"])["id"] == "b"


def test_a_letter_needs_its_record(rows: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(BraidError) as caught:
        apply(rows, tmp_path, {"validate": {"expect": [{"name": "x", "sql": "true"}]}}, source={"topics": ["t"]})
    assert caught.value.code == "PIPELINE_FAILED"
    assert "step 1 (validate)" in caught.value.text and "`topic`" in caught.value.text


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"sql": "SELECT nothing FROM input"}, "nothing"),
        ({"mask": {"columns": ["amuont"]}}, "did you mean `amount`?"),
        ({"deduplicate": ["x"]}, "there is no column `x`"),
        ({"window": {"size": "1 minute", "time": "when", "aggregates": {"n": "count(*)"}}}, "there is no column `when`"),
        ({"python": "json:dumps"}, "TypeError"),
        ({"python": "no_such_module:f"}, "no_such_module"),
        ({"join": {"table": "nowhere", "on": "id"}}, "there is no Delta table"),
    ],
)
def test_what_cannot_be_names_its_step(rows: DataFrame, tmp_path: Path, step: dict[str, Any], told: str) -> None:
    with pytest.raises(BraidError) as caught:
        apply(rows, tmp_path, {"sql": "SELECT * FROM input"}, step)
    assert caught.value.code == "PIPELINE_FAILED"
    assert "step 2 (" in caught.value.text and told in caught.value.text


def test_an_error_in_the_data_names_step_and_row(rows: DataFrame, tmp_path: Path) -> None:
    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.definition import Pipeline
    from braidmq.spark.pipeline.diagnosing import diagnose

    steps = [
        {"sql": "SELECT * FROM input"},
        {"sql": "SELECT *, CASE WHEN id = 'b' THEN assert_true(amount > 5) END AS x FROM input"},
    ]
    done = apply(rows, tmp_path, *steps)
    pipeline = Pipeline(name="p", source={"files": "x"}, steps=steps, sinks=["console"])
    with pytest.raises(BraidError) as caught:
        diagnose(done, Context(pipeline, str(tmp_path), ""))
    assert "step 2 (sql)" in caught.value.text
    assert "'id': 'b'" in caught.value.text and "'id': 'a'" not in caught.value.text


def test_decode_any_column(lab: Lab, tmp_path: Path) -> None:
    frame = lab.spark.createDataFrame([('{"order_id": "1", "amount": 2}',), ("{",)], "body string")
    done = apply(frame, tmp_path, {"decode": {"schema": lab.schema, "column": "body", "into": "order"}}, servers=lab.broker.address)
    good, bad = collected(done.rows)
    assert good["order"]["order_id"] == "1" and good["error"] is None
    assert bad["order"] is None and bad["error"]
