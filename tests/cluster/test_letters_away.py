"""Dead letters where the coordinator has no replica of the topic that they lie in, or one that is behind: they are listed, sent
back and let go as their leaders have them, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from asked_nodes import WITH_API, away, behind, opened, said
from three_nodes import Nodes

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.topics import Topic
from braidmq.client import Client, connect
from braidmq.cluster.messages import unpack
from braidmq.cluster.replication.replication import Replication
from braidmq.cluster.replication.settings import ReplicationSettings
from braidmq.cluster.transport import ClusterOp
from braidmq.cluster.transport_tcp import TcpTransport
from braidmq.wire import flymq

PATIENCE_S = 60.0
PARTITIONS = 2
LETTERS = 6
"""In each partition."""


def _run(work: object) -> None:
    asyncio.run(asyncio.wait_for(work, 120))  # type: ignore[arg-type]


async def _away(nodes: Nodes, client: Client, partitions: int = PARTITIONS) -> Topic:
    """A topic of dead letters whose replicas are on the two nodes that do not coordinate."""
    topic = await away(nodes, client, "orders.dlq", partitions)
    await client.create_topic("orders", 1)
    return topic


async def _filled(client: Client) -> None:
    for number in range(LETTERS):
        for partition in range(PARTITIONS):
            await client.produce("orders.dlq", b"%d-%d" % (partition, number), partition=partition)


async def _listed(nodes: Nodes, name: str) -> dict[bytes, str]:
    """What lies in the letters, and their ids."""
    found = await said(nodes, name, flymq.FetchDlq("orders", 100), flymq.DeadLetters)
    return {letter.data: letter.id for letter in found.items}


async def _sent_back(nodes: Nodes) -> list[bytes]:
    async with connect(nodes.address("a")) as client:
        return [record.value for record in (await client.fetch("orders", 0, 0)).records]


def test_letters_are_listed_sent_back_and_let_go_whoever_has_them(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            topic = await _away(nodes, client)
            await _filled(client)
            wanted = {b"%d-%d" % (partition, number) for partition in range(PARTITIONS) for number in range(LETTERS)}
            back = []
            for at, name in enumerate("abc"):
                found = await _listed(nodes, name)
                assert set(found) == wanted
                by_id, by_offset, by_filter, gone = b"1-%d" % at, b"0-%d" % at, b"1-%d" % (3 + at), b"0-%d" % (3 + at)
                start = flymq.FetchDlq("orders", 1, found[by_id])
                assert [letter.data for letter in (await said(nodes, name, start, flymq.DeadLetters)).items] == [by_id]
                assert (await said(nodes, name, flymq.ReplayDlq("orders", found[by_id]), flymq.DlqReplayed)).count == 1
                assert (await said(nodes, name, flymq.ReplayDlq("orders", offset=at), flymq.DlqReplayed)).count == 1
                matching = flymq.ReplayDlq("orders", filter=by_filter.decode())
                assert (await said(nodes, name, matching, flymq.DlqReplayed)).count == 1
                await said(nodes, name, flymq.DlqDiscard("orders", found[gone]), flymq.Ok)
                with pytest.raises(BraidError, match="MESSAGE_NOT_FOUND"):
                    await said(nodes, name, flymq.ReplayDlq("orders", found[by_id]), flymq.DlqReplayed)
                back += [by_id, by_offset, by_filter]
                wanted -= {by_id, by_offset, by_filter, gone}
            assert not wanted and await _sent_back(nodes) == back
            await _filled(client)
            everything = flymq.ReplayDlq("orders", all=True)
            assert (await said(nodes, "a", everything, flymq.DlqReplayed)).count == PARTITIONS * LETTERS
            assert len(await _sent_back(nodes)) == len(back) + PARTITIONS * LETTERS
            await _filled(client)
            await said(nodes, "b", flymq.PurgeDlq("orders"), flymq.Ok)
            assert not await _listed(nodes, "c")
            for number in range(PARTITIONS):
                # What they took is given back where they lay.
                log = nodes.servers[nodes.leader("orders.dlq", number)].broker.log_of(topic, number)
                assert log.log_start == log.high_watermark == 3 * LETTERS

    _run(work())


def test_screens_show_letters_of_all_leaders_at_every_node(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, **WITH_API) as nodes, connect(nodes.address("a")) as client:
            await _away(nodes, client)
            await _filled(client)
            left = PARTITIONS * LETTERS
            for name in "abc":
                async with opened(nodes, name) as web:
                    (row,) = (await asyncio.to_thread(web.get, "/api/v1/dlq")).json
                    assert (row["topic"], row["letters"], row["unknown"]) == ("orders", left, False) and row["size_bytes"] > 0
                    rows = (await asyncio.to_thread(web.get, "/api/v1/dlq/orders")).json
                    assert len(rows) == left
                    page = (await asyncio.to_thread(web.get, "/console/dead-letters/orders")).body.decode()
                    assert rows[0]["value"] in page and rows[-1]["value"] in page
                    path = f"/api/v1/dlq/orders/discard/{rows[0]['id']}"
                    assert (await asyncio.to_thread(web.post, path, {})).status == 200
                    path = f"/api/v1/dlq/orders/replay/{rows[1]['id']}"
                    sent = (await asyncio.to_thread(web.post, path, {})).status
                    assert sent == (200 if nodes.node(name).coordinates else 421), "others say that they do not coordinate"
                left -= 2 if sent == 200 else 1
                gone = PARTITIONS * LETTERS - left
                await nodes.until(lambda gone=gone: all(_gone(nodes, other) == gone for other in "abc"))  # type: ignore[misc]
            assert len(await _sent_back(nodes)) == 1

    _run(work())


def _gone(nodes: Nodes, name: str) -> int:
    """How many letters a node knows to be gone."""
    broker = nodes.servers[name].broker
    topic, table = broker.topic("orders.dlq"), broker.work.table.letters
    return sum(table.is_gone(topic.id, number, offset) for number in range(PARTITIONS) for offset in range(LETTERS))


def test_a_coordinator_that_lags_asks_all_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in nodes.servers))
            await client.create_topic("orders", 1)
            await client.create_topic("orders.dlq", 1)
            coordinator = await behind(nodes, client, "orders.dlq")
            found = await _listed(nodes, coordinator)
            assert set(found) == {b"first", b"second"}
            await said(nodes, coordinator, flymq.ReplayDlq("orders", found[b"second"]), flymq.DlqReplayed)
            assert await _sent_back(nodes) == [b"second"]

    _run(work())


def test_letters_that_no_leader_tells_are_not_left_out(tmp_path: Path) -> None:
    """A leader that has just begun says no end before it knows how far readers may have seen."""

    async def work() -> None:
        nodes = Nodes(tmp_path, **WITH_API)
        # So long replicas count as in sync that are not heard.
        nodes.replication = ReplicationSettings(lag_s=PATIENCE_S)
        async with nodes, connect(nodes.address("a")) as client:
            topic = await _away(nodes, client)
            await _filled(client)
            found = await _listed(nodes, "a")
            leader, key = nodes.leader("orders.dlq"), (topic.id, 0)
            for name in "abc":
                if name != leader:
                    cast("Replication", nodes.node(name).replication)._unfollow(key)
            unseen = asyncio.create_task(client.produce("orders.dlq", b"unseen", partition=0))
            log = nodes.servers[leader].broker.log_of(topic, 0)
            await nodes.until(lambda: log.log_end == LETTERS + 1)
            cast("Replication", nodes.node(leader).replication)._led[key].epoch_start = log.log_end
            for name in "abc":
                for request in (
                    flymq.FetchDlq("orders", 100),
                    flymq.ReplayDlq("orders", found[b"0-1"]),
                    flymq.ReplayDlq("orders", offset=1),
                    flymq.ReplayDlq("orders", all=True),
                    flymq.DlqDiscard("orders", found[b"0-1"]),
                    flymq.PurgeDlq("orders"),
                ):
                    with pytest.raises(BraidError) as refused:
                        await said(nodes, name, request, object)
                    assert refused.value.code == "NOT_LEADER" and refused.value.retriable, request
                async with opened(nodes, name) as web:
                    (row,) = (await asyncio.to_thread(web.get, "/api/v1/dlq")).json
                    assert (row["letters"], row["unknown"]) == (LETTERS, True)
                    for page in ("/console/dead-letters", "/console"):
                        assert f"at least {LETTERS}" in (await asyncio.to_thread(web.get, page)).body.decode()
            assert not await _sent_back(nodes)
            assert all(_gone(nodes, name) == 0 for name in "abc")
            # A letter whose leader is heard can be sent back.
            assert (await said(nodes, "a", flymq.ReplayDlq("orders", found[b"1-1"]), flymq.DlqReplayed)).count == 1
            unseen.cancel()
            await asyncio.gather(unseen, return_exceptions=True)

    _run(work())


def test_a_leader_that_moves_while_letters_are_read_costs_a_pause(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await _away(nodes, client)
            await _filled(client)
            transport = cast("TcpTransport", nodes.node(nodes.leader("orders.dlq")).transport)
            answer = transport._handlers[ClusterOp.PARTITION_READ]
            faults = [BraidError("NOT_LEADER", reason="moved"), BraidError("NODE_UNREACHABLE", node="b", reason="gone")]

            async def moves(node: str, payload: memoryview) -> Sequence[Buffer]:
                if faults:
                    raise faults.pop()
                return await answer(node, payload)

            transport.serve(ClusterOp.PARTITION_READ, moves)
            replay = flymq.ReplayDlq("orders", all=True)
            assert (await said(nodes, "a", replay, flymq.DlqReplayed)).count == PARTITIONS * LETTERS
            assert not faults

    _run(work())


def test_a_replay_that_was_refused_is_asked_again(tmp_path: Path) -> None:
    """Who refuses a connection did nothing. Where the connection breaks later nobody knows, and whoever asked has to decide."""

    async def work() -> None:
        async with Nodes(tmp_path) as nodes, connect(nodes.address("a")) as client:
            await _away(nodes, client)
            await _filled(client)
            found = await _listed(nodes, "a")
            asked = next(name for name in "abc" if name != nodes.coordinator())
            transport = cast("TcpTransport", nodes.node(asked).transport)
            call = transport.call
            faults: list[BraidError] = []

            async def faulty(node: str, op: int, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
                # That a connection ended is told in the same way.
                if op == ClusterOp.FORWARD_REQUEST and faults and not unpack(memoryview(b"".join(parts)))[0].get("over"):
                    raise faults.pop()
                return await call(node, op, parts, timeout_s)

            transport.call = faulty  # type: ignore[method-assign]
            faults.append(BraidError("NODE_UNREACHABLE", node="b", reason="connection refused", refused=True))
            assert (await said(nodes, asked, flymq.ReplayDlq("orders", found[b"0-0"]), flymq.DlqReplayed)).count == 1
            assert not faults
            for fields in ({}, {"refused": False}):
                faults.append(BraidError("NODE_UNREACHABLE", node="b", reason="the connection broke", **fields))
                with pytest.raises(BraidError, match="NODE_UNREACHABLE"):
                    await said(nodes, asked, flymq.ReplayDlq("orders", found[b"0-1"]), flymq.DlqReplayed)
            assert await _sent_back(nodes) == [b"0-0"]

    _run(work())
