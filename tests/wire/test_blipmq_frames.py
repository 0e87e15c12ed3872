"""BlipMQ's frames: any message there and back, any split the same, and no length that costs memory."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from itertools import pairwise

import pytest
from blipmq_cases import SOUND, envelopes, quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import ERRORS, BraidError
from braidmq.hot.flatbuffer import ENVELOPE
from braidmq.wire.blipmq import (
    FRAME_BYTES_MAX,
    Ack,
    Envelope,
    ErrorCode,
    FrameReader,
    Malformed,
    Message,
    Ping,
    Publish,
    Refused,
    Subscribe,
    TooLarge,
    WireFault,
    body_length,
    check_request,
    decode,
    encode,
    error_envelope,
)

TOO_LARGE = FRAME_BYTES_MAX + 1
BAD_LENGTHS = {"zero": 0, "short": limits.BLIPMQ_FRAME_BYTES_MIN - 1, "absurd": limits.BLIPMQ_SKIPPED_BYTES_MAX + 1}


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> tuple[list[bytes | str], str | None]:
    """Everything the stream gives when cut at these places, and the code it failed with."""
    frames: list[bytes | str] = []
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        try:
            frames += [item.code if isinstance(item, TooLarge) else bytes(item) for item in reader.receive(data[start:end])]
        except BraidError as error:
            assert error is reader.failure
    return frames, None if reader.failure is None else reader.failure.code


@quick
@given(envelopes)
def test_any_message_comes_back_as_it_was(envelope: Envelope) -> None:
    frame = encode(envelope)
    assert body_length(frame) == len(frame) - 4
    assert decode(frame[4:]) == envelope


@quick
@given(st.lists(envelopes, max_size=5), st.data())
def test_any_split_gives_the_same_frames(sent: list[Envelope], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    reader = FrameReader()
    frames, failure = feed(reader, stream, cuts)
    assert failure is None
    assert [decode(frame) for frame in frames if isinstance(frame, bytes)] == sent
    assert not reader.within_frame


def test_byte_by_byte_gives_the_same_frames() -> None:
    stream = b"".join(vector.data for vector in SOUND)
    frames, failure = feed(FrameReader(), stream, list(range(len(stream))))
    assert failure is None
    assert frames == [vector.data[4:] for vector in SOUND]


@pytest.mark.parametrize("name", sorted(BAD_LENGTHS))
@given(st.lists(envelopes, max_size=3), st.data())
@quick
def test_frames_before_a_wrong_length_are_kept_at_any_split(name: str, sent: list[Envelope], data: st.DataObject) -> None:
    stream = b"".join(map(encode, sent)) + struct.pack("<I", BAD_LENGTHS[name]) + b"rest"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    frames, failure = feed(FrameReader(), stream, cuts)
    assert frames == [encode(envelope)[4:] for envelope in sent]
    assert failure == ("FRAME_TOO_LARGE" if name == "absurd" else "MALFORMED_MESSAGE")


@pytest.mark.parametrize("step", [1, 7, 100_000, 10_000_000])
def test_a_frame_over_the_limit_is_read_past(step: int) -> None:
    size = 300_000
    good = encode(Envelope(Ping(1), 1))
    stream = good + struct.pack("<I", size) + bytes(size) + good + struct.pack("<I", size) + bytes(size) + good
    reader = FrameReader(frame_max=200_000)
    cuts = list(range(0, 40, step)) + list(range(len(good) + size - 20, len(stream), max(step, 1000)))
    frames, failure = feed(reader, stream, [cut for cut in cuts if cut < len(stream)])
    assert frames == [good[4:], "FRAME_TOO_LARGE", good[4:], "FRAME_TOO_LARGE", good[4:]]
    assert failure is None


def test_what_is_read_past_is_not_kept() -> None:
    reader = FrameReader()
    piece = bytes(64 * 1024)
    tracemalloc.start()
    try:
        (refused,) = reader.receive(struct.pack("<I", limits.BLIPMQ_SKIPPED_BYTES_MAX))
        assert isinstance(refused, TooLarge)
        for _ in range(limits.BLIPMQ_SKIPPED_BYTES_MAX // len(piece)):
            assert reader.within_frame
            assert reader.receive(piece) == []
            assert reader.buffered_bytes == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 1024
    assert not reader.within_frame


def test_announced_length_is_not_allocated() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        assert reader.receive(struct.pack("<I", FRAME_BYTES_MAX) + b"x") == []
        assert reader.receive(b"x" * 100) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    assert FRAME_BYTES_MAX == limits.BLIPMQ_PAYLOAD_BYTES_MAX + limits.BLIPMQ_FRAME_SPARE_BYTES
    assert body_length(struct.pack("<I", FRAME_BYTES_MAX)) == FRAME_BYTES_MAX
    with pytest.raises(TooLarge) as caught:
        body_length(b"xx" + struct.pack("<I", FRAME_BYTES_MAX + 1), 2)
    assert caught.value.frame_bytes == FRAME_BYTES_MAX + 5
    assert not caught.value.closes
    with pytest.raises(TooLarge):
        body_length(struct.pack("<I", limits.BLIPMQ_SKIPPED_BYTES_MAX))
    with pytest.raises(Malformed):
        body_length(struct.pack("<I", limits.BLIPMQ_SKIPPED_BYTES_MAX + 1))


def test_a_whole_frame_is_a_view_and_a_split_one_owns_its_bytes() -> None:
    one, other = encode(Envelope(Ping(1), 1)), encode(Envelope(Ping(2), 2))
    buffer = bytearray(one + other)
    reader = FrameReader()
    view = memoryview(buffer)
    (whole,) = reader.receive(view[:-2])
    (split,) = reader.receive(view[-2:])
    buffer[:] = bytes(len(buffer))
    assert isinstance(whole, memoryview) and isinstance(split, memoryview)
    assert bytes(whole) == bytes(len(one) - 4)
    assert decode(split) == Envelope(Ping(2), 2)


# --- limits of what a frame says


def refusal(envelope: Envelope) -> WireFault:
    with pytest.raises(Refused) as caught:
        check_request(decode(encode(envelope)[4:]))
    return caught.value


def test_metadata_has_limits() -> None:
    most = limits.BLIPMQ_METADATA_ENTRIES_MAX
    decode(encode(Envelope(Ping(), 3, 0, tuple((str(n), "") for n in range(most))))[4:])
    fault = refusal(Envelope(Ping(), 3, 0, tuple((str(n), "") for n in range(most + 1))))
    assert (fault.sequence, fault.spec.blipmq) == (3, ErrorCode.PROTOCOL_ERROR)
    key = "k" * limits.BLIPMQ_METADATA_KEY_BYTES_MAX
    decode(encode(Envelope(Ping(), 3, 0, ((key, "v"),)))[4:])
    assert "metadata key of 65 bytes" in refusal(Envelope(Ping(), 3, 0, ((key + "k", "v"),))).text
    value = "v" * (limits.BLIPMQ_METADATA_BYTES_MAX - 1)
    decode(encode(Envelope(Ping(), 3, 0, (("k", value),)))[4:])
    assert "16385 bytes of metadata" in refusal(Envelope(Ping(), 3, 0, (("k", value + "v"),))).text


def test_many_entries_that_share_one_long_text_cost_no_memory() -> None:
    """The sum is known before anything is copied: 64 names for one megabyte are not 64 megabytes."""
    frame = bytearray(encode(Envelope(Publish("t", bytes(1_000_000)), 9, 0, tuple((f"k{n:02}", "v") for n in range(64)))))
    body = bytes(frame[4:])
    start = body.index(b"\x03\0\0\0k00") - 12 - 8 - 4 * 64 - 4
    (count,) = struct.unpack_from("<I", body, start)
    assert count == 64
    lying = bytearray(body)
    # Each value leads back to the payload instead; offsets only lead forward, so the payload's length is put at the end.
    lying += struct.pack("<I", 1_000_000) + bytes(1_000_000)
    for entry in range(64):
        at = start + 4 + 4 * entry
        table = at + struct.unpack_from("<I", lying, at)[0]
        struct.pack_into("<I", lying, table + 8, len(body) - table - 8)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="bytes of metadata"):
            decode(bytes(lying))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(lying)


@pytest.mark.parametrize("letter", ["a", "ä", "漢"])
def test_identifiers_are_measured_in_characters(letter: str) -> None:
    most = letter * limits.BLIPMQ_TEXT_CHARACTERS_MAX
    for sound in (Publish("t", b"", 1, 0, most), Publish(most, b""), Subscribe("t", 0, most)):
        check_request(decode(encode(Envelope(sound, 1))[4:]))
    assert refusal(Envelope(Publish("t", b"", 1, 0, most + letter), 4)).subject == most + letter
    assert refusal(Envelope(Publish(most + letter, b""), 4)).code == "INVALID_TOPIC"
    assert refusal(Envelope(Subscribe("t", 0, most + letter), 4)).code == "INVALID_MESSAGE"


def test_a_payload_over_the_limit_is_refused() -> None:
    check_request(Envelope(Publish("t", bytes(limits.BLIPMQ_PAYLOAD_BYTES_MAX)), 1))
    with pytest.raises(Refused) as caught:
        check_request(Envelope(Publish("t", bytes(limits.BLIPMQ_PAYLOAD_BYTES_MAX + 1), 1, 0, "m"), 5))
    assert (caught.value.spec.blipmq, caught.value.sequence, caught.value.subject) == (ErrorCode.MESSAGE_TOO_LARGE, 5, "m")
    with pytest.raises(Refused):
        check_request(Envelope(Publish("t", b"123"), 5), payload_max=2)


def test_table_layouts_are_remembered_within_a_bound() -> None:
    for number in range(3 * limits.BLIPMQ_VTABLES_KNOWN_MAX):
        # Each table is a few bytes longer than the one before, so each vtable is another.
        body = bytearray(encode(Envelope(Ack("x"), number))[4:]) + bytes(4 * number + 8)
        struct.pack_into("<H", body, 6, 28 + number)
        assert decode(bytes(body)).message == Ack("x")
        assert ENVELOPE.known <= limits.BLIPMQ_VTABLES_KNOWN_MAX


# --- errors


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_error_of_the_table_can_be_told(code: str) -> None:
    assert ErrorCode.NONE < ERRORS[code].blipmq <= ErrorCode.TTL_EXPIRED


def test_an_error_says_code_text_and_case() -> None:
    envelope = error_envelope(BraidError("QUEUE_FULL", reason="orders/#"), 11, 12, "o-1")
    assert envelope.sequence == 11
    assert envelope.meta("message_id") == "o-1"
    assert decode(encode(envelope)[4:]) == envelope
    message = envelope.message
    assert message.__class__.__name__ == "ErrorMessage"
    assert (message.error_code, message.message, message.details) == (4, "queue full", "QUEUE_FULL: queue full: orders/#")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fault",
    [Malformed("MALFORMED_MESSAGE", 3, reason="x"), Refused("UNAUTHORIZED", 4, "topic"), TooLarge(5, 4)],
    ids=lambda fault: type(fault).__name__,
)
def test_faults_travel_between_processes(fault: WireFault) -> None:
    copy = pickle.loads(pickle.dumps(fault))
    assert type(copy) is type(fault)
    assert (str(copy), copy.sequence, copy.subject, copy.closes) == (str(fault), fault.sequence, fault.subject, fault.closes)


def test_metadata_is_found_by_its_first_name() -> None:
    envelope = Envelope(Message("t", b""), 1, 0, (("x-a", "1"), ("filter", "f"), ("x-a", "2"), ("x-b", "3")))
    assert (envelope.meta("x-a"), envelope.meta("filter"), envelope.meta("none")) == ("1", "f", None)
    assert envelope.user_metadata == (("x-a", "1"), ("x-a", "2"), ("x-b", "3"))
