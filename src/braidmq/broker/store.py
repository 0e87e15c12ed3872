"""The data directory: which partitions exist on disk, opening them, checkpoints, retention, and the lock.

    LOCK              held while a broker runs
    FORMAT            version of this layout
    ENCRYPTION        proofs of the keys that something here is encrypted with, see `braidmq.base.key_ring`
    CLEAN             there after an orderly stop only: the checkpoint describes every partition exactly
    checkpoint        see `braidmq.log.checkpoint`
    clock             see `braidmq.broker.time_file`
    internal/NAME/    journals of the broker's own state, each a partition with snapshots
    topics/ID/N/      partition N of the topic with that id
    backups/          see `braidmq.broker.backups`

After an orderly stop partitions are opened when first used, so a start costs the same whatever the log holds. After a crash
all of them are opened and checked before the first client is let in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from braidmq.base.disk import AppendFile, Disk, Lock
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import KeyRing, LoadKeys, open_keys
from braidmq.log.batch_codec import BatchCodec, DecodedBatches
from braidmq.log.checkpoint import Checkpoint, PartitionCheckpoint
from braidmq.log.commit import SyncJob
from braidmq.log.key_use import keys_in_use
from braidmq.log.partition import LogSettings, PartitionLog
from braidmq.log.partition_replica import CLOSED_GATE
from braidmq.log.recovery import RecoveryReport, open_clean, recover
from braidmq.log.segment import Segment

_FORMAT: Final = 1
_DROPPED: Final = ".dropped-"
"""In the name of a directory whose files are being removed."""

logger = logging.getLogger("braidmq.store")


@dataclass(slots=True)
class CheckpointDraft:
    """What a checkpoint needs before it may be saved."""

    changed: list[PartitionLog] = field(default_factory=list)
    files: set[AppendFile] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Directories."""


