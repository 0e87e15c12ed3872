"""Compressions: what goes in comes out whole, nothing larger than asked for comes out, and what is missing names its extra."""

from __future__ import annotations

import sys
import threading
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base import compression
from braidmq.base.compression import GZIP, LZ4, SNAPPY, ZSTD, CompressionFault, TooLarge, compress, decompress
from braidmq.base.errors import BraidError

MIB = 1 << 20
PACKAGES = {LZ4: "lz4.frame", ZSTD: "zstandard", SNAPPY: "cramjam"}
INSTALLED = [kind for kind in (GZIP, LZ4, ZSTD, SNAPPY) if compression.is_installed(kind)]
every_kind = pytest.mark.parametrize("kind", INSTALLED, ids=[compression.NAMES[kind] for kind in INSTALLED])


@every_kind
@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=3000), repeat=st.integers(1, 50))
def test_what_goes_in_comes_out(kind: int, data: bytes, repeat: int) -> None:
    plain = data * repeat
    packed = compress(kind, memoryview(plain))
    assert decompress(kind, memoryview(packed), len(plain)) == plain
    assert decompress(kind, packed, len(plain) + 1000) == plain
    if plain:
        with pytest.raises(TooLarge):
            decompress(kind, packed, len(plain) - 1)


@every_kind
def test_what_compresses_becomes_smaller(kind: int) -> None:
    assert len(compress(kind, b'{"customer": 17, "amount": 3.5}' * 1000)) < 3100


@every_kind
def test_a_bomb_costs_no_memory(kind: int) -> None:
    bomb = compress(kind, bytes(256 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            decompress(kind, bomb, 1 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB + len(bomb)


def test_a_bomb_that_does_not_state_its_size() -> None:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor().compressobj()
    bomb = packer.compress(bytes(64 * MIB)) + packer.flush()
    with pytest.raises(TooLarge):
        decompress(ZSTD, bomb, 1 * MIB)
    assert len(decompress(ZSTD, bomb, 64 * MIB)) == 64 * MIB
    with pytest.raises(CompressionFault, match="full frame") as caught:
        decompress(ZSTD, bomb[:-3], 64 * MIB)
    assert not isinstance(caught.value, TooLarge)


def test_a_zstd_frame_that_wants_a_huge_window_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = packer.compress(b"small") + packer.flush()
    with pytest.raises(CompressionFault):
        decompress(ZSTD, frame, 1 * MIB)


@every_kind
def test_damage_never_comes_out_as_data(kind: int) -> None:
    plain = b"a line that repeats, and one that does not: %d\n"
    data = b"".join(plain % i for i in range(200))
    packed = compress(kind, data)
    for broken in (packed[:-1], packed[: len(packed) // 2], packed[:3], b"", packed + b"x", packed + packed, bytes(20)):
        with pytest.raises(CompressionFault):
            decompress(kind, broken, len(data))


@every_kind
def test_threads_do_not_disturb_each_other(kind: int) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        data = bytes([seed]) * 50_000 + bytes(range(256)) * 50
        for _ in range(50):
            if decompress(kind, compress(kind, data), len(data)) != data:
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("kind", list(PACKAGES))
def test_a_missing_package_names_its_extra(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[kind], None)
    assert not compression.is_installed(kind)
    expected = f"unsupported compression: {compression.NAMES[kind]}, which needs the extra braidmq\\[compression\\]"
    for use in (lambda: compress(kind, b"x"), lambda: decompress(kind, b"x", 9), lambda: compression.require(kind)):
        with pytest.raises(BraidError, match=expected) as caught:
            use()
        assert caught.value.code == "UNSUPPORTED_COMPRESSION"


@pytest.mark.parametrize("kind", [0, 5, 6, 7, 200])
def test_a_number_that_means_no_compression(kind: int) -> None:
    assert not compression.is_installed(kind)
    with pytest.raises(BraidError, match=f"UNSUPPORTED_COMPRESSION.*id {kind}"):
        decompress(kind, b"", 1)
