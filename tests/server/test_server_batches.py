"""The bulk operations: whole batches in, with and without a producer's numbers, and whole batches out, at once or after a wait."""

from __future__ import annotations

import time

import pytest
from flymq_peer import NAMES, V126, Peer, batch, new_topic, open_sockets, records_of, until, untimed
from running_broker import RunningBroker, StartBroker

from braidmq.base import limits
from braidmq.hot import layout
from braidmq.wire.flymq import (
    BatchProduced,
    DeleteTopic,
    ErrorReply,
    FetchBatches,
    Metadata,
    Ok,
    Produce,
    ProduceBatch,
    RecordMetadata,
)

LONG_MS = 15_000
"""Longer than any test may take: a wait that is not cut short is a failure, not a delay."""


def _stored(peer: Peer, topic: str, offset: int = 0) -> list[tuple[int, bytes | None, bytes]]:
    reply = peer.ask(FetchBatches(topic, 0, offset, limits.FETCH_BYTES_TARGET, 0, 0))
    return records_of(reply.batches, offset)


# --- PRODUCE_BATCH


def test_a_batch_is_stored_as_it_came(peer: Peer) -> None:
    topic = peer.create(new_topic(), 2)
    peer.produce(topic, b"first")
    sent = batch(b"a", b"", b"c" * 5000, keys=[b"k", None, b"kk"])
    before_ms = round(time.time() * 1000)
    reply = peer.ask(ProduceBatch(topic, 0, sent))
    assert untimed(reply) == BatchProduced(topic, 0, 1, 0, 3, False)
    assert before_ms - 1000 <= reply.timestamp <= round(time.time() * 1000) + 1000
    assert _stored(peer, topic) == [(0, None, b"first"), (1, b"k", b"a"), (2, None, b""), (3, b"kk", b"c" * 5000)]
    assert [(item.offset, item.key, item.value) for item in peer.fetch_all(topic)][1:] == [
        (1, b"k", b"a"), (2, b"", b""), (3, b"kk", b"c" * 5000),
    ]


def test_batches_and_records_pipelined_share_the_offsets(peer: Peer) -> None:
    topic = peer.create(new_topic())
    requests = [
        ProduceBatch(topic, 0, batch(*[b"%d" % n] * (n % 4 + 1))) if n % 3 else Produce(topic, b"", b"%d" % n, 0)
        for n in range(300)
    ]
    following = 0
    for request, reply in zip(requests, peer.ask_all(*requests), strict=True):
        if isinstance(request, Produce):
            assert isinstance(reply, RecordMetadata) and reply.offset == following
            following += 1
        else:
            assert isinstance(reply, BatchProduced) and reply.base_offset == following and not reply.duplicate
            following += reply.count
    expected = [b"%d" % number for number in range(300) for _ in range(number % 4 + 1 if number % 3 else 1)]
    assert [(offset, value) for offset, _, value in _stored(peer, topic)] == list(enumerate(expected))


def test_a_keyless_batch_takes_its_turn(peer: Peer) -> None:
    topic = peer.create(new_topic(), 3)
    assert [peer.ask(ProduceBatch(topic, -1, batch(b"v"))).partition for _ in range(4)] == [0, 1, 2, 0]


def test_a_repeated_batch_is_stored_once(peer: Peer) -> None:
    topic = peer.create(new_topic())
    sent = [batch(b"%d-a" % n, b"%d-b" % n, producer=7, epoch=0, sequence=2 * n) for n in range(limits.PRODUCER_BATCHES_KEPT)]
    first = [peer.ask(ProduceBatch(topic, 0, data)) for data in sent]
    assert [reply.base_offset for reply in first] == [0, 2, 4, 6, 8]
    for original, data in zip(first, sent, strict=True):
        again = peer.ask(ProduceBatch(topic, 0, data))
        assert again.duplicate and (again.base_offset, again.timestamp) == (original.base_offset, original.timestamp)
    assert len(_stored(peer, topic)) == 10


