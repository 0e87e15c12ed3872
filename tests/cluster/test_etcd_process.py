"""An etcd that we run ourselves: versions that are refused, restarts, the end of its parent, and how a cluster of them grows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from authority import Authority
from etcd_bench import free_addresses, member, needs_etcd

from braidmq.base.clock import SystemClock
from braidmq.base.errors import BraidError
from braidmq.cluster import etcd_process
from braidmq.cluster.cluster_tls import cluster_contexts
from braidmq.cluster.etcd_client import EtcdClient
from braidmq.cluster.etcd_members import EtcdMembers, ask_to_join, serve_joining
from braidmq.cluster.etcd_process import EtcdMember, EtcdProcess, EtcdTls, check_endpoints, usable_version
from braidmq.cluster.hello import Identity
from braidmq.cluster.quorum import Guard, Ok, Put, Unknown
from braidmq.cluster.quorum_etcd import EtcdQuorum
from braidmq.cluster.transport import AddressBook
from braidmq.cluster.transport_tcp import TcpTransport

PATIENCE_S = 90.0
TOKEN = "a token that nobody guesses"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("3.4.21", False), ("3.4.22", True), ("3.4.23", True), ("3.5.1", False), ("3.5.5", False), ("3.5.6", True), ("3.6.0", True),
        ("3.3.27", False), ("2.3.8", False), ("4.0.0", True),
    ],
)  # fmt: skip
def test_versions_that_lose_data_are_refused(version: str, usable: bool) -> None:
    assert usable_version(f"etcd Version: {version}\nGit SHA: x\n") is usable
    assert not usable_version("something else")


def fake_etcd(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = directory / "etcd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_a_missing_or_old_etcd_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_etcd(tmp_path, monkeypatch, "echo etcd Version: 3.5.1")

    async def refused() -> None:
        with pytest.raises(BraidError, match=r"ETCD_UNUSABLE.*3\.5\.1.*apt install etcd-server"):
            await EtcdProcess(member(tmp_path)).start()

    run(refused)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    async def missing() -> None:
        with pytest.raises(BraidError, match=r"ETCD_UNUSABLE.*not installed.*apt install etcd-server"):
            await EtcdProcess(member(tmp_path)).start()

    run(missing)


@pytest.mark.parametrize(("version", "usable"), [("3.4.21", False), ("3.4.22", True), ("3.5.5", False), ("3.6.0", True)])
def test_what_installs_an_etcd_does_not_take_an_old_one_for_good(tmp_path: Path, version: str, usable: bool) -> None:
    script = tmp_path / "etcd"
    script.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    script.chmod(0o755)
    setup = Path(__file__).resolve().parents[2] / "tools" / "setup_etcd.sh"
    # Nothing else is in reach, so nothing is installed.
    ended = subprocess.run(["/bin/bash", str(setup)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) is usable, ended.stderr
    assert usable or "too old" in ended.stderr


def test_an_etcd_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_etcd(tmp_path, monkeypatch, '[ "$1" = --version ] && echo etcd Version: 3.6.1 && exit; echo no room >&2; exit 3')
    monkeypatch.setattr(etcd_process, "_START_SECONDS_MAX", 0.5)

    async def test() -> None:
        with pytest.raises(BraidError, match=r"CHILD_ENDED.*no room"):
            await EtcdProcess(member(tmp_path)).start()

    run(test)


@asynccontextmanager
async def started(*processes: EtcdProcess) -> AsyncIterator[None]:
    try:
        for process in processes:
            await process.start()
        yield
    finally:
        for process in processes:
            await process.stop()


def quorum_of(*urls: str) -> EtcdQuorum:
    return EtcdQuorum(EtcdClient(urls, SystemClock()), SystemClock())


async def wrote(quorum: EtcdQuorum, key: str) -> None:
    """Write until it is known to have happened."""
    while True:
        entry = (await until_read(quorum)).get(key)
        result = await quorum.txn([Guard(key, 0 if entry is None else entry)], [Put(key, b"x")])
        if isinstance(result, Ok):
            return


async def until_read(quorum: EtcdQuorum) -> dict[str, int]:
    while True:
        try:
            return {key: entry.revision for key, entry in (await quorum.read("")).entries.items()}
        except BraidError as fault:
            assert fault.code == "QUORUM_UNAVAILABLE"


@needs_etcd
def test_it_is_started_again_with_what_it_knew(tmp_path: Path) -> None:
    async def test() -> None:
        process = EtcdProcess(member(tmp_path))
        async with started(process):
            quorum = quorum_of(process.member.client_url)
            await wrote(quorum, "before")
            first = process.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await wrote(quorum, "after")
            assert process.pid != first and process.starts == 2
            assert set(await until_read(quorum)) == {"before", "after"}
            await quorum.close()
        assert (await ended_pid(process.pid)) is None

    run(test)


async def ended_pid(pid: int | None) -> None:
    """Wait until there is no such process."""
    while pid is not None and runs(pid):  # noqa: ASYNC110 (nothing tells us)
        await asyncio.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


PARENT = """
import asyncio, sys
from braidmq.cluster.etcd_process import EtcdMember, EtcdProcess

