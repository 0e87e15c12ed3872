"""Lists of subscribers and queues: those of all nodes, whichever is asked, and which nodes are missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asked_nodes import WITH_API, opened
from three_nodes import Nodes
from web_client import WebClient

from braidmq.base.config import Listen
from braidmq.base.disk import Buffer
from braidmq.client import blipmq, connect, fq
from braidmq.cluster.transport import ClusterOp
from braidmq.server.deliveries import subscriptions

_SETTINGS: dict[str, Any] = {
    "listen": tuple(Listen(protocol, "127.0.0.1", 0) for protocol in ("flymq", "blipmq", "fq")),
    **WITH_API,
}


async def _get(web: WebClient, path: str) -> dict[str, Any]:
    answer = await asyncio.to_thread(web.get, path)
    assert answer.status == 200
    found: dict[str, Any] = answer.json
    return found


async def _everything(web: WebClient, path: str, limit: int) -> list[tuple[str, str]]:
    """Names and nodes of a whole list, page by page."""
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        page = await _get(web, f"{path}?limit={limit}{cursor and f'&cursor={cursor}'}")
        assert len(page["items"]) <= limit and not page.get("missing")
        found += [(row["name"], row["node"]) for row in page["items"]]
        if "next_cursor" not in page:
            return found
        cursor = page["next_cursor"]


def test_lists_have_what_every_node_serves(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path, **_SETTINGS) as nodes, contextlib.AsyncExitStack() as clients:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            for name in "abc":
                reader = await clients.enter_async_context(
                    blipmq.connect(nodes.port(name, "blipmq"), client_id=f"reader-{name}")
                )
                await reader.subscribe("news", qos=1)
                # A queue that is each node's own has the same name on all of them.
                for queue in ("same", f"jobs-{name}"):
                    client = await clients.enter_async_context(fq.connect(nodes.port(name, "fq"), queue=queue))
                    await client.bind("work")
            queues = [(f"jobs-{name}", name) for name in "abc"] + [("same", name) for name in "abc"]
            readers = [(f"reader-{name}", name) for name in "abc"]
            for asked in "ab":
                async with opened(nodes, asked) as web:
                    for limit in (1, 2, 100):
                        assert await _everything(web, "/api/v1/queues", limit) == queues
                        assert await _everything(web, "/api/v1/subscriptions", limit) == readers + queues
                    assert (await asyncio.to_thread(web.get, "/api/v1/queues?cursor=WyJhIl0")).code == "INVALID_ARGUMENT"
                    page = await asyncio.to_thread(web.get, "/console/queues")
                    assert all(f"on {name} " in page.body.decode() for name in "abc")
            async with connect(nodes.address("b")) as client:
                status = await client.upkeep.document("status")
            assert sorted((row["queue"], row["node"]) for row in status["queues"]) == queues
            assert status["queues_missing"] == {}
            await _a_node_that_says_nothing_is_named(nodes)

    asyncio.run(asyncio.wait_for(work(), 120))


async def _a_node_that_says_nothing_is_named(nodes: Nodes) -> None:
    async def silent(node: str, payload: memoryview) -> Sequence[Buffer]:
        await asyncio.Event().wait()
        return []

    nodes.node("c").transport.serve(ClusterOp.NODE_LIST, silent)
    async with opened(nodes, "a") as web:
        page = await _get(web, "/api/v1/subscriptions")
        assert {row["node"] for row in page["items"]} == {"a", "b"}
        assert [row["node"] for row in page["missing"]] == ["c"] and page["missing"][0]["reason"]
        shown = await asyncio.to_thread(web.get, "/console/subscriptions")
        assert "What c serves is missing" in shown.body.decode()

        async def strange(node: str, payload: memoryview) -> Sequence[Buffer]:
            rows = b'[{"id": "another version"}]'
            return [len(rows).to_bytes(4, "big") + rows]

        nodes.node("c").transport.serve(ClusterOp.NODE_LIST, strange)
        page = await _get(web, "/api/v1/subscriptions")
        assert {row["node"] for row in page["items"]} == {"a", "b"} and [row["node"] for row in page["missing"]] == ["c"]


def test_a_node_that_is_gone_is_named_until_it_is_taken_away(tmp_path: Path) -> None:
    async def work() -> None:
        async with Nodes(tmp_path) as nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            broker = nodes.servers["a"].broker
            assert (await subscriptions(broker)).missing == []
            await nodes.stop("c")
            await nodes.until(lambda: "c" not in nodes.node("a").live())
            assert [(row.node, row.reason) for row in (await subscriptions(broker)).missing] == [("c", "it is away")]
            async with connect(nodes.address("a")) as client:
                await client.cluster.decommission("c")
            await nodes.until(lambda: nodes.node("a").table.brokers["c"].retired)
            assert (await subscriptions(broker)).missing == []

    asyncio.run(asyncio.wait_for(work(), 120))
