"""What every driver of the metadata quorum promises, asked of each: one machine's, the simulator's, and etcd itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from etcd_bench import member, needs_etcd

from braidmq.base.clock import SystemClock
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_client import EtcdClient
from braidmq.cluster.etcd_process import EtcdProcess
from braidmq.cluster.quorum import (
    SESSIONS,
    Changed,
    Compacted,
    Conflict,
    Delete,
    Entry,
    Event,
    Guard,
    MetaQuorum,
    Ok,
    Put,
    SessionRecord,
    Unknown,
)
from braidmq.cluster.quorum_etcd import EtcdQuorum
from braidmq.cluster.quorum_local import LocalQuorum
from braidmq.cluster.quorum_session import LeasedQuorum
from braidmq.sim.quorum import QuorumFaults, QuorumService

PATIENCE_S = 60.0

Nodes = Callable[[str], LeasedQuorum]
"""The quorum as a node of that name reaches it."""
Bench = Callable[[], AbstractAsyncContextManager[Nodes]]

_number = 0


def fresh_prefix() -> str:
    """One etcd serves all tests, each below its own prefix."""
    global _number
    _number += 1
    return f"test-{_number}/"


class EtcdThread:
    """One etcd for the whole module, run by a loop of its own."""

    def __init__(self, directory: Path) -> None:
        self.process = EtcdProcess(member(directory))
        self._runner = asyncio.Runner()

    def start(self) -> None:
        self._runner.run(self.process.start())

    def stop(self) -> None:
        self._runner.run(self.process.stop())
        self._runner.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdThread]:
    etcd = EtcdThread(tmp_path_factory.mktemp("etcd"))
    etcd.start()
    yield etcd
    etcd.stop()


@pytest.fixture(params=["local", "simulated", pytest.param("etcd", marks=needs_etcd)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "local":

        @asynccontextmanager
        async def local() -> AsyncIterator[Nodes]:
            quorum = LocalQuorum(RealDisk(), str(tmp_path / "quorum"), SystemClock())
            await quorum.open()
            yield lambda _: quorum
            await quorum.close()

        return local
    if request.param == "simulated":

        @asynccontextmanager
        async def simulated() -> AsyncIterator[Nodes]:
            service = QuorumService(SystemClock(), random.Random(1), QuorumFaults(delay_s_max=0.002))
            made: dict[str, LeasedQuorum] = {}
            yield lambda node: made.setdefault(node, service.driver(node))
            for quorum in made.values():
                await quorum.abandon_sessions()
            service.close()

        return simulated

    url = request.getfixturevalue("etcd").process.member.client_url

    @asynccontextmanager
    async def real() -> AsyncIterator[Nodes]:
        prefix = fresh_prefix()
        made: dict[str, EtcdQuorum] = {}

        def reach(node: str) -> LeasedQuorum:
            if node not in made:
                made[node] = EtcdQuorum(EtcdClient([url], SystemClock()), SystemClock(), prefix)
            return made[node]

        yield reach
        for quorum in made.values():
            await quorum.close()

    return real


def run(bench: Bench, test: Callable[[Nodes], Awaitable[None]]) -> None:
    async def main() -> None:
        async with bench() as nodes, asyncio.timeout(PATIENCE_S):
            await test(nodes)

    asyncio.run(main())


async def put(quorum: MetaQuorum, key: str, value: bytes, revision: int = 0) -> int:
    result = await quorum.txn([Guard(key, revision)], [Put(key, value)])
    assert isinstance(result, Ok)
    return result.revision


async def next_events(quorum: MetaQuorum, prefix: str, after: int, count: int) -> list[Event]:
    events = []
    async for event in quorum.watch(prefix, after):
        events.append(event)
        if len(events) == count:
            break
    return events


def test_a_txn_does_all_or_nothing(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        quorum = nodes("a")
        first = await put(quorum, "x/one", b"1")
        refused = await quorum.txn([Guard("x/one", 0)], [Put("x/one", b"2"), Put("x/two", b"2")])
        assert refused == Conflict({"x/one": Entry(b"1", first)})
        refused = await quorum.txn([Guard("x/one", first), Guard("x/two", first)], [Put("x/two", b"2")])
        assert refused == Conflict({"x/one": Entry(b"1", first), "x/two": None})
        changes = [Delete("x/one"), Put("x/two", b"2"), Put("x/three", b"3")]
        done = await quorum.txn([Guard("x/one", first), Guard("x/two", 0)], changes)
        assert isinstance(done, Ok) and done.revision > first
        reading = await quorum.read("x/")
        assert reading.entries == {"x/two": Entry(b"2", done.revision), "x/three": Entry(b"3", done.revision)}
        assert reading.revision >= done.revision

    run(bench, test)


def test_values_are_any_bytes_and_keys_any_text(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        quorum = nodes("a")
        values = {"k/" + name: value for name, value in {"ü/ñ": bytes(range(256)), "empty": b"", "line": b"a\nb"}.items()}
        for key, value in values.items():
            await put(quorum, key, value)
        reading = await nodes("b").read("k/")
        assert {key: entry.value for key, entry in reading.entries.items()} == values

    run(bench, test)


def test_a_read_below_a_prefix_knows_nothing_else(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        quorum = nodes("a")
        for key in ("a/1", "a/2", "b/1", "a"):
            await put(quorum, key, b"")
        assert set((await quorum.read("a/")).entries) == {"a/1", "a/2"}
        assert set((await quorum.read("")).entries) == {"a/1", "a/2", "b/1", "a"}
        assert (await quorum.read("c")).entries == {}
        assert set((await quorum.read("a/", linearizable=False)).entries) <= {"a/1", "a/2"}

    run(bench, test)


def test_of_many_who_want_the_same_one_gets_it(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        async def claim(node: str) -> bool:
            return isinstance(await nodes(node).txn([Guard("lead", 0)], [Put("lead", node.encode())]), Ok)

        names = [f"n{number}" for number in range(8)]
        won = [name for name, wins in zip(names, await asyncio.gather(*map(claim, names)), strict=True) if wins]
        assert len(won) == 1
        assert (await nodes("n0").read("lead")).entries["lead"].value == won[0].encode()

    run(bench, test)


def test_a_counter_counts_every_success(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        async def count(node: str) -> None:
            done = 0
            while done < 10:
                entry = (await nodes(node).read("counter")).entries.get("counter")
                value = b"1" if entry is None else b"%d" % (int(entry.value) + 1)
                result = await nodes(node).txn([Guard("counter", 0 if entry is None else entry.revision)], [Put("counter", value)])
                assert not isinstance(result, Unknown)
                done += isinstance(result, Ok)

        await asyncio.gather(*(count(f"n{number}") for number in range(4)))
        assert (await nodes("n0").read("counter")).entries["counter"].value == b"40"

    run(bench, test)


def test_a_watch_tells_every_change_in_order(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        quorum = nodes("a")
        start = (await quorum.read("w/")).revision
        first = await put(quorum, "w/x", b"1")
        following = asyncio.create_task(next_events(nodes("b"), "w/", start, 4))
        await put(quorum, "elsewhere", b"")
        second = await put(quorum, "w/x", b"2", first)
        result = await quorum.txn([], [Delete("w/x"), Put("w/y", b"3")])
        assert isinstance(result, Ok)
        events = await following
        assert events[:2] == [Changed("w/x", Entry(b"1", first), first), Changed("w/x", Entry(b"2", second), second)]
        last = [Changed("w/x", None, result.revision), Changed("w/y", Entry(b"3", result.revision), result.revision)]
        assert sorted(events[2:], key=str) == sorted(last, key=str)
        assert await next_events(quorum, "w/", first, 1) == [events[1]], "a watch may begin in the past"

    run(bench, test)


def test_sessions_have_growing_generations(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        first = await nodes("a").session("broker", 5, b"here")
        assert first.alive
        second = await nodes("b").session("broker", 5, b"there")
        assert second.generation > first.generation
        assert "another process" in await first.lost()
        assert not first.alive and second.alive
        entry = (await nodes("c").read(SESSIONS)).entries[SESSIONS + "broker"]
        assert SessionRecord.decode(entry.value) == SessionRecord(second.generation, b"there")
        await second.close()
        assert (await nodes("c").read(SESSIONS)).entries == {}
        third = await nodes("a").session("broker", 5)
        assert third.generation > second.generation
        await third.close()

    run(bench, test)


def test_a_session_says_what_it_is_told(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        session = await nodes("a").session("broker", 5, b"one")
        before = session.guard
        await session.tell(b"two")
        assert session.guard.revision > before.revision
        entry = (await nodes("b").read(SESSIONS)).entries[SESSIONS + "broker"]
        assert SessionRecord.decode(entry.value) == SessionRecord(session.generation, b"two")
        assert isinstance(await nodes("b").txn([session.guard], [Put("x", b"")]), Ok)
        assert isinstance(await nodes("b").txn([before], [Put("x", b"")]), Conflict)
        await session.close()
        assert await session.lost() == "it was closed"
        with pytest.raises(BraidError, match="QUORUM_UNAVAILABLE"):
            await session.tell(b"three")

    run(bench, test)


def test_a_session_outlives_its_time_to_live_while_it_is_renewed(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        session = await nodes("a").session("broker", 1)
        waiting = asyncio.create_task(session.lost())
        done, _ = await asyncio.wait([waiting], timeout=2.5)
        assert not done and session.alive
        waiting.cancel()
        await session.close()

    run(bench, test)


def test_a_silent_session_ends_and_takes_its_keys_along(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        dead = nodes("dead")
        session = await dead.session("broker", 1)
        kept = await dead.txn([session.guard], [Put("with-it", b"", session.lease), Put("without", b"")])
        assert isinstance(kept, Ok)
        await dead.abandon_sessions()
        watch = nodes("b").watch("", kept.revision)
        gone = {SESSIONS + "broker", "with-it"}
        async for event in watch:
            assert isinstance(event, Changed) and event.entry is None
            gone.discard(event.key)
            if not gone:
                break
        assert "without" in (await nodes("b").read("")).entries
        assert isinstance(await nodes("b").txn([session.guard], [Put("x", b"")]), Conflict), "whoever is gone writes nothing"
        late = await nodes("b").txn([], [Put("late", b"", session.lease)])
        assert isinstance(late, Conflict), "a key of a session that is over would stay for ever"

    run(bench, test)


def test_a_session_that_expired_learns_of_it(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        session = await nodes("a").session("broker", 5)
        await nodes("b").end_lease(session.lease)
        assert "expired" in await session.lost()
        assert not session.alive

    run(bench, test)


def test_a_role_has_one_holder_at_a_time(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        first_session = await nodes("a").session("a", 5)
        second_session = await nodes("b").session("b", 5)
        first = await nodes("a").campaign("controller", first_session)
        waiting = asyncio.create_task(nodes("b").campaign("controller", second_session))
        assert isinstance(await nodes("a").txn([first.guard], [Put("decision", b"a")]), Ok)
        await first.resign()
        second = await waiting
        assert second.number > first.number
        assert isinstance(await nodes("a").txn([first.guard], [Put("decision", b"late")]), Conflict), "the old term is fenced"
        assert isinstance(await nodes("b").txn([second.guard], [Put("decision", b"b")]), Ok)
        again = await nodes("b").campaign("controller", second_session)
        assert again.number == second.number, "who has it, has it"
        waiting = asyncio.create_task(nodes("a").campaign("controller", first_session))
        await second_session.close()
        third = await waiting
        assert third.number > second.number, "a role goes with the session of its holder"
        await first_session.close()

    run(bench, test)


def test_a_restarted_broker_takes_its_own_role_over(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        before = await nodes("a").session("a", 30)
        term = await nodes("a").campaign("controller", before)
        await nodes("a").abandon_sessions()
        after = await nodes("a2").session("a", 30)
        taken = await nodes("a2").campaign("controller", after)
        assert taken.number > term.number
        await after.close()

    run(bench, test)


def test_whoever_loses_its_session_while_it_waits_is_told(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        holder = await nodes("a").session("a", 5)
        await nodes("a").campaign("controller", holder)
        session = await nodes("b").session("b", 5)
        waiting = asyncio.create_task(nodes("b").campaign("controller", session))
        await nodes("a").end_lease(session.lease)
        with pytest.raises(BraidError, match="QUORUM_UNAVAILABLE"):
            await waiting
        await holder.close()

    run(bench, test)


def test_who_follows_by_reading_and_watching_ends_where_the_store_is(bench: Bench) -> None:
    async def test(nodes: Nodes) -> None:
        seen: dict[str, bytes] = {}

        async def follow() -> None:
            while True:
                reading = await nodes("watcher").read("m/")
                seen.clear()
                seen.update({key: entry.value for key, entry in reading.entries.items()})
                async for event in nodes("watcher").watch("m/", reading.revision):
                    if isinstance(event, Compacted):
                        break
                    if event.entry is None:
                        seen.pop(event.key, None)
                    else:
                        seen[event.key] = event.entry.value
                    if seen.get("m/last") == b"done":
                        return

        following = asyncio.create_task(follow())
        rng = random.Random(7)
        for number in range(60):
            key = f"m/{rng.randrange(8)}"
            await nodes("writer").txn([], [Delete(key) if rng.random() < 0.3 else Put(key, b"%d" % number)])
        await put(nodes("writer"), "m/last", b"done")
        await following
        assert seen == {key: entry.value for key, entry in (await nodes("writer").read("m/")).entries.items()}

    run(bench, test)
