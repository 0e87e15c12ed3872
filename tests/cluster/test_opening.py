"""From settings to a place in a cluster: who begins, who comes in, and what a restart remembers."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from authority import Authority
from etcd_bench import free_addresses, needs_etcd

from braidmq.base import limits
from braidmq.base.clock import SystemClock
from braidmq.base.config import Config, load_config
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.cluster.membership.gossip_codec import Status
from braidmq.cluster.membership.mdns import discover
from braidmq.cluster.opening import OpenedCluster, dialable, open_cluster
from braidmq.cluster.quorum import Ok, Put

PATIENCE_S = 90.0
TOKEN = {"BRAID_JOIN_TOKEN": "a token that nobody guesses"}


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(main())


def settings(directory: Path, node: str, address: str, **flags: object) -> Config:
    client, peer = free_addresses(2)
    given = {
        "data_dir": str(directory / node), "node_id": node, "cluster_listen": address, "etcd_client_listen": client,
        "etcd_peer_listen": peer, **flags,
    }  # fmt: skip
    return load_config(given, {})


def opened(config: Config) -> Awaitable[OpenedCluster]:
    return open_cluster(config, RealDisk(), SystemClock(), TOKEN)


@needs_etcd
def test_nodes_with_one_list_find_together_and_come_back(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    configs = [settings(tmp_path, name, address, peers=addresses) for name, address in zip("abc", addresses, strict=True)]

    async def test() -> None:
        # The one that has to begin comes last, and the others wait for it.
        waiting = [asyncio.ensure_future(opened(config)) for config in configs[1:]]
        nodes = [await opened(configs[0]), *[await node for node in waiting]]
        assert len({node.cluster_id for node in nodes}) == 1
        assert isinstance(await nodes[1].quorum.txn([], [Put("x", b"1")]), Ok)
        members = nodes[2].members
        assert members is not None and len(await members.endpoints()) == 3
        for node, name in zip(nodes, "abc", strict=True):
            for other, address in zip("abc", addresses, strict=True):
                if other != name:
                    node.book.learn(other, address)
        while any(node.gossip is None or len(node.gossip.swim.alive()) < 3 for node in nodes):  # noqa: ASYNC110 (nothing tells us)
            await asyncio.sleep(0.05)
        left = asyncio.Event()
        nodes[1].watchers.append(lambda node, status: left.set() if (node, status) == ("a", Status.LEFT) else None)
        await nodes[0].close()
        await left.wait()
        for node in nodes[1:]:
            await node.close()
        again = await asyncio.gather(*map(opened, configs))
        assert again[0].cluster_id == nodes[0].cluster_id
        assert (await again[2].quorum.read("x")).entries["x"].value == b"1"
        await again[0].leave_for_good("a")
        assert again[1].members is not None and len(await again[1].members.rows()) == 2
        for node in again:
            await node.close()

    run(test)


@needs_etcd
def test_clusters_are_kept_apart(tmp_path: Path) -> None:
    first, second = free_addresses(2)

    async def test() -> None:
        one = await opened(settings(tmp_path, "a", first, cluster_id="one"))
        with pytest.raises(BraidError, match=r"CLUSTER_REFUSED.*belongs to cluster"):
            await opened(settings(tmp_path, "b", second, cluster_id="two", peers=first))
        with pytest.raises(BraidError, match=r"CLUSTER_REFUSED.*tokens differ"):
            config = settings(tmp_path, "c", second, peers=first)
            await open_cluster(config, RealDisk(), SystemClock(), {"BRAID_JOIN_TOKEN": "another one, as long as it"})
        url = one.members and (await one.members.endpoints())[0]
        with pytest.raises(BraidError, match=r"CLUSTER_REFUSED.*that of cluster one"):
            await opened(settings(tmp_path, "d", second, quorum_endpoints=url, cluster_id="two"))
        beside = await opened(settings(tmp_path, "e", second, quorum_endpoints=url, cluster_id="two", quorum_prefix="other/"))
        assert beside.cluster_id == "two" and beside.members is None, "one etcd can serve several clusters"
        await beside.close()
        await one.close()
        with pytest.raises(BraidError, match=r"CONFIG_INVALID_VALUE.*belongs to cluster one"):
            await opened(settings(tmp_path, "a", first, cluster_id="three"))

    run(test)


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    async def test() -> None:
        (address,) = free_addresses(1)
        config = settings(tmp_path, "a", address, quorum="local")
        short = {"BRAID_JOIN_TOKEN": "x" * (limits.CLUSTER_TOKEN_CHARACTERS_MIN - 1)}
        with pytest.raises(BraidError, match="16 characters or more"):
            await open_cluster(config, RealDisk(), SystemClock(), short)
        with pytest.raises(BraidError, match="CONFIG_INVALID_VALUE"):
            missing = settings(tmp_path, "a", address, quorum="local", join_token_file=str(tmp_path / "missing"))
            await open_cluster(missing, RealDisk(), SystemClock(), {})
        node = await opened(replace(config, discovery=True))
        found = await discover(2.0, interfaces=["127.0.0.1"])
        # Found, unless the network has no multicast or the machine no time.
        assert [one.cluster_id for one in found if one.node_id == "a"] in ([node.cluster_id], [])
        with pytest.raises(BraidError, match=r"CONFIG_INVALID_VALUE.*cluster_listen"):
            await opened(settings(tmp_path, "b", address, quorum="local"))
        known = node.cluster_id
        await node.close()
        token = tmp_path / "token"
        token.write_text("a token that nobody guesses\n")
        config = settings(tmp_path, "a", address, quorum="local", join_token_file=str(token))
        again = await open_cluster(config, RealDisk(), SystemClock(), {})
        assert again.cluster_id == known and again.transport.me.token == "a token that nobody guesses"
        await again.leave_for_good("a")
        await again.close()
        (tmp_path / "a" / "cluster").write_text("nonsense")
        with pytest.raises(BraidError, match="DATA_DIR_INVALID"):
            await opened(config)

    run(test)


@needs_etcd
def test_an_empty_disk_is_no_reason_to_begin_a_second_cluster(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    configs = [settings(tmp_path, name, address, peers=addresses) for name, address in zip("abc", addresses, strict=True)]
    waits, begun = asyncio.Event(), asyncio.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "begins a cluster when 2 of the 3" in record.getMessage():
                waits.set()
            elif "node a begins a cluster" in record.getMessage():
                begun.set()

    async def first(config: Config) -> asyncio.Future[OpenedCluster]:
        """Start it, until it says that it waits for others."""
        waits.clear()
        opening = asyncio.ensure_future(opened(config))
        said = asyncio.ensure_future(waits.wait())
        await asyncio.wait([opening, said], return_when=asyncio.FIRST_COMPLETED)
        assert not opening.done(), "it knows nobody, and began a cluster"
        return opening

    async def test() -> None:
        opening = await first(configs[0])
        nodes = await asyncio.gather(opening, *map(opened, configs[1:]))
        assert isinstance(await nodes[1].quorum.txn([], [Put("x", b"1")]), Ok)
        for node in nodes:
            await node.close()
        # The disk of the first one is lost, all are switched on again, and the network of the others is not up yet.
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "b")
        begun.clear()
        opening = await first(configs[0])
        third = asyncio.ensure_future(opened(configs[2]))
        second = await first_refusal(configs[1])
        with pytest.raises(TimeoutError):
            # Two of three are here without a cluster, but the third one belongs to it: nobody can know what it has.
            await asyncio.wait_for(begun.wait(), 1.0)
        assert not opening.done() and not third.done()
        for task in (opening, second, third):
            task.cancel()
        await asyncio.gather(opening, second, third, return_exceptions=True)

    async def first_refusal(config: Config) -> asyncio.Future[OpenedCluster]:
        """Start one that waits, until both it and the first one have asked the third."""
        refused.clear()
        opening = asyncio.ensure_future(opened(config))
        await refused.wait()
        return opening

    refused = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "c belongs to a cluster, and comes back to it" in record.getMessage():
                refused.set()

    logger = logging.getLogger("braidmq.cluster")
    before = logger.level
    logger.setLevel(logging.INFO)
    handlers = [Told(), Heard()]
    for handler in handlers:
        logger.addHandler(handler)
    try:
        run(test)
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)


@needs_etcd
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_member_that_comes_back_elsewhere_tells_the_others(tmp_path: Path, scheme: str) -> None:
    addresses = free_addresses(3)
    files: dict[str, object] = {}
    if scheme == "https":
        authority = Authority(tmp_path, "nodes")
        certificate, key = authority.issue("node")
        shown = {"cert": certificate, "key": key, "ca": authority.file}
        files = {f"cluster_tls_{kind}_file": str(file) for kind, file in shown.items()}
    configs = [settings(tmp_path, name, address, peers=addresses, **files) for name, address in zip("abc", addresses, strict=True)]

    async def test() -> None:
        nodes = await asyncio.gather(*map(opened, configs))
        await nodes[1].close()
        (peer,) = free_addresses(1)
        again = await opened(replace(configs[1], etcd_peer_listen=peer))
        members = nodes[0].members
        assert members is not None
        while [row["peerURLs"] for row in await members.rows() if row["name"] == "b"] != [[f"{scheme}://{peer}"]]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        # With one more lost they need it, and reach it where it is.
        await nodes[2].close()
        while not isinstance(await nodes[0].quorum.txn([], [Put("x", b"1")]), Ok):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.gather(again.close(), nodes[0].close())

    run(test)


@needs_etcd
def test_a_node_joins_the_cluster_that_answers_in_the_network(tmp_path: Path) -> None:
    first, second = free_addresses(2)

    async def test() -> None:
        try:
            one = await opened(settings(tmp_path, "a", first, discovery=True))
        except (OSError, BraidError) as fault:
            pytest.skip(f"no multicast on loopback: {fault}")
        if not any(node.node_id == "a" for node in await discover(1.5, one.cluster_id, ["127.0.0.1"])):
            await one.close()
            pytest.skip("no multicast on loopback")
        two = await opened(settings(tmp_path, "b", second, discovery=True, cluster_id=one.cluster_id))
        assert two.members is not None and len(await two.members.rows()) == 2, "it joined, and began nothing"
        await asyncio.gather(two.close(), one.close())

    run(test)


def test_an_address_of_any_interface_is_told_as_this_machine() -> None:
    assert dialable("127.0.0.1:9093") == "127.0.0.1:9093"
    host, _, port = dialable("0.0.0.0:9093").rpartition(":")
    assert host not in ("", "0.0.0.0") and port == "9093"