def test_a_batch_repeated_in_one_write_is_stored_once(peer: Peer) -> None:
    topic = peer.create(new_topic())
    request = ProduceBatch(topic, 0, batch(b"v", producer=1, epoch=0, sequence=0))
    replies = peer.ask_all(request, request, request)
    assert [(reply.base_offset, reply.duplicate) for reply in replies] == [(0, False), (0, True), (0, True)]
    assert _stored(peer, topic) == [(0, None, b"v")]


def test_a_gap_and_an_old_epoch_are_refused(peer: Peer) -> None:
    topic = peer.create(new_topic())

    def send(sequence: int, epoch: int, producer: int = 5) -> object:
        return peer.ask(ProduceBatch(topic, 0, batch(b"v", producer=producer, epoch=epoch, sequence=sequence)))

    assert isinstance(send(0, 0), BatchProduced)
    gap = send(2, 0)
    assert isinstance(gap, ErrorReply) and gap.text == "OUT_OF_ORDER_SEQUENCE: producer 5 sent sequence 2 where 1 comes next"
    assert isinstance(send(1, 0), BatchProduced)
    assert isinstance(send(0, 1), BatchProduced)
    fenced = send(2, 0)
    assert isinstance(fenced, ErrorReply) and fenced.text == "FENCED_PRODUCER: producer 5 epoch 0 was replaced by epoch 1"
    # Another producer, and records of nobody, have nothing to do with it.
    assert isinstance(send(0, 0, producer=6), BatchProduced)
    assert isinstance(peer.ask(ProduceBatch(topic, 0, batch(b"v"))), BatchProduced)
    assert peer.ask(Metadata(topic)).partitions[0].newest == 5


@pytest.mark.parametrize("stop", ["kill", "stop"])
def test_a_batch_repeated_after_a_restart_is_stored_once(start_broker: StartBroker, stop: str) -> None:
    broker = start_broker("--durability", "os", "--default-partitions", "1")
    requests = [ProduceBatch("t", 0, batch(b"%d" % n, producer=9, epoch=3, sequence=n)) for n in range(3)]
    with Peer(broker.address) as peer:
        first = peer.ask_all(*requests)
    getattr(broker, stop)()
    broker.restart()
    with Peer(broker.address) as peer:
        again = peer.ask_all(*requests)
        for original, repeated in zip(first, again, strict=True):
            assert repeated.duplicate
            assert (repeated.base_offset, repeated.timestamp) == (original.base_offset, original.timestamp)
        old = peer.ask(ProduceBatch("t", 0, batch(b"x", producer=9, epoch=2, sequence=3)))
        assert isinstance(old, ErrorReply) and old.text.startswith("FENCED_PRODUCER: ")
        assert peer.ask(ProduceBatch("t", 0, batch(b"3", producer=9, epoch=3, sequence=3))).base_offset == 3


def test_every_damaged_byte_of_a_batch_is_noticed(peer: Peer) -> None:
    topic = peer.create(new_topic())
    good = batch(b"value", b"second", keys=[b"key", None])
    requests = []
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 0x41
        requests.append(ProduceBatch(topic, 0, bytes(damaged)))
    for at, reply in enumerate(peer.ask_all(*requests)):
        assert isinstance(reply, ErrorReply) and reply.text.startswith("INVALID_BATCH: "), at
    for cut in (0, 1, layout.HEADER_BYTES - 1, layout.HEADER_BYTES, len(good) - 8):
        reply = peer.ask(ProduceBatch(topic, 0, good[:cut]))
        assert isinstance(reply, ErrorReply) and reply.text.startswith("INVALID_BATCH: "), cut
    reply = peer.ask(ProduceBatch(topic, 0, good + good))
    assert isinstance(reply, ErrorReply) and reply.text.startswith("INVALID_BATCH: ")
    # None of them used an offset.
    assert peer.ask(ProduceBatch(topic, 0, good)).base_offset == 0


# --- FETCH_BATCHES


