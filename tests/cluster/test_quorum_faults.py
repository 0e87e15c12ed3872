"""Metadata quorums under faults: killed processes, failing disks, members of etcd that hang, and a simulated one at its worst."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from etcd_bench import member, needs_etcd

from braidmq.base import limits
from braidmq.base.clock import ManualClock, SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_client import EtcdClient
from braidmq.cluster.etcd_http import Broken, Endpoint, NotSent
from braidmq.cluster.etcd_process import EtcdProcess
from braidmq.cluster.quorum import SESSIONS, Changed, Compacted, Guard, Ok, Put, Unknown
from braidmq.cluster.quorum_etcd import EtcdQuorum
from braidmq.cluster.quorum_local import LocalQuorum
from braidmq.log.commit import InlineSyncer
from braidmq.sim.quorum import ROUGH, QuorumService

PATIENCE_S = 60.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(main())


# --- one machine


def local(disk: FaultyDisk) -> LocalQuorum:
    return LocalQuorum(disk, "/data/quorum", ManualClock(), InlineSyncer(disk))


def test_what_was_acknowledged_survives_a_loss_of_power() -> None:
    async def test() -> None:
        disk = FaultyDisk()
        quorum = local(disk)
        await quorum.open()
        revisions = {}
        for number in range(30):
            result = await quorum.txn([], [Put(f"k/{number % 7}", b"%d" % number)])
            assert isinstance(result, Ok)
            revisions[f"k/{number % 7}"] = (b"%d" % number, result.revision)
        session = await quorum.session("broker", 30, b"about")
        for fate in range(4):
            again = local(disk.crash(fate))
            await again.open()
            reading = await again.read("k/")
            assert {key: (entry.value, entry.revision) for key, entry in reading.entries.items()} == revisions
            assert (await again.read(SESSIONS)).entries == {}, "a session ends with its process"
            renewed = await again.session("broker", 30)
            assert renewed.generation == session.generation + 1
            result = await again.txn([Guard("k/0", revisions["k/0"][1])], [Put("k/0", b"new")])
            assert isinstance(result, Ok) and result.revision > max(revision for _, revision in revisions.values())
            await again.close()
        await quorum.abandon_sessions()

    run(test)


def test_a_disk_that_fails_leaves_the_outcome_unknown() -> None:
    async def test() -> None:
        disk = FaultyDisk()
        quorum = local(disk)
        await quorum.open()
        disk.fail("sync")
        assert isinstance(await quorum.txn([], [Put("x", b"")]), Unknown)
        with pytest.raises(BraidError, match="QUORUM_UNAVAILABLE"):
            await quorum.session("broker", 30)

    run(test)


def test_a_directory_has_one_quorum_at_a_time(tmp_path: Path) -> None:
    async def test() -> None:
        first, second = (LocalQuorum(RealDisk(), str(tmp_path), SystemClock()) for _ in range(2))
        await first.open()
        with pytest.raises(BraidError, match="DATA_DIR_LOCKED"):
            await second.open()
        await first.close()

    run(test)


KILLED = """
import asyncio, sys
from braidmq.base.clock import SystemClock
from braidmq.base.disk_real import RealDisk
from braidmq.cluster.quorum import Put
from braidmq.cluster.quorum_local import LocalQuorum

async def main():
    quorum = LocalQuorum(RealDisk(), sys.argv[1], SystemClock())
    await quorum.open()
    number = 0
    while True:
        await quorum.txn([], [Put("number", b"%d" % number)])
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    async def test() -> None:
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(tmp_path), stdout=asyncio.subprocess.PIPE)
        assert writer.stdout is not None
        for _ in range(100):
            await writer.stdout.readline()
        writer.kill()
        said = (await writer.communicate())[0].split()
        last = int(said[-1]) if said else 99
        quorum = LocalQuorum(RealDisk(), str(tmp_path), SystemClock())
        await quorum.open()
        # One more than the last that was said may have been written.
        assert int((await quorum.read("number")).entries["number"].value) >= last
        await quorum.close()

    run(test)


