"""Damaged requests over real sockets, the same ones in every run: the broker lives, and nobody else notices."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable

import pytest
from flymq_peer import DOCUMENTED, V126, Peer, batch
from running_broker import StartBroker

from braidmq.base.errors import BraidError
from braidmq.wire import flymq
from braidmq.wire.flymq import (
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Fetch,
    FetchBatches,
    ListTopics,
    Metadata,
    Op,
    Produce,
    ProduceBatch,
    Subscribe,
    encode_frame,
)

_TOPIC = "fuzz"
_GOOD = [
    Produce(_TOPIC, b"key", b"value", -1),
    Produce(_TOPIC, b"", b"value" * 20, 0),
    Consume(_TOPIC, 0, 0),
    Consume(_TOPIC, 0, 0, zero_copy=True),
    CreateTopic(_TOPIC, 2),
    CreateTopic(_TOPIC, 1, {"durability": "os"}),
    Metadata(_TOPIC),
    Subscribe(_TOPIC, "group", 0, "earliest"),
    Commit(_TOPIC, "group", 0, 5),
    Fetch(_TOPIC, 0, 0, 10),
    Fetch(_TOPIC, 0, 0, 10, binary=True),
    ListTopics(),
    DeleteTopic(_TOPIC),
    ProduceBatch(_TOPIC, 0, batch(b"a", b"b", producer=3, epoch=0, sequence=0, keys=[b"k", None])),
    FetchBatches(_TOPIC, 0, 0, 1000, 1, 0),
]


def _damaged(chance: random.Random) -> bytes:
    """A request with one to four faults: bytes changed, cut out, doubled, or a length that lies."""
    request = chance.choice(_GOOD)
    dialect = chance.choice([DOCUMENTED, V126])
    payload = bytearray(flymq.encode_request(request, dialect)[8:])
    op = int(request.op)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(max(1, len(payload)))
        match chance.randrange(6):
            case 0 if payload:
                payload[at : at + 1] = bytes([chance.randrange(256)])
            case 1 if payload:
                payload[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4)])
            case 2:
                del payload[at : at + chance.randint(1, 8)]
            case 3:
                payload[at:at] = chance.randbytes(chance.randint(1, 8))
            case 4:
                op = chance.choice([op, chance.randrange(256)])
            case 5:
                payload[at:at] = payload[: chance.randint(0, 10)]
    if _waits(op, bytes(payload)):
        op = Op.FETCH
    flags = chance.choice([1, 1, 1, 1, 0, 0x03, 0x05, 0xFF])
    frame = bytearray(encode_frame(op, bytes(payload), flags))
    if chance.random() < 0.03:
        frame[chance.randrange(8)] ^= 1 << chance.randrange(8)
    return bytes(frame)


def _waits(op: int, payload: bytes) -> bool:
    """Whether this is a sound request to be answered later: no fault, and a test has other things to do."""
    if op != Op.FETCH_BATCHES:
        return False
    try:
        request, _ = flymq.decode_request(op, payload, DOCUMENTED)
    except BraidError:
        return False
    return isinstance(request, FetchBatches) and request.max_wait_ms > 5


@pytest.mark.parametrize("env", [{}, {"BRAID_PURE": "1"}], ids=["compiled", "pure"])
def test_damaged_requests_harm_nobody(start_broker: StartBroker, env: dict[str, str], rounds: Callable[[int, int], int]) -> None:
    broker = start_broker("--durability", "os", env=env)
    chance = random.Random(20)
    answered = broken_off = 0
    with Peer(broker.address) as other:
        other.create("other")
        for number in range(rounds(50, 3000)):
            with Peer(broker.address) as peer:
                frames = [_damaged(chance) for _ in range(30)]
                peer.send(flymq.encode_request(CreateTopic(_TOPIC, 2), DOCUMENTED) + b"".join(frames))
                peer.socket.shutdown(socket.SHUT_WR)
                replies = flymq.FrameReader().receive(peer.rest())
                assert replies and len(replies) <= 1 + len(frames)
                assert all(reply.flags == 1 for reply in replies)
                answered += len(replies) - 1
                broken_off += len(replies) < 1 + len(frames)
            assert other.produce("other", b"%d" % number)[0].offset == number
        assert [item.value for item in other.fetch_all("other")] == [b"%d" % n for n in range(number + 1)]
    assert answered > 1000 and broken_off > 10, "the faults are too mild, or too harsh, to say anything"
    assert "bug in an operation" not in broker.log, broker.log
    assert "Traceback" not in broker.log, broker.log
    broker.kill()
    broker.restart()
    with Peer(broker.address) as other:
        assert other.ask(Metadata("other")).partitions[0].newest == number + 1


@pytest.mark.parametrize("seed", range(3))
def test_noise_harms_nobody(start_broker: StartBroker, seed: int) -> None:
    broker = start_broker("--durability", "os")
    chance = random.Random(seed)
    with Peer(broker.address) as other:
        other.create("other")
        for _ in range(100):
            with Peer(broker.address) as peer:
                noise = chance.randbytes(chance.choice([1, 7, 8, 9, 100, 100_000]))
                prefix = chance.choice([b"", b"\xaf", b"\xaf\x01", b"\xaf\x01\x01\x01"])
                try:
                    peer.send(prefix + noise)
                    peer.socket.shutdown(socket.SHUT_WR)
                except (ConnectionResetError, BrokenPipeError):
                    # The broker has hung up already, as it should.
                    continue
                except OSError as fault:
                    assert fault.errno == errno.ENOTCONN, fault
                    continue
                flymq.FrameReader().receive(peer.rest())
        other.produce("other", b"still here")
    assert "Traceback" not in broker.log, broker.log