def test_a_fetch_that_finds_something_does_not_wait(peer: Peer) -> None:
    topic = peer.create(new_topic())
    peer.produce(topic, b"a")
    reply = peer.ask(FetchBatches(topic, 0, 0, 1 << 20, 1, LONG_MS))
    assert (reply.topic, reply.partition, reply.high_watermark, reply.log_start) == (topic, 0, 1, 0)
    assert records_of(reply.batches) == [(0, None, b"a")]


def test_the_first_batch_may_begin_before_the_asked_offset(peer: Peer) -> None:
    topic = peer.create(new_topic())
    peer.ask(ProduceBatch(topic, 0, batch(b"0", b"1", b"2")))
    reply = peer.ask(FetchBatches(topic, 0, 2, 1 << 20, 1, 0))
    assert records_of(reply.batches) == [(0, None, b"0"), (1, None, b"1"), (2, None, b"2")]
    assert records_of(reply.batches, 2) == [(2, None, b"2")]


def test_with_no_wait_an_empty_answer_comes_at_once(peer: Peer) -> None:
    topic = peer.create(new_topic())
    reply = peer.ask(FetchBatches(topic, 0, 0, 1 << 20, 1, 0))
    assert (reply.high_watermark, reply.batches) == (0, b"")


def test_a_long_poll_ends_with_nothing_when_its_time_is_over(peer: Peer) -> None:
    topic = peer.create(new_topic())
    began = time.monotonic()
    reply = peer.ask(FetchBatches(topic, 0, 0, 1 << 20, 1, 150))
    assert reply.batches == b"" and 0.14 <= time.monotonic() - began < 5


@pytest.mark.parametrize("bulk", [False, True], ids=["produce", "batch"])
def test_a_long_poll_wakes_when_a_record_comes(standing: RunningBroker, peer: Peer, bulk: bool) -> None:
    topic = peer.create(new_topic())
    peer.produce(topic, b"old")
    with Peer(standing.address) as waiting:
        for offset in range(1, 6):
            waiting.send(waiting.encode(FetchBatches(topic, 0, offset, 1 << 20, 1, LONG_MS)))
            # The poll is behind us once the connection's next request waits for it.
            value = b"%d" % offset
            peer.ask(ProduceBatch(topic, 0, batch(value)) if bulk else Produce(topic, b"", value, 0))
            began = time.monotonic()
            reply = waiting.decode(0x0D, waiting.receive_frame())
            assert records_of(reply.batches) == [(offset, None, value)] and reply.high_watermark == offset + 1
            assert time.monotonic() - began < LONG_MS / 1000 / 2


def test_min_bytes_holds_the_answer_back(standing: RunningBroker, peer: Peer) -> None:
    topic = peer.create(new_topic())
    with Peer(standing.address) as waiting:
        waiting.send(waiting.encode(FetchBatches(topic, 0, 0, 1 << 20, 3000, LONG_MS)))
        waiting.socket.settimeout(0.2)
        for number in range(2):
            peer.produce(topic, b"%d" % number * 1000)
            with pytest.raises(TimeoutError):
                waiting.receive_frame()
        waiting.socket.settimeout(10)
        peer.produce(topic, b"2" * 1000)
        reply = waiting.decode(0x0D, waiting.receive_frame())
        assert [offset for offset, _, _ in records_of(reply.batches)] == [0, 1, 2]


def test_min_bytes_gives_way_when_the_time_is_over(peer: Peer) -> None:
    topic = peer.create(new_topic())
    peer.produce(topic, b"a")
    reply = peer.ask(FetchBatches(topic, 0, 0, 1 << 20, 1 << 19, 100))
    assert records_of(reply.batches) == [(0, None, b"a")]


def test_an_answer_that_cannot_grow_does_not_wait_for_more(peer: Peer) -> None:
    """The next batch does not fit in max_bytes any more, so waiting for min_bytes would gain nothing."""
    topic = peer.create(new_topic())
    for _ in range(3):
        peer.produce(topic, bytes(1000))
    began = time.monotonic()
    reply = peer.ask(FetchBatches(topic, 0, 0, 1500, 1500, LONG_MS))
    assert [offset for offset, _, _ in records_of(reply.batches)] == [0]
    assert time.monotonic() - began < LONG_MS / 1000 / 2


