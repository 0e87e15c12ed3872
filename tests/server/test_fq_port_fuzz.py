"""Whatever arrives on an fq port, the broker goes on serving everybody else.

Strangers send mutated conversations, garbage, halves and floods in every mode, in pieces of any size, while a client
publishes and receives. One canary sends what must be noticed, so that a fuzzer that finds nothing is known to look.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fq_peer import FqBroker, FqPeer, connect, new_name

from braidmq.wire.fq.messages import Message, encode_message
from braidmq.wire.fq.modes import Mode, encode_opening

ROWS = json.loads((Path(__file__).parent.parent / "wire" / "fq_vectors.json").read_text())
FROM_CLIENTS = [bytes.fromhex(row["hex"]) for row in ROWS if row["direction"] == "c2s"]
MODES = [bytes.fromhex(text) for text in ("cc50cafe", "cc50face", "cc50feed", "cc50fade")] + [b"GET ", b"POST", b"PUT ", b"HEAD"]


@pytest.fixture(scope="module")
def broker() -> Iterator[FqBroker]:
    with FqBroker(default_partitions=2, fq_key_grace_s=0.1, max_topics=500) as running:
        yield running


def mutated(chance: random.Random, raw: bytes) -> bytes:
    """Something near to what a client would send."""
    data = bytearray(raw)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        if not data:
            break
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randrange(1, 8)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 8))
            case 3:
                data[at : at + 2] = chance.choice((b"\xff\xff", b"\0\0", b"\x7f\xff", b"\x80\0"))
            case _:
                data += data[at:]
    return bytes(data)


def conversation(chance: random.Random, keys: list[bytes]) -> bytes:
    """A stream for one connection: a beginning that may be right, and what follows."""
    begin = chance.choice(MODES)
    if begin in MODES[1:4] and chance.random() < 0.7:
        mode = (Mode.DATA, Mode.PEER, Mode.OLD_PEER)[MODES.index(begin) - 1]
        begin = encode_opening(mode, chance.choice(keys), b"\1\2\3\4" if mode is Mode.PEER else b"")
    parts = [begin]
    if begin == MODES[0] and chance.random() < 0.7:
        parts.append(b"\xaa\xaa\0\0\0\1u" + chance.choice((b"\0\0", b"\0\5fuzz\0", b"\0\x0efuzz\0disk:block")) + b"\0\0")
    for _ in range(chance.randrange(1, 6)):
        match chance.randrange(4):
            case 0:
                parts.append(chance.randbytes(chance.randrange(1, 300)))
            case 1:
                exchange = chance.choice((b"ex", b"fuzz", chance.randbytes(chance.randrange(128))))
                payload = chance.randbytes(chance.randrange(100))
                message = Message(exchange, b"r", chance.randbytes(16), payload, b"s", (b"\1\1\1\1",))
                parts.append(mutated(chance, encode_message(message, chance.random() < 0.5)))
            case _:
                parts.append(mutated(chance, chance.choice(FROM_CLIENTS)))
    return b"".join(parts)


def throw(address: str, data: bytes, chance: random.Random) -> None:
    with connect(address) as raw, contextlib.suppress(ConnectionError, TimeoutError):
        raw.settimeout(0.02)
        at = 0
        while at < len(data):
            size = chance.choice((1, 3, 50, 100_000))
            raw.sendall(data[at : at + size])
            at += size
        if chance.random() < 0.5:
            raw.recv(65536)
        if chance.random() < 0.3:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def test_strangers_do_no_harm(broker: FqBroker, rounds: Callable[[int, int], int], caplog: pytest.LogCaptureFixture) -> None:
    exchange = new_name("safe")
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange)
        data = peer.data()
        for seed in range(rounds(200, 20_000)):
            chance = random.Random(seed)
            keys = [peer.key, b"nobody", b""]
            if seed % 4 == 0:
                with FqPeer(broker.fq, b"fuzz-%d" % seed) as victim:
                    keys = [victim.key]
                    throw(broker.fq, conversation(chance, keys), chance)
            else:
                throw(broker.fq, conversation(chance, keys), chance)
            if seed % 20 == 0:
                data.publish(exchange, b"r", b"%d" % seed)
                assert data.payloads(1) == [b"%d" % seed]
    assert "bug in an operation" not in caplog.text
    assert "Traceback" not in caplog.text, caplog.text
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_flood_of_tiny_commands_and_connections(broker: FqBroker) -> None:
    exchange = new_name("safe")
    idle = [connect(broker.fq) for _ in range(200)]
    with FqPeer(broker.fq) as peer, FqPeer(broker.fq) as flooder:
        flooder.socket.sendall(b"\xbe\xa7" * 200_000 + b"\0\0" * 100_000)
        peer.bind(exchange)
        data = peer.data()
        data.publish(exchange, b"", b"served")
        assert data.payloads(1) == [b"served"]
        assert flooder.status() == {"dropped_in": 0}
    for raw in idle:
        raw.close()


def test_a_client_that_asks_and_never_reads_is_held_up_alone(broker: FqBroker) -> None:
    with FqPeer(broker.fq) as deaf, FqPeer(broker.fq) as other:
        deaf.data()
        deaf.socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            for _ in range(200):
                deaf.socket.sendall(b"\xc7\xa7" * 10_000)
        assert other.status() == {"dropped_in": 0}
        sessions = [s for listener in broker.server.listeners for s in listener.sessions]
        assert max(session.unsent for session in sessions) < 16 << 20


def test_the_canary(broker: FqBroker) -> None:
    """A fuzzer that could not tell a dead port from a live one would pass everything above."""
    with pytest.raises(ConnectionError):
        throw("127.0.0.1:1", b"x", random.Random(0))
    with FqPeer(broker.fq) as peer, pytest.raises(AssertionError, match="closed"):
        peer.socket.sendall(b"\x12\x34")
        peer.next_reply()
