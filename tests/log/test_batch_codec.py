"""One batch in and out of its stored form: every form, every bit, every lie a header can tell."""

from __future__ import annotations

import logging
import random
import sys

import pytest
from codec_bench import KEYS, NEW_KEY, OLD_KEY, OTHER_KEY
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq import hot
from braidmq.base import compression, limits
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import KeyRing, shown_key_id
from braidmq.hot import layout
from braidmq.log.attrs import encode_headers
from braidmq.log.batch_codec import BatchCodec, DecodedBatches, opaque_length, plain_run_end, sealed_with

NAMES = [compression.NAMES[kind] for kind in (1, 2, 3, 4) if compression.is_installed(kind)]
CODECS = {
    **{name: BatchCodec(name) for name in NAMES},
    "encrypted": BatchCodec("none", KEYS),
    **{f"{name}, encrypted": BatchCodec(name, KEYS) for name in NAMES},
}
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
PLAIN = BatchCodec()


def batch(*values: bytes, key: bytes | None = None, attrs: list[bytes] | None = None) -> bytes:
    """A stamped batch at offset 41."""
    made = hot.encode_batch([key] * len(values), list(values), attrs, 7, 1, 9)
    return bytes(hot.stamp_batch(made, 41, 3, 1_700_000_000_000))


def decode(codec: BatchCodec, stored: bytes) -> bytes:
    return codec.decode(memoryview(stored), "/log", 4096)


def mended(stored: bytes | bytearray) -> bytes:
    """With a checksum that fits, as somebody who changes a file on purpose would have it."""
    head = layout.read_header(stored)
    checksum = hot.crc32c(bytes(stored[layout.CHECKSUM_FROM :]))
    return layout.HEADER.pack(*head._replace(checksum=checksum)) + bytes(stored[layout.HEADER_BYTES :])


def refused(codec: BatchCodec, stored: bytes) -> BraidError:
    with pytest.raises(BraidError) as caught:
        decode(codec, stored)
    return caught.value


# --- there and back


@every_codec
@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.binary(max_size=200), min_size=1, max_size=30), key=st.binary(max_size=10), repeat=st.integers(1, 20))
def test_what_goes_in_comes_out(codec: BatchCodec, values: list[bytes], key: bytes, repeat: int) -> None:
    plain = batch(*(value * repeat for value in values), key=key or None)
    stored = bytes(codec.encode(plain))
    assert len(stored) % 8 == 0 and hot.verify_batches(stored, 0, len(stored)) == (len(stored), "")
    if stored != plain:
        assert opaque_length(memoryview(stored), 0) == len(stored)
        assert decode(codec, stored) == plain


@every_codec
def test_the_header_stays_readable(codec: BatchCodec) -> None:
    plain = batch(*[b"the same again and again " * 4] * 20, attrs=[encode_headers({"trace": b"17"})] * 20)
    stored = codec.encode(plain)
    before, after = layout.read_header(plain), layout.read_header(stored)
    assert after.flags & layout.FLAGS_OPAQUE and after.flags & layout.FLAG_ATTRS
    same = ("base_offset", "records", "leader_epoch", "base_timestamp", "max_timestamp", "producer_id", "base_sequence", "rows_at")
    for name in (*same, "attrs_at", "plain_length", "producer_epoch"):
        assert getattr(before, name) == getattr(after, name), name
    assert (after.key_id == KEYS.newest_id) == bool(after.flags & layout.FLAG_ENCRYPTED)
    assert (after.compression != 0) == bool(after.flags & layout.FLAG_COMPRESSED)
    assert hot.scan_batches(stored, 0, len(stored), 41, 1)[:3] == (len(stored), 61, "")
    assert decode(codec, bytes(stored)) == plain


