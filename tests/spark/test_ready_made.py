"""The ready-made pipelines on a real broker: what they make of topics, also when they are run twice or stopped in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from running_broker import RunningBroker

from braidmq.base.errors import BraidError
from braidmq.cli.main import main
from braidmq.client import sync
from braidmq.client.sync import Client
from braidmq.spark.pipeline.sinks.mirror import TIME_HEADER, prepare
from braidmq.spark.products.archive import archive_definition, history, safe_name
from braidmq.spark.products.compact import compact_definition
from braidmq.spark.products.fields import kinds_in
from braidmq.spark.products.mirror import mirror_definition, mirror_name
from braidmq.spark.products.page import bars, page, table
from braidmq.spark.products.profile import SLICES, Drift, FieldProfile, find_drift, profile, write_table
from braidmq.spark.products.triage import cause_of, triage

if TYPE_CHECKING:
    from conftest import NewTopic
    from pyspark.sql import SparkSession

HOSTILE = '<script>alert("1")</script>'


@pytest.fixture
def client(braid: RunningBroker) -> Iterator[Client]:
    with sync.connect(braid.address) as client:
        yield client


@pytest.fixture
def options(braid: RunningBroker) -> dict[str, str]:
    return {"servers": braid.address}


def fill(client: Client, topic: str, values: list[bytes], *, keys: int = 0, partition: int | None = None) -> None:
    with client.producer() as producer:
        for number, value in enumerate(values):
            key = f"k{number % keys}".encode() if keys else None
            producer.send(topic, value, key=key, partition=partition)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name.startswith("on") or (value or "").startswith(("http", "javascript")) for name, value in attrs)


# --- profile


def test_a_profile_says_what_is_in_a_topic(
    spark: SparkSession, client: Client, options: dict[str, str], new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2, "profiled")
    values = [{"id": n, "name": None if n % 4 == 0 else "x", "in": {"a": [1, "b"]}} for n in range(80)]
    fill(client, topic, [json.dumps(value).encode() for value in values], keys=4)
    fill(client, topic, [b"\xffno json", HOSTILE.encode()])
    with client.producer() as producer:
        producer.send(topic, b"{}", key=HOSTILE.encode())
    found = profile(spark, topic, options)
    assert found.records == 83
    assert found.bytes == sum(part.bytes for part in found.partitions) > 83
    assert len(found.partitions) == 2
    assert sum(found.counts) == 83
    assert (found.keyless, found.keys) == (2, 5)
    assert found.top_keys[0][1] == 20
    assert (HOSTILE, 1) in found.top_keys
    assert found.values == {"object": 81, "not JSON": 2}
    fields = {each.path: each for each in found.fields}
    assert fields["id"].kinds == {"integer": 80}
    assert fields["name"].kinds == {"string": 60, "null": 20}
    assert fields["in.a[]"].kinds == {"integer": 80, "string": 80}
    assert found.sizes["max"] >= found.sizes["p99"] >= found.sizes["p50"] > 0

    text = found.html()
    assert HOSTILE not in text and "&lt;script&gt;" in text
    assert {"svg", "rect", "table"} <= set(Tags(text).seen) and "script" not in Tags(text).seen
    write_table(found, str(tmp_path / "profiles"))
    write_table(found, str(tmp_path / "profiles"))
    from deltalake import DeltaTable

    rows = DeltaTable(str(tmp_path / "profiles")).to_pyarrow_table().to_pylist()
    assert [row["value"] for row in rows if (row["section"], row["metric"]) == ("topic", "records")] == [83.0, 83.0]


def test_an_empty_topic_has_a_profile(spark: SparkSession, options: dict[str, str], new_topic: NewTopic) -> None:
    found = profile(spark, new_topic(1, "empty"), options)
    assert (found.records, found.rate, found.key_skew, found.fields, found.drifts) == (0, 0, 0, [], [])
    assert "0 records" in found.html()


def test_drift_is_told_from_chance() -> None:
    def seen(path: str, kind: str, slices: range, each: int) -> FieldProfile:
        first, last = min(slices), max(slices)
        return FieldProfile(path, {kind: each * len(slices)}, dict.fromkeys(slices, each), {kind: first}, {kind: last})

    counts = [100] * SLICES
    always = seen("always", "string", range(SLICES), 100)
    came = seen("came", "string", range(24, SLICES), 100)
    went = seen("went", "string", range(12), 100)
    rare = FieldProfile("rare", {"string": 2}, {30: 1, 40: 1}, {"string": 30}, {"string": 40})
    changed = seen("changed", "integer", range(24), 100)
    changed.kinds["string"], changed.first_ms["string"], changed.last_ms["string"] = 2400, 24, 47
    changed.slices |= dict.fromkeys(range(24, SLICES), 100)
    drifts = find_drift([always, came, went, rare, changed], counts)
    assert drifts == [Drift("went", "went", 11), Drift("came", "came", 24), Drift("changed", "integer became string", 24)]


def test_fields_are_walked_to_a_depth() -> None:
    assert dict(kinds_in({"a": {"b": [1.5, True]}})) == {"": "object", "a": "object", "a.b": "array", "a.b[]": "boolean"}
    deep: Any = 1
    for _ in range(50):
        deep = {"x": deep}
    assert len(list(kinds_in(deep))) == 5


def test_pages_escape_what_they_show() -> None:
    text = page(HOSTILE, HOSTILE, [table((HOSTILE,), [(HOSTILE,)]), bars(HOSTILE, [(HOSTILE, 1)])])
    assert HOSTILE not in text
    assert "script" not in Tags(text).seen


# --- dead letters


def test_triage_groups_letters_by_cause(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(1, "failing")
    schema = f"schema-{topic}"
    definition = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    client.schema.put(schema, json.dumps(definition).encode(), "json")
    client.schema.bind(topic, schema, "dead-letter")
    for number in range(25):
        client.produce(topic, json.dumps({"n": f"text {number}"}).encode())
    for _ in range(3):
        client.produce(topic, HOSTILE.encode(), key=HOSTILE.encode())
    found = triage(client, topic)
    assert found.letters == 28
    assert [cause.count for cause in found.causes] == [25, 3]
    assert all(len(cause.samples) == 3 for cause in found.causes)
    assert found.causes[1].samples[0].value == HOSTILE
    assert found.causes[0].first_ms > 0
    text = found.html()
    assert HOSTILE not in text and "script" not in Tags(text).seen
    assert found.documents()[0]["count"] == 25
    client.schema.bind(topic, "")
    client.dlq.retry(topic, found.causes[1].samples[0].id)
    assert triage(client, topic).letters == 27, "what was sent back is not open any more"
    client.dlq.purge(topic)
    assert triage(client, topic).letters == 0


def test_causes_forget_what_differs() -> None:
    assert cause_of("offset 12 of 'x'") == cause_of("offset 9 of 'yy'") == "offset N of '…'"
    assert cause_of("id 6f9619ff-8b86-d011-b42d-00c04fc964ff") == cause_of("id 00000000-8b86-d011-b42d-00c04fc964ff") == "id ID"
    assert cause_of("division by zero") != cause_of("key missing")


# --- mirror and compact: pipelines like any other


def run_once(spark: SparkSession, client: Client, folder: Path, text: str, variables: dict[str, str] | None = None) -> Any:
    """As the commands do it with `--once`; how far the run came."""
    from braidmq.spark.pipeline.checking import check_definition
    from braidmq.spark.pipeline.context import context_of
    from braidmq.spark.pipeline.reading import read_yaml
    from braidmq.spark.pipeline.running import Run

    reading = read_yaml(text, str(folder / "pipeline.yaml"), variables or {})
    check_definition(reading)
    assert not reading.problems, list(map(str, reading.problems))
    run = Run(spark, context_of(reading, client.settings), reading, once=True, client=client, replace=True)
    assert run.go() == "finished"
    return run.progress


def records_of(client: Client, name: str) -> list[Any]:
    return [
        record
        for part in client.metadata(name).partitions
        for record in client.fetch(name, part.partition, part.oldest).records
    ]  # fmt: skip


def test_a_mirror_copies_each_record_once(
    spark: SparkSession, client: Client, braid: RunningBroker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(3, "mirrored")
    text, variables = mirror_definition([topic], braid.address, prefix="copy.", options={"timeout": "50s"})
    assert "50s" not in text, "how to reach the other broker is nothing that this one keeps"

    def copy() -> None:
        run_once(spark, client, tmp_path, text, variables)
        source, target = records_of(client, topic), records_of(client, f"copy.{topic}")
        assert [(r.partition, r.key, r.value) for r in target] == [(r.partition, r.key, r.value) for r in source]
        times = [int(r.headers[TIME_HEADER]) for r in target]
        assert times == [int(r.headers.get(TIME_HEADER, r.timestamp)) for r in source], "the time of the original goes along"
        assert [r.headers | {TIME_HEADER: b""} for r in target] == [r.headers | {TIME_HEADER: b""} for r in source]

    fill(client, topic, [b"value %d" % n for n in range(50)], keys=7)
    client.produce(topic, b"with headers", headers={"trace": b"1"})
    client.produce(topic, b"mirrored before", headers={TIME_HEADER: b"1700000000000"})
    copy()
    fill(client, topic, [b"more"], keys=1)
    copy()
    (shown,) = [each for each in client.pipeline.ls() if each.name == f"mirror-{topic}"]
    assert (shown.state, json.loads(shown.progress)["lag"]) == ("stopped", 0)
    assert [run.outcome for run in client.pipeline.show(shown.name).runs] == ["finished", "finished"]


def test_a_mirror_refuses_itself_and_too_few_partitions(
    spark: SparkSession, client: Client, braid: RunningBroker, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(3)
    with pytest.raises(BraidError, match="needs a prefix"):
        run_once(spark, client, tmp_path, mirror_definition([topic], braid.address)[0])
    with pytest.raises(BraidError, match="PIPELINE_NOT_FOUND"):
        client.pipeline.show(f"mirror-{topic}")
    client.create_topic(f"small.{topic}", 1)
    here = {"servers": braid.address}
    with pytest.raises(BraidError, match="has 1 partitions"):
        prepare([topic], here, here, "small.")
    names = {mirror_name(["x" * 60 + end for end in (first, second)]) for first, second in ("ab", "ac")}
    assert len(names) == 2 and all(len(name) == 100 for name in names)


def test_compact_keeps_the_latest_of_each_key(
    spark: SparkSession, client: Client, new_topic: NewTopic, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    topic, target = new_topic(2, "changes"), new_topic(1, "latest")
    path = str(tmp_path / "table")
    text = compact_definition(topic, table=path, to_topic=target)

    def run() -> dict[bytes, bytes]:
        run_once(spark, client, tmp_path, text)
        rows = DeltaTable(path).to_pyarrow_table().to_pylist()
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: row["value"] for row in rows}

    fill(client, topic, [b"%d" % n for n in range(30)], keys=5)
    fill(client, topic, [b"without key"])
    assert run() == {b"k%d" % n: b"%d" % (25 + n) for n in range(5)}
    client.produce(topic, b"new", key=b"k0", headers={"h": b"1"})
    # A tombstone takes the key out of the table, also one that was never there; what comes after it is there again.
    for key, value in ((b"k1", b""), (b"never", b""), (b"k2", b""), (b"k2", b"again")):
        client.produce(topic, value, key=key)
    latest = run()
    assert latest == {b"k0": b"new", b"k2": b"again", b"k3": b"28", b"k4": b"29"}
    copied = client.fetch(target, 0, 0).records
    assert len(copied) == 5 + 4, "of each batch the last of each key, tombstones too"
    rebuilt = {record.key: record.value for record in copied}
    assert {key: value for key, value in rebuilt.items() if value} == latest
    assert [record.headers for record in copied if record.value == b"new"] == [{"h": b"1"}]
    with pytest.raises(BraidError, match="into itself"):
        compact_definition(topic, to_topic=topic)
    with pytest.raises(BraidError, match="needs a table"):
        compact_definition(topic)


# --- archive and history


def archive_once(spark: SparkSession, client: Client, topic: str, path: Path) -> None:
    run_once(spark, client, path, archive_definition(topic, str(path / "table"), max_records=40))


def test_history_has_neither_gap_nor_overlap(
    spark: SparkSession, client: Client, options: dict[str, str], new_topic: NewTopic, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    topic = new_topic(2, "archived")
    table = str(tmp_path / "table")

    def offsets() -> list[tuple[int, int]]:
        rows = history(topic, table, spark=spark, options=options).select("partition", "offset").collect()
        return sorted((row[0], row[1]) for row in rows)

    def everything() -> list[tuple[int, int]]:
        return [(part.partition, offset) for part in client.metadata(topic).partitions for offset in range(part.newest)]

    fill(client, topic, [b"%d" % n for n in range(50)], keys=9)
    assert offsets() == everything(), "without an archive there is the topic alone"
    archive_once(spark, client, topic, tmp_path)
    assert DeltaTable(table).metadata().partition_columns == ["day"]
    fill(client, topic, [b"hot %d" % n for n in range(10)], keys=9)
    assert offsets() == everything()
    archive_once(spark, client, topic, tmp_path)
    assert offsets() == everything()
    DeltaTable(table).optimize.compact()
    assert offsets() == everything()
    frame = history(topic, table, spark=spark, options=options)
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert {bytes(row.value) for row in frame.collect()} >= {b"0", b"49", b"hot 9"}
    with pytest.raises(BraidError, match="holds records of"):
        history(new_topic(), table, spark=spark, options=options)


def test_names_of_topics_become_safe_names() -> None:
    assert [safe_name(name) for name in ("orders", "a/b c", "../x", "日本")] == ["orders", "a_b_c", "x", "topic"]


# --- the commands


def test_the_commands_do_the_same(
    spark: SparkSession, client: Client, braid: RunningBroker, new_topic: NewTopic, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """On the session that is there: `braid` asks for one, and Spark has one a process."""
    assert spark.sparkContext is not None
    monkeypatch.chdir(tmp_path)
    topic = new_topic(1, "commanded")
    fill(client, topic, [b'{"n": 1}', b'{"n": 2}'], keys=1)

    def braid_pipeline(*words: str) -> str:
        status = main(["pipeline", *words, "--server", braid.address])
        said = capsys.readouterr()
        assert status == 0, said.err
        return said.out

    def refused(*words: str) -> None:
        assert main(["pipeline", *words, "--server", braid.address]) != 0
        assert "PIPELINE_CHECKPOINT_GONE" in capsys.readouterr().err

    for words in (["archive", topic], ["compact", topic, "--to-topic", "x"], ["mirror", topic, "--to", "x:1"]):
        printed = braid_pipeline(*words, "--print", "--max-records", "7", "--max-bytes", "1MiB", "--checkpoint", "here")
        assert f'topics: ["{topic}"]' in printed and "max_records: 7" in printed and 'max_bytes: "1MiB"' in printed
        assert 'checkpoint: "here"' in printed
    braid_pipeline("archive", topic, "--once", "--max-records", "1")
    kept = Path("archive", topic, "_checkpoint", f"archive-{topic}", "commits")
    assert len(list(kept.glob("[0-9]*"))) == 2, "two batches, in the folder of the table"
    assert history(topic, spark=spark, options={"servers": braid.address}).count() == 2
    # Where it is belongs to the table, from wherever it is started. Another table would be another archive.
    archive = str(tmp_path / "archive" / topic)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    braid_pipeline("archive", topic, "--table", archive, "--once")
    assert history(topic, archive, spark=spark, options={"servers": braid.address}).count() == 2
    refused("archive", topic, "--once")
    monkeypatch.chdir(tmp_path)
    braid_pipeline("mirror", topic, "--to", braid.address, "--prefix", "there.", "--once", "--to-option", "timeout=50s")
    assert client.metadata(f"there.{topic}").records == 2
    braid_pipeline("compact", topic, "--table", "lake/latest", "--once", "--checkpoint", "here")
    assert Path("here", f"compact-{topic}").is_dir()
    refused("compact", topic, "--table", "lake/latest", "--once")
    braid_pipeline("compact", topic, "--table", "lake/latest", "--once", "--fresh")
    from deltalake import DeltaTable

    assert [row["value"] for row in DeltaTable("lake/latest").to_pyarrow_table().to_pylist()] == [b'{"n": 2}']
    listed = {line.split()[0]: line for line in braid_pipeline("ls").splitlines()}
    for kind in ("archive", "mirror", "compact"):
        assert " once " in listed[f"{kind}-{topic}"]
    figures = json.loads(braid_pipeline("profile", topic, "--html", "profile.html", "-o", "json"))
    assert {"section": "field", "name": "n", "metric": "kind_integer", "value": 2} in figures
    assert "<svg" in Path("profile.html").read_text()
    assert json.loads(braid_pipeline("dlq-triage", topic, "--html", "letters.html", "-o", "json")) == []
    assert Path("letters.html").exists()
    assert main(["pipeline", "profile", "nowhere", "--server", braid.address]) != 0
    assert "TOPIC_NOT_FOUND" in capsys.readouterr().err
