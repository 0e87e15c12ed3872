"""The parts that join features to the broker: machines behind one journal, compiled schemas, routes of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import Peer, until
from written_state import written

from braidmq.base import limits
from braidmq.base.clock import SystemClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.machines import METADATA, ROLES, TOPICS, USERS, MachineGroup
from braidmq.broker.schema_registry import SchemaRegistry
from braidmq.broker.topics import TopicTable
from braidmq.security.users import UserTable
from braidmq.wire import flymq

# --- machines


def test_each_command_goes_to_its_machine_and_snapshots_hold_all() -> None:
    topics, users = TopicTable(), UserTable()
    group = MachineGroup({TOPICS: topics, USERS: users})
    group.apply([TOPICS, *topics.create("t", 2, 0, {})])
    group.apply([USERS, *users.create("bob", "hash", [], 0)])
    again_topics, again_users = TopicTable(), UserTable()
    MachineGroup({TOPICS: again_topics, USERS: again_users}).restore(written(group))
    assert written(again_topics) == written(topics) and again_users.snapshot() == users.snapshot()


def test_what_the_first_version_wrote_is_understood() -> None:
    before = TopicTable()
    before.apply(before.create("old", 1, 0, {}))
    topics = TopicTable()
    group = MachineGroup({TOPICS: topics, USERS: UserTable()})
    group.restore(written(before))
    group.apply(topics.create("unaddressed", 1, 0, {}))
    assert [topic.name for topic in topics.all()] == ["old", "unaddressed"]


def test_a_machine_that_came_later_begins_empty() -> None:
    topics = TopicTable()
    document = written(MachineGroup({TOPICS: topics}))
    users = UserTable()
    MachineGroup({TOPICS: TopicTable(), USERS: users}).restore(document)
    assert len(users) == 0


def test_whoever_wants_only_topics_passes_over_the_rest() -> None:
    topics = TopicTable()
    group = MachineGroup({TOPICS: topics}, METADATA)
    assert group.apply([ROLES, "create", "x", [], "", 1]) is None
    group.apply([TOPICS, *topics.create("t", 1, 0, {})])
    assert len(topics) == 1


# --- compiled schemas


def _registry(beside: Callable[[Callable[[], Any]], Any], **settings: int) -> SchemaRegistry:
    async def submit(command: list[Any]) -> Any:
        return registry.table.apply(command)

    registry = SchemaRegistry(TopicTable(), SystemClock(), submit, beside, **settings)
    return registry


def test_compiled_schemas_are_kept_up_to_a_limit() -> None:
    compiled: list[object] = []

    async def beside(action: Callable[[], Any]) -> Any:
        compiled.append(action)
        return action()

    async def scenario() -> None:
        assert limits.SCHEMA_COMPILED_MAX >= 100
        registry = _registry(beside, compiled_max=2)
        for name in "abc":
            await registry.register(name, "json", b'{"title":"%s"}' % name.encode())
        compiled.clear()
        for name in "aabac":
            assert await registry.find(name) is not None
        assert len(compiled) == 3, "each once"
        await registry.find("a")
        assert len(compiled) == 3, "it was used later than b, which had to go"
        await registry.find("b")
        assert len(compiled) == 4

    asyncio.run(scenario())


def test_many_records_are_checked_beside_the_loop() -> None:
    moved: list[object] = []

    async def beside(action: Callable[[], Any]) -> Any:
        moved.append(action)
        return action()

    async def scenario() -> None:
        registry = _registry(beside)
        await registry.register("s", "json", b'{"required":["a"]}')
        schema = await registry.require("s")
        moved.clear()
        most = limits.SCHEMA_LOOP_RECORDS_MAX
        assert set(await registry.faults(schema, [b"{}"] * most)) == set(range(most)) and not moved
        assert len(await registry.faults(schema, [b"{}"] * (most + 1))) == most + 1
        assert len(moved) == 1
        large = b'{"a":"' + b"x" * limits.SCHEMA_LIGHT_BYTES_MAX + b'"}'
        assert await registry.faults(schema, [large]) == {} and await registry.errors(schema, large) == []
        assert len(moved) == 3

    asyncio.run(scenario())


# --- the topics that a connection may write to


def test_a_connection_remembers_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.SESSION_ROUTES_MAX >= 1000
    monkeypatch.setattr(limits, "SESSION_ROUTES_MAX", 2)
    monkeypatch.setenv("BRAID_AUTH_ADMIN_PASSWORD", "password")
    with EmbeddedBroker(FaultyDisk(), auth_enabled=True) as broker, Peer(broker.address) as peer:
        assert peer.ask(flymq.Auth("admin", "password")).success
        for name in "abcd":
            peer.create(name)
        for _ in range(3):
            for name in "abcd":
                peer.produce(name, b"1", b"2")
        assert all(len(peer.fetch_all(name)) == 6 for name in "abcd")
        (session,) = until(lambda: list(broker.server.listeners[0].sessions), "the connection")
        assert session._own_routes is not None and 0 < len(session._own_routes) <= 2
        assert len(broker.server.broker.routes) == 4, "which everybody would use if nobody had to log in"
