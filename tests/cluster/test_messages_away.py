"""Records as the API and the console show them, on nodes that have no replica of their partition."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asked_nodes import WITH_API, opened
from three_nodes import Nodes
from web_client import Answer, WebClient

from braidmq.client import connect

_PARTITIONS = 3
_EACH = 4


async def _get(web: WebClient, path: str) -> Answer:
    return await asyncio.to_thread(web.get, f"/api/v1/topics/once/messages{path}")


def test_every_node_shows_every_record(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = Nodes(tmp_path, **WITH_API)
        nodes.node_settings["replication_factor"] = 1
        async with nodes:
            await nodes.until(lambda: all(len(nodes.node(name).table.live()) == 3 for name in "abc"))
            async with connect(nodes.address("a")) as client:
                await client.create_topic("once", _PARTITIONS)
                for partition in range(_PARTITIONS):
                    for number in range(_EACH):
                        await client.produce("once", b"%d-%d" % (partition, number), partition=partition)
            leaders = [nodes.leader("once", partition) for partition in range(_PARTITIONS)]
            assert sorted(leaders) == ["a", "b", "c"]
            everything = {f"{partition}-{number}" for partition in range(_PARTITIONS) for number in range(_EACH)}
            for name in "abc":
                async with opened(nodes, name) as web:
                    page = (await _get(web, "?start=earliest&limit=100")).json
                    assert {row["value"] for row in page["messages"]} == everything
                    assert page["newest_offsets"] == [_EACH] * _PARTITIONS and "next_cursor" not in page
                    newest = (await _get(web, "?start=latest&limit=3")).json["messages"]
                    assert {row["value"] for row in newest} == {f"{partition}-{_EACH - 1}" for partition in range(_PARTITIONS)}
                    for partition in range(_PARTITIONS):
                        assert (await _get(web, f"/{partition}/2")).json["message"]["value"] == f"{partition}-2"
                        assert (await _get(web, f"/{partition}/{_EACH}")).code == "OFFSET_OUT_OF_RANGE"
                    assert (await _get(web, f"/{_PARTITIONS}/0")).code == "PARTITION_NOT_FOUND"
            gone = next(name for name in "abc" if name != nodes.coordinator())
            await nodes.stop(gone)
            other = next(name for name in "abc" if name != gone)
            await nodes.until(lambda: gone not in nodes.node(other).live())
            async with opened(nodes, other) as web:
                refused = await _get(web, f"?start=earliest&partition={leaders.index(gone)}")
                assert refused.code in ("NOT_LEADER", "NODE_UNREACHABLE"), "nobody has them, and nothing is no answer"

    asyncio.run(asyncio.wait_for(work(), 120))
