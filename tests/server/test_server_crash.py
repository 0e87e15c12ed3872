"""SIGKILL at random moments under three writers: what was acknowledged is there, once, in order, without a gap.

A round starts the writers, kills the broker some time later, perhaps tears a tail, starts it again and checks every partition
against what the writers were told. The writers of single records do not repeat what they got no answer for, so such a
record may be there or not; the idempotent one repeats until it is sure, so each of its records must be there once.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from flymq_peer import Peer, batch
from running_broker import RunningBroker, StartBroker

from braidmq.wire.flymq import BatchProduced, Commit, ErrorReply, Ok, Produce, ProduceBatch, RecordMetadata, Request, Subscribe

Place = tuple[str, int]
"""Topic and partition."""

TOPICS = {"plain": 1, "numbered": 1, **{f"many/{number}": 3 for number in range(6)}}


class Writer:
    """Sends on a connection of its own, some requests ahead of the answers, until the broker is gone."""

    def __init__(self) -> None:
        self.acked: dict[Place, dict[int, bytes]] = defaultdict(dict)
        """Offset to value, as the broker said."""
        self.refused: list[str] = []
        self._thread: threading.Thread | None = None

    def start(self, address: str) -> None:
        self._thread = threading.Thread(target=self._run, args=(address,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(30)
        assert not self._thread.is_alive(), "a writer did not notice that the broker is gone"

    def _run(self, address: str) -> None:
        waiting: deque[Request] = deque()
        try:
            with Peer(address) as peer:
                while True:
                    burst = self.following()
                    waiting += burst
                    peer.send(b"".join(map(peer.encode, burst)))
                    while len(waiting) > self.ahead:
                        self._take(peer, waiting)
        except ConnectionError:
            return

    def _take(self, peer: Peer, waiting: deque[Request]) -> None:
        request = waiting[0]
        reply = peer.decode(request.op, peer.receive_frame())
        waiting.popleft()
        if isinstance(reply, ErrorReply):
            self.refused.append(reply.text)
        else:
            self.answered(request, reply)

    ahead = 0
    """Requests that may wait for their answers."""

    def following(self) -> list[Request]:
        """What to send next."""
        raise NotImplementedError

    def answered(self, request: Request, reply: object) -> None:
        assert isinstance(request, Produce) and isinstance(reply, RecordMetadata)
        self.acked[reply.topic, reply.partition][reply.offset] = request.value


class PlainWriter(Writer):
    """Single records to one partition, pipelined."""

    ahead = 300

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def following(self) -> list[Request]:
        first, self._next = self._next, self._next + 50
        return [Produce("plain", b"", b"%d" % number, 0) for number in range(first, self._next)]


class ManyWriter(Writer):
    """Single records to many topics and partitions, with a group's offset committed in between."""

    ahead = 60

    def __init__(self) -> None:
        super().__init__()
        self._next = 0
        self.committed = 0
        self.maybe_committed = 0

    def following(self) -> list[Request]:
        first, self._next = self._next, self._next + 20
        records: list[Request] = [
            Produce(f"many/{number % 6}", b"key-%d" % (number % 17) if number % 3 else b"", b"%d" % number, -1)
            for number in range(first, self._next)
        ]
        self.maybe_committed = self._next
        return [*records, Commit("plain", "group", 0, self._next)]

    def answered(self, request: Request, reply: object) -> None:
        if isinstance(request, Commit):
            assert reply == Ok()
            self.committed = request.offset
        else:
            super().answered(request, reply)


class NumberedWriter(Writer):
    """Batches with producer id and sequence; what got no answer is sent again to the next broker."""

    ahead = 4

    def __init__(self) -> None:
        super().__init__()
        self._next = 0
        self._unsure: deque[tuple[int, int]] = deque()
        """(first sequence, records) of batches without an answer, oldest first."""
        self._to_repeat: deque[tuple[int, int]] = deque()
        self.repeated = self.duplicates = 0
        self._chance = random.Random(3)

    @property
    def sent(self) -> int:
        return self._next

    def start(self, address: str) -> None:
        self._to_repeat = deque(self._unsure)
        self.repeated += len(self._to_repeat)
        super().start(address)

    def following(self) -> list[Request]:
        if self._to_repeat:
            return [self._request(*self._to_repeat.popleft())]
        first, count = self._next, self._chance.randint(1, 8)
        self._next += count
        self._unsure.append((first, count))
        return [self._request(first, count)]

    def _request(self, first: int, count: int) -> Request:
        values = [b"%d" % number for number in range(first, first + count)]
        return ProduceBatch("numbered", 0, batch(*values, producer=77, epoch=0, sequence=first))

    def answered(self, request: Request, reply: object) -> None:
        assert isinstance(reply, BatchProduced)
        first, count = self._unsure.popleft()
        assert reply.count == count
        self.duplicates += reply.duplicate
        for number in range(count):
            self.acked["numbered", 0][reply.base_offset + number] = b"%d" % (first + number)

    def finish(self, address: str) -> None:
        """Repeat what is unsure until nothing is."""
        with Peer(address) as peer:
            for first, count in list(self._unsure):
                request = self._request(first, count)
                self.answered(request, peer.ask(request))


