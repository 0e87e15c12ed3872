"""The other framings, and how a connection is recognised by its first bytes."""

from __future__ import annotations

import struct

import pytest
from blipmq_cases import BY_NAME, quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.blipmq import FRAME_BYTES_MAX, Framing, Malformed, Refused, binary1, detect, encode, error_envelope, legacy
from braidmq.wire.blipmq.detect import unknown_framing

CLIENT_HELLO = bytes.fromhex("160301020001 0001fc0303".replace(" ", ""))
FIRST = {
    "binary1_hello": (BY_NAME["binary1_hello"].data, Framing.BINARY1),
    "legacy_sub": (BY_NAME["legacy_sub"].data, Framing.LEGACY),
    "subscribe": (BY_NAME["documented_subscribe"].data, Framing.FLATBUFFERS),
    "tls": (CLIENT_HELLO, Framing.TLS),
    "tls_1_0": (b"\x16\x03\x00\x00\xf4\x01\x00\x00", Framing.TLS),
    "zero": (bytes(8), Framing.FLATBUFFERS),
    "largest": (struct.pack("<II", limits.BLIPMQ_SKIPPED_BYTES_MAX, 20), Framing.FLATBUFFERS),
    "a_frame_like_tls": (struct.pack("<IHH", 0x00040316, 16, 0), Framing.FLATBUFFERS),
    "http": (b"GET / HTTP/1.1\r\n", Framing.UNKNOWN),
    "flymq": (bytes.fromhex("af01010100000010"), Framing.UNKNOWN),
    "binary1_without_hello": (BY_NAME["binary1_publish"].data, Framing.UNKNOWN),
    "hello_of_another_type": (bytes.fromhex("0000000b0200000000"), Framing.UNKNOWN),
    "absurd": (b"\xff\xff\xff\x7f", Framing.UNKNOWN),
}


@pytest.mark.parametrize("name", sorted(FIRST))
def test_a_framing_is_told_by_its_first_bytes_however_they_come(name: str) -> None:
    data, expected = FIRST[name]
    answers = [detect(data[:size], legacy=True) for size in range(len(data) + 1)]
    assert answers[-1] is expected
    first = next(at for at, answer in enumerate(answers) if answer is not None)
    assert first <= 8
    assert set(answers[first:]) == {expected}, "once it has answered it stays with it"


def test_legacy_is_served_only_when_it_is_asked_for() -> None:
    assert detect(BY_NAME["legacy_sub"].data) is Framing.UNKNOWN
    assert detect(BY_NAME["legacy_sub"].data, legacy=True, frame_max=40) is Framing.UNKNOWN


@quick
@given(st.binary(min_size=8, max_size=12))
def test_eight_bytes_always_tell(data: bytes) -> None:
    assert detect(data, legacy=True) is not None
    assert detect(data) is not None


@pytest.mark.parametrize(("name", "code"), [("http", 3), ("absurd", 3), ("binary1_without_hello", 8), ("flymq", 3)])
def test_strangers_are_told_what_is_wrong(name: str, code: int) -> None:
    fault = unknown_framing(FIRST[name][0])
    assert fault.closes
    assert fault.spec.blipmq == code
    assert encode(error_envelope(fault))


# --- binary 1

frames = st.builds(
    binary1.Frame,
    st.builds(binary1.Hello, st.integers(0, 0xFFFF))
    | st.builds(binary1.Auth, st.binary(max_size=20))
    | st.builds(binary1.Publish, st.text(max_size=20), st.binary(max_size=40), st.integers(0, 255))
    | st.builds(binary1.Subscribe, st.text(max_size=20), st.integers(0, 255))
    | st.builds(binary1.Ack, st.integers(0, 2**64 - 1))
    | st.builds(binary1.Nack, st.integers(0, 0xFFFF), st.text(max_size=20))
    | st.builds(binary1.Poll, st.integers(0, 2**64 - 1))
    | st.just(binary1.Ping())
    | st.just(binary1.Pong()),
    st.integers(0, 2**64 - 1),
)


@quick
@given(st.lists(frames, max_size=5), st.integers(1, 9))
def test_binary_frames_come_back_at_any_split(sent: list[binary1.Frame], step: int) -> None:
    stream = b"".join(map(binary1.encode, sent))
    reader = binary1.Reader()
    received = []
    for at in range(0, len(stream), step):
        received += [binary1.decode(body) for body in reader.receive(stream[at : at + step])]
    assert received == sent
    assert reader.failure is None


