"""Compression and encryption of whole batches, between the log and its files.

What follows the header of a batch is compressed, then encrypted (`hot/layout.py` has the form). The header stays readable, so
recovery, indexes, retention and `braid log verify` work on stored bytes and need no key. A batch that does not become much smaller
is stored without compression; one that is neither compressed nor encrypted is stored as it is.

After compression the body is `u32` length (little-endian) of what the compressor made, that, and zero bytes up to the next
multiple of 8. The zero bytes are inside the encryption, so no byte behind the header is without its tag.

Faults: a flipped bit is found by the checksum when the batch is read for the first time, and a change that mends the checksum
by the tag. Both are CORRUPT_LOG with the place; a key that is not here is ENCRYPTION_KEY_MISSING with its id. Never wrong data.

Decoding is slow beside everything else a read does. `DecodedBatches` keeps the newest results, and larger batches are decoded
off the loop (`Cold` in `partition.py`).
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from braidmq import hot
from braidmq.base import compression, limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import SEAL_BYTES, DoesNotDecrypt, KeyRing, shown_key_id
from braidmq.hot import layout

_LENGTH: Final = struct.Struct("<I")
_LENGTH_AND_FLAGS: Final = struct.Struct("<4xI6xH")
_LENGTH_AT: Final = 4
_CHECKSUM_AT: Final = 8
_FLAGS: Final = struct.Struct("<H")
_FLAGS_AT: Final = 14
_ASSOCIATED_FROM: Final = 16
_COMPRESSION_AND_KEY: Final = struct.Struct("<BxI")
_COMPRESSION_AT: Final = 62
_COMPRESS_FROM_BYTES: Final = 256
"""A body below this has little to gain, and its header stays as it is."""
_COMPRESS_TO_SHARE: Final = 15 / 16
"""What saves less is not worth the decompression of every later read."""
_SEALED_MAGIC: Final = b"BRDSEAL1"
_ENTRY_BYTES: Final = 512
"""What a kept batch costs besides its bytes."""

logger = logging.getLogger("braidmq.log")


class DecodedBatches:
    """Batches in their plain form, by segment and position; those not read for longest go first.

    A batch that readers may see never changes; one that is cut off unseen is forgotten. Used by the loop and the threads beside it.
    """

    def __init__(self, bytes_max: int = limits.DECODED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[tuple[str, int], Buffer] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def get(self, path: str, position: int) -> Buffer | None:
        with self._lock:
            batch = self._batches.get((path, position))
            if batch is not None:
                self._batches.move_to_end((path, position))
            return batch

    def keep(self, path: str, position: int, batch: Buffer) -> None:
        """Remember a batch. The newest one stays however large it is, for it is about to be read."""
        with self._lock:
            known = self._batches.pop((path, position), None)
            if known is not None:
                self.size_bytes -= len(known) + _ENTRY_BYTES
            self._batches[path, position] = batch
            self.size_bytes += len(batch) + _ENTRY_BYTES
            while self.size_bytes > self._bytes_max and len(self._batches) > 1:
                _, dropped = self._batches.popitem(last=False)
                self.size_bytes -= len(dropped) + _ENTRY_BYTES

    def forget(self, path: str) -> None:
        """Batches of a segment are replaced by others."""
        with self._lock:
            for key in [key for key in self._batches if key[0] == path]:
                self.size_bytes -= len(self._batches.pop(key)) + _ENTRY_BYTES


class BatchCodec:
    """How the batches of some partitions are stored. Reads every form, whichever of them it writes."""

    __slots__ = ("_compression", "_decoded", "_encrypt", "_keys")

    def __init__(
        self, compress: str = "none", keys: KeyRing | None = None, *, encrypt: bool = True, decoded: DecodedBatches | None = None
    ) -> None:
        kind = compression.IDS[compress]
        if kind != compression.NONE and not compression.is_installed(kind):
            # The topic was made where the package was there. Its new batches are as good without compression.
            logger.warning("batches are stored without compression: %s needs the extra %s", compress, compression.EXTRA)
            kind = compression.NONE
        self._compression = kind
        self._keys = keys
        self._encrypt = encrypt and keys is not None
        self._decoded = decoded if decoded is not None else DecodedBatches()

    @property
    def changes(self) -> bool:
        """Whether batches may be stored in another form than they are made."""
        return self._encrypt or self._compression != compression.NONE

    # --- writing

    def encode(self, batch: Buffer) -> Buffer:
        """The form in which a sealed batch is stored: `batch` itself when that is already it."""
        view = memoryview(batch)
        header = bytearray(view[: layout.HEADER_BYTES])
        body: Buffer = view[layout.HEADER_BYTES :]
        kind = compression.NONE
        if self._compression != compression.NONE and len(body) >= _COMPRESS_FROM_BYTES:
            packed = compression.compress(self._compression, body)
            if layout.padded(_LENGTH.size + len(packed)) < len(body) * _COMPRESS_TO_SHARE:
                kind = self._compression
                body = _LENGTH.pack(len(packed)) + packed
                _change(header, layout.FLAG_COMPRESSED, kind, 0)
        if self._encrypt:
            return self._encrypted(header, kind, b"".join((body, bytes(-(len(body) + SEAL_BYTES) % 8))))
        if kind == compression.NONE:
            return batch
        return _assembled(header, body, bytes(-len(body) % 8))

    def _encrypted(self, header: bytearray, kind: int, body: bytes) -> bytes:
        assert self._keys is not None
        _change(header, layout.FLAG_ENCRYPTED, kind, self._keys.newest_id)
        # Length and checksum, which follow from the result, are no part of the associated data.
        return _assembled(header, *self._keys.encrypt(body, bytes(header[_ASSOCIATED_FROM:])))

    def encode_all(
        self, buffers: Sequence[Buffer], batches: Sequence[tuple[int, int, int]]
    ) -> tuple[list[Buffer], list[tuple[int, int, int]], int, list[Buffer]]:
        """The stored forms of what one write brings together: `buffers` of several batches in order, and (base offset, length,
        timestamp) of each. Returns the same of the stored forms, their total, and the plain batches, for `keep`.
        """
        stored: list[Buffer] = []
        plain: list[Buffer] = []
        places: list[tuple[int, int, int]] = []
        left = iter(buffers)
        for base_offset, length, timestamp in batches:
            parts = [next(left)]
            while sum(map(len, parts)) < length:
                parts.append(next(left))
            # A view may be of memory that is used again; only what stays as it is may be kept.
            whole = parts[0] if len(parts) == 1 and not isinstance(parts[0], memoryview) else b"".join(parts)
            # An error on its way up must not hold on to that memory.
            parts.clear()
            encoded = self.encode(whole)
            if len(encoded) > limits.BATCH_BYTES_MAX:
                raise BraidError("INVALID_BATCH", reason=f"encrypted it is over the limit of {limits.BATCH_BYTES_MAX} bytes")
            stored.append(encoded)
            plain.append(whole)
            places.append((base_offset, len(encoded), timestamp))
        return stored, places, sum(map(len, stored)), plain

    # --- reading

    def decode(self, stored: memoryview, path: str, position: int) -> bytes:
        """The plain form of one whole batch whose checksum was checked; `path` and `position` name it in errors."""
        head = layout.read_header(stored)
        size = head.plain_length - layout.HEADER_BYTES
        if head.plain_length > limits.BATCH_BYTES_MAX:
            raise _damage(head, path, position, "impossible plain length")
        if bool(head.flags & layout.FLAG_COMPRESSED) != (head.compression != compression.NONE):
            raise _damage(head, path, position, "flags and compression contradict each other")
        body: Buffer = stored[layout.HEADER_BYTES :]
        if head.flags & layout.FLAG_ENCRYPTED:
            body = self._decrypted(head, body, stored[_ASSOCIATED_FROM : layout.HEADER_BYTES], path, position)
        if head.compression != compression.NONE:
            body = _decompressed(head, memoryview(body), size, path, position)
        elif not size <= len(body) < size + 8:
            raise _damage(head, path, position, "the plain form has another length than its header says")
        header = bytearray(stored[: layout.HEADER_BYTES])
        _FLAGS.pack_into(header, _FLAGS_AT, head.flags & ~layout.FLAGS_OPAQUE)
        _change(header, 0, 0, 0)
        return _assembled(header, memoryview(body)[:size])

    def _decrypted(self, head: layout.BatchHeader, sealed: Buffer, associated: Buffer, path: str, position: int) -> bytes:
        key = shown_key_id(head.key_id)
        if self._keys is None or head.key_id not in self._keys:
            place = f"{path} at byte {position} (offset {head.base_offset})"
            raise BraidError("ENCRYPTION_KEY_MISSING", reason=f"{place} is encrypted with key {key}, which was not given")
        try:
            return self._keys.decrypt(head.key_id, sealed, associated)
        except DoesNotDecrypt:
            raise _damage(head, path, position, f"it does not decrypt with key {key}: damaged, or another key's") from None

    def rekeyed(self, stored: memoryview, path: str, position: int) -> Buffer:
        """A stored batch under the newest key: as long as before, and the same one when it needs no change."""
        head = layout.read_header(stored)
        if self._keys is None or not head.flags & layout.FLAG_ENCRYPTED or head.key_id == self._keys.newest_id:
            return stored
        sealed, associated = stored[layout.HEADER_BYTES :], stored[_ASSOCIATED_FROM : layout.HEADER_BYTES]
        body = self._decrypted(head, sealed, associated, path, position)
        return self._encrypted(bytearray(stored[: layout.HEADER_BYTES]), head.compression, body)

    def known(self, path: str, position: int) -> Buffer | None:
        """The plain form of a stored batch if it was decoded or written lately."""
        return self._decoded.get(path, position)

    def decoded(self, stored: memoryview, path: str, position: int) -> Buffer:
        """The plain form of a stored batch, remembered for the next reader."""
        batch = self._decoded.get(path, position)
        if batch is None:
            batch = self.decode(stored, path, position)
            self._decoded.keep(path, position, batch)
        return batch

    def keep(self, path: str, position: int, stored: Sequence[Buffer], plain: Sequence[Buffer]) -> None:
        """Remember what was just written from `position` on: those who follow the log read it next."""
        for encoded, batch in zip(stored, plain, strict=True):
            if encoded is not batch:
                self._decoded.keep(path, position, batch)
            position += len(encoded)

    def forget(self, path: str) -> None:
        """Batches of a segment are replaced by others."""
        self._decoded.forget(path)

    def decode_ahead(self, view: memoryview, path: str, position: int, plain_bytes: int) -> None:
        """Decode the batches at the beginning of `view`, about `plain_bytes` of them. For threads beside the loop.

        Only what is wrong with the first is raised; a later one is met again by whoever reads so far.
        """
        at = done = 0
        while at < len(view) and done < plain_bytes:
            length = opaque_length(view, at)
            if length == 0:
                return
            try:
                done += len(self.decoded(view[at : at + length], path, position + at))
            except BraidError:
                if at == 0:
                    raise
                return
            at += length

    # --- what is no batch

    def seal(self, data: bytes, name: str) -> bytes:
        """A file of the broker's own, encrypted if batches are. It opens under no other name."""
        if not self._encrypt:
            return data
        assert self._keys is not None
        head = _SEALED_MAGIC + _LENGTH.pack(self._keys.newest_id)
        return b"".join((head, *self._keys.encrypt(data, head + name.encode())))

    def unseal(self, data: bytes, name: str, path: str) -> bytes:
        """What `seal` was given. Data that was never sealed is returned as it is."""
        key_id = sealed_with(data)
        if key_id is None:
            return data
        key = shown_key_id(key_id)
        if self._keys is None or key_id not in self._keys:
            raise BraidError("ENCRYPTION_KEY_MISSING", reason=f"{path} is encrypted with key {key}, which was not given")
        start = len(_SEALED_MAGIC) + _LENGTH.size
        try:
            return self._keys.decrypt(key_id, data[start:], data[:start] + name.encode())
        except DoesNotDecrypt:
            reason = f"it does not decrypt with key {key}: damaged, or another key's"
            raise BraidError("CORRUPT_LOG", path=path, position=0, offset="unknown", reason=reason) from None


