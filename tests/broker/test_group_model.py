"""Groups under everything that happens to them, in any order, against a small model.

Clients behave as ours do: they beat, rejoin when told to, commit what they own. Some die silently, lose their connection, or
wake up late and try what they remember. Topics come and go, time passes, the broker is killed or loses power.

What must hold: a partition has one owner in a generation; a commit is taken from the owner in the newest generation only, and
from every such owner; offsets are those that were acknowledged, also after a crash; when all is quiet, the living members
own everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from group_bench import GroupBench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from braidmq.base.errors import BraidError
from braidmq.broker.group_members import Joined

TOPICS = ["a", "b", "c"]
GROUPS = {"g": "range", "h": "roundrobin"}
SESSION_S = 6.0


@dataclass(eq=False)
class Client:
    group: str
    topics: list[str]
    joined: Joined | None = None
    joining: asyncio.Task[Joined] | None = None
    connection: object = field(default_factory=object)

    def owned(self) -> list[tuple[str, int]]:
        if self.joined is None:
            return []
        return [(topic, number) for topic, numbers in self.joined.assignment.items() for number in numbers]


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = GroupBench().start()
        self.clients: list[Client] = []
        self.memories: list[Client] = []
        """Clients that are dead for the group, and shares that others have given up."""
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.owners: dict[tuple[str, int], dict[tuple[str, int], str]] = {}
        """For each generation of each group, who was given which partition."""
        self.before_crash = 0
        self.transaction = 0

    def teardown(self) -> None:
        self.bench.close()

    # --- what clients do

    def start_join(self, client: Client) -> None:
        if client.joined is not None:
            self.memories.append(Client(client.group, client.topics, client.joined))
        member = client.joined.member if client.joined is not None else ""
        client.joining = self.bench.begin(
            self.bench.coordinator.members.join(
                client.group, member, client.topics, GROUPS[client.group], int(SESSION_S * 1000), client.connection, "client"
            )
        )
        self.take_answers()

    def take_answers(self) -> None:
        """Let clients read the answers to their joins, and check what was given out."""
        self.bench.turns()
        for client in self.clients:
            if client.joining is None or not client.joining.done():
                continue
            client.joined = client.joining.result()
            client.joining = None
            joined = client.joined
            assert joined.generation > self.before_crash, "no process before has given this number out"
            owners = self.owners.setdefault((client.group, joined.generation), {})
            for place in client.owned():
                assert place[0] in client.topics
                assert owners.setdefault(place, joined.member) == joined.member, "two owners in one generation"

    def beat(self, client: Client) -> None:
        if client.joining is not None:
            return
        assert client.joined is not None
        try:
            beat = self.bench.coordinator.members.heartbeat(
                client.group, client.joined.member, client.joined.generation, client.connection
            )
            if not beat.rebalance:
                assert client.joined.generation == self.newest(client.group)
                return
        except BraidError as refused:
            assert refused.code in ("FENCED_MEMBER", "UNKNOWN_MEMBER")
            if refused.code == "UNKNOWN_MEMBER":
                client.joined = None
        self.start_join(client)

    def newest(self, group: str) -> int:
        return max((generation for name, generation in self.owners if name == group), default=0)

    def commit(self, client: Client, place: tuple[str, int], offset: int) -> str:
        assert client.joined is not None
        topic, partition = place
        try:
            self.bench.run(
                self.bench.coordinator.commit(
                    client.group, client.joined.member, client.joined.generation, [(topic, partition, offset)]
                )
            )
        except BraidError as refused:
            return refused.code
        assert client.joined.generation == self.newest(client.group), "a stale commit was taken"
        assert self.owners[client.group, client.joined.generation][place] == client.joined.member
        self.offsets[topic, client.group, partition] = offset
        return "ok"

    # --- rules

    @rule(group=st.sampled_from(list(GROUPS)), topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    def a_client_comes(self, group: str, topics: list[str]) -> None:
        if len(self.clients) < 6:
            client = Client(group, topics)
            self.clients.append(client)
            self.start_join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_beats(self, data: st.DataObject) -> None:
        self.beat(data.draw(st.sampled_from(self.clients)))

    @precondition(lambda self: self.clients)
    @rule()
    def all_beat(self) -> None:
        for client in list(self.clients):
            self.beat(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        client = self.drop(data)
        if client.joined is not None and client.joining is None:
            self.bench.coordinator.members.leave(client.group, client.joined.member)
            self.take_answers()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_dies_silently(self, data: st.DataObject) -> None:
        self.drop(data)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_dies_and_its_connection_with_it(self, data: st.DataObject) -> None:
        client = self.drop(data)
        self.bench.coordinator.members.owner_lost(client.connection)
        self.take_answers()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def one_connects_anew(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.joining is None:
            self.bench.coordinator.members.owner_lost(client.connection)
            client.connection = object()
            self.beat(client)

    def drop(self, data: st.DataObject) -> Client:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.memories.append(client)
        return client

    @rule(seconds=st.sampled_from([0.5, 1.5, 4.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.bench.clock.advance(seconds)
        self.bench.coordinator.members.tick()
        self.take_answers()

    @rule(seconds=st.sampled_from([-3600.0, 3600.0]))
    def the_wall_clock_jumps(self, seconds: float) -> None:
        members = {info.group: info.members for info in list(self.bench.coordinator.each_group())}
        self.bench.clock.jump(seconds)
        self.bench.coordinator.members.tick()
        assert {info.group: info.members for info in list(self.bench.coordinator.each_group())} == members, "nobody dies of it"

    @rule(name=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def a_topic_comes(self, name: str, partitions: int) -> None:
        self.bench.create(name, partitions)
        self.take_answers()

    @rule(name=st.sampled_from(TOPICS))
    def a_topic_goes(self, name: str) -> None:
        if self.bench.topics.get(name) is not None:
            self.bench.delete(name)
            self.offsets = {key: offset for key, offset in self.offsets.items() if key[0] != name}
            self.take_answers()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), offset=st.integers(0, 100))
    def an_owner_commits(self, data: st.DataObject, offset: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.owned():
            self.commit(client, data.draw(st.sampled_from(client.owned())), offset)
            self.take_answers()

    @precondition(lambda self: self.memories)
    @rule(data=st.data(), offset=st.integers(0, 100))
    def somebody_late_commits(self, data: st.DataObject, offset: int) -> None:
        """`commit` checks that it is taken only where nothing has been divided since."""
        client = data.draw(st.sampled_from(self.memories))
        if client.owned():
            self.commit(client, data.draw(st.sampled_from(client.owned())), offset)
            self.take_answers()

    @rule(topic=st.sampled_from(TOPICS), group=st.sampled_from(list(GROUPS)), offset=st.integers(0, 100))
    def a_published_client_commits(self, topic: str, group: str, offset: int) -> None:
        if self.bench.topics.get(topic) is not None:
            self.bench.run(self.bench.coordinator.commit_offset(topic, group, 0, offset))
            self.offsets[topic, group, 0] = offset

    @rule(group=st.sampled_from(list(GROUPS)), offset=st.integers(0, 100), repeat=st.booleans())
    def a_transaction_commits(self, group: str, offset: int, repeat: bool) -> None:
        rows = [self.bench.coordinator.row(topic.name, group, 0, offset) for topic in self.bench.topics.all()]
        if repeat and self.transaction:
            assert not self.bench.run(self.bench.coordinator.commit_rows(rows, self.transaction))
            return
        self.transaction += 1
        assert self.bench.run(self.bench.coordinator.commit_rows(rows, self.transaction))
        self.offsets.update({(topic.name, group, 0): offset for topic in self.bench.topics.all()})

    @rule(topic=st.sampled_from(["", *TOPICS]), group=st.sampled_from(list(GROUPS)))
    def somebody_deletes_a_group(self, topic: str, group: str) -> None:
        try:
            gone = self.bench.run(self.bench.coordinator.delete(topic, group))
        except BraidError as refused:
            assert refused.code == "GROUP_NOT_FOUND"
            gone = []
        self.offsets = {key: offset for key, offset in self.offsets.items() if not (key[0] in gone and key[1] == group)}
        turned_away = [client for client in self.clients if client.joining is not None and client.joining.done()]
        for client in turned_away:
            assert client.group == group and client.joining is not None and isinstance(client.joining.exception(), BraidError)
            client.joining = client.joined = None
        for client in turned_away:
            self.start_join(client)

    @rule(power=st.booleans(), snapshot=st.booleans(), seed=st.integers(0, 1000))
    def the_broker_dies(self, power: bool, snapshot: bool, seed: int) -> None:
        if snapshot:
            self.bench.snapshot()
        self.before_crash = max((generation for _, generation in self.owners), default=0)
        self.bench = self.bench.crashed(seed, power=power)
        cut_off = [client for client in self.clients if client.joining is not None]
        for client in cut_off:
            client.joining = client.joined = None
        for client in self.clients:
            client.connection = object()
        for client in cut_off:
            self.start_join(client)

    @rule()
    def all_becomes_quiet(self) -> None:
        """The living go on as they do; after a while everything has one living owner, who may commit."""
        for _ in range(60):
            self.bench.clock.advance(1)
            self.bench.coordinator.members.tick()
            self.take_answers()
            for client in list(self.clients):
                self.beat(client)
        for group in GROUPS:
            clients = [client for client in self.clients if client.group == group]
            assert all(client.joining is None and client.joined is not None for client in clients)
            assert {client.joined.generation for client in clients if client.joined} <= {self.newest(group)}
            wanted = {
                (topic.name, number)
                for topic in self.bench.topics.all() if any(topic.name in client.topics for client in clients)
                for number in range(topic.partitions)
            }
            owned = [place for client in clients for place in client.owned()]
            assert sorted(owned) == sorted(wanted), "everything has exactly one living owner"
            for client in clients:
                for place in client.owned():
                    assert self.commit(client, place, 7) == "ok"
            for topic in self.bench.topics.all():
                names = {client.joined.member for client in clients if topic.name in client.topics and client.joined}
                if names:
                    info = self.bench.coordinator.describe(topic.name, group)
                    assert (set(info.members), info.state) == (names, "active")

    @invariant()
    def offsets_are_those_that_were_acknowledged(self) -> None:
        assert self.bench.committed() == self.offsets


def test_groups_follow_the_model(rounds: Callable[[int, int], int]) -> None:
    run_state_machine_as_test(
        GroupModel, settings=settings(max_examples=rounds(30, 400), stateful_step_count=rounds(40, 60), deadline=None)
    )
