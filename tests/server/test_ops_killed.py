"""SIGKILL at random moments inside two-step operations: commits, dead letters and their replay, delayed records, resets, schemas.

Each client goes through its operation again and again, and writes down what it asked for and what it was told. After the kill
and a new start everything that was answered is there, what was not answered happened whole or not at all, and nothing
happened twice. The same operations crash at every step of a simulated disk in `tests/broker`; here it is a process that dies.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

import pytest
from flymq_peer import Peer, until
from running_broker import StartBroker

from braidmq.wire import flymq
from braidmq.wire.flymq import TopicOffset


class Client(ABC):
    """One connection that goes on until the broker is gone."""

    def __init__(self) -> None:
        self.number = 0
        """Of the operation under way; it goes on counting over the kills."""
        self.since_start = 0
        self._fault: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, address: str) -> None:
        self.since_start = 0
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(30)
        assert not self._thread.is_alive(), "a client did not notice that the broker is gone"
        if self._fault is not None:
            raise self._fault

    def _run(self, address: str) -> None:
        try:
            with Peer(address) as peer:
                while True:
                    self.number += 1
                    self.operate(peer)
                    self.since_start += 1
        except ConnectionError:
            return
        except BaseException as fault:
            self._fault = fault

    @abstractmethod
    def operate(self, peer: Peer) -> None:
        """One operation, from its first request to its last answer."""

    @abstractmethod
    def check(self, peer: Peer) -> None:
        """Hold what is there against what was answered."""


class Commits(Client):
    """Transactions over two topics with the offset of a group."""

    def __init__(self) -> None:
        super().__init__()
        self.committed: set[int] = set()

    def operate(self, peer: Peer) -> None:
        identity = peer.ask(flymq.TxnBegin()).id
        for topic in ("left", "right"):
            for part in range(3):
                peer.ask(flymq.TxnProduce(identity, topic, b"%d %d" % (self.number, part), partition=0))
        assert peer.ask(flymq.TxnOffsets(identity, "g", (TopicOffset("left", 0, self.number),))) == flymq.Ok()
        assert peer.ask(flymq.TxnCommit(identity)).success
        self.committed.add(self.number)

    def check(self, peer: Peer) -> None:
        found = [Counter(int(item.value.split()[0]) for item in peer.fetch_all(topic)) for topic in ("left", "right")]
        assert found[0] == found[1], "in both topics or in none"
        assert set(found[0].values()) <= {3}, "all of its records, once"
        assert set(found[0]) >= self.committed
        if found[0]:
            assert peer.ask(flymq.GetOffset("left", "g", 0)) == flymq.Offset(max(found[0])), "the offset goes with the records"
        assert peer.ask(flymq.TxnList()).transactions == ()


class Letters(Client):
    """A record that fails for good, and its letter, which is sent back."""

    def __init__(self) -> None:
        super().__init__()
        self.buried: set[bytes] = set()
        self.replaying: set[bytes] = set()
        self.replayed: set[bytes] = set()

    def operate(self, peer: Peer) -> None:
        value = b"letter %d" % self.number
        (stored,) = peer.produce("work", value)
        while not peer.ask(flymq.DlqFail("work", 0, stored.offset, "g", "processing_error", "boom")).dead_lettered:
            pass
        self.buried.add(value)
        letter = next(item for item in peer.ask(flymq.FetchDlq("work", 100_000)).items if item.data == value)
        if self.number % 3:
            self.replaying.add(value)
            assert peer.ask(flymq.ReplayDlq("work", letter.id)).count == 1
            self.replayed.add(value)

    def check(self, peer: Peer) -> None:
        here = Counter(item.value for item in peer.fetch_all("work"))
        listed = Counter(item.data for item in peer.ask(flymq.FetchDlq("work", 100_000)).items)
        for value in self.buried:
            assert listed[value] + here[value] == 2, "its letter is there, or was sent back, once"
            assert here[value] == 1 or value in self.replaying
            assert here[value] == 2 or value not in self.replayed


class Delays(Client):
    """Records that come a moment later, some of which are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: set[bytes] = set()
        self.cancelling: set[bytes] = set()
        self.cancelled: set[bytes] = set()

    def operate(self, peer: Peer) -> None:
        value = b"delayed %d" % self.number
        identity = peer.ask(flymq.ProduceDelayed("later", value, random.randrange(1, 300), partition=0)).id
        self.accepted.add(value)
        if self.number % 3 == 0:
            self.cancelling.add(value)
            if peer.ask(flymq.CancelDelayed(identity)) == flymq.Ok():
                self.cancelled.add(value)

    def check(self, peer: Peer) -> None:
        until(lambda: not peer.ask(flymq.DelayedList("later", 1)).messages, "everything is due")
        wanted = self.accepted - self.cancelling
        # What is no longer waiting is on its way: decided, and written in the same moment or the next.
        until(lambda: wanted <= {item.value for item in peer.fetch_all("later")}, "everything came")
        found = Counter(item.value for item in peer.fetch_all("later"))
        assert set(found.values()) <= {1}, "delivered once"
        assert not set(found) & self.cancelled


class Resets(Client):
    """A group that is moved back and forth."""

    def __init__(self) -> None:
        super().__init__()
        self.answered = 0

    def operate(self, peer: Peer) -> None:
        assert peer.ask(flymq.ResetOffset("work", "moved", 0, "offset", self.number)) == flymq.Ok()
        self.answered = self.number

    def check(self, peer: Peer) -> None:
        offset = peer.ask(flymq.GetOffset("work", "moved", 0)).offset
        assert offset in (self.answered, self.number), "where it was, or where it was being moved"
        self.answered = offset


class Schemas(Client):
    """Versions that are registered and deleted again."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: dict[int, bytes] = {}
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()

    def operate(self, peer: Peer) -> None:
        definition = b'{"type":"object","title":"%d"}' % self.number
        version = peer.ask(flymq.RegisterSchema("s", "json", definition)).version
        assert version > max(self.registered, default=0), "a number is used once"
        self.registered[version] = definition
        if self.number % 4:
            self.deleting.add(version)
            assert peer.ask(flymq.DeleteSchema("s", version)) == flymq.Ok()
            self.deleted.add(version)

    def check(self, peer: Peer) -> None:
        there = {schema.version for schema in peer.ask(flymq.ListSchemas("s")).schemas}
        assert there >= set(self.registered) - self.deleting and not there & self.deleted
        for version in there & set(self.registered):
            assert peer.ask(flymq.GetSchema("s", version)).definition == self.registered[version]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_kill_inside_an_operation_leaves_all_or_nothing(
    start_broker: StartBroker, durability: str, rounds: Callable[[int, int], int]
) -> None:
    broker = start_broker("--durability", durability)
    clients = [Commits(), Letters(), Delays(), Resets(), Schemas()]
    with Peer(broker.address) as peer:
        for topic in ("left", "right", "work", "later"):
            peer.create(topic)
    for _ in range(rounds(1, 25)):
        for client in clients:
            client.start(broker.address)
        until(lambda: all(client.since_start > 2 for client in clients), "all are at work")
        # Any moment will do; which step of which operation it hits is chance.
        time.sleep(random.uniform(0, 0.2))
        broker.kill()
        for client in clients:
            client.join()
        broker.restart()
        with Peer(broker.address) as peer:
            for client in clients:
                client.check(peer)