def opaque_length(view: memoryview, at: int) -> int:
    """Length of the batch at `at` if it is compressed or encrypted and all there, else 0."""
    if len(view) - at < layout.HEADER_BYTES:
        return 0
    length, flags = _LENGTH_AND_FLAGS.unpack_from(view, at)
    if not flags & layout.FLAGS_OPAQUE or not layout.HEADER_BYTES <= length <= len(view) - at:
        return 0
    return int(length)


def plain_run_end(view: memoryview, start: int, bytes_max: int) -> int:
    """Where the batches from `start` on stop being plain; looks at headers for about `bytes_max`, and at one at least."""
    at = start
    while len(view) - at >= layout.HEADER_BYTES and at - start <= bytes_max:
        length, flags = _LENGTH_AND_FLAGS.unpack_from(view, at)
        if flags & layout.FLAGS_OPAQUE or length < layout.HEADER_BYTES:
            return at
        at += length
    return min(at, len(view))


def sealed_with(data: bytes) -> int | None:
    """Id of the key with which a file was sealed, None for one that is not."""
    if not data.startswith(_SEALED_MAGIC) or len(data) < len(_SEALED_MAGIC) + _LENGTH.size:
        return None
    return int(_LENGTH.unpack_from(data, len(_SEALED_MAGIC))[0])


