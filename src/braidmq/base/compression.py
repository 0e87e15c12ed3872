"""The compressions of requests and of stored batches: gzip always, lz4, zstd and snappy where their packages are installed.

Whoever decompresses names the most it will take. What would be larger is refused before it is in memory: a peer that sends a
kilobyte must not be able to make the broker allocate a gigabyte. Data that is cut short, damaged or followed by something else is
refused too, never returned in part.

The packages are looked for when they are needed, not at the start: a broker without them serves everything else, and a
request or batch that needs one says which extra brings it.
"""

from __future__ import annotations

import importlib
import threading
import zlib
from collections.abc import Callable
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError

Buffer = bytes | bytearray | memoryview

NONE: Final = 0
GZIP: Final = 1
LZ4: Final = 2
ZSTD: Final = 3
SNAPPY: Final = 4

NAMES: Final = {NONE: "none", GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd", SNAPPY: "snappy"}
"""By the number that FlyMQ's frame flags and our batch headers share."""
IDS: Final = {name: number for number, name in NAMES.items()}

EXTRA: Final = "braidmq[compression]"
_PACKAGES: Final = {LZ4: "lz4.frame", ZSTD: "zstandard", SNAPPY: "cramjam"}

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP_LEVEL: Final = 1
"""Batches are compressed where they are written; higher levels cost several times as much for a few percent."""
_ZSTD_LEVEL: Final = 1


class CompressionFault(Exception):
    """The data is not what its compression makes: damaged, cut short, or followed by something else."""


class TooLarge(CompressionFault):
    """The data would be larger than its reader takes."""


def is_installed(kind: int) -> bool:
    """Whether this process can compress and decompress `kind`."""
    try:
        _package(kind)
    except BraidError:
        return False
    return True


def require(kind: int) -> None:
    """UNSUPPORTED_COMPRESSION, with what to install, unless `kind` can be used here."""
    _package(kind)


def compress(kind: int, data: Buffer) -> bytes:
    """`data` as one whole frame of its format (for snappy, one block)."""
    package = _package(kind)
    if kind == GZIP:
        packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    if kind == LZ4:
        return bytes(package.compress(data))
    if kind == ZSTD:
        return bytes(_per_thread.zstd_compressor(package).compress(data))
    return bytes(package.snappy.compress_raw(data))


def decompress(kind: int, data: Buffer, size_max: int) -> bytes:
    """What was compressed; raises `TooLarge` past `size_max`, `CompressionFault` when it is not one whole frame."""
    package = _package(kind)
    return _DECOMPRESS[kind](package, data, size_max)


def _package(kind: int) -> Any:
    if kind == GZIP:
        return None
    name = NAMES.get(kind)
    if name is None or kind == NONE:
        raise BraidError("UNSUPPORTED_COMPRESSION", name=f"id {kind}")
    try:
        return importlib.import_module(_PACKAGES[kind])
    except ImportError:
        raise BraidError("UNSUPPORTED_COMPRESSION", name=f"{name}, which needs the extra {EXTRA}") from None


class _PerThread(threading.local):
    """Contexts of zstd: expensive to make, and for one thread at a time."""

    _compressor: Any = None
    _decompressor: Any = None

    def zstd_compressor(self, package: Any) -> Any:
        if self._compressor is None:
            self._compressor = package.ZstdCompressor(level=_ZSTD_LEVEL)
        return self._compressor

    def zstd_decompressor(self, package: Any) -> Any:
        if self._decompressor is None:
            self._decompressor = package.ZstdDecompressor(max_window_size=limits.BATCH_BYTES_MAX)
        return self._decompressor


_per_thread: Final = _PerThread()


def _gunzip(_package: Any, data: Buffer, size_max: int) -> bytes:
    # One gzip member, which is all that clients send. Accepting a chain of them would let a frame of empty members
    # cost quadratic time, as zlib hands back a copy of the remaining input after each.
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        plain = unpacker.decompress(data, size_max + 1)
    except zlib.error as error:
        raise CompressionFault(str(error)) from None
    return _whole(plain, size_max, unpacker.eof, unpacker.unused_data)


def _unpack_lz4(package: Any, data: Buffer, size_max: int) -> bytes:
    unpacker = package.LZ4FrameDecompressor()
    try:
        plain = bytes(unpacker.decompress(data, max_length=size_max + 1))
    except RuntimeError as error:
        raise CompressionFault(str(error)) from None
    return _whole(plain, size_max, unpacker.eof, unpacker.unused_data or b"")


def _whole(plain: bytes, size_max: int, complete: bool, rest: bytes) -> bytes:
    if len(plain) > size_max:
        raise TooLarge(f"more than {size_max} bytes")
    if not complete:
        raise CompressionFault("the stream is cut short")
    if rest:
        raise CompressionFault(f"{len(rest)} bytes follow the stream")
    return plain


def _unpack_zstd(package: Any, data: Buffer, size_max: int) -> bytes:
    decompressor = _per_thread.zstd_decompressor(package)
    try:
        announced = package.get_frame_parameters(data).content_size
        if announced != package.CONTENTSIZE_UNKNOWN and announced > size_max:
            raise TooLarge(f"more than {size_max} bytes")
        # One byte more than is taken, since a buffer of 0 would mean any size; a frame that states its size is held to it.
        plain: bytes = decompressor.decompress(data, max_output_size=size_max + 1, allow_extra_data=False)
    except package.ZstdError as error:
        if _exceeds(decompressor, data, size_max, package.ZstdError):
            raise TooLarge(f"more than {size_max} bytes") from None
        raise CompressionFault(str(error)) from None
    if len(plain) > size_max:
        raise TooLarge(f"more than {size_max} bytes")
    return plain


def _exceeds(decompressor: Any, data: Buffer, size_max: int, error: type[Exception]) -> bool:
    """Whether a frame that does not state its size failed because it is too large: the error does not tell."""
    try:
        with decompressor.stream_reader(data) as reader:
            return len(reader.read(size_max + 1)) > size_max
    except error:
        return False


def _unpack_snappy(package: Any, data: Buffer, size_max: int) -> bytes:
    try:
        # A block begins with its size, and the decoder writes no more than that.
        if package.snappy.decompress_raw_len(data) > size_max:
            raise TooLarge(f"more than {size_max} bytes")
        return bytes(package.snappy.decompress_raw(data))
    except package.DecompressionError as error:
        raise CompressionFault(str(error).removeprefix("snappy: ")) from None


_DECOMPRESS: Final[dict[int, Callable[[Any, Buffer, int], bytes]]] = {
    GZIP: _gunzip, LZ4: _unpack_lz4, ZSTD: _unpack_zstd, SNAPPY: _unpack_snappy,
}  # fmt: skip
