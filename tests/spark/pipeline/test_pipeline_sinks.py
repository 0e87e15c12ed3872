"""Each sink takes a batch once, replaces rows by its rule, and says what it cannot take."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pipeline_lab import Lab

from braidmq.base.errors import BraidError
from braidmq.client.sync import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from braidmq.spark.pipeline.sinks import Sink

_SCHEMA = "topic string, partition int, offset bigint, id string, n int, timestamp timestamp"
PLACE = ("partition", "offset", "timestamp")
Make = Callable[..., "Sink"]


def frame(lab: Lab, *rows: tuple[int, str, int | None]) -> DataFrame:
    """Rows of (offset, id, n)."""
    return placed(lab, *[(0, offset, 0, name, n) for offset, name, n in rows])


def placed(lab: Lab, *rows: tuple[int, int, int, str, int | None]) -> DataFrame:
    """Rows of (partition, offset, minute, id, n)."""
    made = [("t", partition, offset, name, n, f"2025-01-01 00:{minute:02}:00") for partition, offset, minute, name, n in rows]
    declared = _SCHEMA.replace("timestamp timestamp", "at string")
    return lab.spark.createDataFrame(made, declared).selectExpr(
        "topic", "partition", "offset", "id", "n", "to_timestamp(at) AS timestamp"
    )


def sink(lab: Lab, definition: dict[str, Any]) -> Sink:
    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.definition import Pipeline
    from braidmq.spark.pipeline.sinks import make_sink

    pipeline = Pipeline(name="p", source={"topics": ["t"]}, sinks=[definition])
    return make_sink(pipeline.sinks[0], Context(pipeline, str(lab.folder), lab.broker.address))


def batch(number: int) -> Any:
    from braidmq.spark.pipeline.sinks import Batch

    return Batch("query", number)


def replacing(first: int, end: int) -> Any:
    from braidmq.spark.pipeline.sinks import Replacing
    from braidmq.spark.pipeline.sinks.sink import Span

    return Replacing([Span("t", 0, first, end)])


def pairs(rows: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return sorted((row["id"], row["n"]) for row in rows)


def proves_itself(lab: Lab, appending: Sink, keyed: Sink, read: Callable[[Sink], list[dict[str, Any]]]) -> None:
    """What every table that can change promises."""
    assert appending.write(frame(lab, (0, "a", 1), (1, "b", None)), batch(0)) == 2
    assert appending.write(frame(lab, (0, "a", 1), (1, "b", None)), batch(0)) is None, "it has it"
    appending.write(frame(lab), batch(1))
    assert appending.write(frame(lab, (2, "c", 3)), batch(2)) == 1
    assert pairs(read(appending)) == [("a", 1), ("b", None), ("c", 3)]
    assert not appending.refuses(["topic", "partition", "offset", "id"]) and appending.refuses(["id", "n"])
    for _ in range(2):
        appending.replace(frame(lab, (1, "b", 20), (2, "c", 30)), batch(0), replacing(1, 3))
        assert pairs(read(appending)) == [("a", 1), ("b", 20), ("c", 30)]
    keyed.write(frame(lab, (0, "a", 1), (1, "b", 2), (2, "a", 3)), batch(0))
    assert pairs(read(keyed)) == [("a", 3), ("b", 2)], "one row a key, the last"
    keyed.write(frame(lab, (3, "b", 9)), batch(0))
    assert pairs(read(keyed)) == [("a", 3), ("b", 2)]
    keyed.replace(frame(lab, (3, "b", 9), (4, "z", 1)), batch(1), replacing(3, 5))
    assert pairs(read(keyed)) == [("a", 3), ("b", 9), ("z", 1)]
    assert not keyed.refuses([*PLACE, "id", "n"])
    assert "later" in keyed.refuses(["id", "n"]) and "later" in keyed.refuses(["id", "n", "offset", "timestamp"])
    # In a partition the offset decides, whatever the clock said; between partitions the time does.
    keyed.write(placed(lab, (0, 10, 7, "a", 10), (0, 11, 5, "a", 11), (0, 12, 9, "c", 12), (1, 3, 8, "c", 3)), batch(2))
    assert pairs(read(keyed)) == [("a", 11), ("b", 9), ("c", 12), ("z", 1)]
    # A replay puts no older record over a later one, and takes the same one, and later ones, and new keys.
    keyed.replace(frame(lab, (0, "a", 1), (3, "b", 90), (9, "z", 9), (9, "y", 9)), batch(3), replacing(0, 10))
    assert pairs(read(keyed)) == [("a", 11), ("b", 90), ("c", 12), ("y", 9), ("z", 9)]
    keyed.replace(placed(lab, (0, 10, 7, "a", 10), (1, 3, 8, "c", 3)), batch(4), replacing(3, 11))
    assert pairs(read(keyed)) == [("a", 11), ("b", 90), ("c", 12), ("y", 9), ("z", 9)]
    keyed.replace(placed(lab, (1, 4, 10, "c", 4)), batch(5), replacing(4, 5))
    assert ("c", 4) in pairs(read(keyed)), "the later one, in another partition"


def proves_its_order(lab: Lab, versioned: Sink, read: Callable[[Sink], list[dict[str, Any]]]) -> None:
    """What a table does that says itself which of two rows is later: here by `n`."""
    versioned.write(frame(lab, (0, "a", 5), (1, "a", 4), (2, "b", 1), (3, "b", 1)), batch(0))
    assert pairs(read(versioned)) == [("a", 5), ("b", 1)]
    assert next(row["offset"] for row in read(versioned) if row["id"] == "b") == 3, "where they are equal, the place decides"
    versioned.replace(frame(lab, (1, "a", 4), (2, "b", 1)), batch(1), replacing(1, 3))
    assert sorted((row["id"], row["n"], row["offset"]) for row in read(versioned)) == [("a", 5, 0), ("b", 1, 3)]
    assert not versioned.refuses(["id", "n", "partition", "offset"]) and "cannot be told" in versioned.refuses(["id", "n"])


def test_delta(lab: Lab) -> None:
    appending = sink(lab, {"table": {"path": "lake/a", "partition_by": ["day"], "compact_every": 3}})
    proves_itself(
        lab, appending, sink(lab, {"table": {"path": "lake/k", "key": "id"}}), lambda of: lab.table(of.label.split(":")[1])
    )
    proves_its_order(lab, sink(lab, {"table": {"path": "lake/v", "key": "id", "order_by": "n"}}), lambda of: lab.table("lake/v"))
    deleting = sink(lab, {"table": {"path": "lake/d", "key": "id", "delete_when": "n = 0"}})
    assert "could come back" in deleting.refuses([*PLACE, "id"])
    from deltalake import DeltaTable

    assert [action["operation"] for action in DeltaTable(str(lab.folder / "lake/a")).history()].count("OPTIMIZE") == 1
    assert {row["day"] for row in lab.table("lake/a")} == {"2025-01-01"}
    with pytest.raises(BraidError) as caught:
        appending.write(frame(lab, (9, "x", 1)).withColumnRenamed("n", "m"), batch(9))
    assert "its rows have m " in caught.value.text and "the table has n" in caught.value.text
    other = sink(lab, {"table": {"path": "lake/a", "partition_by": ["id"]}})
    with pytest.raises(BraidError):
        other.write(frame(lab, (9, "x", 1)), batch(9))


def test_parquet(lab: Lab) -> None:
    files = sink(lab, {"table": {"path": "files", "format": "parquet", "partition_by": ["id"]}})
    assert files.write(frame(lab, (0, "a", 1), (1, "b/c", 2)), batch(0)) == 2
    assert files.write(frame(lab, (0, "a", 1), (1, "b/c", 2)), batch(0)) is None
    assert pairs(lab.table("files", "parquet")) == [("a", 1), ("b/c", 2)]
    # A crash after the decision, before the files were moved: the moves are finished.
    (moved,) = lab.folder.glob("files/id=a/*.parquet")
    (decision,) = lab.folder.glob("files/_braid/*/*.json")
    (done,) = lab.folder.glob("files/_braid/*/*.json.done")
    staged = decision.parent / json.loads(decision.read_text())["attempt"] / "id=a" / moved.name
    staged.parent.mkdir(parents=True)
    moved.rename(staged)
    done.unlink()
    assert pairs(lab.table("files", "parquet")) == [("b/c", 2)]
    assert files.write(frame(lab, (0, "a", 1)), batch(0)) is None
    assert pairs(lab.table("files", "parquet")) == [("a", 1), ("b/c", 2)]
    # A crash before it: what lies there is nobody's.
    orphan = decision.with_name(f"{1:020d}-{'ab' * 16}") / "old.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    assert files.write(frame(lab, (2, "d", 3)), batch(1)) == 1
    assert len(lab.table("files", "parquet")) == 3 and not orphan.exists()
    # Files that are nowhere are an error, and no batch that was written.
    (moved,) = lab.folder.glob("files/id=d/*.parquet")
    (done,) = lab.folder.glob(f"files/_braid/*/{1:020d}.json.done")
    done.unlink()
    moved.rename(lab.folder / "away")
    with pytest.raises(BraidError, match="neither there nor in its place"):
        files.write(frame(lab, (2, "d", 3)), batch(1))
    (lab.folder / "away").rename(moved)
    # Of many batches only the last decisions stay, and a driver that comes with an older batch is told that it is too late.
    for number in range(2, 6):
        files.write(frame(lab, (number, "e", number)), batch(number))
    assert sorted(each.name for each in decision.parent.iterdir()) == [
        f"{number:020d}.json{end}" for number in (4, 5) for end in ("", ".done")
    ]
    for number in range(6):
        assert files.write(frame(lab, (number, "late", number)), batch(number)) is None
    assert len(lab.table("files", "parquet")) == 7
    assert "delta" in files.refuses([])
    with pytest.raises(BraidError):
        files.replace(frame(lab), batch(2), replacing(0, 1))


@pytest.mark.parametrize("later", [0, 3], ids=["same-batch", "older-batch"])
def test_two_drivers_at_a_parquet_batch_write_it_once(lab: Lab, later: int) -> None:
    """One of them takes over while the other, which was told to end, is in the middle of a batch; it may be batches behind."""
    both = lab.folder / "both"
    both.mkdir()

    def meeting(name: str) -> DataFrame:
        """A row whose task ends when the other driver has staged something, or has gone on to other batches."""
        folder, wanted = str(both), {"old", "new"} if not later else {"old", "new", "gone on"}

        def wait(batches: Any) -> Iterator[Any]:
            import os
            import time

            yield from batches
            open(f"{folder}/{name}", "w").close()
            while not (wanted if name == "old" else {"old"}) <= set(os.listdir(folder)):
                time.sleep(0.05)

        rows = frame(lab, (0, "a", 1)).coalesce(1)
        return rows.mapInArrow(wait, rows.schema)

    def write(name: str) -> None:
        files = sink(lab, {"table": {"path": "met", "format": "parquet"}})
        taken[name] = files.write(meeting(name), batch(0))
        if name == "new":
            for number in range(1, 1 + later):
                assert files.write(frame(lab, (number, "more", number)), batch(number)) == 1
            (both / "gone on").touch()

    taken: dict[str, int | None] = {}
    threads = [threading.Thread(target=write, args=(name,)) for name in ("old", "new")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(taken.values(), key=str) == [1, None], "one of them has written it"
    assert later == 0 or taken["old"] is None
    assert pairs(lab.table("met", "parquet")) == [("a", 1), *(("more", number) for number in range(1, 1 + later))]
    assert not [each for each in lab.folder.glob("met/_braid/*/*") if each.is_dir()], "what nobody needs is gone"


def test_iceberg(lab: Lab) -> None:
    (lab.folder / "warehouse").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{lab.folder}/catalog.db", "warehouse": f"file://{lab.folder}/warehouse"}

    def read(of: Sink) -> list[dict[str, Any]]:
        from pyiceberg.catalog import load_catalog

        found: list[dict[str, Any]] = (
            load_catalog("braid", **catalog).load_table(of.label.split(":")[1]).scan().to_arrow().to_pylist()
        )
        return found

    def make(name: str, **more: Any) -> Sink:
        return sink(lab, {"table": {"path": f"lake.{name}", "format": "iceberg", "catalog": catalog, **more}})

    proves_itself(lab, make("a", partition_by=["day"]), make("k", key="id"), read)
    proves_its_order(lab, make("v", key="id", order_by="n"), read)
    assert pairs(lab.table("lake.a", "iceberg", **catalog)) == [("a", 1), ("b", 20), ("c", 30)]
    with pytest.raises(BraidError):
        sink(lab, {"table": {"path": "nospace", "format": "iceberg", "catalog": catalog}}).write(frame(lab, (0, "a", 1)), batch(0))


def test_topics(lab: Lab) -> None:
    whole = sink(lab, {"topic": {"name": lab.clean, "key": "id"}})
    assert whole.write(frame(lab, (0, "a", 1), (1, "b", None)), batch(0)) == 2
    assert whole.write(frame(lab, (0, "a", 1), (1, "b", None)), batch(0)) is None
    assert pairs(lab.values(lab.clean)) == [("a", 1), ("b", None)]
    assert sorted(record.key for record in lab.records(lab.clean)) == [b"a", b"b"]
    sink(lab, {"topic": {"name": lab.clean, "value": "id"}}).write(frame(lab, (2, "c", 1)), batch(1))
    assert sorted(record.value for record in lab.records(lab.clean))[0] == b"c"
    assert "never taken back" in whole.refuses([])
    with pytest.raises(BraidError):
        sink(lab, {"topic": {"name": lab.clean, "key": "kee"}}).write(frame(lab, (3, "d", 1)), batch(2))


def test_one_row_a_key_that_nothing_decides(lab: Lab) -> None:
    """Two rows without an order are an error, not one of them."""
    latest = sink(lab, {"topic": {"name": lab.clean, "key": "id", "latest": True, "order_by": "n"}})
    plain = frame(lab, (0, "a", 1), (1, "a", 2), (2, "b", 1), (3, "b", 1)).select("id", "n")
    latest.write(plain, batch(0))
    assert pairs(lab.values(lab.clean)) == [("a", 2), ("b", 1)], "equal rows are one"
    for rows, told in (
        (frame(lab, (0, "a", 1), (1, "a", 1)).selectExpr("id", "n", "offset AS other"), 'which of two different rows is the later'),
        (frame(lab, (0, "a", 1), (1, "a", None)).select("id", "n"), "n, which orders rows, is missing"),
        (frame(lab, (0, "a", 1)).selectExpr("id", "array(n) AS n"), "more than one value"),
        (frame(lab, (0, "a", 1)).select("id"), "there is no column n"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=told):
            latest.write(rows, batch(1))
    by_place = sink(lab, {"topic": {"name": lab.clean, "key": "id", "latest": True}})
    with pytest.raises(BraidError, match="nothing says which of two rows with the same id is the later one"):
        by_place.write(frame(lab, (0, "a", 1)).select("id", "offset", "timestamp"), batch(2))
    with pytest.raises(Exception, match=r'two different rows is the later one .* \{"id":"a"\}'):
        by_place.write(frame(lab, (0, "a", 1)).selectExpr("*", "explode(array(1, 2)) AS other"), batch(2))


def test_sinks_do_not_take_each_other_s_batches(lab: Lab) -> None:
    """Topics whose names differ only in what has no place in the name of a file, or far behind: each gets every row."""
    from braidmq.spark.pipeline.sinks.sink import writer_name

    names = [f"{lab.clean}/日", f"{lab.clean}_本", f"{lab.clean}/本", f"{lab.clean}-{'x' * 150}/a", f"{lab.clean}-{'x' * 150}/b"]
    for name in names:
        lab.client.create_topic(name, 1)
        assert sink(lab, {"topic": {"name": name}}).write(frame(lab, (0, "a", 1)), batch(0)) == 1
        assert pairs(lab.values(name)) == [("a", 1)]
    from braidmq.spark.pipeline.sinks import Batch

    assert len(writer_name(Batch("x" * 120, 0), f"topic:{names[-1]}")) < 200


def test_a_topic_of_another_broker_is_reached_by_its_own_options_and_values_stay_encrypted(lab: Lab) -> None:
    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.definition import Pipeline
    from braidmq.spark.pipeline.sinks import make_sink

    def make(connection: dict[str, str], **options: str) -> Sink:
        there = {"topic": {"name": lab.clean, "value": "id", "servers": lab.broker.address, "options": options}}
        pipeline = Pipeline(name="p", source={"topics": ["t"]}, sinks=[there])
        return make_sink(pipeline.sinks[0], Context(pipeline, str(lab.folder), "127.0.0.1:1", connection))

    ours = {"tls": "true", "password": "ours", "encryptionKey": "ab" * 32}
    assert make(ours).write(frame(lab, (0, "secret", 1)), batch(0)) == 1, "it speaks no TLS, only ours does"
    assert b"secret" not in b"".join(record.value for record in lab.records(lab.clean))
    with connect(lab.broker.address, encryption_key="ab" * 32) as client:
        found = [record.value for part in range(2) for record in client.fetch(lab.clean, part, 0).records]
    assert found == [b"secret"]
    with pytest.raises(BraidError):
        make({}, tls="true", timeout="1s").write(frame(lab, (0, "a", 1)), batch(1))
    with pytest.raises(BraidError, match="usr"):
        make({}, usr="x")


# --- PostgreSQL, a real one


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of a server of our own."""
    binaries = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
    if binaries is None or not (binaries / "initdb").exists():
        pytest.skip("PostgreSQL is not installed")
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("nobody")
        except KeyError:
            pytest.skip("PostgreSQL does not run as root, and there is nobody else")
    else:
        user = pwd.getpwuid(os.geteuid())
    # Folders of pytest are closed to others, and the socket's path has to be short.
    import tempfile

    home = Path(tempfile.mkdtemp(prefix="braid-pg-"))
    os.chown(home, user.pw_uid, user.pw_gid)
    given: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid} if os.geteuid() == 0 else {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common: dict[str, Any] = {"cwd": home, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **given}
    subprocess.run([binaries / "initdb", "-D", home / "data", "-U", "braid", "-A", "trust", "--no-sync"], check=True, **common)
    command = [binaries / "postgres", "-D", home / "data", "-p", str(port), "-k", home, "-c", "listen_addresses=127.0.0.1", "-F"]
    server = subprocess.Popen(command, **common)
    dsn = f"host=127.0.0.1 port={port} user=braid dbname=postgres"
    try:
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(dsn).close()
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise
                time.sleep(0.1)
        yield dsn
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(home)


def test_postgres(lab: Lab, postgres: str) -> None:
    import psycopg
    from psycopg.rows import dict_row

    def read(of: Sink) -> list[dict[str, Any]]:
        with psycopg.connect(postgres, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {of.label.split(':')[1]}").fetchall()  # type: ignore[arg-type]

    def make(table: str, **more: Any) -> Sink:
        return sink(lab, {"postgres": {"dsn": postgres, "table": table, **more}})

    proves_itself(lab, make("rows"), make("keyed", key="id"), read)
    proves_its_order(lab, make("versioned", key="id", order_by="n"), read)
    assert {row["timestamp"].isoformat() for row in read(make("rows"))} == {"2025-01-01T00:00:00+00:00"}
    nested = frame(lab, (0, "a", 1)).selectExpr(
        "id", "named_struct('x', array(1, 2), 'y', timestamp) AS s", "cast(id AS binary) AS b"
    )
    make("nested").write(nested, batch(0))
    (row,) = read(make("nested"))
    assert row["s"]["x"] == [1, 2] and row["b"] == b"a"
    # What fails leaves nothing, and no mark: the batch can come again.
    with pytest.raises(psycopg.Error):
        make("rows").write(frame(lab, (9, "x", 1)).withColumnRenamed("n", "nowhere"), batch(7))
    assert make("rows").write(frame(lab, (9, "x", 1)), batch(7)) == 1
