"""Frames: any split gives the same frames, a wrong header ends the stream, and no announced length costs memory."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from itertools import pairwise

import pytest
from flymq_cases import quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import compression
from braidmq.base.errors import BraidError
from braidmq.base.limits import FRAME_PAYLOAD_BYTES_MAX, MIB
from braidmq.wire.flymq import HEADER_BYTES, Frame, FrameReader, Op, encode_frame, read_header, unpack_payload

bytes_u8 = st.integers(0, 255)
streams = st.lists(st.builds(Frame, bytes_u8, bytes_u8, st.binary(max_size=40)), max_size=6)
BAD_HEADERS = {
    "magic": bytes.fromhex("ae01010100000000"),
    "version": bytes.fromhex("af02010100000000"),
    "length": bytes.fromhex("af01010102000001"),
}


def encode_all(frames: list[Frame]) -> bytes:
    return b"".join(encode_frame(frame.op, frame.payload, frame.flags) for frame in frames)


def feed(reader: FrameReader, data: bytes, cuts: list[int]) -> tuple[list[Frame], str | None]:
    """Everything the stream gives when cut at these places, and the code it failed with."""
    edges = [0, *sorted(cuts), len(data)]
    frames: list[Frame] = []
    for start, end in pairwise(edges):
        try:
            frames += reader.receive(data[start:end])
        except BraidError as error:
            assert error is reader.failure
    return frames, None if reader.failure is None else reader.failure.code


@quick
@given(streams, st.data())
def test_any_split_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    stream = encode_all(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    reader = FrameReader()
    assert feed(reader, stream, cuts) == (frames, None)
    assert reader.buffered_bytes == 0


@quick
@given(streams)
def test_byte_by_byte_gives_the_same_frames(frames: list[Frame]) -> None:
    stream = encode_all(frames)
    assert feed(FrameReader(), stream, list(range(len(stream)))) == (frames, None)


@quick
@given(streams, st.sampled_from(sorted(BAD_HEADERS)), st.binary(max_size=30), st.data())
def test_frames_before_a_wrong_header_are_kept_at_any_split(
    frames: list[Frame], kind: str, rest: bytes, data: st.DataObject
) -> None:
    stream = encode_all(frames) + BAD_HEADERS[kind] + rest
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    expected = "FRAME_TOO_LARGE" if kind == "length" else "MALFORMED_FRAME"
    assert feed(FrameReader(), stream, cuts) == (frames, expected)


@quick
@given(st.binary(max_size=40), st.data())
def test_a_stream_cut_short_leaves_its_bytes_buffered(payload: bytes, data: st.DataObject) -> None:
    stream = encode_frame(1, payload)
    kept = data.draw(st.integers(1, len(stream) - 1))
    reader = FrameReader()
    assert reader.receive(stream[:kept]) == []
    assert reader.buffered_bytes == kept


@pytest.mark.parametrize("kind", sorted(BAD_HEADERS))
def test_wrong_header_raises_with_its_eighth_byte(kind: str) -> None:
    reader = FrameReader()
    header = BAD_HEADERS[kind]
    for at in range(HEADER_BYTES - 1):
        assert reader.receive(header[at : at + 1]) == []
    with pytest.raises(BraidError):
        reader.receive(header[-1:])
    with pytest.raises(BraidError):
        reader.receive(encode_frame(Op.LIST_TOPICS, b""))


def test_failure_is_visible_at_once_when_frames_come_before_it() -> None:
    reader = FrameReader()
    good = encode_frame(Op.LIST_TOPICS, b"")
    assert [frame.op for frame in reader.receive(good + BAD_HEADERS["magic"])] == [Op.LIST_TOPICS]
    assert reader.failure is not None
    with pytest.raises(BraidError) as caught:
        reader.receive(b"")
    assert caught.value.code == "MALFORMED_FRAME"


def test_whole_frames_are_views_and_split_frames_own_their_bytes() -> None:
    buffer = bytearray(encode_frame(1, b"whole") + encode_frame(1, b"split"))
    reader = FrameReader()
    view = memoryview(buffer)
    (whole,) = reader.receive(view[:-2])
    (split,) = reader.receive(view[-2:])
    buffer[:] = bytes(len(buffer))
    assert bytes(whole.payload) == bytes(5)
    assert bytes(split.payload) == b"split"


def test_announced_length_is_not_allocated() -> None:
    reader = FrameReader()
    header = bytes.fromhex("af010101") + FRAME_PAYLOAD_BYTES_MAX.to_bytes(4)
    tracemalloc.start()
    try:
        assert reader.receive(header + b"x") == []
        assert reader.receive(b"x" * 100) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024


def test_largest_frame_passes_and_one_byte_more_does_not() -> None:
    payload = bytes(FRAME_PAYLOAD_BYTES_MAX)
    frame = encode_frame(1, payload)
    reader = FrameReader()
    assert reader.receive(memoryview(frame)[: 20 * MIB]) == []
    (received,) = reader.receive(memoryview(frame)[20 * MIB :])
    assert len(received.payload) == FRAME_PAYLOAD_BYTES_MAX
    with pytest.raises(BraidError) as caught:
        encode_frame(1, payload + b"\0")
    assert caught.value.code == "FRAME_TOO_LARGE"
    with pytest.raises(BraidError) as caught:
        read_header(bytes.fromhex("af010101") + (FRAME_PAYLOAD_BYTES_MAX + 1).to_bytes(4))
    assert caught.value.code == "FRAME_TOO_LARGE"


@pytest.mark.parametrize("flags", [0x00, 0x01, 0xF0, 0xF1])
def test_uncompressed_payload_is_returned_as_given(flags: int) -> None:
    payload = memoryview(b"abc")
    assert unpack_payload(flags, payload) is payload


@quick
@given(st.binary(max_size=200), st.sampled_from([0x02, 0x03, 0xF3]))
def test_gzip_payload_is_unpacked(plain: bytes, flags: int) -> None:
    assert unpack_payload(flags, gzip.compress(plain, mtime=0)) == plain


@pytest.mark.parametrize(("flags", "name"), [(0x0B, "id 5"), (0x0E, "id 7")])
def test_unknown_compressions_are_named_and_refused(flags: int, name: str) -> None:
    with pytest.raises(BraidError) as caught:
        unpack_payload(flags, b"abc")
    assert str(caught.value) == f"UNSUPPORTED_COMPRESSION: unsupported compression: {name}"


@pytest.mark.parametrize(
    ("flags", "name", "package"), [(0x04, "lz4", "lz4.frame"), (0x07, "zstd", "zstandard"), (0x08, "snappy", "cramjam")]
)
def test_a_compression_whose_package_is_missing_names_the_extra(
    flags: int, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BraidError) as caught:
        unpack_payload(flags, b"abc")
    expected = f"unsupported compression: {name}, which needs the extra braidmq[compression]"
    assert str(caught.value) == f"UNSUPPORTED_COMPRESSION: {expected}"


@pytest.mark.parametrize(
    ("flags", "name", "package"), [(0x04, "lz4", "lz4"), (0x07, "zstd", "zstandard"), (0x08, "snappy", "cramjam")]
)
def test_other_compressions_work_where_they_are_installed(flags: int, name: str, package: str) -> None:
    pytest.importorskip(package)
    kind = compression.IDS[name]
    plain = b"some text " * 100
    assert unpack_payload(flags, memoryview(compression.compress(kind, plain))) == plain
    with pytest.raises(BraidError, match=rf"MALFORMED_PAYLOAD.*{name}: "):
        unpack_payload(flags, compression.compress(kind, plain)[:-1])
    with pytest.raises(BraidError, match=r"FRAME_TOO_LARGE.*more than 33554432"):
        unpack_payload(flags, compression.compress(kind, bytes(FRAME_PAYLOAD_BYTES_MAX + 1)))
    assert len(unpack_payload(flags, compression.compress(kind, bytes(FRAME_PAYLOAD_BYTES_MAX)))) == FRAME_PAYLOAD_BYTES_MAX


_PACKED = gzip.compress(b"some text", mtime=0)


@pytest.mark.parametrize(
    "payload",
    [b"", b"not gzip", _PACKED[:-1], _PACKED[:5], _PACKED + b"x", _PACKED + _PACKED, _PACKED[:-5] + b"\0\0\0\0\0"],
    ids=["empty", "other", "cut", "cut header", "trailing", "second member", "checksum"],
)
def test_bad_gzip_is_malformed(payload: bytes) -> None:
    with pytest.raises(BraidError) as caught:
        unpack_payload(0x03, payload)
    assert caught.value.code == "MALFORMED_PAYLOAD"


def test_gzip_unpacks_to_the_limit_and_no_further() -> None:
    assert len(unpack_payload(0x03, gzip.compress(bytes(FRAME_PAYLOAD_BYTES_MAX), 1))) == FRAME_PAYLOAD_BYTES_MAX
    bomb = gzip.compress(bytes(4 * FRAME_PAYLOAD_BYTES_MAX), 1)
    tracemalloc.start()
    try:
        with pytest.raises(BraidError) as caught:
            unpack_payload(0x03, bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code == "FRAME_TOO_LARGE"
    assert peak < 3 * FRAME_PAYLOAD_BYTES_MAX
