"""Transactions against a model: a list of what was committed, whatever producers, the clock and the disk do in between."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from work_bench import all_values, let_go, make_broker

from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError

T = TypeVar("T")
TOPICS = {"a": 1, "b": 3}


@dataclass
class Known:
    """What the model knows of a transaction."""

    id: str
    name: str
    epoch: int
    owner: str
    deadline_s: float
    state: str = "active"
    values: list[tuple[str, bytes]] = field(default_factory=list)
    offset: int | None = None


class Model(RuleBasedStateMachine):
    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = FaultyDisk(1), ManualClock()
        self.loop = asyncio.new_event_loop()
        self.counter = itertools.count()
        self.known: list[Known] = []
        self.epochs: dict[str, int] = {}
        self.committed: Counter[tuple[str, bytes]] = Counter()
        self.offset: int | None = None
        self.now_s = 0.0
        self.start()
        for topic, partitions in TOPICS.items():
            self.run(self.broker.create_topic(topic, partitions))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def start(self) -> None:
        async def starting() -> None:
            self.broker = make_broker(self.disk, self.clock)
            await self.broker.start()

        self.run(starting())

    def teardown(self) -> None:
        self.run(self.broker.stop())
        self.loop.close()

    def attempt(self, coroutine: Coroutine[Any, Any, T]) -> tuple[T | None, str]:
        """What it returned, and the code it was refused with."""
        try:
            return self.run(coroutine), ""
        except BraidError as error:
            return None, error.code

    def refusal(self, known: Known) -> str:
        """The code that anything but an abort must be refused with, empty when it must succeed."""
        self.expire()
        return {
            "active": "", "committed": "TRANSACTION_NOT_ACTIVE", "aborted": "TRANSACTION_NOT_ACTIVE", "fenced": "FENCED_PRODUCER",
            "lost": "TRANSACTION_NOT_FOUND",
        }[known.state]  # fmt: skip

    def expire(self) -> None:
        for known in self.known:
            if known.state == "active" and self.now_s >= known.deadline_s:
                known.state = "aborted"

    # --- rules

    @rule(
        target=transactions,
        name=st.sampled_from(["", "", "p", "q"]),
        owner=st.sampled_from("xy"),
        timeout=st.sampled_from([10, 60]),
    )
    def begin(self, name: str, owner: str, timeout: int) -> Known:
        begun = self.run(self.broker.transactions.begin(owner, name=name, timeout_s=timeout))
        self.expire()
        for known in self.known:
            if name and known.name == name and known.state == "active":
                known.state = "fenced"
        if name:
            self.epochs[name] = begun.epoch
        known = Known(begun.id, name, begun.epoch, owner, self.now_s + timeout)
        assert all(begun.id != other.id for other in self.known)
        self.known.append(known)
        return known

    @rule(target=transactions, earlier=transactions)
    def begin_again_under_the_name(self, earlier: Known) -> Any:
        if not earlier.name:
            return multiple()
        beginning = self.broker.transactions.begin(earlier.owner, name=earlier.name, epoch=earlier.epoch, timeout_s=60)
        begun, code = self.attempt(beginning)
        assert code == ("" if self.epochs[earlier.name] == earlier.epoch else "FENCED_PRODUCER")
        if begun is None:
            return multiple()
        self.expire()
        for known in self.known:
            if known.name == earlier.name and known.state == "active":
                known.state = "aborted"
        known = Known(begun.id, earlier.name, begun.epoch, earlier.owner, self.now_s + 60)
        self.known.append(known)
        return known

    @rule(known=transactions, topic=st.sampled_from(sorted(TOPICS)), key=st.sampled_from([b"", b"k"]), count=st.integers(1, 4))
    def produce(self, known: Known, topic: str, key: bytes, count: int) -> None:
        for _ in range(count):
            value = b"%d" % next(self.counter)
            _, code = self.attempt(self.broker.transactions.produce(known.id, topic, key, value))
            assert code == self.refusal(known)
            if not code:
                known.values.append((topic, value))

    @rule(known=transactions, offset=st.integers(0, 99))
    def add_offset(self, known: Known, offset: int) -> None:
        async def adding() -> None:
            self.broker.transactions.add_offsets(known.id, "group", [("a", 0, offset)])

        _, code = self.attempt(adding())
        assert code == self.refusal(known)
        if not code:
            known.offset = offset

    @rule(known=transactions)
    def commit(self, known: Known) -> None:
        wanted = "" if known.state == "committed" else self.refusal(known)
        _, code = self.attempt(self.broker.transactions.commit(known.id))
        assert code == wanted
        if not code and known.state == "active":
            self.commits(known)

    def commits(self, known: Known) -> None:
        known.state = "committed"
        self.committed.update(known.values)
        self.offset = known.offset if known.offset is not None else self.offset

    @rule(known=transactions)
    def abort(self, known: Known) -> None:
        _, code = self.attempt(self.broker.transactions.abort(known.id))
        assert code == ("TRANSACTION_COMMITTED" if known.state == "committed" else "")
        self.expire()
        if known.state == "active":
            known.state = "aborted"

    @rule(owner=st.sampled_from("xy"))
    def disconnect(self, owner: str) -> None:
        self.broker.transactions.abort_owner(owner)
        self.expire()
        for known in self.known:
            if known.owner == owner and known.state == "active":
                known.state = "aborted"

    @rule(seconds=st.sampled_from([1, 9, 30]), jump=st.sampled_from([0, -3600, 3600]), look=st.booleans())
    def let_time_pass(self, seconds: int, jump: int, look: bool) -> None:
        self.clock.advance(seconds)
        self.clock.jump(jump)
        self.now_s += seconds
        if look:
            self.broker.transactions.abort_overdue()

    @rule(orderly=st.booleans(), power=st.booleans(), seed=st.integers(0, 3))
    def restart(self, orderly: bool, power: bool, seed: int) -> None:
        if orderly:
            self.run(self.broker.stop())
        else:
            self.run(let_go(self.broker))
            self.disk = self.disk.crash(seed, power=power)
        self.start()
        for known in self.known:
            if known.state != "committed":
                known.state = "lost"

    @rule(known=transactions, point=st.integers(0, 25), power=st.booleans(), seed=st.integers(0, 3))
    def crash_in_a_commit(self, known: Known, point: int, power: bool, seed: int) -> None:
        if self.refusal(known):
            return

        async def dying() -> None:
            self.loop.set_exception_handler(lambda *_: None)
            task = asyncio.create_task(self.broker.transactions.commit(known.id))
            for _ in range(60):
                await asyncio.sleep(0)
                if task.done() or self.disk.dead:
                    break
            acked = task.done() and not task.cancelled() and task.exception() is None
            await let_go(self.broker)
            if acked:
                self.commits(known)

        self.disk.crash_after(point)
        self.run(dying())
        self.disk = self.disk.crash(seed, power=power)
        self.start()
        if known.state != "committed":
            # Nobody heard how it ended. Asking now tells, and the records agree.
            _, code = self.attempt(self.broker.transactions.commit(known.id))
            assert code in ("", "TRANSACTION_NOT_FOUND")
            if not code:
                self.commits(known)
        for other in self.known:
            if other.state != "committed":
                other.state = "lost"

    # --- what holds at all times

    @invariant()
    def readers_see_what_was_committed(self) -> None:
        found = Counter((topic, value) for topic in TOPICS for value in all_values(self.broker, topic))
        assert found == self.committed
        assert self.broker.groups.committed(self.broker.topic("a").id, "group", 0) == self.offset
        assert not self.broker.work.table.work


def test_transactions_behave_as_their_model(rounds: Callable[[int, int], int]) -> None:
    run_state_machine_as_test(Model, settings=settings(max_examples=rounds(20, 1500), stateful_step_count=25, deadline=None))