async def main():
    process = EtcdProcess(EtcdMember("one", *sys.argv[1:]))
    await process.start()
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@needs_etcd
def test_it_dies_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    async def test() -> None:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, str(tmp_path / "etcd"), *free_addresses(2), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        parent.kill()
        await parent.wait()
        await ended_pid(pid)

    run(test)


class Node:
    """A broker as far as etcd is concerned: a transport and an etcd of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.transport = TcpTransport(Identity(name, "", TOKEN), AddressBook())
        self.etcd = EtcdProcess(member(directory, name))
        self.quorum = quorum_of(self.etcd.member.client_url)
        self.members = EtcdMembers(self.quorum.client, SystemClock())

    async def begin(self, cluster_id: str) -> None:
        self.transport.me.address = await self.transport.listen("127.0.0.1", 0)
        await self.etcd.start()
        self.serve(cluster_id)

    def serve(self, cluster_id: str) -> None:
        self.transport.me.cluster = cluster_id
        serve_joining(self.transport, self.members, cluster_id)

    async def join(self, address: str) -> None:
        self.transport.me.address = await self.transport.listen("127.0.0.1", 0)
        invitation = await ask_to_join(self.transport, await self.transport.meet(address, PATIENCE_S), self.etcd.member.peer_url)
        self.quorum.client.use_endpoints([self.etcd.member.client_url, *invitation.endpoints])
        await self.etcd.start(invitation.initial_cluster)
        await self.members.promote(self.name)
        self.serve(invitation.cluster_id)

    async def stop(self) -> None:
        await self.quorum.close()
        await self.transport.close()
        await self.etcd.stop()


@needs_etcd
def test_a_cluster_grows_by_one_address_and_survives_the_loss_of_a_member(tmp_path: Path) -> None:
    async def test() -> None:
        nodes = [Node(tmp_path, name) for name in ("a", "b", "c")]
        a, b, c = nodes
        try:
            await a.begin("the cluster")
            await wrote(a.quorum, "first")
            await b.join(a.transport.me.address)
            await c.join(b.transport.me.address)
            assert (c.transport.me.cluster, len(await c.members.endpoints())) == ("the cluster", 3)
            assert not any(row.get("isLearner") for row in await c.members.rows())
            c.quorum.client.use_endpoints(await c.members.endpoints())
            # The first one dies as a whole, and those who came through it go on.
            await a.stop()
            await wrote(c.quorum, "without a")
            assert set(await until_read(c.quorum)) == {"first", "without a"}
            # It comes back with its data, and needs nobody's permission.
            before = a.etcd.member
            nodes[0] = a = Node(tmp_path, "a")
            a.etcd = EtcdProcess(before)
            a.quorum.client.use_endpoints([before.client_url])
            await a.etcd.start()
            await wrote(a.quorum, "again")
            assert "without a" in await until_read(a.quorum)
            # A member that lost its data is another one, and replaces the one that it was.
            await b.stop()
            lost = b.etcd.member
            nodes[1] = b = Node(tmp_path / "new", "b")
            (tmp_path / "new").mkdir()
            b.etcd = EtcdProcess(EtcdMember("b", str(tmp_path / "new" / "etcd-b"), lost.client_address, lost.peer_address))
            await b.join(c.transport.me.address)
            assert len(await c.members.rows()) == 3
            assert "again" in await until_read(b.quorum)
            assert await c.members.remove("b") and not await c.members.remove("b")
            assert len(await c.members.rows()) == 2
        finally:
            for node in nodes:
                await node.stop()

    run(test)


@needs_etcd
def test_members_speak_tls_to_those_with_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "nodes")
    certificate, key = authority.issue("node")
    files = str(certificate), str(key), str(authority.file)
    _, tls = cluster_contexts(*files)

    async def test() -> None:
        process = EtcdProcess(member(tmp_path, "one", EtcdTls(*files)))
        async with started(process):
            client = EtcdClient([process.member.client_url], SystemClock(), tls)
            quorum = EtcdQuorum(client, SystemClock())
            await wrote(quorum, "x")
            await quorum.close()
            stranger = quorum_of(process.member.client_url)
            assert isinstance(await stranger.txn([], [Put("y", b"")]), Unknown)
            await stranger.close()

    run(test)


@pytest.mark.parametrize(("version", "usable"), [("3.5.5", False), ("3.5.16", True)])
def test_an_etcd_that_somebody_else_runs_is_refused_when_it_is_too_old(version: str, usable: bool) -> None:
    async def test() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = json.dumps({"header": {}, "version": version}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        silent, *_ = free_addresses(1)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            client = EtcdClient([f"http://{silent}", url], SystemClock())
            if usable:
                await check_endpoints(client)
                assert await client.versions() == {url: version}, "who does not answer is not known"
            else:
                with pytest.raises(BraidError, match=f"ETCD_UNUSABLE.*{url} is too old: {version}"):
                    await check_endpoints(client)
            client.close()

    asyncio.run(test())