def test_a_watcher_that_comes_late_is_told_to_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUORUM_CHANGES_KEPT", 10)

    async def test() -> None:
        quorum = local(FaultyDisk())
        await quorum.open()
        for number in range(3 * limits.QUORUM_CHANGES_KEPT):
            await quorum.txn([], [Put("x", b"%d" % number)])
        events = [event async for event in quorum.watch("", 3)]
        assert events == [Compacted(20)]
        following = quorum.watch("", 25)
        seen = [await anext(following) for _ in range(5)]  # type: ignore[call-overload]
        assert [event.revision for event in seen] == [26, 27, 28, 29, 30]
        await quorum.close()

    run(test)


# --- etcd


@needs_etcd
def test_etcd_forgets_and_says_so_and_wants_a_password(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = EtcdProcess(member(tmp_path))
        await etcd.start()
        url = etcd.member.client_url
        plain = EtcdQuorum(EtcdClient([url], SystemClock()), SystemClock())
        try:
            revisions = []
            for number in range(5):
                result = await plain.txn([], [Put("x", b"%d" % number)])
                assert isinstance(result, Ok)
                revisions.append(result.revision)
            await plain.client.call("/v3/kv/compaction", {"revision": str(revisions[-1]), "physical": True}, repeatable=True)
            assert [event async for event in plain.watch("", revisions[0])] == [Compacted(revisions[-1])]
            for path, body in (
                ("/v3/auth/user/add", {"name": "root", "password": "secret"}),
                ("/v3/auth/role/add", {"name": "root"}),
                ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
                ("/v3/auth/enable", {}),
            ):
                await plain.client.call(path, body, repeatable=False)
            with pytest.raises(BraidError, match=r"QUORUM_UNAVAILABLE.*user name is empty"):
                await plain.txn([], [Put("x", b"refused")])
            wrong = EtcdQuorum(EtcdClient([url], SystemClock(), None, "root", "wrong"), SystemClock())
            with pytest.raises(BraidError, match=r"QUORUM_UNAVAILABLE.*authentication failed"):
                await wrong.read("x")
            await wrong.close()
            right = EtcdQuorum(EtcdClient([url], SystemClock(), None, "root", "secret"), SystemClock())
            result = await right.txn([Guard("x", revisions[-1])], [Put("x", b"with a password")])
            assert isinstance(result, Ok)
            event = await anext(right.watch("", revisions[-1]))  # type: ignore[call-overload]
            assert isinstance(event, Changed) and event.entry is not None and event.entry.value == b"with a password"
            right.client._token = "stale"
            assert (await right.read("x")).entries["x"].value == b"with a password", "a login that ran out is made again"
            session = await right.session("broker", 5)
            await session.close()
            await right.close()
        finally:
            await plain.close()
            await etcd.stop()

    run(test)


@needs_etcd
def test_an_etcd_that_hangs_is_unknown_and_another_endpoint_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        etcd = EtcdProcess(member(tmp_path))
        await etcd.start()
        url = etcd.member.client_url
        quorum = EtcdQuorum(EtcdClient(["http://127.0.0.1:1", url], SystemClock(), timeout_s=1.0), SystemClock())
        assert isinstance(await quorum.txn([], [Put("x", b"1")]), Ok), "nobody is at the first endpoint, so the second is asked"
        following = quorum.watch("x", (await quorum.read("x")).revision)
        coming = asyncio.ensure_future(anext(following))  # type: ignore[call-overload]
        pid = etcd.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            assert isinstance(await quorum.txn([], [Put("x", b"2")]), Unknown)
            with pytest.raises(BraidError, match="QUORUM_UNAVAILABLE"):
                await quorum.read("x")
        finally:
            os.kill(pid, signal.SIGCONT)
        while not isinstance(result := await quorum.txn([], [Put("x", b"3")]), Ok):
            continue
        event = await coming
        assert isinstance(event, Changed) and event.revision <= result.revision
        await quorum.close()
        await etcd.stop()

    run(test)


# --- answers that are not etcd's


async def answered_with(data: bytes, *, close: bool = True) -> tuple[int, bytes]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        return await endpoint.post("/v3/kv/range", b"", {}, 5.0)
    finally:
        endpoint.close()
        server.close()


def test_answers_come_whole_or_in_pieces() -> None:
    async def test() -> None:
        assert await answered_with(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") == (200, b"{}")
        chunked = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nGrpc: x\r\n\r\n"
        assert await answered_with(chunked) == (503, b"{}")

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (limits.QUORUM_ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (limits.QUORUM_ANSWER_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    ],
)
def test_what_is_no_answer_is_broken(data: bytes) -> None:
    async def test() -> None:
        with pytest.raises(Broken):
            await answered_with(data)

    run(test)


def test_nobody_there_is_not_sent() -> None:
    async def test() -> None:
        with pytest.raises(NotSent):
            await Endpoint("http://127.0.0.1:1").post("/", b"", {}, 5.0)

    run(test)


# --- the simulator


class VirtualTime:
    """Stands where the selector is: waiting moves the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None) -> list[object]:
        assert timeout is not None, "everybody waits for ever"
        self.now += timeout
        return []

    def close(self) -> None:
        return


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._selector = VirtualTime()
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._selector.now

    def _process_events(self, events: list[object]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        return


class LoopClock(ManualClock):
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


async def rough_history(seed: int) -> tuple[list[str], int, int, int]:
    """Four nodes count, under every fault there is. What happened, and how often it was told to have."""
    rng = random.Random(seed)
    service = QuorumService(LoopClock(), rng, ROUGH)
    trace: list[str] = []
    sure = unknown = 0

    async def count(node: str) -> None:
        nonlocal sure, unknown
        quorum = service.driver(node)
        generations = []
        for _ in range(15):
            try:
                session = await quorum.session(node, 2.0)
                generations.append(session.generation)
                entry = (await quorum.read("counter")).entries.get("counter")
            except BraidError as fault:
                trace.append(f"{node} {fault.code}")
                continue
            value = b"1" if entry is None else b"%d" % (int(entry.value) + 1)
            guard = Guard("counter", 0 if entry is None else entry.revision)
            result = await quorum.txn([guard, session.guard], [Put("counter", value)])
            sure += isinstance(result, Ok)
            unknown += isinstance(result, Unknown)
            trace.append(f"{node} {result}")
            if rng.random() < 0.2:
                service.cut_off(node)
                await asyncio.sleep(rng.uniform(0, 3))
                service.reconnect(node)
            if rng.random() < 0.05:
                service.lose_majority()
                await asyncio.sleep(rng.uniform(0, 3))
                service.regain_majority()
            await session.close()
        assert generations == sorted(set(generations)), "a generation is never used again"

    await asyncio.gather(*(count(f"n{number}") for number in range(4)))
    await asyncio.sleep(ROUGH.late_s_max)
    entry = service.store.read("counter").entries.get("counter")
    service.close()
    return trace, sure, unknown, 0 if entry is None else int(entry.value)


def simulated(seed: int) -> tuple[list[str], int, int, int]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(rough_history(seed))


def test_a_rough_quorum_never_loses_what_it_acknowledged() -> None:
    surprises = 0
    for seed in range(20):
        _, sure, unknown, counted = simulated(seed)
        assert sure <= counted <= sure + unknown
        surprises += counted > sure
    assert surprises, "an unknown outcome that happened after all has to be met"


def test_one_seed_gives_one_history() -> None:
    assert simulated(5) == simulated(5)
    assert simulated(5)[0] != simulated(6)[0]


def test_old_reads_and_gaps_are_met() -> None:
    async def test() -> None:
        service = QuorumService(LoopClock(), random.Random(2), ROUGH)
        quorum = service.driver("a")
        old = gaps = 0
        for number in range(200):
            await quorum.txn([], [Put("x", b"%d" % number)])
            try:
                reading = await quorum.read("x", linearizable=False)
                old += reading.revision < service.store.revision
                current = await quorum.read("x")
            except BraidError as fault:
                assert fault.code == "QUORUM_UNAVAILABLE"
                continue
            event = await anext(quorum.watch("x", current.revision - 1))  # type: ignore[call-overload]
            gaps += isinstance(event, Compacted)
        assert old > 20 and gaps > 2

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())
