"""A disk that is full or fails, over real sockets: exactly the records it concerns get an error, in order with the rest."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import Peer, batch, records_of, until, untimed
from running_broker import StartBroker

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.wire.flymq import (
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    ErrorReply,
    Fetch,
    FetchBatches,
    ListTopics,
    Message,
    Metadata,
    Offset,
    Ok,
    Produce,
    ProduceBatch,
    RecordMetadata,
    Subscribe,
)

FIRST_SEGMENT = "00000000000000000000.log"


def _log(topic_id: int, partition: int) -> str:
    return f"/data/topics/{topic_id}/{partition}/{FIRST_SEGMENT}"


def _code(reply: object) -> str:
    """The code of an error; else the offset, so that one look shows a whole run."""
    if isinstance(reply, ErrorReply):
        return reply.text.partition(":")[0]
    return str(reply.offset if isinstance(reply, RecordMetadata) else reply.base_offset)  # type: ignore[attr-defined]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_full_disk_refuses_its_records_and_no_others(durability: str) -> None:
    disk = FaultyDisk(seed=1)
    with EmbeddedBroker(disk, durability=durability) as broker, Peer(broker.address) as peer:
        peer.create("t", 3)
        for partition in range(3):
            peer.produce("t", b"before", partition=partition)
        disk.fail("write", path=_log(1, 1), code=errno.ENOSPC)
        partitions = [0, 1, 2, 1, 0, 1]
        replies = peer.ask_all(*(Produce("t", b"", b"during %d" % n, partition) for n, partition in enumerate(partitions)))
        assert [_code(reply) for reply in replies] == ["1", "STORAGE_FULL", "1", "STORAGE_FULL", "2", "STORAGE_FULL"]
        assert replies[1].text == "STORAGE_FULL: no space left for t/1; nothing was written"
        # Space again: the next record gets the offset that nobody has, and nothing of the refused ones is there.
        assert peer.produce("t", b"after", partition=1)[0].offset == 1
        assert [item.value for item in peer.fetch_all("t", 1)] == [b"before", b"after"]
        assert [item.value for item in peer.fetch_all("t", 0)] == [b"before", b"during 0", b"during 4"]
    with EmbeddedBroker(disk.crash(power=False), durability=durability) as broker, Peer(broker.address) as peer:
        assert [item.value for item in peer.fetch_all("t", 1)] == [b"before", b"after"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("kind", ["batch", "gzip-like"])
def test_a_full_disk_for_those_that_do_not_come_through_the_parser(durability: str, kind: str) -> None:
    disk = FaultyDisk(seed=2)
    with EmbeddedBroker(disk, durability=durability, default_partitions=1) as broker, Peer(broker.address) as peer:
        peer.create("t", 1)
        if kind == "batch":
            peer.produce("t", b"before")
            disk.fail("write", path=_log(1, 0), code=errno.ENOSPC)
            numbered = [batch(b"%d" % n, producer=4, epoch=0, sequence=n) for n in range(2)]
            replies = peer.ask_all(*(ProduceBatch("t", 0, data) for data in numbered))
            assert [_code(reply) for reply in replies] == ["STORAGE_FULL", "STORAGE_FULL"]
            # What was taken back is no duplicate when it comes again.
            again = peer.ask_all(*(ProduceBatch("t", 0, data) for data in numbered))
            assert [(reply.base_offset, reply.duplicate) for reply in again] == [(1, False), (2, False)]
        else:
            # The first record of a topic makes its route, and so goes the general way.
            disk.fail("write", path=_log(1, 0), code=errno.ENOSPC)
            assert _code(peer.ask(Produce("t", b"", b"x", 0))) == "STORAGE_FULL"
            assert peer.produce("t", b"y")[0].offset == 0


def test_a_disk_without_space_leaves_everything_readable_and_comes_back() -> None:
    disk = FaultyDisk(seed=3)
    with EmbeddedBroker(disk, durability="os") as broker, Peer(broker.address) as peer:
        peer.create("t")
        values = [b"%d" % n * 500 for n in range(10)]
        peer.produce("t", *values)
        disk.capacity_bytes = disk.used_bytes + 100
        for request in (Produce("t", b"", bytes(1000), 0), ProduceBatch("t", 0, batch(bytes(1000)))):
            assert _code(peer.ask(request)) == "STORAGE_FULL"
        refused = peer.ask(CreateTopic("another-topic-with-a-long-name", 1))
        assert isinstance(refused, ErrorReply) and refused.text.startswith("STORAGE_FULL: ")
        assert [item.value for item in peer.fetch_all("t")] == values
        assert peer.ask(Consume("t", 0, 9)) == Message(b"", values[9])
        disk.capacity_bytes = None
        assert peer.produce("t", b"again")[0].offset == 10
        peer.create("another-topic-with-a-long-name")
        assert peer.ask(ListTopics()).topics == ("another-topic-with-a-long-name", "t")


def test_a_failed_sync_makes_one_partition_read_only() -> None:
    disk = FaultyDisk(seed=4)
    broker = EmbeddedBroker(disk)
    with broker, Peer(broker.address) as peer:
        peer.create("t", 2)
        for partition in range(2):
            peer.produce("t", b"before", partition=partition)
        disk.fail("sync", path=_log(1, 0))
        replies = peer.ask_all(*(Produce("t", b"", b"during", partition) for partition in (1, 0, 1, 0)))
        assert [_code(reply) for reply in replies] == ["1", "STORAGE_FAILED", "2", "STORAGE_FAILED"]
        assert replies[1].text.startswith("STORAGE_FAILED: t/0 is read-only: ")
        disk.heal()
        # A second sync that succeeds would prove nothing, so it stays so, whichever way a record comes.
        requests = [Produce("t", b"", b"x", 0), ProduceBatch("t", 0, batch(b"x")), Produce("t", b"", b"y", 1)]
        assert [_code(reply) for reply in peer.ask_all(*requests)] == ["STORAGE_FAILED", "STORAGE_FAILED", "3"]
        # Readers see what was promised and nothing more.
        assert [item.value for item in peer.fetch_all("t", 0)] == [b"before"]
        assert records_of(peer.ask(FetchBatches("t", 0, 0, 1000, 1, 0)).batches) == [(0, None, b"before")]
        assert peer.ask(Metadata("t")).partitions[0].newest == 1
        assert peer.ask(Subscribe("t", "g", 0, "latest")) == Offset(1)
        assert peer.ask(Commit("t", "g", 0, 1)) == Ok()
    after_power_loss = disk.crash(seed=1)
    with EmbeddedBroker(after_power_loss) as again, Peer(again.address) as peer:
        assert [item.value for item in peer.fetch_all("t", 0)][:1] == [b"before"]
        assert [item.value for item in peer.fetch_all("t", 1)] == [b"before", b"during", b"during", b"y"]
        next_offset = len(peer.fetch_all("t", 0))
        assert peer.produce("t", b"after", partition=0)[0].offset == next_offset


def test_a_failed_sync_of_batches_fails_each_of_them() -> None:
    disk = FaultyDisk(seed=5)
    with EmbeddedBroker(disk) as broker, Peer(broker.address) as peer:
        peer.create("t", 2)
        peer.produce("t", b"before", partition=0)
        peer.produce("t", b"before", partition=1)
        disk.fail("sync", path=_log(1, 0))
        replies = peer.ask_all(*(ProduceBatch("t", partition, batch(b"v")) for partition in (0, 1, 0, 1)))
        assert [_code(reply) for reply in replies] == ["STORAGE_FAILED", "1", "STORAGE_FAILED", "2"]


def test_a_commit_that_cannot_be_made_durable_is_no_success() -> None:
    disk = FaultyDisk(seed=6)
    with EmbeddedBroker(disk) as broker, Peer(broker.address) as peer:
        peer.create("t")
        assert peer.ask(Commit("t", "g", 0, 5)) == Ok()
        disk.fail("sync", path=f"/data/internal/offsets/{FIRST_SEGMENT}")
        refused = peer.ask(Commit("t", "g", 0, 6))
        assert isinstance(refused, ErrorReply) and refused.text.startswith("STORAGE_FAILED: ")
        assert peer.ask(Subscribe("t", "g", 0, "commit")) == Offset(5)
        # Records have nothing to do with it.
        assert peer.produce("t", b"v")[0].offset == 0


def test_a_topic_that_cannot_be_made_durable_does_not_exist() -> None:
    disk = FaultyDisk(seed=7)
    with EmbeddedBroker(disk) as broker, Peer(broker.address) as peer:
        peer.create("first")
        disk.fail("sync", path=f"/data/internal/metadata/{FIRST_SEGMENT}")
        for request in (CreateTopic("second", 1), Produce("third", b"", b"v", -1), DeleteTopic("first")):
            refused = peer.ask(request)
            assert isinstance(refused, ErrorReply) and refused.text.startswith("STORAGE_FAILED: "), request
        assert peer.ask(ListTopics()).topics == ("first",)
        assert peer.produce("first", b"v")[0].offset == 0


def test_unreadable_data_is_an_error_and_never_wrong_data() -> None:
    disk = FaultyDisk(seed=8)
    with EmbeddedBroker(disk, durability="os") as broker, Peer(broker.address) as peer:
        peer.create("t")
        for number in range(3):
            peer.produce("t", b"%d" % number * 100)
    second = disk.crash(power=False)
    size = second.file_size(_log(1, 0))
    second.flip_bit(_log(1, 0), size // 2)
    with EmbeddedBroker(second, durability="os") as broker, Peer(broker.address) as peer:
        assert [item.value for item in peer.ask(Fetch("t", 0, 0, 1)).items] == [b"0" * 100]
        for request in (Fetch("t", 0, 1, 10), Consume("t", 0, 1), FetchBatches("t", 0, 1, 1000, 1, 0)):
            reply = peer.ask(request)
            assert isinstance(reply, ErrorReply), request
            assert reply.text.startswith(f"CORRUPT_LOG: corrupt data in {_log(1, 0)} at byte ") and "(offset 1)" in reply.text
        assert peer.produce("t", b"on")[0].offset == 3


# --- topics that end under load


class _SyncGate:
    """Holds syncs of one file back until told."""

    def __init__(self, disk: FaultyDisk, path: str) -> None:
        self.waiting = threading.Event()
        self.free = threading.Event()
        self._path = path
        disk.on_operation = self._operation

    def _operation(self, operation: str, path: str) -> None:
        if operation == "sync" and path == self._path:
            self.waiting.set()
            assert self.free.wait(30)


def test_a_deletion_is_finished_even_if_its_client_is_gone() -> None:
    """The client is reset while the deletion waits for its sync; half a deletion would swallow records for ever."""
    disk = FaultyDisk(seed=9)
    with EmbeddedBroker(disk, default_partitions=1) as broker, Peer(broker.address) as other:
        other.create("t")
        other.produce("t", b"old", b"old")
        leaving = Peer(broker.address)
        gate = _SyncGate(disk, f"/data/internal/metadata/{FIRST_SEGMENT}")
        try:
            leaving.send(leaving.encode(DeleteTopic("t")))
            assert gate.waiting.wait(20)
            sessions = broker.server.listeners[0].sessions
            leaving.reset()
            until(lambda: len(sessions) == 1, "the broker noticed that the client is gone")
        finally:
            gate.free.set()
        until(lambda: other.ask(ListTopics()).topics == (), "the topic is gone")
        until(lambda: disk.list_directory("/data/topics") == [], "its files are gone")
        assert other.produce("t", b"new")[0].offset == 0
        assert [item.value for item in other.fetch_all("t")] == [b"new"]


def test_topics_deleted_and_made_again_under_load_take_no_others_along(tmp_path: Path) -> None:
    """Twenty topics written in one cycle make one sync for all; deleting one in the middle of it must not fail the rest."""
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), default_partitions=1) as broker:
        stop = threading.Event()

        def delete_often() -> None:
            chance = random.Random(1)
            with Peer(broker.address) as peer:
                while not stop.is_set():
                    assert peer.ask(DeleteTopic(f"doomed-{chance.randrange(10)}")) == Ok()

        deleter = threading.Thread(target=delete_often)
        deleter.start()
        try:
            with Peer(broker.address) as peer:
                for round_number in range(60):
                    kept = [Produce(f"kept-{n}", b"", b"%d" % round_number, 0) for n in range(20)]
                    doomed = [Produce(f"doomed-{n}", b"", b"x", 0) for n in range(10)]
                    replies = peer.ask_all(*kept, *doomed, *kept)
                    for number, reply in enumerate(replies[:20] + replies[30:]):
                        assert isinstance(reply, RecordMetadata), reply
                        assert reply.offset == 2 * round_number + number // 20
                    for reply in replies[20:30]:
                        assert isinstance(reply, RecordMetadata) or reply.text.startswith("TOPIC_NOT_FOUND: "), reply
        finally:
            stop.set()
            deleter.join()
        with Peer(broker.address) as peer:
            for number in range(20):
                values = [item.value for item in peer.fetch_all(f"kept-{number}")]
                assert values == [b"%d" % (n // 2) for n in range(120)]


def test_readers_of_a_topic_that_ends_get_an_answer(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os")
    with Peer(broker.address) as writer, Peer(broker.address) as reader:
        for _ in range(30):
            writer.create("t")
            writer.produce("t", b"a", b"b")
            writer.send(writer.encode(DeleteTopic("t")))
            replies = reader.ask_all(Fetch("t", 0, 0, 5), Consume("t", 0, 1), FetchBatches("t", 0, 0, 100, 1, 50), Metadata("t"))
            for reply in replies:
                assert not isinstance(reply, ErrorReply) or reply.text.startswith("TOPIC_NOT_FOUND: "), reply
            assert untimed(writer.decode(0x09, writer.receive_frame())) == Ok()
    assert "bug in an operation" not in broker.log, broker.log