def test_max_bytes_is_honoured_but_one_batch_always_comes(peer: Peer) -> None:
    topic = peer.create(new_topic())
    for _ in range(10):
        peer.produce(topic, bytes(1000))
    one = len(peer.ask(FetchBatches(topic, 0, 0, 0, 0, 0)).batches)
    assert 1000 < one < 1300
    assert len(peer.ask(FetchBatches(topic, 0, 0, 1, 2**32 - 1, LONG_MS)).batches) == one
    assert len(peer.ask(FetchBatches(topic, 0, 0, 3 * one + 10, 0, 0)).batches) == 3 * one
    assert len(peer.ask(FetchBatches(topic, 0, 0, 2**32 - 1, 0, 0)).batches) == 10 * one


def test_an_offset_past_the_end_is_an_error(peer: Peer) -> None:
    topic = peer.create(new_topic())
    peer.produce(topic, b"a")
    for offset in (2, 2**64 - 1):
        reply = peer.ask(FetchBatches(topic, 0, offset, 100, 1, LONG_MS))
        assert isinstance(reply, ErrorReply) and reply.text.startswith(f"OFFSET_OUT_OF_RANGE: offset out of range: {offset} of ")


def test_deleting_the_topic_ends_its_long_polls(standing: RunningBroker, peer: Peer) -> None:
    topic = peer.create(new_topic())
    with Peer(standing.address) as waiting:
        # The METADATA answer shows that the broker has read the poll behind it, which came in the same write.
        waiting.send(waiting.encode(Metadata(topic)) + waiting.encode(FetchBatches(topic, 0, 0, 100, 1, LONG_MS)))
        waiting.receive_frame()
        assert peer.ask(DeleteTopic(topic)) == Ok()
        reply = waiting.decode(0x0D, waiting.receive_frame())
        assert isinstance(reply, ErrorReply) and reply.text.startswith("TOPIC_NOT_FOUND: ")


def test_a_long_poll_holds_back_what_was_pipelined_behind_it(standing: RunningBroker, peer: Peer) -> None:
    topic = peer.create(new_topic())
    with Peer(standing.address) as waiting:
        waiting.send(waiting.encode(FetchBatches(topic, 0, 0, 100, 1, LONG_MS)) + waiting.encode(Produce(topic, b"", b"mine", 0)))
        waiting.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            waiting.receive_frame()
        peer.produce(topic, b"other")
        waiting.socket.settimeout(10)
        assert records_of(waiting.decode(0x0D, waiting.receive_frame()).batches) == [(0, None, b"other")]
        assert waiting.decode(0x01, waiting.receive_frame()).offset == 1


def test_a_connection_that_goes_away_in_a_long_poll_is_forgotten(compiled_broker: RunningBroker) -> None:
    with Peer(compiled_broker.address) as peer:
        topic = peer.create(new_topic())
        before = open_sockets(compiled_broker.pid)
        polls = [Peer(compiled_broker.address) for _ in range(40)]
        for number, poll in enumerate(polls):
            poll.send(poll.encode(FetchBatches(topic, 0, 0, 100, 1, LONG_MS)))
            if number % 2:
                poll.reset()
            else:
                poll.close()
        # A record wakes the ones that only hung up; nobody is left to answer.
        peer.produce(topic, b"wake")
        until(lambda: open_sockets(compiled_broker.pid) <= before + 2, "the connections are gone")
        assert peer.fetch_all(topic)[0].value == b"wake"


def test_both_bulk_operations_are_the_same_in_the_other_dialect(standing: RunningBroker) -> None:
    with Peer(standing.addresses[NAMES["v126"]], V126) as peer:
        topic = peer.create(new_topic())
        assert untimed(peer.ask(ProduceBatch(topic, 0, batch(b"v")))) == BatchProduced(topic, 0, 0, 0, 1, False)
        assert records_of(peer.ask(FetchBatches(topic, 0, 0, 100, 1, 0)).batches) == [(0, None, b"v")]