def _change(header: bytearray, flag: int, kind: int, key_id: int) -> None:
    """Note in a header what becomes of its batch. Fields are changed in place: a batch may hold a single record."""
    if flag:
        _FLAGS.pack_into(header, _FLAGS_AT, _FLAGS.unpack_from(header, _FLAGS_AT)[0] | flag)
    _COMPRESSION_AND_KEY.pack_into(header, _COMPRESSION_AT, kind, key_id)


def _assembled(header: bytearray, *body: Buffer) -> bytes:
    """A batch from its header, whose length and checksum are put right, and all that follows."""
    _LENGTH.pack_into(header, _LENGTH_AT, layout.HEADER_BYTES + sum(map(len, body)))
    checksum = hot.crc32c(bytes(header[layout.CHECKSUM_FROM :]))
    for part in body:
        checksum = hot.crc32c(part, checksum)
    _LENGTH.pack_into(header, _CHECKSUM_AT, checksum)
    return b"".join((header, *body))


def _decompressed(head: layout.BatchHeader, body: memoryview, size: int, path: str, position: int) -> bytes:
    packed = _LENGTH.unpack_from(body)[0] if len(body) >= _LENGTH.size else len(body)
    if packed > len(body) - _LENGTH.size:
        raise _damage(head, path, position, "the compressed form is longer than the batch")
    try:
        plain = compression.decompress(head.compression, body[_LENGTH.size : _LENGTH.size + packed], size)
    except compression.CompressionFault as fault:
        name = compression.NAMES[head.compression]
        raise _damage(head, path, position, f"{name}: {fault}") from None
    if len(plain) != size:
        raise _damage(head, path, position, "the plain form has another length than its header says")
    return plain


def _damage(head: layout.BatchHeader, path: str, position: int, reason: str) -> BraidError:
    return BraidError("CORRUPT_LOG", path=path, position=position, offset=head.base_offset, reason=reason)
