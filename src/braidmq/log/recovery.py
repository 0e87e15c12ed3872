"""Opening a partition: find its segments, check what may be unfinished, cut off a torn tail, say what was found.

After a clean stop the checkpoint describes every partition exactly and nothing is read. After a crash everything from
the partition's last checkpoint on is walked and checked: the first batch that is damaged, or does not continue the offsets,
and all that follows it in the newest segment is cut off. Such bytes were never acknowledged at level `fsync`; the report
says how many there were all the same. What is whole is synced before anybody sees it: a process that was killed may have
left it in memory only.

Damage before the checkpoint is not recovery's business: it was synced and intact once, so cutting there would delete
acknowledged records. It stays, readers get an error that names the place, and `braid log verify` finds it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Disk
from braidmq.log.checkpoint import PartitionCheckpoint
from braidmq.log.epochs import epochs_between
from braidmq.log.expiry_cursor import ExpiryCursor
from braidmq.log.index import SparseIndex
from braidmq.log.partition import PartitionLog, segment_bases
from braidmq.log.segment import Segment


@dataclass(slots=True)
class PartitionRecovery:
    """What was found in one partition that was not as a clean stop leaves it."""

    topic: str
    partition: int
    checked_bytes: int
    records_found: int
    """Records after the checkpoint."""
    truncated_bytes: int
    truncated_at: str
    """Segment and position of the cut, or empty."""
    reason: str
    next_offset: int


@dataclass(slots=True)
class RecoveryReport:
    """The `recovery` document: how the broker came up."""

    clean: bool = True
    partitions_opened: int = 0
    bytes_checked: int = 0
    bytes_truncated: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Directories that belong to no known topic; they are kept under a name that no topic will ever use."""
    partitions: list[PartitionRecovery] = field(default_factory=list)
    """Only those where something was found."""

    def add(self, found: PartitionRecovery) -> None:
        self.bytes_checked += found.checked_bytes
        self.bytes_truncated += found.truncated_bytes
        if found.truncated_bytes or found.reason:
            self.partitions.append(found)

    def document(self) -> dict[str, object]:
        return asdict(self)


def open_clean(disk: Disk, log: PartitionLog, known: PartitionCheckpoint | None) -> bool:
    """Open a partition as the checkpoint of a clean stop describes it; False when the files say otherwise."""
    bases = segment_bases(disk, log.directory)
    if known is None:
        return not bases
    sizes = [disk.file_size(f"{log.directory}/{base:020d}.log") for base in bases]
    if not bases or bases[-1] != known.segment or sizes[-1] != known.position:
        return False
    segments = [Segment(disk, log.directory, base, size) for base, size in zip(bases, sizes, strict=True)]
    log.producers.load(known.producers)
    log.epochs.load(known.epochs)
    _load_cursor(log, known)
    log.adopt(segments, known.next_offset)
    return True


def recover(disk: Disk, log: PartitionLog, known: PartitionCheckpoint | None) -> PartitionRecovery:
    """Open a partition after a crash."""
    found = PartitionRecovery(log.topic, log.partition, 0, 0, 0, "", "", 0)
    bases = segment_bases(disk, log.directory)
    segments = [Segment(disk, log.directory, base, disk.file_size(f"{log.directory}/{base:020d}.log")) for base in bases]
    next_offset = bases[0] if bases else 0
    if known is not None:
        if bases:
            log.producers.load(known.producers)
            log.epochs.load(known.epochs)
        else:
            next_offset = known.next_offset
    trusted = known if known is not None and known.segment in bases else None
    for number, segment in enumerate(segments):
        following = bases[number + 1] if number + 1 < len(bases) else None
        if trusted is not None and segment.base_offset < trusted.segment:
            next_offset = following if following is not None else next_offset
            continue
        start = 0
        if trusted is not None and segment.base_offset == trusted.segment and segment.size >= trusted.position:
            start, next_offset = trusted.position, trusted.next_offset
            _load_cursor(log, trusted)
        elif number:
            if next_offset != segment.base_offset:
                found.reason = f"{segment.log_path} does not continue at offset {next_offset}"
            next_offset = segment.base_offset
        before = next_offset
        # What the checkpoint remembers of producers counts only where the walk does not look for itself.
        log.producers.forget_from(next_offset)
        log.epochs.forget_from(next_offset)
        if segment.size > start:
            view = disk.map_file(segment.log_path, segment.size).view
            end, next_offset, reason, entries, first_ms, max_ms, producers, _ = hot.scan_batches(
                view, start, segment.size, next_offset, limits.INDEX_INTERVAL_BYTES
            )
            index = SparseIndex(entries, max_ms)
            for epoch, first_offset in epochs_between(view, start, end, index.positions_before(end), log.epochs.latest):
                log.epochs.note(epoch, first_offset)
            del view
            found.checked_bytes += end - start
            found.records_found += next_offset - before
            for row in producers:
                log.producers.record(*row)
            if start == 0 and not (reason and following is not None):
                segment.adopt_index(index)
                segment.created_ms = first_ms
            if reason:
                found.reason = reason
                if following is None:
                    found.truncated_bytes = segment.size - end
                    found.truncated_at = f"{segment.log_path}:{end}"
                    disk.truncate_file(segment.log_path, end)
                    # An index of what was cut off might one day fit the size of what takes its place.
                    disk.remove_file(segment.index_path)
                    segment.size = end
                else:
                    # Acknowledged records follow in a later segment, so this one is kept for what can be read of it.
                    found.reason += f" in the middle of the log ({segment.log_path}:{end}); nothing was removed"
                    next_offset = following
            if not found.truncated_bytes:
                _make_durable(disk, segment)
            segment.trust(start, end)
    for segment in segments[:-1]:
        segment.sealed = True
    log.adopt(segments, next_offset)
    if segments:
        log.distrust_names()
    if found.checked_bytes:
        # Readers see all of it from now on, so it may not vanish any more.
        for name in sorted(log.take_names_to_sync()):
            disk.sync_directory(name)
    if known is not None and next_offset < known.next_offset:
        lost = f"the log ends at offset {next_offset}, before its checkpoint at {known.next_offset}"
        found.reason = f"{found.reason}; {lost}" if found.reason else lost
    found.next_offset = next_offset
    return found


def _load_cursor(log: PartitionLog, known: PartitionCheckpoint) -> None:
    """The log up to the checkpoint is what it was, and so is what was found in it."""
    if known.expiring:
        log.expiry_cursor = ExpiryCursor.load(known.expiring)


def _make_durable(disk: Disk, segment: Segment) -> None:
    """Sync a file whose writer died: what is found in it may be in memory only."""
    file = disk.open_append(segment.log_path)
    try:
        file.sync()
    finally:
        file.close()
