"""Groups where the coordinator has no replica of what they read, or one that is behind: they begin, are moved and are measured by
what the leaders say, or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from asked_nodes import WITH_API, away, behind, leads_everywhere, opened, said
from three_nodes import Nodes
from web_client import WebClient

from braidmq.admin.metrics.snapshot import MetricsReader
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.client import Client, connect
from braidmq.cluster import leader_looks
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import ClusterOp
from braidmq.server.forwarding import RemoteCaller
from braidmq.server.operations import OPERATIONS
from braidmq.wire import flymq
from braidmq.wire.flymq import Op

PATIENCE_S = 60.0
PARTITIONS = 2
RECORDS = 5
"""In each partition."""


def _run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, 120))  # type: ignore[arg-type]


async def _committed(nodes: Nodes, group: str) -> dict[int, int]:
    async with connect(nodes.address("a")) as client:
        return await client.group.committed(group, "orders")


async def _filled(client: Client) -> int:
    """A time in the middle of the records; that of the first comes back as `after` the oldest were written."""
    middle_ms = 0
    for number in range(RECORDS):
        for partition in range(PARTITIONS):
            at = await client.produce("orders", b"%d" % number, partition=partition)
        if number == 1:
            middle_ms = at.timestamp + 1
            while time.time() * 1000 < middle_ms:  # noqa: ASYNC110 (a clock tells nobody)
                await asyncio.sleep(0.001)
    return middle_ms


async def _get(web: WebClient, path: str) -> Any:
    answer = await asyncio.to_thread(web.get, path)
    assert answer.status == 200
    return answer.json


async def _metrics(nodes: Nodes, name: str) -> dict[str, dict[tuple[str, ...], Any]]:
    return cast("dict[str, dict[tuple[str, ...], Any]]", (await MetricsReader(nodes.servers[name]).read()).values)


def test_a_group_is_moved_to_where_leaders_say(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, **WITH_API) as nodes, connect(nodes.address("a")) as client:
            await away(nodes, client, "orders", PARTITIONS)
            middle_ms = await _filled(client)
            for name in "abc":
                for number in range(PARTITIONS):
                    await said(nodes, name, flymq.ResetOffset("orders", f"end-{name}", number, "latest"), flymq.Ok)
                    since = flymq.ResetOffset("orders", f"since-{name}", number, "timestamp", middle_ms)
                    await said(nodes, name, since, flymq.Ok)
                assert await _committed(nodes, f"end-{name}") == dict.fromkeys(range(PARTITIONS), RECORDS)
                assert await _committed(nodes, f"since-{name}") == dict.fromkeys(range(PARTITIONS), 2)
                seek = flymq.SeekToTimestamp("orders", f"seek-{name}", 1, middle_ms)
                assert (await said(nodes, name, seek, flymq.Offset)).offset == 2
                assert await _committed(nodes, f"seek-{name}") == {1: 2}
                asked = flymq.SeekToTimestamp("orders", "", 0, middle_ms)
                assert (await said(nodes, name, asked, flymq.Offset)).offset == 2
                async with connect(nodes.address(name)) as other:
                    changes = await other.group.seek(f"sought-{name}", "orders", "latest")
                    assert [change.after for change in changes] == [RECORDS] * PARTITIONS
                # The API moves all partitions at once, on the node that is asked.
                async with opened(nodes, name) as web:
                    path = f"/api/v1/topics/orders/groups/api-{name}/reset"
                    for body, wanted in (({"mode": "timestamp", "value": middle_ms}, 2), ({"mode": "latest"}, RECORDS)):
                        answer = await asyncio.to_thread(web.post, path, body)
                        assert [change["after"] for change in answer.json["changes"]] == [wanted] * PARTITIONS
                assert await _committed(nodes, f"api-{name}") == dict.fromkeys(range(PARTITIONS), RECORDS)

    _run(work())


def test_a_new_group_begins_where_the_leader_ends(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await away(nodes, client, "orders", PARTITIONS)
            await _filled(client)
            for name in "abc":
                for mode, wanted in (("latest", RECORDS), ("", RECORDS), ("earliest", 0), ("commit", 0)):
                    request = flymq.Subscribe("orders", f"new-{name}-{mode}", 0, mode)
                    assert (await said(nodes, name, request, flymq.Offset)).offset == wanted
                with pytest.raises(BraidError, match="INVALID_MODE"):
                    await said(nodes, name, flymq.Subscribe("orders", "g", 0, "sideways"), flymq.Offset)
            async with client.consumer("orders", group="readers", start="latest") as consumer:
                assert await consumer.poll(timeout_s=0.1) == []
                await client.produce("orders", b"new", partition=1)
                (record,) = await consumer.poll(timeout_s=PATIENCE_S)
                assert (record.value, record.offset) == (b"new", RECORDS)

    _run(work())


def test_a_connection_that_ends_while_it_subscribes_is_no_member(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await away(nodes, client, "orders", 1)
            broker = nodes.servers[nodes.coordinator()].broker
            for group, ends in (("stays", False), ("brief", True)):
                # As a node that is lost with it leaves it.
                caller = RemoteCaller(broker)
                outcome = OPERATIONS[Op.SUBSCRIBE](caller, flymq.Subscribe("orders", group, 0, "latest"))
                assert not isinstance(outcome, list), "the leader is asked meanwhile"
                if ends:
                    caller.lost()
                await outcome
                await client.commit("orders", group, 0, 0)
                assert len(broker.coordinator.describe("orders", group).members) == (not ends)

    _run(work())


def test_lag_is_what_leaders_say_at_every_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, **WITH_API) as nodes, connect(nodes.address("a")) as client:
            await away(nodes, client, "orders", PARTITIONS)
            before_ms = time.time() * 1000
            await _filled(client)
            written_ms = time.time() * 1000
            await client.commit("orders", "readers", 0, 2)
            for name in "abc":
                one = await said(nodes, name, flymq.GetLag("orders", "readers", 0), flymq.Lag)
                assert (one.committed, one.latest, one.lag) == (2, RECORDS, RECORDS - 2)
                found = await said(nodes, name, flymq.GroupLag("orders", "readers"), flymq.PartitionLags)
                rows = [(row.committed, row.latest, row.lag) for row in found.partitions]
                assert rows == [(2, RECORDS, RECORDS - 2), (0, RECORDS, RECORDS)]
                now_ms = time.time() * 1000
                assert all(now_ms - written_ms - 1 <= row.lag_ms <= now_ms - before_ms + 1 for row in found.partitions)
                # What a node shows for itself is right as soon as it knows of the commit.
                groups = nodes.servers[name].broker.groups
                await nodes.until(
                    lambda groups=groups: groups.committed(  # type: ignore[misc]
                        nodes.servers["a"].broker.topic("orders").id, "readers", 0
                    ) == 2
                )  # fmt: skip
                async with opened(nodes, name) as web:
                    for row in ((await _get(web, "/api/v1/consumer-groups"))[0],
                                await _get(web, "/api/v1/topics/orders/groups/readers")):  # fmt: skip
                        assert (row["lag"], row["unknown"]) == (2 * RECORDS - 2, []) and row["lag_ms"] > 0
                        assert [part["newest_offset"] for part in row["partitions"]] == [RECORDS] * PARTITIONS
                    (figures,) = await _get(web, "/api/v1/topic-figures")
                    assert (figures["worst_lag"], figures["lag_unknown"]) == (2 * RECORDS - 2, False)
                metrics = await _metrics(nodes, name)
                assert metrics["braid_group_lag_records"] == {("orders", "readers"): 2 * RECORDS - 2}
                assert metrics["braid_group_lag_seconds"]["orders", "readers"] > 0
                async with connect(nodes.address(name)) as other:
                    (status,) = (await other.upkeep.document("status"))["groups"]
                assert (status["lag"], status["unknown"]) == (2 * RECORDS - 2, []) and status["lag_ms"] > 0

    _run(work())


def test_a_coordinator_that_lags_asks_all_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))
            await client.create_topic("orders", 1)
            coordinator = await behind(nodes, client, "orders")
            assert (await said(nodes, coordinator, flymq.GetLag("orders", "g", 0), flymq.Lag)).latest == 2
            assert (await said(nodes, coordinator, flymq.Subscribe("orders", "g", 0, "latest"), flymq.Offset)).offset == 2
            await said(nodes, coordinator, flymq.ResetOffset("orders", "g", 0, "latest"), flymq.Ok)
            assert await _committed(nodes, "g") == {0: 2}

    _run(work())


def test_what_no_leader_says_is_not_made_up(tmp_path: Path) -> None:
    """A leader that has just begun says no end before it knows how far readers may have seen."""

    async def work() -> None:
        nodes = Nodes(tmp_path, **WITH_API)
        # So long replicas count as in sync that are not heard.
        nodes.replication = ReplicationSettings(lag_s=PATIENCE_S)
        async with nodes, connect(nodes.address("a")) as client:
            topic = await away(nodes, client, "orders", PARTITIONS)
            await _filled(client)
            await client.commit("orders", "readers", 0, 3)
            await client.commit("orders", "readers", 1, 4)
            leader, key = nodes.leader("orders"), (topic.id, 0)
            for name in "abc":
                if name != leader:
                    cast("Replication", nodes.node(name).replication)._unfollow(key)
            unseen = asyncio.create_task(client.produce("orders", b"unseen", partition=0))
            log = nodes.servers[leader].broker.log_of(topic, 0)
            await nodes.until(lambda: log.log_end == RECORDS + 1)
            cast("Replication", nodes.node(leader).replication)._led[key].epoch_start = log.log_end
            for name in "abc":
                for request in (
                    flymq.ResetOffset("orders", "readers", 0, "latest"),
                    flymq.ResetOffset("orders", "readers", 0, "earliest"),
                    flymq.ResetOffset("orders", "readers", 0, "timestamp", 1),
                    flymq.SeekToTimestamp("orders", "readers", 0, 1),
                    flymq.SeekToTimestamp("orders", "", 0, 1),
                    flymq.Subscribe("orders", "readers", 0, "latest"),
                    flymq.Subscribe("orders", "new", 0, "commit"),
                    flymq.GetLag("orders", "readers", 0),
                    flymq.GroupLag("orders", "readers"),
                ):
                    with pytest.raises(BraidError) as refused:
                        await said(nodes, name, request, object)
                    assert refused.value.code == "NOT_LEADER" and refused.value.retriable, request
                # Nothing of it happened, and what needs no end works.
                assert await _committed(nodes, "readers") == {0: 3, 1: 4}
                subscribed = await said(nodes, name, flymq.Subscribe("orders", "readers", 0, "commit"), flymq.Offset)
                assert subscribed.offset == 3
                assert (await said(nodes, name, flymq.GetLag("orders", "readers", 1), flymq.Lag)).lag == RECORDS - 4
                await nodes.until(
                    lambda name=name: nodes.servers[name].broker.groups.committed(topic.id, "readers", 1) == 4  # type: ignore[misc]
                )
                async with opened(nodes, name) as web:
                    (row,) = await _get(web, "/api/v1/consumer-groups")
                    assert (row["lag"], row["unknown"]) == (RECORDS - 4, [0])
                    first, second = row["partitions"]
                    assert first == {"partition": 0, "offset": 3, "committed": True}
                    assert (second["lag"], second["newest_offset"]) == (RECORDS - 4, RECORDS)
                    assert (await _get(web, "/api/v1/topic-figures"))[0]["lag_unknown"]
                    page = await asyncio.to_thread(web.get, "/console/topics/orders/groups/readers")
                    assert "at least 1" in page.body.decode() and "not known" in page.body.decode()
                    page = await asyncio.to_thread(web.get, "/console/groups")
                    assert "at least 1" in page.body.decode()
                metrics = await _metrics(nodes, name)
                assert metrics["braid_groups_lag_unknown"] == {(): 1} and not metrics.get("braid_group_lag_records")
                async with connect(nodes.address(name)) as other:
                    (status,) = (await other.upkeep.document("status"))["groups"]
                assert status["unknown"] == [0]
            unseen.cancel()
            await asyncio.gather(unseen, return_exceptions=True)

    _run(work())


def test_many_groups_are_asked_about_in_several_calls(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            topic = await away(nodes, client, "orders", PARTITIONS)
            await _filled(client)
            coordinator = nodes.servers[nodes.coordinator()].broker.coordinator
            count = 6000
            assert count * PARTITIONS > leader_looks._ROWS
            rows = [(topic.id, f"g{number:04}", 0, number) for number in range(count)]
            for first in range(0, count, 1000):
                await coordinator.commit_rows(rows[first : first + 1000])
            lags = await coordinator.lags()
            assert [lag.group for lag in lags] == [group for _, group, _, _ in rows]
            for number, lag in enumerate(lags):
                first, second = lag.partitions
                left = max(0, RECORDS - number)
                assert (first.committed, first.latest, first.records, first.fault) == (number, RECORDS, left, None)
                assert (first.ms > 0) == (left > 0)
                assert (second.records, second.latest) == (RECORDS, RECORDS) and second.ms > 0

    _run(work())


def test_a_leader_that_hangs_hides_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            topic = await away(nodes, client, "orders", PARTITIONS)
            await _filled(client)
            await client.commit("orders", "readers", 0, 1)
            first, second = (name for name in "abc" if name != nodes.coordinator())
            await client.cluster.lead("orders", 0, first)
            await client.cluster.lead("orders", 1, second)
            await nodes.until(
                lambda: leads_everywhere(nodes, topic, 0, first) and leads_everywhere(nodes, topic, 1, second)
            )

            async def silent(node: str, payload: memoryview) -> Sequence[Buffer]:
                await asyncio.Event().wait()
                return []

            nodes.node(first).transport.serve(ClusterOp.PARTITION_LOOK, silent)
            coordinator = nodes.servers[nodes.coordinator()].broker.coordinator
            (lag,) = await coordinator.lags()
            assert (lag.unknown, lag.records, lag.partitions[1].latest) == ([0], RECORDS, RECORDS)
            with pytest.raises(BraidError, match="NODE_UNREACHABLE"):
                lag.complete()

    _run(work())