class LogStore:
    def __init__(
        self, disk: Disk, data_dir: str, load_keys: LoadKeys = lambda: None, *, encrypt: bool = False,
        now: Callable[[], int] | None = None, replicated: bool = False,
    ) -> None:
        """`load_keys` is called when `encrypt` is set or something in the directory is encrypted; expiry is measured by `now`.

        With `replicated` every log but the audit trail is one of several replicas: it opens with a closed gate, and readers see no
        more of it than they are known to have seen before.
        """
        self._replicated = replicated
        self._now = now
        self._disk = disk
        self.data_dir = data_dir
        self._load_keys = load_keys
        self._encrypt = encrypt
        self.keys: KeyRing | None = None
        """What the directory's batches are decrypted and, with `encrypt`, encrypted with."""
        self._codecs: dict[str, BatchCodec] = {}
        self._decoded = DecodedBatches()
        self._lock: Lock | None = None
        self._known: dict[str, PartitionCheckpoint] = {}
        self._open: dict[str, PartitionLog] = {}
        self._saved: dict[str, tuple[int, int]] = {}
        self._dropped = 0
        """How many partitions others have by now."""
        self.report = RecoveryReport()

    # --- start and stop

    def open(self) -> None:
        """Take the directory over; raises when it is in use, unreadable or of another format."""
        disk = self._disk
        try:
            disk.make_directory(self.data_dir)
            self._lock = disk.lock(f"{self.data_dir}/LOCK")
            self._check_format()
            # Before anything is opened: what cannot be decrypted must not be taken for damage.
            self.keys = open_keys(
                disk, self.data_dir, self._load_keys, self._encrypt, lambda key_ids: keys_in_use(disk, self.data_dir, key_ids)
            )
            disk.make_directory(f"{self.data_dir}/topics")
            checkpoint = Checkpoint.load(disk, f"{self.data_dir}/checkpoint")
            self.report.clean = disk.exists(f"{self.data_dir}/CLEAN") or not disk.exists(f"{self.data_dir}/internal")
            disk.remove_file(f"{self.data_dir}/CLEAN")
            disk.sync_directory(self.data_dir)
        except BlockingIOError:
            raise BraidError("DATA_DIR_LOCKED", path=self.data_dir) from None
        except OSError as fault:
            raise BraidError("DATA_DIR_INVALID", path=self.data_dir, reason=fault.strerror or str(fault)) from fault
        except BraidError:
            self.abandon()
            raise
        self._known = checkpoint.partitions
        if self.keys is not None and not self._encrypt:
            logger.warning("encryption_enabled is off: what is written now to %s is not encrypted", self.data_dir)

    def _check_format(self) -> None:
        path = f"{self.data_dir}/FORMAT"
        if not self._disk.exists(path):
            self._disk.replace_file(path, json.dumps({"format": _FORMAT}).encode())
            return
        try:
            found = json.loads(self._disk.read_file(path))["format"]
        except (ValueError, KeyError, TypeError):
            found = "unknown"
        if found != _FORMAT:
            raise BraidError("DATA_DIR_INVALID", path=self.data_dir, reason=f"its format is {found}, this version reads {_FORMAT}")

    def close(self) -> None:
        """Close everything and say that the stop was orderly. All files must have been synced."""
        for name, log in self._open.items():
            self._take_down(name, log)
        for log in self._open.values():
            log.close()
            for name in sorted(log.take_names_to_sync()):
                self._disk.sync_directory(name)
        self._save(self.drafted())
        self._disk.write_file(f"{self.data_dir}/CLEAN", b"")
        self._disk.sync_directory(self.data_dir)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the directory without saying that the stop was orderly."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- partitions

    def internal(self, name: str, settings: LogSettings) -> PartitionLog:
        return self._partition(f"internal/{name}", f"__{name}", 0, settings)

    def partition(self, topic_id: int, topic: str, partition: int, settings: LogSettings) -> PartitionLog:
        return self._partition(f"topics/{topic_id}/{partition}", topic, partition, settings)

    def opened(self, topic_id: int, partition: int) -> PartitionLog | None:
        return self._open.get(f"topics/{topic_id}/{partition}")

    def is_unused(self, topic_id: int, partition: int) -> bool:
        """Whether nothing was ever written there, as far as that is known without opening it."""
        name = f"topics/{topic_id}/{partition}"
        return name not in self._open and name not in self._known

    def _partition(self, name: str, topic: str, partition: int, settings: LogSettings) -> PartitionLog:
        log = self._open.get(name)
        if log is None:
            codec = self._codec_for(name, settings.compression)
            log = PartitionLog(self._disk, f"{self.data_dir}/{name}", topic, partition, settings, codec, self._now)
            known = self._known.get(name)
            if not self.report.clean or not open_clean(self._disk, log, known):
                found = recover(self._disk, log, known)
                self.report.add(found)
                if found.reason:
                    logger.warning(
                        "recovery of %s/%d: %s; %d bytes removed, next offset %d",
                        topic, partition, found.reason, found.truncated_bytes, found.next_offset,
                    )
            if self._replicated and name != "internal/audit":
                log.keep_gate(CLOSED_GATE, known.next_offset if known is not None else 0)
                log.follow(log.epochs.latest, BraidError("NOT_LEADER", reason=f"no leader elected, partition={partition}"))
            self._open[name] = log
            self.report.partitions_opened += 1
        return log

    def reconfigure(self, topic_id: int, partition: int, settings: LogSettings) -> None:
        """Let a partition that is open go on with other settings."""
        log = self.opened(topic_id, partition)
        if log is not None:
            log.settings = settings
            log.codec = self._codec_for(f"topics/{topic_id}/{partition}", settings.compression) or log.codec

    def _codec_for(self, name: str, compression: str) -> BatchCodec | None:
        """How a partition's batches are stored; None where they only ever lie as they are made.

        Journals always have one: if the proofs of the keys were lost, their encrypted batches say which key is missing.
        """
        if self.keys is None and not compression and not name.startswith("internal/"):
            return None
        codec = self._codecs.get(compression)
        if codec is None:
            codec = BatchCodec(compression or "none", self.keys, encrypt=self._encrypt, decoded=self._decoded)
            self._codecs[compression] = codec
        return codec

    def partitions_on_disk(self) -> Iterable[tuple[int, list[int]]]:
        """(topic id, its partitions that have a directory), in order."""
        for name in self._disk.list_directory(f"{self.data_dir}/topics"):
            if name.isdecimal():
                found = self._disk.list_directory(f"{self.data_dir}/topics/{name}")
                yield int(name), sorted(int(partition) for partition in found if partition.isdecimal())

    def retire_topic(self, topic_id: int, partitions: int) -> None:
        """Stop serving a topic that is deleted."""
        for partition in range(partitions):
            self.retire_partition(topic_id, partition)

    def retire_partition(self, topic_id: int, partition: int) -> None:
        """Stop serving a partition that is deleted, or that others have now."""
        name = f"topics/{topic_id}/{partition}"
        log = self._open.pop(name, None)
        if log is not None:
            log.retire()
        self._known.pop(name, None)
        self._saved.pop(name, None)

    def drop_partition(self, topic_id: int, partition: int) -> str:
        """Stop serving a partition that others have now, and let its files go; the directory to remove, beside the loop.

        The files get another name at once. The partition may come back before they are gone, and begins anew then.
        """
        self.retire_partition(topic_id, partition)
        place = f"{self.data_dir}/topics/{topic_id}/{partition}"
        if not self._disk.exists(place):
            return ""
        self._dropped += 1
        while self._disk.exists(f"{place}{_DROPPED}{self._dropped}"):
            self._dropped += 1
        aside = f"{place}{_DROPPED}{self._dropped}"
        try:
            self._disk.rename(place, aside)
        except OSError as fault:
            logger.error("%s cannot be set aside, and is removed where it is: %s", place, fault)
            return place
        return aside

    def remove_dropped(self, place: str) -> None:
        """Remove what `drop_partition` left. Blocks: call it off the loop."""
        if place:
            self._disk.remove_tree(place)

    def remove_partition(self, topic_id: int, partition: int) -> None:
        """Remove every file of a retired partition. Blocks: call it off the loop."""
        self._disk.remove_tree(f"{self.data_dir}/topics/{topic_id}/{partition}")

    def remove_topic_files(self, topic_id: int) -> None:
        """Remove every file of a retired topic. Blocks: call it off the loop."""
        self._disk.remove_tree(f"{self.data_dir}/topics/{topic_id}")

    def unopened(self) -> list[tuple[int, int]]:
        """(topic id, partition) of partitions that hold records and were not used since the start."""
        names = (name.split("/") for name in self._known if name.startswith("topics/") and name not in self._open)
        return [(int(topic_id), int(partition)) for _, topic_id, partition in names]

    def remove_leftovers(self, is_live: Callable[[int], bool], next_id: int) -> None:
        """Remove directories of topics deleted just before a crash; keep those that nothing explains, out of the way."""
        for topic_id, _ in list(self.partitions_on_disk()):
            if is_live(topic_id):
                continue
            if topic_id < next_id:
                logger.info("removing the files of deleted topic %d", topic_id)
                self._disk.remove_tree(f"{self.data_dir}/topics/{topic_id}")
            else:
                # Its number will be given to a topic that is yet to come, which must not find somebody else's records there.
                kept = self._set_aside(topic_id)
                logger.warning("directory topics/%d belongs to no topic; kept as %s", topic_id, kept)
        for name in self._disk.list_directory(f"{self.data_dir}/topics"):
            if not name.isdecimal():
                self.report.unexplained.append(f"topics/{name}")
                continue
            for partition in self._disk.list_directory(f"{self.data_dir}/topics/{name}"):
                if _DROPPED in partition:
                    self._disk.remove_tree(f"{self.data_dir}/topics/{name}/{partition}")

    def _set_aside(self, topic_id: int) -> str:
        number = 0
        while self._disk.exists(f"{self.data_dir}/topics/unexplained-{topic_id}-{number}"):
            number += 1
        kept = f"topics/unexplained-{topic_id}-{number}"
        self._disk.rename(f"{self.data_dir}/topics/{topic_id}", f"{self.data_dir}/{kept}")
        self._disk.sync_directory(f"{self.data_dir}/topics")
        return kept

    # --- checkpoints

    def changed_since_checkpoint(self) -> list[PartitionLog]:
        return [log for name, log in self._open.items() if self._saved.get(name) != (log.log_end, log.high_watermark)]

    def unsynced_files(self) -> set[AppendFile]:
        """Files that a checkpoint must not speak of before they are synced."""
        files: set[AppendFile] = set()
        for log in self.changed_since_checkpoint():
            files.update(log.unsynced_files())
        return files

    def draft_checkpoint(self, draft: CheckpointDraft) -> Iterator[None]:
        """Take down where every partition that changed stands now, one at a time; then `drafted` is the checkpoint.

        Others may run in between: of each partition the place and the files that must be synced for it belong together.
        """
        for name, log in list(self._open.items()):
            yield
            if self._open.get(name) is not log:
                continue
            if self._saved.get(name) != (log.log_end, log.high_watermark):
                draft.changed.append(log)
                draft.files.update(log.unsynced_files())
                draft.names |= log.names_for_checkpoint()
                self._take_down(name, log)
            elif log.expiry_cursor is not None and name in self._known:
                self._known[name].expiring = log.expiry_cursor.dump()

    def drafted(self) -> Checkpoint:
        """Where every partition stands. To be saved only after the files of the draft have been synced."""
        return Checkpoint(dict(self._known))

    def _take_down(self, name: str, log: PartitionLog) -> None:
        self._saved[name] = (log.log_end, log.high_watermark)
        place = log.durable_place()
        if place is None:
            self._known.pop(name, None)
            return
        segment, position, offset = place
        cursor = log.expiry_cursor.dump() if log.expiry_cursor is not None else []
        self._known[name] = PartitionCheckpoint(
            segment, position, offset, log.producers.dump(offset), cursor, log.epochs.dump(offset)
        )

    def save(self, checkpoint: Checkpoint, job: SyncJob) -> None:
        """Sync, then write the checkpoint unless something failed. Blocks: call it off the loop."""
        job.run(self._disk)
        try:
            if not job.failed:
                self._save(checkpoint)
                return
        except OSError:
            self._saved.clear()
            raise
        # Nothing counts as saved, so that the next checkpoint looks at these partitions again.
        self._saved.clear()

    def _save(self, checkpoint: Checkpoint) -> None:
        checkpoint.save(self._disk, f"{self.data_dir}/checkpoint")

    # --- retention

    def opened_names(self) -> list[str]:
        """The partitions that are open, for `apply_retention`."""
        return list(self._open)

    def needed_index(self, name: str) -> Segment | None:
        """The segment whose age retention has to know first; None when it does, or need not."""
        log = self._open.get(name)
        return None if log is None or not name.startswith("topics/") else log.segment_of_unknown_age()

    def apply_retention(self, name: str, now_ms: int, held_from: int | None = None, held_bytes: int = 0) -> list[Segment]:
        """Let go of segments past their topic's limits; returns them, for their files to be removed off the loop."""
        log = self._open.get(name)
        if log is None:
            return []
        log.forget_maps()
        # Journals let go for themselves.
        if not name.startswith("topics/") or log.failure is not None:
            return []
        log.roll_if_old(now_ms)
        expired = log.expired_segments(now_ms, held_from, held_bytes)
        if expired:
            logger.info("retention removes %d segments of %s/%d", len(expired), log.topic, log.partition)
            if held_from is not None and log.segments[len(expired)].base_offset > held_from:
                logger.warning(
                    "%s/%d: what groups hold from offset %d on goes, with more than %d bytes", log.topic, log.partition, held_from,
                    held_bytes,
                )
            log.drop_segments(expired)
        return expired

    def open_logs(self) -> dict[str, PartitionLog]:
        """The partitions that are open, journals included, by their directory below the data directory."""
        return dict(self._open)

    def next_offset_of(self, name: str) -> int:
        """Where an unopened partition goes on, as the last checkpoint says."""
        known = self._known.get(name)
        return known.next_offset if known is not None else 0

    def open_partitions(self) -> list[PartitionLog]:
        return list(self._open.values())
