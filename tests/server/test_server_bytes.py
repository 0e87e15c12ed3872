"""How bytes arrive is the network's business: any cut, any pipeline and any size gives the same answers, in order."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from flymq_peer import DOCUMENTED, NAMES, V126, Peer, batch, new_topic, records_of
from running_broker import RunningBroker, StartBroker

from braidmq.base import limits
from braidmq.base.disk_real import RealDisk
from braidmq.wire import flymq
from braidmq.wire.flymq import (
    BatchProduced,
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    ErrorReply,
    Fetch,
    FetchBatches,
    Fetched,
    FetchedItem,
    ListTopics,
    Message,
    Metadata,
    Ok,
    Op,
    Produce,
    ProduceBatch,
    RecordMetadata,
    Request,
    Subscribe,
    encode_frame,
)

MIB = 1 << 20

# --- cuts


def _conversation(topic: str) -> list[bytes]:
    """Every operation once, PRODUCE in runs, errors in between, and the switch of dialect near the end."""
    requests: list[Request] = [
        CreateTopic(topic, 2),
        Produce(topic, b"k", b"first", 0),
        Produce(topic, b"", b"second", 0),
        Produce(topic, b"", b"third", 1),
        Fetch(topic, 0, 0, 10),
        Produce(topic, b"", b"", 9),
        Consume(topic, 0, 0),
        Produce(topic, b"", b"fourth", 0),
        ProduceBatch(topic, 0, batch(b"fifth", b"sixth", producer=1, epoch=0, sequence=0)),
        Consume(topic, 0, 99, zero_copy=True),
        Commit(topic, "g", 0, 2),
        Subscribe(topic, "g", 0, "commit"),
        Metadata(topic),
        FetchBatches(topic, 1, 1, 1, 1, 1),
        Fetch(topic, 0, 1, 2, binary=True),
    ]
    frames = [flymq.encode_request(request, DOCUMENTED) for request in requests]
    frames.append(encode_frame(0xEE, b"?"))
    frames.append(flymq.encode_request(Fetch(topic, 0, 0, 10, "IF"), V126))
    frames.append(flymq.encode_request(Fetch(topic, 0, 3, 10), V126))
    frames.append(flymq.encode_request(DeleteTopic(topic), V126))
    return frames


def _without_times(frame: bytes, topic: str) -> bytes:
    """The answer with its timestamp blotted out and its topic under one name for all runs."""
    if frame[2] in (Op.PRODUCE, Op.PRODUCE_BATCH):
        at = 8 + 2 + len(topic) + 12
        frame = frame[:at] + bytes(8) + frame[at + 8 :]
    return frame.replace(topic.encode(), b"?" * len(topic))


def _cut_in_two(at: int, data: bytes) -> list[bytes]:
    return [data[:at], data[at:]]


@pytest.fixture(scope="session")
def cut_topics() -> Iterator[str]:
    """Names of one length, each used once a run."""
    return (f"cut-{number:06d}" for number in range(1_000_000))


class _Cutter:
    def __init__(self, broker: RunningBroker, topics: Iterator[str]) -> None:
        self._broker = broker
        self._topics = topics
        self._other = Peer(broker.address)

    def answers(self, cut: Callable[[bytes], list[bytes]]) -> list[bytes]:
        """The answers to the conversation, sent in the pieces that `cut` makes of it."""
        topic = next(self._topics)
        frames = _conversation(topic)
        with Peer(self._broker.address) as peer:
            pieces = cut(b"".join(frames))
            for piece in pieces:
                peer.send(piece)
                # An answer elsewhere means that the broker has been around its loop since, and so has read the piece.
                if len(pieces) > 1:
                    self._other.ask(ListTopics())
            found = [_without_times(frame, topic) for frame in peer.receive_frames(len(frames))]
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.rest() == b""
        return found

    def close(self) -> None:
        self._other.close()


@pytest.fixture
def cutter(standing: RunningBroker, cut_topics: Iterator[str]) -> Iterator[_Cutter]:
    made = _Cutter(standing, cut_topics)
    yield made
    made.close()


def test_cut_at_every_byte(cutter: _Cutter, standing: RunningBroker, rounds: Callable[[int, int], int]) -> None:
    whole = cutter.answers(lambda data: [data])
    assert [frame[2] for frame in whole].count(Op.ERROR) == 3
    size = len(b"".join(_conversation("cut-000000")))
    # The cuts concern the session, which both hot paths share; fewer do for the slower one.
    step = rounds(17 if standing.env else 5, 1)
    for at in range(1, size, step):
        assert cutter.answers(partial(_cut_in_two, at)) == whole, at


def test_byte_by_byte(cutter: _Cutter) -> None:
    whole = cutter.answers(lambda data: [data])
    assert cutter.answers(lambda data: [data[at : at + 1] for at in range(len(data))]) == whole


@pytest.mark.parametrize("seed", range(10))
def test_cut_at_random(cutter: _Cutter, seed: int) -> None:
    chance = random.Random(seed)

    def cut(data: bytes) -> list[bytes]:
        at = [0, *sorted(chance.sample(range(1, len(data)), 12)), len(data)]
        return [data[start:stop] for start, stop in pairwise(at)]

    assert cutter.answers(cut) == cutter.answers(lambda data: [data])


# --- pipelines


def _send_in_background(peer: Peer, data: bytes) -> threading.Thread:
    sender = threading.Thread(target=peer.send, args=(data,))
    sender.start()
    return sender


def _gist(reply: flymq.Response) -> int | str:
    """The one thing in an answer that shows where in the order it belongs."""
    match reply:
        case RecordMetadata(offset=offset) | BatchProduced(base_offset=offset) | Fetched(next_offset=offset) | flymq.Offset(offset):
            return offset
        case flymq.TopicMetadata(partitions=(partition,)):
            return partition.newest
        case Ok():
            return "OK"
        case ErrorReply(text):
            return text.partition(":")[0]
    raise AssertionError(f"nothing to see in {reply}")


def test_ten_thousand_mixed_requests_are_answered_in_order(standing: RunningBroker) -> None:
    chance = random.Random(1)
    with Peer(standing.address) as peer:
        topics = [peer.create(new_topic()) for _ in range(3)]
        written = dict.fromkeys(topics, 0)
        requests: list[Request] = []
        expected: list[int | str] = []
        for number in range(10_000):
            topic = chance.choice(topics)
            end = written[topic]
            kind = chance.choice("pppppppbfcsm!")
            expected.append({"c": "OK", "!": "EOF"}.get(kind, end))
            match kind:
                case "p":
                    requests.append(Produce(topic, b"", b"%d" % number, 0))
                    written[topic] += 1
                case "b":
                    requests.append(ProduceBatch(topic, 0, batch(b"%d" % number, b"+")))
                    written[topic] += 2
                case "f":
                    requests.append(Fetch(topic, 0, max(0, end - 2), 10))
                case "c":
                    requests.append(Commit(topic, "g", 0, end))
                case "s":
                    requests.append(Subscribe(topic, "g", 0, "latest"))
                case "m":
                    requests.append(Metadata(topic))
                case "!":
                    requests.append(Consume(topic, 0, end))
        sender = _send_in_background(peer, b"".join(map(peer.encode, requests)))
        for number, (request, what) in enumerate(zip(requests, expected, strict=True)):
            reply = peer.decode(request.op, peer.receive_frame())
            assert _gist(reply) == what, (number, request, reply)
        sender.join()


@pytest.mark.parametrize("pipelined", [1, 7, 200])
def test_topics_of_different_durability_are_answered_in_order(tmp_path: Path, pipelined: int) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data")) as broker, Peer(broker.address) as peer:
        levels = ("none", "os", "fsync", "none", "os", "fsync")
        topics = [broker.create(f"{level}-{number}", 1, durability=level) for number, level in enumerate(levels)]
        written = dict.fromkeys(topics, 0)
        chance = random.Random(pipelined)
        for _ in range(1400 // pipelined):
            chosen = [chance.choice(topics) for _ in range(pipelined)]
            bulk = [chance.random() < 0.3 for _ in chosen]
            replies = peer.ask_all(*(
                ProduceBatch(topic, 0, batch(topic.encode())) if whole else Produce(topic, b"", topic.encode(), 0)
                for topic, whole in zip(chosen, bulk, strict=True)
            ))
            for topic, reply in zip(chosen, replies, strict=True):
                offset = reply.offset if isinstance(reply, RecordMetadata) else reply.base_offset
                assert (reply.topic, offset) == (topic, written[topic])
                written[topic] += 1
        for topic in topics:
            items = peer.fetch_all(topic)
            assert [(item.offset, item.value) for item in items] == [(n, topic.encode()) for n in range(written[topic])]


def test_requests_of_a_peer_that_hangs_up_half_way_are_all_answered(standing: RunningBroker) -> None:
    """The peer says that it will send no more, and reads on: everything it asked is answered, then the broker hangs up."""
    with Peer(standing.address) as peer:
        topic = peer.create(new_topic())
        requests: list[Request] = []
        for number in range(100):
            requests += [Produce(topic, b"", b"%d" % number, 0), Fetch(topic, 0, number, 1), Commit(topic, "g", 0, number)]
        peer.send(b"".join(map(peer.encode, requests)))
        peer.socket.shutdown(socket.SHUT_WR)
        replies = [peer.decode(request.op, peer.receive_frame()) for request in requests]
        assert [reply.items[0].value for reply in replies[1::3]] == [b"%d" % number for number in range(100)]
        assert peer.rest() == b""


def test_what_came_before_a_broken_frame_is_answered(start_broker: StartBroker) -> None:
    """Also when its answer is still waiting for the disk as the broken frame is read."""
    broker = start_broker("--durability", "fsync")
    for broken in (b"GET / HTTP/1.1\r\n\r\n", b"\xaf\x02\x01\x01\0\0\0\0", b"\xaf\x01\x01\x01\x02\x00\x00\x01"):
        with Peer(broker.address) as peer:
            topic = peer.create(new_topic())
            requests = [Produce(topic, b"", b"a", 0), Fetch(topic, 0, 0, 1), Produce(topic, b"", b"b", 0)]
            peer.send(b"".join(map(peer.encode, requests)) + broken)
            replies = [peer.decode(request.op, peer.receive_frame()) for request in requests]
            assert replies[1] == Fetched((FetchedItem(b"", b"a", 0),), 1) and replies[2].offset == 1
            assert peer.rest() == b"", "a broken frame gets no reply"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), id="tls"),
        pytest.param(b"\xaf\x02\x08\x01\0\0\0\0", id="version-2"),
        pytest.param(b"\xaf\x00\x08\x01\0\0\0\0", id="version-0"),
        pytest.param(b"\xae\x01\x08\x01\0\0\0\0", id="magic"),
        pytest.param(b"\xaf\x01\x01\x01\x02\x00\x00\x01", id="produce-one-byte-too-long"),
        pytest.param(b"\xaf\x01\x07\x01\xff\xff\xff\xff", id="fetch-of-4-gib"),
        pytest.param(b"\xaf\x01\x0c\x01\x80\x00\x00\x00", id="batch-of-2-gib"),
    ],
)
def test_a_wrong_header_closes_the_connection_without_a_reply(standing: RunningBroker, data: bytes) -> None:
    with Peer(standing.address) as peer:
        peer.send(data)
        assert peer.rest() == b""


def test_a_cut_frame_and_the_end_of_the_connection(standing: RunningBroker) -> None:
    frame = flymq.encode_request(Produce("cut-off", b"", b"never stored", -1), DOCUMENTED)
    for at in range(1, len(frame)):
        with Peer(standing.address) as peer:
            peer.send(frame[:at])
            peer.socket.shutdown(socket.SHUT_WR)
            assert peer.rest() == b""
    with Peer(standing.address) as peer:
        assert "cut-off" not in peer.ask(ListTopics()).topics


# --- sizes


@pytest.mark.parametrize("size", [64 * 1024, 1 * MIB, 30 * MIB], ids=["64KiB", "1MiB", "30MiB"])
def test_a_large_value_comes_back_whole_every_way(standing: RunningBroker, size: int) -> None:
    chance = random.Random(size)
    values = [chance.randbytes(size), chance.randbytes(size - 1)]
    with Peer(standing.address) as peer, Peer(standing.addresses[NAMES["v126"]], V126) as published:
        topic = peer.create(new_topic())
        assert peer.produce(topic, values[0], key=b"KEY")[0].value_size == size
        assert peer.ask(ProduceBatch(topic, 0, batch(values[1], keys=[b"KEY"]))).base_offset == 1
        for offset, value in enumerate(values):
            for reader in (peer, published):
                assert reader.ask(Consume(topic, 0, offset)) == Message(b"KEY", value)
                assert reader.ask(Consume(topic, 0, offset, zero_copy=True)) == Message(b"KEY", value)
                for binary in (False, True):
                    fetched = reader.ask(Fetch(topic, 0, offset, 1, binary=binary))
                    assert fetched == Fetched((FetchedItem(b"KEY", value, offset),), offset + 1)
            read = peer.ask(FetchBatches(topic, 0, offset, 1, 1, 0))
            assert records_of(read.batches) == [(offset, b"KEY", value)]
        assert peer.ask(DeleteTopic(topic)) == Ok()


def test_the_largest_record_and_one_byte_more(standing: RunningBroker) -> None:
    with Peer(standing.address) as peer:
        topic = peer.create("x" * limits.TOPIC_NAME_BYTES_MAX)
        key = b"k" * 1000
        largest = b"v" * (limits.RECORD_BYTES_MAX - len(key))
        for offset in range(2):
            # The first comes by the general way, the second through the parser.
            assert peer.produce(topic, largest, key=key)[0].offset == offset
        refused = peer.ask(Produce(topic, key, largest + b"v", 0))
        assert isinstance(refused, ErrorReply)
        limit = limits.RECORD_BYTES_MAX
        assert refused.text == f"RECORD_TOO_LARGE: a record of {limit + 1} bytes is over the limit of {limit}"
        assert peer.ask(Consume(topic, 0, 1)) == Message(key, largest)
        assert peer.ask(Fetch(topic, 0, 0, 100)) == Fetched((FetchedItem(key, largest, 0),), 1)
        assert records_of(peer.ask(FetchBatches(topic, 0, 1, 1, 1, 0)).batches) == [(1, key, largest)]
        assert peer.ask(Metadata(topic)).partitions[0].newest == 2
        assert peer.ask(DeleteTopic(topic)) == Ok()


def test_the_largest_frame_and_one_byte_more(standing: RunningBroker) -> None:
    with Peer(standing.address) as peer:
        peer.send(encode_frame(Op.METADATA, b"\x00\x04nope" + bytes(limits.FRAME_PAYLOAD_BYTES_MAX - 6)))
        assert peer.decode(Op.METADATA, peer.receive_frame()) == ErrorReply("TOPIC_NOT_FOUND: topic not found: nope")
        peer.send(b"\xaf\x01\x04\x01" + (limits.FRAME_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "big"))
        assert peer.rest() == b""


def test_an_answer_stops_before_it_gets_too_large(peer: Peer) -> None:
    topic = peer.create(new_topic())
    values = [b"%d" % number * (3 * MIB) for number in range(5)]
    peer.produce(topic, *values)
    found, offset = [], 0
    while offset < 5:
        reply = peer.ask(Fetch(topic, 0, offset, 100))
        assert sum(len(item.value) for item in reply.items) <= limits.FETCH_BYTES_TARGET
        found += [item.value for item in reply.items]
        offset = reply.next_offset
    assert found == values
    assert peer.ask(DeleteTopic(topic)) == Ok()


def test_a_large_request_behind_one_that_takes_its_time(peer: Peer) -> None:
    """What arrives during a long poll is kept up to a limit; a frame larger than that limit still comes through."""
    topic = peer.create(new_topic())
    value = random.Random(2).randbytes(3 * MIB)
    replies = peer.ask_all(
        FetchBatches(topic, 0, 0, 100, 1, 300), Produce(topic, b"", value, 0), Consume(topic, 0, 0),
        Produce(topic, b"", value[::-1], 0), Fetch(topic, 0, 1, 1),
    )
    assert replies[0].batches == b""
    assert replies[2] == Message(b"", value)
    assert replies[4].items[0].value == value[::-1]
    assert peer.ask(DeleteTopic(topic)) == Ok()
