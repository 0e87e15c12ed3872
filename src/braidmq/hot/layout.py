"""The batch format: the one layout of records on disk, between brokers and on the bulk path.

A partition is a list of segments, a segment is a file of batches, a batch is what one flush or one bulk produce wrote.

    header   80 bytes, little-endian
    columns  one array a column, little-endian, each padded to 8 bytes:
               u32 row position (from the start of the rows)
               u32 key length      (0 = no key)
               u32 value length
               i64 timestamp       only with FLAG_TIMESTAMPS; else every record has the header's base_timestamp
               i64 expiry          only with FLAG_EXPIRY; milliseconds since the epoch, 0 = never
               u32 attrs position  only with FLAG_ATTRS; from the start of the attrs, NO_ATTRS = none
    rows     count x ( u32 key length, key, u32 value length, value, u64 offset ), big-endian:
             exactly the items of a documented FETCH answer
    attrs    only with FLAG_ATTRS: per record one block, `braidmq.log.attrs`
    padding  zero bytes up to a multiple of 8, so that columns of mapped files are aligned

Header:

    0  u32 magic            "BRD1"
    4  u32 length           whole batch with header and padding
    8  u32 checksum         of bytes 12 .. length
   12  u8  version          1
   13  u8  checksum kind    1 = CRC-32C
   14  u16 flags
   16  u64 base_offset
   24  u32 count
   28  u32 leader_epoch
   32  i64 base_timestamp
   40  i64 max_timestamp
   48  i64 producer_id      -1 = none
   56  i32 base_sequence    -1 = none
   60  i16 producer_epoch   -1 = none
   62  u8  compression      0 none, 1 gzip, 2 lz4, 3 zstd, 4 snappy (with FLAG_COMPRESSED)
   63  u8  0
   64  u32 key_id           encryption key (with FLAG_ENCRYPTED)
   68  u32 rows_at          where the rows begin, from the start of the batch
   72  u32 attrs_at         where the rows end and the attrs begin
   76  u32 plain_length     length of the batch when it is neither compressed nor encrypted

With FLAG_COMPRESSED or FLAG_ENCRYPTED everything after the header is replaced by its compressed, then encrypted form
(AES-256-GCM: nonce 12, ciphertext, tag 16; header bytes 16 to 80 are its associated data);
`rows_at`, `attrs_at` and `plain_length` describe the plain form. Only magic, length and checksum are outside the
checksum: a flipped bit in any of the three is caught by the comparison itself.

An attrs block begins with its own length (u32, little-endian, without these four bytes).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from braidmq.base import limits

MAGIC: Final = 0x31445242  # "BRD1" read as a little-endian u32
VERSION: Final = 1
CHECKSUM_CRC32C: Final = 1
HEADER_BYTES: Final = 80
ALIGNMENT_BYTES: Final = 8
"""Batches and columns begin at multiples of it."""
CHECKSUM_FROM: Final = 12

FLAG_COMPRESSED: Final = 0x0001
FLAG_ENCRYPTED: Final = 0x0002
FLAG_EXPIRY: Final = 0x0004
FLAG_ATTRS: Final = 0x0008
FLAG_TIMESTAMPS: Final = 0x0010
FLAG_TRANSACTIONAL: Final = 0x0020
FLAG_CONTROL: Final = 0x0040
FLAGS_KNOWN: Final = 0x007F
FLAGS_OPAQUE: Final = FLAG_COMPRESSED | FLAG_ENCRYPTED
"""With one of these the rows cannot be read where they lie."""

OFFSET_MAX: Final = (1 << 63) - 1 - limits.BATCH_RECORDS_MAX
"""Sums of an offset and a record count never leave 63 bits."""
NO_ATTRS: Final = 0xFFFFFFFF
NO_PRODUCER: Final = -1

ROW_OVERHEAD_BYTES: Final = 16
"""What a row adds to its key and value."""

HEADER: Final = struct.Struct("<IIIBBHQIIqqqihBBIIII")
assert HEADER.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    """The fields of a header, in file order."""

    magic: int
    length: int
    checksum: int
    version: int
    checksum_kind: int
    flags: int
    base_offset: int
    records: int
    leader_epoch: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    base_sequence: int
    producer_epoch: int
    compression: int
    reserved: int
    key_id: int
    rows_at: int
    attrs_at: int
    plain_length: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has made sure that 80 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def padded(size: int) -> int:
    """`size` rounded up to the alignment of columns and batches."""
    return (size + 7) & ~7


def columns_bytes(count: int, flags: int) -> int:
    """How many bytes the columns of `count` records take."""
    size = 3 * padded(4 * count)
    if flags & FLAG_TIMESTAMPS:
        size += 8 * count
    if flags & FLAG_EXPIRY:
        size += 8 * count
    if flags & FLAG_ATTRS:
        size += padded(4 * count)
    return size
