"""Nodes that answer by mDNS, on loopback alone, and the two commands that look for them."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from braidmq.base.errors import BraidError
from braidmq.cli.discover import flymq_main
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cluster.membership.mdns import Announcement, FoundNode, discover

LOOPBACK = ["127.0.0.1"]


def node(name: str, port: int, cluster: str = "c1") -> FoundNode:
    return FoundNode(name, cluster, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", "0.1")


async def opened(nodes: Sequence[FoundNode]) -> list[Announcement]:
    return await asyncio.gather(*(Announcement.open(one, LOOPBACK) for one in nodes))


async def closed(announcements: Sequence[Announcement]) -> None:
    await asyncio.gather(*(one.close() for one in announcements))


def until(look: Callable[[], str], seen: Callable[[str], bool]) -> None:
    """Look again until everybody has answered: on a busy machine answers are late."""
    said = ""
    for _ in range(8):
        said = look()
        if seen(said):
            return
    pytest.fail(f"not all were found: {said}")


@contextmanager
def announced(*nodes: FoundNode) -> Iterator[None]:
    """Nodes that answer, from a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        try:
            here = asyncio.run_coroutine_threadsafe(opened(nodes), loop).result(60)
        except (OSError, BraidError) as fault:
            pytest.skip(f"no multicast on loopback: {fault}")
        yield
        asyncio.run_coroutine_threadsafe(closed(here), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_nodes_are_found_by_both_commands(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("one.example", 19093), node("two", 19193), node("stranger", 19293, "c2")]
    look = ["--timeout", "2.5", "--interface", "127.0.0.1"]

    def printed(status: int) -> str:
        assert status == Exit.OK
        return capsys.readouterr().out

    def names(text: str) -> list[str]:
        return [row["node_id"] for row in json.loads(text)]

    two = {"node_id": "two", "cluster_id": "c1", "cluster_addr": "127.0.0.1:19193", "client_addr": "127.0.0.1:19194"}
    two["version"] = "0.1"
    with announced(*nodes):
        ours = ["discover", *look, "--cluster-id", "c1"]
        until(lambda: printed(main([*ours, "-o", "json"])), lambda text: names(text) == ["one.example", "two"])
        until(lambda: printed(main(ours)), lambda text: "one.example  c1       127.0.0.1:19093" in text)
        until(lambda: printed(flymq_main([*look, "--json"])), lambda text: two in json.loads(text) and len(names(text)) == 3)
        addresses = {one.cluster_addr for one in nodes}
        until(lambda: printed(flymq_main([*look, "--quiet"])), lambda text: set(text.strip().split(",")) == addresses)


def test_nothing_found_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    look = ["--timeout", "0.1", "--interface", "127.0.0.1"]
    assert main(["discover", *look, "--cluster-id", "of nobody"]) == Exit.OK
    assert "nobody answered" in capsys.readouterr().err


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(BraidError, match="DISCOVERY_UNAVAILABLE"):
        asyncio.run(discover(0.1))
    assert flymq_main(["--timeout", "0.1"]) == 1
    assert "braidmq[cluster]" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--version", "-v", "--help", "-h"])
def test_flags_of_the_published_tool(flag: str) -> None:
    with pytest.raises(SystemExit) as ended:
        flymq_main([flag])
    assert ended.value.code == 0
