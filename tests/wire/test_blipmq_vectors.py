"""Every published byte vector of BlipMQ, in both directions and against values written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from blipmq_cases import BAD, BY_NAME, SOUND, VECTORS, Vector, binary1_of, envelope_of, legacy_of

from braidmq.base.errors import BraidError
from braidmq.wire.blipmq import (
    ErrorCode,
    FrameReader,
    Framing,
    TooLarge,
    WireFault,
    binary1,
    check_request,
    decode,
    detect,
    encode,
    error_envelope,
    legacy,
)

NAMES = {
    "ProtocolError": ErrorCode.PROTOCOL_ERROR,
    "InvalidTopic": ErrorCode.INVALID_TOPIC,
    "MessageTooLarge": ErrorCode.MESSAGE_TOO_LARGE,
}
SAME = {
    "layout_c_publish": "publish_qos1",
    "layout_c_subscribe": "auth_subscribe",
    "layout_c_chat": "publish_chat_hello",
    "layout_forward_message": "message_qos1",
    "layout_forward_message_no_id": "message_qos0_no_id",
    "layout_forward_ack": "ack_publish",
    "layout_forward_publish": "publish_qos1",
    "layout_size_prefixed": "publish_qos1",
}
REFUSED = {
    "subscribe_bad_hash": ErrorCode.INVALID_TOPIC,
    "subscribe_bad_plus": ErrorCode.INVALID_TOPIC,
    "publish_qos1_no_id": ErrorCode.PROTOCOL_ERROR,
    "publish_topic_256_codepoints": ErrorCode.INVALID_TOPIC,
    "publish_topic_empty": ErrorCode.INVALID_TOPIC,
    "publish_topic_wildcard": ErrorCode.INVALID_TOPIC,
    "publish_topic_nul": ErrorCode.INVALID_TOPIC,
    "publish_qos_2": ErrorCode.PROTOCOL_ERROR,
}
"""Frames that are whole, and ask for what nobody may."""


def named(vector: Vector) -> str:
    return vector.name


def of(framing: str) -> Callable[[Callable[[Vector], None]], Callable[[Vector], None]]:
    return pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.framing == framing], ids=named)


@pytest.mark.parametrize("vector", SOUND, ids=named)
def test_a_frame_says_what_it_should(vector: Vector) -> None:
    (body,) = FrameReader().receive(vector.data)
    assert not isinstance(body, TooLarge)
    expected = envelope_of(vector.fields)
    assert decode(body) == expected
    (again,) = FrameReader().receive(encode(expected))
    assert not isinstance(again, TooLarge)
    assert decode(again) == expected


@pytest.mark.parametrize("name", sorted(SAME))
def test_the_same_content_in_another_layout(name: str) -> None:
    one, other = BY_NAME[name], BY_NAME[SAME[name]]
    assert decode(one.data[4:]) == decode(other.data[4:])


@pytest.mark.parametrize("vector", [vector for vector in SOUND if vector.name.startswith("layout_forward")], ids=named)
def test_what_we_write_is_the_fixed_layout(vector: Vector) -> None:
    assert encode(decode(vector.data[4:])) == vector.data


@pytest.mark.parametrize("vector", BAD, ids=named)
def test_a_bad_frame_gets_its_error(vector: Vector) -> None:
    fault: BraidError | None = None
    try:
        (frame,) = FrameReader().receive(vector.data)
        if isinstance(frame, TooLarge):
            fault = frame
        else:
            check_request(decode(frame))
    except WireFault as caught:
        fault = caught
    assert isinstance(fault, WireFault)
    assert fault.spec.blipmq == NAMES[vector.fields["expect_error"]]
    assert fault.closes == vector.fields["expect_close"]
    reply = decode(encode(error_envelope(fault, fault.sequence, 7, fault.subject))[4:])
    assert reply.message.error_code == NAMES[vector.fields["expect_error"]]  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "sequence"), [("bad_union_unknown", 5), ("bad_topic_utf8", 7), ("bad_client_sends_message", 8)])
def test_an_error_repeats_the_sequence_number(name: str, sequence: int) -> None:
    with pytest.raises(WireFault) as caught:
        check_request(decode(BY_NAME[name].data[4:]))
    assert caught.value.sequence == sequence


@pytest.mark.parametrize("vector", [vector for vector in SOUND if vector.fields["type"] not in ("Message", "Error")], ids=named)
def test_what_a_client_may_ask_for(vector: Vector) -> None:
    envelope = decode(vector.data[4:])
    if vector.name not in REFUSED:
        check_request(envelope)
        return
    with pytest.raises(WireFault) as caught:
        check_request(envelope)
    assert not caught.value.closes
    assert caught.value.spec.blipmq == REFUSED[vector.name]
    assert caught.value.sequence == vector.fields["sequence_number"]


@of("binary1")
def test_binary_frames(vector: Vector) -> None:
    (body,) = binary1.Reader().receive(vector.data)
    expected = binary1_of(vector.fields)
    assert binary1.decode(body) == expected
    assert binary1.encode(expected) == vector.data


@of("legacy")
def test_legacy_frames(vector: Vector) -> None:
    expected = legacy_of(vector.fields)
    (body,) = legacy.Reader().receive(vector.data)
    if isinstance(expected, legacy.Command):
        assert legacy.decode_command(body) == expected
        (again,) = legacy.Reader().receive(legacy.encode_command(expected))
        assert legacy.decode_command(again) == expected
    else:
        assert legacy.decode_reply(body) == expected
        (again,) = legacy.Reader().receive(legacy.encode_reply(expected))
        assert legacy.decode_reply(again) == expected


@pytest.mark.parametrize("vector", VECTORS, ids=named)
def test_a_connection_that_begins_with_it_is_recognised(vector: Vector) -> None:
    expected: Framing | None
    match vector.framing, vector.name:
        case "flatbuffers", "bad_length_absurd":
            expected = Framing.UNKNOWN
        case "flatbuffers", _:
            expected = Framing.FLATBUFFERS
        case "binary1", ("binary1_hello" | "binary1_hello_bad_version"):
            expected = Framing.BINARY1
        case "binary1", "binary1_subscribe":
            expected = None  # A client that skips HELLO may look like anything; it is refused either way.
        case "legacy", ("legacy_sub" | "legacy_pub"):
            expected = Framing.LEGACY
        case _:
            expected = Framing.UNKNOWN
    if expected is not None:
        assert detect(vector.data, legacy=True) is expected