@pytest.mark.parametrize("size", [0, 8, limits.BLIPMQ_SKIPPED_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_binary_length_out_of_range_ends_the_stream(size: int) -> None:
    reader = binary1.Reader()
    with pytest.raises(Malformed):
        reader.receive(struct.pack(">I", size))
    assert reader.failure is not None


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_type_ends_the_stream(kind: int) -> None:
    with pytest.raises(Malformed) as caught:
        binary1.decode(struct.pack(">BQ", kind, 7))
    assert caught.value.sequence == 7


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (binary1.Type.HELLO, b""),
        (binary1.Type.HELLO, b"\0\1\0"),
        (binary1.Type.AUTH, b"\0"),
        (binary1.Type.AUTH, b"\0\2a"),
        (binary1.Type.AUTH, b"\0\1ab"),
        (binary1.Type.PUBLISH, b"\0"),
        (binary1.Type.PUBLISH, b"\0\0\5abc"),
        (binary1.Type.PUBLISH, b"\0\0\1\xff"),
        (binary1.Type.SUBSCRIBE, b"\0\1a"),
        (binary1.Type.SUBSCRIBE, b"\0\1\xff\0"),
        (binary1.Type.ACK, b"1234567"),
        (binary1.Type.POLL, b"123456789"),
        (binary1.Type.NACK, b"\0\1\0\5a"),
    ],
)
def test_a_payload_that_does_not_fit_its_type_gets_a_nack(kind: binary1.Type, payload: bytes) -> None:
    with pytest.raises(Refused) as caught:
        binary1.decode(struct.pack(">BQ", kind, 9) + payload)
    assert caught.value.sequence == 9
    assert binary1.nack(caught.value) == binary1.Nack(400, f"invalid {kind.name} payload")


def test_what_follows_a_subscription_is_ignored() -> None:
    body = struct.pack(">BQ", binary1.Type.SUBSCRIBE, 1) + b"\0\1a\1more"
    assert binary1.decode(body).message == binary1.Subscribe("a", 1)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BraidError("INVALID_TOPIC", reason="x"), 400),
        (BraidError("TOPIC_NOT_FOUND", topic="x"), 404),
        (BraidError("QUEUE_FULL", reason="x"), 503),
        (BraidError("INVALID_CREDENTIALS"), 401),
        (BraidError("UNAUTHORIZED"), 403),
        (BraidError("INTERNAL", reason="x"), 500),
        (BraidError("TTL_EXPIRED", ttl_ms=1), 500),
        (BraidError("RECORD_TOO_LARGE", size=1, limit=1), 400),
    ],
)
def test_every_error_has_a_nack(error: BraidError, code: int) -> None:
    assert binary1.nack(error) == binary1.Nack(code, error.text)
    assert binary1.decode(binary1.encode(binary1.Frame(binary1.nack(error), 3))[4:]).message == binary1.nack(error)


# --- legacy


@quick
@given(
    st.builds(
        legacy.Command, st.sampled_from(legacy.Action), st.text(max_size=20), st.binary(max_size=40), st.integers(0, 2**64 - 1)
    )
)
def test_legacy_commands_come_back(command: legacy.Command) -> None:
    (body,) = legacy.Reader().receive(legacy.encode_command(command))
    assert legacy.decode_command(body) == command


@quick
@given(
    st.builds(legacy.SubAck, st.text(max_size=20), st.text(max_size=9))
    | st.builds(legacy.Message, *[st.integers(0, 2**64 - 1)], st.binary(max_size=40), *[st.integers(0, 2**64 - 1)] * 2)
)
def test_legacy_replies_come_back(reply: legacy.SubAck | legacy.Message) -> None:
    (body,) = legacy.Reader().receive(legacy.encode_reply(reply))
    assert legacy.decode_reply(body) == reply


@pytest.mark.parametrize("size", [0, 15, FRAME_BYTES_MAX + 1])
def test_a_legacy_length_out_of_range_ends_the_stream(size: int) -> None:
    with pytest.raises(Malformed):
        legacy.Reader().receive(struct.pack(">I", size))


@pytest.mark.parametrize(
    "body",
    [
        bytes(16),
        legacy.encode_command(legacy.Command(legacy.Action.SUB, "ab"))[4:].replace(b"ab", b"\xff\xff"),
        legacy.encode_command(legacy.Command(legacy.Action.SUB, "a"))[4:40] + b"\x09" + bytes(20),
        legacy.encode_command(legacy.Command(legacy.Action.SUB, "a"))[4:30],
    ],
    ids=["zeros", "utf8", "action", "cut"],
)
def test_a_legacy_command_that_is_none(body: bytes) -> None:
    with pytest.raises(Malformed):
        legacy.decode_command(body)


@pytest.mark.parametrize("body", [b"\x02" + bytes(20), b"\x00" + bytes(20), b"\x01", b"\x01" + bytes(3)])
def test_a_legacy_reply_that_is_none(body: bytes) -> None:
    with pytest.raises(Malformed):
        legacy.decode_reply(body)
