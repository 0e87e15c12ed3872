"""Bytes that are almost right, in any pieces, in all framings: the broker answers or closes, never fails, and serves others."""

from __future__ import annotations

import json
import logging
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from blipmq_peer import BlipMQBroker, BlipMQPeer

from braidmq.base.config_keys import parse_api_key
from braidmq.server import blipmq_flat
from braidmq.wire import blipmq
from braidmq.wire.blipmq import Ack, AnyMessage, Envelope, Message, Ping, Pong, Publish, Subscribe, Unsubscribe, binary1, legacy

VECTORS = [
    bytes.fromhex(vector["hex"])
    for vector in json.loads((Path(__file__).parents[1] / "wire" / "blipmq_vectors.json").read_text())
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BlipMQBroker]:
    settings = {"blipmq_framings": ("flatbuffers", "binary1", "legacy"), "blipmq_drain_timeout_s": 0.1, "max_topics": 300}
    with BlipMQBroker(**settings) as running:
        yield running


@pytest.fixture(scope="module")
def keyed() -> Iterator[BlipMQBroker]:
    with BlipMQBroker(blipmq_api_keys=(parse_api_key("ann=key"),), blipmq_drain_timeout_s=0.1) as running:
        yield running


def _message(chance: random.Random) -> AnyMessage:
    topic = chance.choice(["a", "a/b", "a/+", "#", "$DLQ/a", "$share/g/a", "", "$SYS/auth", "\u20ac" * 300, "a/b/c"])
    own = chance.choice([None, "", "m1", "m2", "m3", "x" * 300])
    match chance.randrange(8):
        case 0:
            return Subscribe(topic, chance.choice([0, 1, 2]), chance.choice([None, "", "c1", "c2"]))
        case 1:
            return Unsubscribe(topic, chance.choice([None, "c1", "c2"]))
        case 2 | 3 | 4:
            payload = chance.randbytes(chance.choice([0, 5, 300]))
            return Publish(topic, payload, chance.choice([0, 1, 1, 3]), chance.choice([0, 1, 50]), own)
        case 5:
            return Ack(own or "", chance.choice([0, 0, 7, 100]))
        case 6:
            return Ping(chance.getrandbits(64))
    return Message(topic, b"x")


def _flat(chance: random.Random) -> bytes:
    names = ["x-a", "filter", "compression", "keepalive_s", "api_key", "delivery", "durable_expiry_s", "broker_id"]
    values = ["1", "gzip", "key", "size > 1", "", "\u20ac", "wrong"]
    pairs = tuple((chance.choice(names), chance.choice(values)) for _ in range(chance.choice([0, 0, 0, 1, 3])))
    return blipmq.encode(Envelope(_message(chance), chance.getrandbits(16), 0, pairs))


def _binary1(chance: random.Random) -> bytes:
    message: binary1.Message = chance.choice([
        binary1.Hello(), binary1.Auth(b"key"), binary1.Publish("a", b"x", chance.randrange(3)),
        binary1.Subscribe("a", chance.randrange(3)), binary1.Ack(chance.randrange(3)), binary1.Poll(chance.randrange(40)),
        binary1.Ping(), binary1.Nack(1, "x"),
    ])  # fmt: skip
    return binary1.encode(binary1.Frame(message, chance.getrandbits(20)))


def _legacy(chance: random.Random) -> bytes:
    return legacy.encode_command(legacy.Command(chance.choice(list(legacy.Action)[:3]), chance.choice(["a", "a/b"]), b"x", 50))


def _mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 2, 8])):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice((0, 1, 4, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[at : at + chance.randrange(1, 9)]
            case 3:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
        if not changed:
            changed = bytearray(b"\0")
    return bytes(changed)


def _conversation(chance: random.Random) -> bytes:
    kind = chance.choice(["flat", "flat", "flat", "binary1", "legacy", "vectors"])
    count = chance.randrange(1, 25)
    match kind:
        case "flat":
            frames = [_flat(chance) for _ in range(count)]
        case "binary1":
            frames = [binary1.encode(binary1.Frame(binary1.Hello(), 1)), *(_binary1(chance) for _ in range(count))]
        case "legacy":
            frames = [_legacy(chance) for _ in range(count)]
        case _:
            frames = [chance.choice(VECTORS) for _ in range(count)]
    return b"".join(frame if chance.random() < 0.8 else _mutated(frame, chance) for frame in frames)


def _throw(address: str, data: bytes, chance: random.Random) -> None:
    """Send bytes in pieces, then read whatever comes until the end."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as raw:
        try:
            at = 0
            while at < len(data):
                step = chance.choice([1, 3, 20, 500, 100_000])
                raw.sendall(data[at : at + step])
                at += step
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(1 << 20):
                continue
        except TimeoutError:
            raise
        except OSError:
            # It closed while we were still sending, which it may.
            return


@pytest.mark.parametrize("seed", range(60))
def test_almost_right_bytes(broker: BlipMQBroker, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    chance = random.Random(seed)
    with caplog.at_level(logging.ERROR):
        for _ in range(4):
            _throw(broker.blipmq, _conversation(chance), chance)
    with BlipMQPeer(broker.blipmq) as peer:
        assert peer.ask(Ping(seed)).message == Pong(seed)
        peer.publish("fuzz/alive", b"x", "m")
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("seed", range(15))
def test_almost_right_bytes_of_strangers(keyed: BlipMQBroker, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    chance = random.Random(1000 + seed)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            _throw(keyed.blipmq, _conversation(chance), chance)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize("seed", range(6))
def test_noise(broker: BlipMQBroker, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    chance = random.Random(2000 + seed)
    with caplog.at_level(logging.ERROR):
        for size in (1, 7, 300, 5000):
            _throw(broker.blipmq, chance.randbytes(size), chance)
            _throw(broker.blipmq, blipmq.encode(Envelope(Ping(1), 1)) + chance.randbytes(size), chance)
    assert not caplog.records, caplog.text


def test_a_bug_would_be_found(broker: BlipMQBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setitem(blipmq_flat._HANDLERS, Ping, broken)
    with caplog.at_level(logging.ERROR), BlipMQPeer(broker.blipmq) as peer:
        assert peer.refused(Ping(1)) == blipmq.ErrorCode.SERVER_ERROR
    assert "bug in an operation" in caplog.text