@pytest.mark.parametrize("name", NAMES)
def test_compression_saves_and_what_does_not_become_smaller_stays_plain(name: str) -> None:
    text = batch(*[b'{"customer": 17, "amount": 3.5}'] * 200)
    assert len(BatchCodec(name).encode(text)) < len(text) / 4
    noise = batch(random.Random(1).randbytes(5000))
    small = batch(b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    for kept in (noise, small):
        assert BatchCodec(name).encode(kept) is kept
        encrypted = layout.read_header(BatchCodec(name, KEYS).encode(kept))
        assert encrypted.flags & layout.FLAGS_OPAQUE == layout.FLAG_ENCRYPTED and encrypted.compression == 0


def test_nothing_to_do_costs_nothing() -> None:
    plain = batch(b"v" * 1000)
    assert not PLAIN.changes and PLAIN.encode(plain) is plain
    assert not BatchCodec("none", KEYS, encrypt=False).changes


def test_the_same_batch_is_never_encrypted_the_same_way_twice() -> None:
    plain = batch(b"value")
    codec = CODECS["encrypted"]
    nonces = {bytes(codec.encode(plain))[layout.HEADER_BYTES :][:12] for _ in range(1000)}
    assert len(nonces) == 1000
    assert b"value" not in bytes(codec.encode(plain))


# --- damage


@pytest.mark.parametrize("name", ["encrypted", "gzip, encrypted"])
def test_no_changed_byte_comes_out_as_data(name: str) -> None:
    """Even where the checksum was mended: what is not encrypted is authenticated, except what the shape of the batch shows."""
    codec = CODECS[name]
    stored = bytes(codec.encode(batch(*[b"repeated"] * 40)))
    plain = decode(codec, stored)
    for at in range(layout.CHECKSUM_FROM, len(stored)):
        broken = bytearray(stored)
        broken[at] ^= 1
        assert hot.verify_batches(bytes(broken), 0, len(broken))[1], "the checksum finds it"
        whole = mended(broken)
        if hot.verify_batches(whole, 0, len(whole))[1]:
            continue
        try:
            found = decode(codec, whole)
        except BraidError as error:
            assert error.code in ("CORRUPT_LOG", "ENCRYPTION_KEY_MISSING")
            if at >= layout.HEADER_BYTES:
                key = shown_key_id(KEYS.newest_id)
                assert "/log at byte 4096 (offset 41)" in error.text and f"does not decrypt with key {key}" in error.text
        else:
            # Flags are outside the associated data; those that change the layout contradict `rows_at`, which is inside.
            assert at in (14, 15) and found[layout.HEADER_BYTES :] == plain[layout.HEADER_BYTES :]


def test_another_key_and_no_key() -> None:
    stored = bytes(CODECS["encrypted"].encode(batch(b"value")))
    wanted = shown_key_id(KEYS.newest_id)
    for codec in (PLAIN, BatchCodec("none", KeyRing([OTHER_KEY]))):
        error = refused(codec, stored)
        assert error.code == "ENCRYPTION_KEY_MISSING"
        assert f"/log at byte 4096 (offset 41) is encrypted with key {wanted}" in error.text


def test_the_right_id_and_the_wrong_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.base.key_ring._identity", lambda text: (KEYS.newest_id, text[:16]))
    error = refused(BatchCodec("none", KeyRing([OTHER_KEY])), bytes(CODECS["encrypted"].encode(batch(b"value"))))
    assert error.code == "CORRUPT_LOG" and "does not decrypt" in error.text


def test_after_a_rotation_both_read_and_the_new_key_writes() -> None:
    before = bytes(CODECS["encrypted"].encode(batch(b"old")))
    rotated = BatchCodec("none", KeyRing([OLD_KEY, NEW_KEY]))
    after = bytes(rotated.encode(batch(b"new")))
    assert layout.read_header(after).key_id == KeyRing([NEW_KEY]).newest_id
    assert b"old" in decode(rotated, before) and b"new" in decode(rotated, after)
    assert refused(CODECS["encrypted"], after).code == "ENCRYPTION_KEY_MISSING"


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_in_a_segment_stops_at_its_plain_length(name: str) -> None:
    codec = BatchCodec(name)
    honest = layout.read_header(codec.encode(batch(bytes(5000))))
    packed = compression.compress(honest.compression, bytes(50 << 20))
    body = len(packed).to_bytes(4, "little") + packed
    body += bytes(-len(body) % 8)
    head = honest._replace(length=layout.HEADER_BYTES + len(body))
    error = refused(codec, mended(layout.HEADER.pack(*head) + body))
    assert error.code == "CORRUPT_LOG" and "more than" in error.text


@pytest.mark.parametrize("name", NAMES)
def test_lies_about_lengths(name: str) -> None:
    codec = BatchCodec(name)
    stored = bytes(codec.encode(batch(*[b"repeated"] * 100)))
    head, body = layout.read_header(stored), stored[layout.HEADER_BYTES :]

    def lie(body: bytes = body, **changes: int) -> BraidError:
        return refused(codec, mended(layout.HEADER.pack(*head._replace(**changes)) + body))

    assert "impossible plain length" in lie(plain_length=limits.BATCH_BYTES_MAX + 8).text
    assert "more than" in lie(plain_length=head.plain_length - 8).text
    assert "another length than its header says" in lie(plain_length=head.plain_length + 8).text
    assert "longer than the batch" in lie(b"\xff" * 4 + body[4:]).text
    assert "longer than the batch" in lie(b"").text
    assert lie((int.from_bytes(body[:4], "little") - 1).to_bytes(4, "little") + body[4:]).code == "CORRUPT_LOG"
    assert "contradict" in lie(flags=head.flags & ~layout.FLAG_COMPRESSED | layout.FLAG_ENCRYPTED).text
    assert lie(compression=9).code == "UNSUPPORTED_COMPRESSION"
    assert all(lie(compression=other).code == "CORRUPT_LOG" for other in (1, 2, 3, 4) if other != head.compression)


def test_an_encrypted_batch_with_another_plain_length() -> None:
    """Only somebody with the key can make one; it is no batch all the same."""
    plain = batch(b"value")
    head = layout.read_header(plain)._replace(plain_length=head_length(plain) + 64)
    wrong = layout.HEADER.pack(*head) + plain[layout.HEADER_BYTES :]
    error = refused(CODECS["encrypted"], bytes(CODECS["encrypted"].encode(wrong)))
    assert error.code == "CORRUPT_LOG" and "another length" in error.text


def head_length(data: bytes) -> int:
    return layout.read_header(data).length


def test_a_batch_that_grows_over_the_limit_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = batch(b"v" * 1000)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", len(plain) + 24)
    with pytest.raises(BraidError, match=r"INVALID_BATCH.*over the limit"):
        CODECS["encrypted"].encode_all([plain], [(41, len(plain), 0)])


# --- packages that are not there


@pytest.mark.parametrize(("name", "package"), [("lz4", "lz4.frame"), ("zstd", "zstandard"), ("snappy", "cramjam")])
def test_a_missing_package_stores_plain_and_reads_with_an_error(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if name not in NAMES:
        pytest.skip(f"{package} is not installed")
    plain = batch(*[b"repeated"] * 100)
    stored = bytes(BatchCodec(name).encode(plain))
    monkeypatch.setitem(sys.modules, package, None)
    with caplog.at_level(logging.WARNING):
        codec = BatchCodec(name)
    assert f"{name} needs the extra braidmq[compression]" in caplog.text
    assert codec.encode(plain) is plain
    error = refused(codec, stored)
    assert error.code == "UNSUPPORTED_COMPRESSION" and "braidmq[compression]" in error.text


# --- several batches


def test_buffers_of_several_batches_are_told_apart() -> None:
    first, second = batch(b"one"), batch(*[b"two"] * 200)
    pieces = [first, second[:80], second[80:90], memoryview(second)[90:]]
    codec = CODECS["gzip, encrypted"]
    stored, places, total, plain = codec.encode_all(pieces, [(41, len(first), 5), (42, len(second), 6)])
    assert plain == [first, second] and total == sum(map(len, stored)) == sum(length for _, length, _ in places)
    assert [(base, time) for base, _, time in places] == [(41, 5), (42, 6)]
    assert [decode(codec, bytes(data)) for data in stored] == [first, second]


def test_runs_of_plain_batches() -> None:
    plain, opaque = batch(b"one"), bytes(CODECS["encrypted"].encode(batch(b"two")))
    view = memoryview(plain + plain + opaque + plain)
    run = 2 * len(plain)
    assert plain_run_end(view, 0, 1 << 20) == run and plain_run_end(view, 0, 0) == len(plain)
    assert plain_run_end(view, run, 1 << 20) == run
    assert plain_run_end(view, run + len(opaque), 1 << 20) == len(view)
    assert opaque_length(view, 0) == 0 and opaque_length(view, run) == len(opaque)
    assert opaque_length(view[: run + len(opaque) - 1], run) == 0 == opaque_length(view[: run + 79], run)


# --- what is kept


def test_the_cache_is_bounded_and_forgets_what_nobody_reads() -> None:
    kept = DecodedBatches(10_000)
    for position in range(100):
        kept.keep("a", position, bytes(1000))
        assert kept.get("a", 0) is not None, "what is read stays"
        assert kept.size_bytes <= 10_000
    assert kept.get("a", 1) is None and kept.get("a", 99) is not None and kept.get("b", 99) is None
    kept.keep("a", 99, bytes(500))
    kept.keep("huge", 0, bytes(50_000))
    assert kept.get("huge", 0) is not None and kept.get("a", 99) is None and kept.get("a", 0) is None
    kept.keep("small", 0, b"")
    assert kept.get("huge", 0) is None and kept.size_bytes == 512


def test_the_cache_of_a_codec_has_the_limit_of_the_table() -> None:
    codec = BatchCodec("gzip")
    stored = memoryview(codec.encode(batch(bytes(1 << 20))))
    rounds = limits.DECODED_BYTES_MAX // (1 << 20) + 5
    for position in range(rounds):
        codec.decoded(stored, "/log", position)
    held = sum(codec.known("/log", position) is not None for position in range(rounds))
    assert rounds - 7 <= held < rounds - 4


def test_decoding_ahead_raises_only_for_the_first() -> None:
    codec = BatchCodec("none", KEYS)
    good = bytes(codec.encode(batch(b"good")))
    foreign = bytes(BatchCodec("none", KeyRing([OTHER_KEY])).encode(batch(b"foreign")))
    codec.decode_ahead(memoryview(good + foreign), "/log", 0, 1 << 20)
    assert codec.known("/log", 0) is not None and codec.known("/log", len(good)) is None
    with pytest.raises(BraidError, match="ENCRYPTION_KEY_MISSING"):
        codec.decode_ahead(memoryview(foreign + good), "/other", 0, 1 << 20)
    codec.decode_ahead(memoryview(good * 3), "/two", 0, 1)
    assert codec.known("/two", 0) is not None and codec.known("/two", len(good)) is None


# --- files that are no batches


def test_sealed_files() -> None:
    codec = CODECS["encrypted"]
    sealed = codec.seal(b"secret", "snapshot-1")
    assert b"secret" not in sealed and sealed_with(sealed) == KEYS.newest_id
    assert codec.unseal(sealed, "snapshot-1", "/file") == b"secret"
    assert PLAIN.seal(b"open", "x") == b"open" == codec.unseal(b"open", "x", "/file") and sealed_with(b"open") is None
    with pytest.raises(BraidError, match=r"CORRUPT_LOG.*/file.*does not decrypt with key"):
        codec.unseal(sealed, "snapshot-2", "/file")
    with pytest.raises(BraidError, match="CORRUPT_LOG"):
        codec.unseal(sealed[:-1], "snapshot-1", "/file")
    with pytest.raises(BraidError, match=r"ENCRYPTION_KEY_MISSING.*/file is encrypted with key"):
        PLAIN.unseal(sealed, "snapshot-1", "/file")
