"""Spark and three nodes, one of which has no replica of any topic: whichever node a query reaches, nothing is missing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from copying import PATIENCE_S, assert_each_once, copy, lag_of, values_of

from braidmq.client import sync
from tests.cluster.node_processes import Processes, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.skipif(shutil.which("etcd") is None, reason="there is no etcd: `make setup-cluster` installs it"),
    pytest.mark.timeout(600),
]
PARTITIONS = 4
TOPICS = ("in", "out", "late")


@dataclass
class Node:
    address: str


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Topics have their replicas at `a` and `b`; `c` only knows that there are such topics."""
    with Processes(tmp_path_factory.mktemp("nodes"), replication_factor="2", min_insync="1") as nodes:
        with sync.connect(nodes.addresses) as client:
            for topic in TOPICS:
                client.create_topic(topic, PARTITIONS)
                for partition in range(PARTITIONS):
                    client.cluster.reassign(topic, partition, ("ab", "ba")[partition % 2])
            until(lambda: not client.cluster.progress())
            placed = [part for topic in TOPICS for part in client.cluster.metadata(topic)[0].partitions]
            assert {part.leader for part in placed} == {"a", "b"} and not any("c" in part.replicas for part in placed)
        yield nodes


def rows_at(spark: SparkSession, node: Node, topic: str, **options: str) -> Counter[bytes]:
    frame = spark.read.format("braid").options(servers=node.address, subscribe=topic, **options).schema("value binary").load()
    return Counter(bytes(row["value"]) for row in frame.collect())


def write(spark: SparkSession, node: Node, topic: str, begin: int, end: int) -> None:
    columns = ("cast(lpad(id, 6, '0') as binary) as value", f"cast(id % {PARTITIONS} as int) as partition")
    rows = spark.range(begin, end, 1, 2).selectExpr(*columns)
    rows.write.format("braid").mode("append").options(servers=node.address, topic=topic).save()


def test_every_node_reads_and_writes_all_of_a_topic(spark: SparkSession, nodes: Processes, checkpoint: str) -> None:
    a, b, c = (Node(nodes.nodes[name].address) for name in "abc")
    written = 0
    for writer, reader in ((c, c), (a, b), (b, c)):
        write(spark, writer, "in", written, written + 80)
        written += 80
        assert rows_at(spark, reader, "in") == Counter(b"%06d" % number for number in range(written)), "at once, all of it"
    assert rows_at(spark, c, "in", startingOffsets="latest") == Counter()
    stamps = spark.read.format("braid").options(servers=c.address, subscribe="in").load().groupBy("partition").count()
    assert {row["count"] for row in stamps.collect()} == {written // PARTITIONS}
    assert rows_at(spark, c, "in", startingTimestamp="2900-01-01T00:00:00Z") == Counter(), "not the whole topic"
    # From topic to topic, with the group in the same publication.
    assert copy(spark, c, "in", "out", checkpoint).awaitTermination(PATIENCE_S)
    assert_each_once(a, "out", written)
    assert lag_of(b, "in") == 0
    write(spark, a, "in", written, written + 40)
    assert copy(spark, c, "in", "out", checkpoint).awaitTermination(PATIENCE_S)
    assert_each_once(c, "out", written + 40)


def test_a_lost_leader_costs_a_pause_and_no_row(spark: SparkSession, nodes: Processes, checkpoint: str) -> None:
    b, c = Node(nodes.nodes["b"].address), Node(nodes.nodes["c"].address)
    write(spark, c, "late", 0, 200)
    nodes.nodes["a"].kill()
    assert rows_at(spark, c, "late") == Counter(b"%06d" % number for number in range(200)), "whoever leads now has all of it"
    write(spark, c, "late", 200, 300)
    nodes.nodes["a"].start()
    nodes.nodes["a"].wait_ready()
    assert rows_at(spark, Node(nodes.nodes["a"].address), "late") == rows_at(spark, b, "late") == values_of(c, "late")
    assert_each_once(c, "late", 300)