def _read_all(address: str) -> dict[Place, list[bytes]]:
    """The values of every partition, in order of their offsets, which must have no gap."""
    found: dict[Place, list[bytes]] = {}
    with Peer(address) as peer:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                items = peer.fetch_all(topic, partition)
                assert [item.offset for item in items] == list(range(len(items))), f"{topic}/{partition} has a gap"
                found[topic, partition] = [item.value for item in items]
    return found


def _tear(data_dir: Path, chance: random.Random) -> str:
    """Leave half a batch behind, as a write cut off by the kill would; returns the place as the log names it."""
    logs = sorted((data_dir / "topics").glob("*/*/*.log"))
    partition = chance.choice(sorted({log.parent for log in logs}))
    newest = max(partition.glob("*.log"))
    whole = batch(b"torn" * chance.randint(1, 200))
    with newest.open("ab") as file:
        file.write(whole[: chance.randrange(1, len(whole))])
    topic = list(TOPICS)[int(partition.parent.name) - 1]
    return f"recovery of {topic}/{partition.name}: "


@pytest.mark.parametrize(
    ("durability", "env"), [("fsync", {}), ("os", {}), ("os", {"BRAID_PURE": "1"})], ids=["fsync", "os", "os-pure"]
)
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_doubled_or_out_of_order(
    start_broker: StartBroker, rounds: Callable[[int, int], int], durability: str, env: dict[str, str]
) -> None:
    chance = random.Random(f"{durability}{env}")
    flags = ("--durability", durability, "--segment-bytes", "64KiB", "--checkpoint-interval", "0.05s")
    broker = start_broker(*flags, env=env)
    with Peer(broker.address) as peer:
        for topic, partitions in TOPICS.items():
            peer.create(topic, partitions)
    plain, many, numbered = PlainWriter(), ManyWriter(), NumberedWriter()
    writers = (plain, many, numbered)
    for _ in range(rounds(2 if env else 4, 50)):
        _one_round(broker, writers, chance)
        _check(broker, plain, many, numbered)
    numbered.finish(broker.address)
    final = _read_all(broker.address)
    assert final["numbered", 0] == [b"%d" % number for number in range(numbered.sent)], "each record of it once"
    assert numbered.repeated, "no round cut the idempotent writer off, so nothing was shown"
    assert sum(map(len, plain.acked.values())) > 100


def _one_round(broker: RunningBroker, writers: tuple[Writer, ...], chance: random.Random) -> None:
    for writer in writers:
        writer.start(broker.address)
    # Not for anything to happen: the moment of death is what is being chosen.
    time.sleep(chance.uniform(0.03, 0.25))
    broker.kill()
    for writer in writers:
        writer.join()
        assert writer.refused == []
    torn = _tear(broker.data_dir, chance) if chance.random() < 0.5 else ""
    logged = len(broker.log)
    broker.restart()
    fresh = broker.log[logged:]
    assert "recovered start: 8 topics" in fresh, fresh
    if torn:
        assert torn in fresh, fresh
        assert ", 0 bytes removed" not in fresh, fresh


def _check(broker: RunningBroker, plain: PlainWriter, many: ManyWriter, numbered: NumberedWriter) -> None:
    found = _read_all(broker.address)
    for writer in (plain, many, numbered):
        for place, acked in writer.acked.items():
            values = found[place]
            for offset, value in acked.items():
                assert offset < len(values) and values[offset] == value, f"{place} lost offset {offset}"
    for place, values in found.items():
        numbers = [int(value) for value in values]
        # Each writer sends rising numbers, so this is both "in order" and "not twice".
        assert all(before < after for before, after in pairwise(numbers)), f"{place} is out of order"
    with Peer(broker.address) as peer:
        offset = peer.ask(Subscribe("plain", "group", 0, "commit")).offset
    assert many.committed <= offset <= many.maybe_committed, "a group's offset went astray"


def test_a_torn_tail_of_any_length_is_removed_and_reported(start_broker: StartBroker, rounds: Callable[[int, int], int]) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as peer:
        peer.create("t")
        peer.produce("t", b"first", b"second")
    log = next((broker.data_dir / "topics").glob("1/0/*.log"))
    whole = batch(b"never acknowledged")
    for cut in range(1, len(whole), rounds(41, 1)):
        broker.kill()
        size = log.stat().st_size
        with log.open("ab") as file:
            file.write(whole[:cut])
        broker.restart()
        assert f"{cut} bytes removed, next offset 2" in broker.log
        assert log.stat().st_size == size
        with Peer(broker.address) as peer:
            assert [item.value for item in peer.fetch_all("t")] == [b"first", b"second"]
    with Peer(broker.address) as peer:
        assert peer.produce("t", b"third")[0].offset == 2
