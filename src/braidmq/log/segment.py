"""One segment: a file of batches, its index, its memory map and what of it was checked.

A segment is named after its first offset. Only the newest of a partition grows. Readers get slices of the map; the end of
a growing file, which is not mapped yet, is read with pread until enough has come together to map anew. Bytes are checked
against their checksum before anyone is served from them for the first time; what this process wrote or checked stays
trusted while it is in memory.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import AppendFile, Buffer, Disk, FileMap
from braidmq.base.errors import BraidError
from braidmq.hot import layout
from braidmq.log.index import SparseIndex

LOG_ENDING: Final = ".log"
INDEX_ENDING: Final = ".idx"
_MAGIC_BYTES: Final = layout.MAGIC.to_bytes(4, "little")
_SEARCH_BYTES: Final = 1 * limits.MIB
_SCAN_BYTES: Final = 4 * limits.MIB
_REMAP_BYTES: Final = 1 * limits.MIB
_WARM_AHEAD_BYTES: Final = 1 * limits.MIB
_WARM_TAIL_BYTES: Final = 8 * limits.MIB
"""The newest bytes of a growing segment are in memory; asking the kernel about them would cost more than reading."""

logger = logging.getLogger("braidmq.log")


@dataclass(slots=True)
class ScannedBatches:
    """Whole batches in one piece, and what a walk over them found."""

    data: Buffer
    next_offset: int
    entries: bytes
    """For the index, as `hot.scan_batches` has them."""
    first_ms: int
    max_ms: int
    epochs: list[tuple[int, int]]
    """(leader epoch, first offset) where a later epoch begins."""


class Segment:
    __slots__ = (
        "_disk", "_index", "_map", "_mapped", "_newest_ms", "_prepared", "_read_lately", "_tail", "_tail_at", "_verified_from",
        "_verified_to", "_warm_from", "_warm_to", "base_offset", "created_ms", "file", "path", "sealed", "size",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, size: int) -> None:
        self._disk = disk
        self.base_offset = base_offset
        self.path = f"{directory}/{base_offset:020d}"
        self.size = size
        self.file: AppendFile | None = None
        self.sealed = False
        """Whether a newer segment grows in this one's place."""
        self.created_ms = -1
        """Timestamp of the first batch; -1 while unknown."""
        self._index: SparseIndex | None = None
        self._tail: SparseIndex | None = None
        """Of what was appended since the file was opened, while the index of what was there before is not at hand."""
        self._tail_at = 0
        """Where that begins."""
        self._prepared: tuple[int, SparseIndex] | None = None
        """What was made beside the loop: how many bytes it describes, and the index. The loop takes it from here."""
        self._newest_ms: int | None = None
        """The highest timestamp of a complete segment, once it is known."""
        self._map: FileMap | None = None
        self._mapped = 0
        self._read_lately = False
        self._verified_from = self._verified_to = 0
        self._warm_from = self._warm_to = 0

    @property
    def log_path(self) -> str:
        return self.path + LOG_ENDING

    @property
    def index_path(self) -> str:
        return self.path + INDEX_ENDING

    # --- writing

    def open_for_append(self) -> AppendFile:
        if self.file is None:
            if self.size == 0:
                self._index = SparseIndex()
            elif self._index is not None:
                self._index.thaw()
            elif self._tail is None:
                # Whoever appends need not wait until somebody has read all that is there.
                # Its place first: `prepare_index` may look at both in this moment.
                self._tail_at = self.size
                self._tail = SparseIndex()
            self.sealed = False
            self.file = self._disk.open_append(self.log_path)
        return self.file

    def append(self, buffers: list[Buffer], batches: list[tuple[int, int, int]], total: int) -> None:
        """Write whole batches; `batches` names (base offset, length, max timestamp) of each."""
        file = self.open_for_append()
        position = self.size
        file.append(buffers)
        self.size = position + total
        if self._verified_to == position:
            self._verified_to = self.size
        index = self._growing_index
        for base_offset, length, max_timestamp in batches:
            index.add(base_offset, position, max_timestamp)
            position += length
        if self.created_ms < 0:
            self.created_ms = batches[0][2]

    def append_scanned(self, chunks: list[ScannedBatches]) -> None:
        """Write whole batches that were walked and checked."""
        file = self.open_for_append()
        position = self.size
        file.append([chunk.data for chunk in chunks])
        if self.created_ms < 0:
            self.created_ms = chunks[0].first_ms
        index = self._growing_index
        verified = self._verified_to == position
        for chunk in chunks:
            index.add_scanned(chunk.entries, chunk.max_ms, position)
            position += len(chunk.data)
        self.size = position
        if verified:
            self._verified_to = position

    def append_batch(self, buffers: list[Buffer], base_offset: int, length: int, timestamp: int) -> None:
        """Write one batch to a segment that is open and has one already."""
        assert self.file is not None
        position = self.size
        self.file.append(buffers)
        self.size = position + length
        if self._verified_to == position:
            self._verified_to = position + length
        self._growing_index.add(base_offset, position, timestamp)

    @property
    def growing(self) -> bool:
        return self.file is not None and not self.sealed

    def seal(self) -> None:
        """The segment is complete: write its index. The file stays open for the sync that covers its last batches."""
        if not self.sealed:
            if self.size:
                self._keep_whole_index()
            self._index = self._tail = self._prepared = None
            self.sealed = True

    def _keep_whole_index(self) -> None:
        index = self._index
        if index is None and self._tail is not None:
            before = SparseIndex.load(self._disk, self.index_path, self._tail_at)
            index = None if before is None else _joined(before, self._tail)
        if index is not None:
            self._newest_ms = index.max_timestamp
            self._keep_index(index)
        # Otherwise nobody needed it since the start, and making it now would read the segment: whoever needs it does.

    def close(self) -> None:
        """Let go of the file. The segment stays readable."""
        if self.file is not None:
            self.seal()
            self.file.close()
            self.file = None

    def remove(self) -> None:
        """Remove the files for good: were a loss of power to bring this one back and not the next, the log would have a hole."""
        if self.file is not None:
            self.file.close()
            self.file = None
        self._disk.remove_file(self.log_path)
        self._disk.remove_file(self.index_path)
        with contextlib.suppress(FileNotFoundError):
            self._disk.sync_directory(self.path.rpartition("/")[0])

    # --- index

    @property
    def has_index(self) -> bool:
        """Whether the index is at hand, so that asking it costs no reading."""
        return self._index is not None or self._fitting() is not None

    def can_find(self, offset: int) -> bool:
        """Whether telling where `offset` lies costs no reading."""
        return offset <= self.base_offset or self.has_index or (self._tail is not None and self._tail.covers(offset))

    def position_of(self, offset: int) -> int:
        """Where to begin walking to find the batch with `offset`."""
        if offset <= self.base_offset:
            return 0
        if self._index is None and self._tail is not None and self._tail.covers(offset):
            return self._tail.position_of(offset)
        return self.index.position_of(offset)

    @property
    def index(self) -> SparseIndex:
        """All of the index. Blocks unless it is at hand: `prepare_index` beforehand, beside the loop."""
        if self._index is None:
            index = self._fitting()
            if index is None:
                index = self._made_index(self._described)
            self._prepared = None
            if self._tail is not None:
                index, self._tail = _joined(index, self._tail), None
            self._index = index
        return self._index

    @property
    def _growing_index(self) -> SparseIndex:
        if self._index is not None:
            return self._index
        assert self._tail is not None, "open for append"
        return self._tail

    @property
    def _described(self) -> int:
        """How many bytes the index describes, apart from the tail."""
        return self._tail_at if self._tail is not None else self.size

    def _fitting(self) -> SparseIndex | None:
        """The index that was made beside the loop, unless the segment was closed or opened meanwhile."""
        prepared = self._prepared
        return prepared[1] if prepared is not None and prepared[0] == self._described else None

    def prepare_index(self) -> None:
        """Load the index, or make it when it is missing; blocks. Runs beside the loop, which finds it when it next asks."""
        self.prepare(-1, 0)

    def prepare(self, offset: int, likely_bytes: int) -> None:
        """As `prepare_index`, and bring what lies at `offset` into memory."""
        described = self._described
        try:
            index = self._made_index(described)
            if likely_bytes and described:
                position = index.position_of(offset)
                self._disk.map_file(self.log_path, described).prefault(position, min(described, position + likely_bytes))
        except FileNotFoundError:
            # Retention took the segment meanwhile; nobody asks for it any more.
            return
        if self.growing:
            index.thaw()
        self._prepared = (described, index)

    def _made_index(self, described: int) -> SparseIndex:
        index = SparseIndex.load(self._disk, self.index_path, described)
        if index is None:
            index = self._scanned_index(described)
            if not self.growing and described:
                self._keep_index(index)
        return index

    @property
    def knows_newest(self) -> bool:
        """Whether telling the highest timestamp costs no reading."""
        return self._newest_ms is not None or self.has_index

    @property
    def newest_ms(self) -> int:
        """The highest timestamp of a segment that is complete; -1 where damage leaves none to tell."""
        if self._newest_ms is None:
            self._newest_ms = self.index.max_timestamp
        return self._newest_ms

    def rebuild_index(self) -> SparseIndex:
        """Make the index anew from the log, and store it."""
        index = self._scanned_index(self.size)
        self._disk.write_file(self.index_path, index.encode(self.size))
        return index

    def _keep_index(self, index: SparseIndex) -> None:
        try:
            self._disk.write_file(self.index_path, index.encode(self.size))
        except OSError as fault:
            # A full disk must stop neither a roll nor a read for the sake of a file that can be made again.
            logger.warning("index %s was not written: %s", self.index_path, fault)

    def _scanned_index(self, size: int) -> SparseIndex:
        """The index of the first `size` bytes, from the log; in steps, so that a thread that makes one lets the loop run."""
        index = SparseIndex()
        if not size:
            return index
        file_map = self._disk.map_file(self.log_path, size)
        position, expected, step = 0, self.base_offset, _SCAN_BYTES
        while position < size:
            stop = min(size, position + step)
            file_map.prefault(position, stop)
            end, following, reason, found, _, newest, _, _ = hot.scan_batches(
                file_map.view, position, stop, expected, limits.INDEX_INTERVAL_BYTES
            )
            index.extend(SparseIndex(found, newest))
            if not reason or (stop < size and end > position):
                # The step may have ended within a batch, which is the first of the next one.
                position, expected, step = end, following, _SCAN_BYTES
            elif stop < size:
                step = size - position
            else:
                # What lies behind the damage can still be read by whoever asks for its offsets.
                position = next_intact_batch(file_map.view, end + layout.ALIGNMENT_BYTES, size)
                expected, step = -1, _SCAN_BYTES
        return index

    def adopt_index(self, index: SparseIndex) -> None:
        """Use an index that recovery made on its walk."""
        self._index = index

    @property
    def first_timestamp(self) -> int:
        """Timestamp of the first batch, -1 for an empty segment."""
        if self.created_ms < 0 and self.size >= layout.HEADER_BYTES:
            view, start = self.window(0, layout.HEADER_BYTES, layout.HEADER_BYTES)
            self.created_ms = layout.read_header(view, start).base_timestamp
        return self.created_ms

    # --- reading

    def window(self, position: int, likely: int, stop: int) -> tuple[memoryview, int]:
        """A buffer that holds the bytes from `position` on, and where they begin in it.

        Where the segment is mapped it reaches to `stop` or to the end of the map, which is the end of a batch. Bytes that are
        not mapped yet are copied, and only up to `likely`; the caller asks again when it wants more.
        """
        if position >= self._mapped:
            unmapped = self.size - self._mapped
            if self.file is None or self.sealed or unmapped >= max(_REMAP_BYTES, self._mapped >> 3):
                self._map = self._disk.map_file(self.log_path, self.size)
                self._mapped = self.size
            else:
                return memoryview(self.file.read_at(position, likely - position)), 0
        assert self._map is not None
        self._read_lately = True
        return self._map.view[: min(stop, self._mapped)], position

    def forget_idle_map(self) -> None:
        """Let go of the map if nobody has read from it since the last call."""
        if self._map is not None and not self._read_lately:
            self._map = None
            self._mapped = self._warm_from = self._warm_to = 0
            if not self.growing:
                self._index = self._prepared = None
        self._read_lately = False

    def is_cold(self, position: int, stop: int) -> bool:
        """Whether reading this range would wait for the disk."""
        if self._warm_from <= position and stop <= self._warm_to:
            return False
        if self.growing and position >= self.size - _WARM_TAIL_BYTES:
            return False
        if position >= self._mapped:
            self.window(position, position, position)
        if self._map is None or position >= self._mapped:
            # Not mapped means written so lately that it is still in memory.
            return False
        # One look ahead answers for the reads that follow; what is evicted meanwhile costs a page fault, nothing more.
        ahead = min(max(stop, position + _WARM_AHEAD_BYTES), self._mapped)
        if self._map.resident(position, ahead):
            self._warm_from, self._warm_to = position, ahead
            return False
        if self._map.resident(position, min(stop, self._mapped)):
            return False
        # What comes from the disk again is checked anew.
        self._verified_from = self._verified_to = position
        return True

    def warm_up(self, position: int, stop: int) -> None:
        """Bring a cold range into memory; blocks. Runs beside the loop, so it changes nothing here."""
        file_map = self._map
        if file_map is not None:
            file_map.prefault(position, min(stop, len(file_map.view)))

    def verified_end(self, view: memoryview, start: int, position: int, until: int) -> int:
        """Up to where in `view` whole, undamaged batches lie, beginning at `start` (which is `position` of the file).

        Only batches that begin before `until` and were not checked before are checked now.
        """
        known = start
        if self._verified_from <= position <= self._verified_to:
            known = min(len(view), start + self._verified_to - position)
            if known >= until:
                return known
        end, _ = hot.verify_batches(view, known, len(view), until)
        checked = position + end - start
        if known > start or position == self._verified_to:
            self._verified_to = max(self._verified_to, checked)
        else:
            self._verified_from, self._verified_to = position, checked
        return end

    def damage(self, position: int, reason: str, offset: int | str = "unknown") -> BraidError:
        """The error for bytes at `position` that are not what was written; `offset` is what the reader was looking for."""
        if offset == "unknown" and self.size - position >= layout.HEADER_BYTES:
            view, start = self.window(position, position + layout.HEADER_BYTES, position + layout.HEADER_BYTES)
            offset = layout.read_header(view, start).base_offset
        return BraidError("CORRUPT_LOG", path=self.log_path, position=position, offset=offset, reason=reason)

    def trust(self, start: int, stop: int) -> None:
        """Recovery checked everything between the two."""
        self._verified_from, self._verified_to = start, stop

    def write_prefix(self, size: int, path: str) -> None:
        """Copy the first `size` bytes to a new file `path`, and sync it; blocks. Runs beside the loop, so it changes nothing
        here."""
        self._disk.remove_file(path)
        file = self._disk.open_append(path)
        try:
            view = self._disk.map_file(self.log_path, size).view if size else memoryview(b"")
            for at in range(0, size, _SCAN_BYTES):
                file.append([view[at : min(size, at + _SCAN_BYTES)]])
            file.sync()
        finally:
            file.close()

    def truncate(self, size: int) -> None:
        """Cut off bytes that were never acknowledged or mapped."""
        file = self.open_for_append()
        file.truncate(size)
        self.size = size


def _joined(index: SparseIndex, tail: SparseIndex) -> SparseIndex:
    index.thaw()
    index.extend(tail)
    return index


def next_intact_batch(view: memoryview, position: int, stop: int) -> int:
    """Where the first whole, undamaged batch at or after `position` begins; `stop` when there is none."""
    while position < stop:
        chunk = bytes(view[position : min(stop, position + _SEARCH_BYTES)])
        at = chunk.find(_MAGIC_BYTES)
        while at >= 0:
            candidate = position + at
            if candidate % layout.ALIGNMENT_BYTES == 0 and not hot.verify_batches(view, candidate, stop, candidate + 1)[1]:
                return candidate
            at = chunk.find(_MAGIC_BYTES, at + 1)
        # The next chunk begins early enough to find a mark that this one cut.
        position += max(1, len(chunk) - len(_MAGIC_BYTES) + 1)
    return stop
