"""The sparse index of one segment: offset and time to file position.

An entry is (first offset of a batch, its position, highest timestamp up to and with that batch), 24 bytes,
little-endian, one for every 4 KiB of log, and where a process or a step of a scan began. The index of a growing segment
lives in memory; it is written when the segment is closed and mapped when it is next needed. It is never trusted: a file that
is missing, torn, damaged or does not fit its segment is rebuilt from the log, which always can be done and costs one pass.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Disk

_ENTRY = struct.Struct("<QQq")
_HEAD = struct.Struct("<8sQII")
_MAGIC: Final = b"BRDINDX1"


class SparseIndex:
    """Entries sorted by offset and by position; timestamps never decrease."""

    __slots__ = ("_last_position", "_offsets", "_positions", "_stamps", "_table", "max_timestamp")

    def __init__(self, entries: bytes = b"", max_timestamp: int = -1) -> None:
        self._table: np.ndarray[tuple[int, int], np.dtype[np.int64]] | None = None
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._stamps: list[int] = []
        self.max_timestamp = max_timestamp
        for offset, position, stamp in _ENTRY.iter_unpack(entries):
            self._offsets.append(offset)
            self._positions.append(position)
            self._stamps.append(stamp)
        self._last_position = self._positions[-1] if self._positions else -limits.INDEX_INTERVAL_BYTES

    def __len__(self) -> int:
        return len(self._offsets) if self._table is None else len(self._table)

    def thaw(self) -> None:
        """Take a mapped index into memory, so that it can grow."""
        if self._table is not None:
            self._offsets, self._positions, self._stamps = (self._table[:, column].tolist() for column in range(3))
            self._last_position = self._positions[-1] if self._positions else -limits.INDEX_INTERVAL_BYTES
            self._table = None

    def add(self, base_offset: int, position: int, max_timestamp: int) -> None:
        """Tell the index of a batch that was appended."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
        if position - self._last_position >= limits.INDEX_INTERVAL_BYTES:
            self._offsets.append(base_offset)
            self._positions.append(position)
            self._stamps.append(self.max_timestamp)
            self._last_position = position

    def add_scanned(self, entries: bytes, max_timestamp: int, position: int) -> None:
        """Tell the index of batches that were appended at `position`; `entries` is what `hot.scan_batches` says of them."""
        for base_offset, at, stamp in _ENTRY.iter_unpack(entries):
            self.add(base_offset, position + at, stamp)
        self.max_timestamp = max(self.max_timestamp, max_timestamp)

    def positions_before(self, position: int) -> list[int]:
        """Where the batches begin that the index knows, up to `position`."""
        positions = self._positions if self._table is None else self._table[:, 1].tolist()
        return positions[: bisect_left(positions, position)]

    def extend(self, tail: SparseIndex) -> None:
        """Add the index of what follows; neither of the two is mapped."""
        self._offsets += tail._offsets
        self._positions += tail._positions
        # An entry has the highest timestamp so far, and the tail did not know what came before it.
        self._stamps += [max(stamp, self.max_timestamp) for stamp in tail._stamps]
        self.max_timestamp = max(self.max_timestamp, tail.max_timestamp)
        self._last_position = self._positions[-1] if self._positions else -limits.INDEX_INTERVAL_BYTES

    def covers(self, offset: int) -> bool:
        """Whether an index that grows knows where to find `offset` by itself."""
        return bool(self._offsets) and offset >= self._offsets[0]

    def position_of(self, offset: int) -> int:
        """Where to begin walking to find the batch with `offset`."""
        if self._table is not None:
            row = int(np.searchsorted(self._table[:, 0], offset, side="right")) - 1
            return int(self._table[row, 1]) if row >= 0 else 0
        row = bisect_right(self._offsets, offset) - 1
        return self._positions[row] if row >= 0 else 0

    def position_of_time(self, timestamp: int) -> int:
        """Where to begin walking to find the first batch whose timestamp is at least `timestamp`."""
        if self._table is not None:
            row = int(np.searchsorted(self._table[:, 2], timestamp, side="left")) - 1
            return int(self._table[row, 1]) if row >= 0 else 0
        # Entries hold a running maximum, so batches before the last smaller entry are all too old.
        row = bisect_left(self._stamps, timestamp) - 1
        return self._positions[row] if row >= 0 else 0

    def encode(self, segment_bytes: int) -> bytes:
        """The index as a file, bound to the size of the segment it describes."""
        body = b"".join(map(_ENTRY.pack, self._offsets, self._positions, self._stamps))
        head = _HEAD.pack(_MAGIC, segment_bytes, len(self._offsets), 0)
        checksum = hot.crc32c(body, hot.crc32c(head + struct.pack("<q", self.max_timestamp)))
        return _HEAD.pack(_MAGIC, segment_bytes, len(self._offsets), checksum) + struct.pack("<q", self.max_timestamp) + body

    @classmethod
    def load(cls, disk: Disk, path: str, segment_bytes: int) -> SparseIndex | None:
        """The index in `path`, memory-mapped, or None when it is not to be trusted."""
        prefix = _HEAD.size + 8
        try:
            size = disk.file_size(path)
            if size < prefix:
                return None
            view = disk.map_file(path, size).view
        except FileNotFoundError:
            return None
        magic, described, count, checksum = _HEAD.unpack_from(view)
        if magic != _MAGIC or described != segment_bytes or size != prefix + 24 * count:
            return None
        head = _HEAD.pack(magic, described, count, 0)
        if hot.crc32c(view[prefix:], hot.crc32c(head + bytes(view[_HEAD.size : prefix]))) != checksum:
            return None
        index = cls(max_timestamp=struct.unpack_from("<q", view, _HEAD.size)[0])
        index._table = np.frombuffer(view, "<i8", 3 * count, prefix).reshape(count, 3)
        return index

