"""Backups of a broker that goes on working: the files of one moment, kept until they have been read.

A backup is what a kill at that moment would have left behind, so restoring one is a start after a crash, which is the one way that
is tested most. Segments only grow, and are written on the loop alone: their sizes, taken down in one turn of it, are such a moment.
What a backup refers to gets a second name under `backups/`, so retention, a deleted topic or a new snapshot take nothing away from
it.

Most names are given beside the loop, before the moment. In its turn only those follow that came since: writes wait for the few
microseconds a partition that it takes to note its sizes, not for the disk.

Faults: a backup ends with the broker, whatever ends that, and a start removes what is left of it. A backup of which nothing is read
for `BACKUP_IDLE_SECONDS_MAX` ends by itself, since it keeps removed segments on the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_FOLDER: Final = "backups"
_ROOT_FILES: Final = ("FORMAT", "ENCRYPTION", "checkpoint", "clock")
_SNAPSHOT_PREFIX: Final = "snapshot-"

logger = logging.getLogger("braidmq.backups")


@dataclass(slots=True)
class Backup:
    id: str
    folder: str
    names: dict[str, str] = field(default_factory=dict)
    """Path below the data directory to the second name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What belongs to the backup, and how much of it."""
    read_at: float = 0.0
    under_way: int = 0


class Backups:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._root = f"{broker.settings.data_dir}/{_FOLDER}"
        self._open: dict[str, Backup] = {}
        self._numbers = itertools.count(1)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def remove_leftovers(self) -> None:
        """What a broker that was killed left of its backups."""
        if self._broker.disk.exists(self._root):
            self._broker.disk.remove_tree(self._root)

    async def begin(self) -> Backup:
        """The files of this moment; they stay until `end`."""
        if len(self._open) >= limits.BACKUPS_MAX:
            raise BraidError("BACKUP_LIMIT", limit=limits.BACKUPS_MAX)
        name = f"{self._broker.clock.now_ms():x}-{next(self._numbers)}"
        backup = Backup(name, f"{self._root}/{name}")
        self._open[name] = backup
        try:
            found: dict[str, int] = {}
            await self._broker.beside(partial(self._name_all, backup, found))
            self._take_moment(backup, found)
        except BaseException:
            await self.end(name)
            raise
        self._touch(backup)
        logger.info("backup %s: %d files, %d bytes", name, len(backup.sizes), sum(backup.sizes.values()))
        return backup

    def get(self, name: str) -> Backup:
        backup = self._open.get(name)
        if backup is None:
            raise BraidError("BACKUP_NOT_FOUND", backup=name)
        return backup

    async def read(self, name: str, path: str, position: int, length: int) -> bytes:
        """A piece of a file; shorter only at its end."""
        backup = self.get(name)
        if path not in backup.sizes:
            raise BraidError("INVALID_ARGUMENT", reason=f"the backup has no file {path}")
        if length > limits.BACKUP_PIECE_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason=f"at most {limits.BACKUP_PIECE_BYTES_MAX} bytes are read at a time")
        stop = min(position + length, backup.sizes[path])
        if position >= stop:
            return b""
        pieces: list[bytes] = []

        def read() -> None:
            view = self._broker.disk.map_file(backup.names[path], stop).view
            pieces.append(bytes(view[position:stop]))

        backup.under_way += 1
        try:
            await self._broker.beside(read)
        finally:
            backup.under_way -= 1
            self._touch(backup)
        return pieces[0]

    async def end(self, name: str) -> None:
        """Let go of the files. One that has ended already is fine."""
        backup = self._open.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if backup is not None:
            await self._broker.beside(partial(self._broker.disk.remove_tree, backup.folder))

    async def stop(self) -> None:
        for name in list(self._open):
            await self.end(name)
        await asyncio.gather(*self._ending)

    # --- the moment

    def _name_all(self, backup: Backup, found: dict[str, int]) -> None:
        """Give every segment that is there now its second name. Beside the loop: files may come and go meanwhile."""
        disk, data_dir = self._broker.disk, self._broker.settings.data_dir
        disk.make_directory(backup.folder, durable=False)
        folders = [f"internal/{name}" for name in disk.list_directory(f"{data_dir}/internal")]
        for topic in disk.list_directory(f"{data_dir}/topics"):
            folders += [f"topics/{topic}/{part}" for part in disk.list_directory(f"{data_dir}/topics/{topic}") if part.isdecimal()]
        for folder in folders:
            for name in disk.list_directory(f"{data_dir}/{folder}"):
                path = f"{folder}/{name}"
                if name.endswith(".log") and self._name(backup, path):
                    found[path] = disk.file_size(backup.names[path])

    def _take_moment(self, backup: Backup, found: dict[str, int]) -> None:
        """Note what belongs to the backup and how much of it. One turn of the loop, in which nothing else happens."""
        broker = self._broker
        data_dir = broker.settings.data_dir
        # What came in this turn is either wholly in the files or not at all.
        broker.commit.flush()
        logs = broker.store.open_logs()
        for log in logs.values():
            for segment in log.segments:
                path = segment.log_path.removeprefix(f"{data_dir}/")
                if path in backup.names or self._name(backup, path):
                    backup.sizes[path] = segment.size
        for path, size in found.items():
            folder, _, _ = path.rpartition("/")
            kind, number = path.split("/")[:2]
            # A partition that nobody opened has not changed. Files that nothing explains are for people to look at, not to keep.
            explained = kind == "internal" or (number.isdecimal() and broker.topics.by_id(int(number)) is not None)
            if folder not in logs and explained:
                backup.sizes[path] = size
        others = list(_ROOT_FILES)
        for folder in (folder for folder in logs if folder.startswith("internal/")):
            names = broker.disk.list_directory(f"{data_dir}/{folder}")
            others += [f"{folder}/{name}" for name in names if name.startswith(_SNAPSHOT_PREFIX) and name.endswith(".json")]
        for path in others:
            if self._name(backup, path):
                backup.sizes[path] = broker.disk.file_size(backup.names[path])

    def _name(self, backup: Backup, path: str) -> bool:
        """Whether the file is there, and has its second name now."""
        second = f"{backup.folder}/{len(backup.names)}"
        try:
            self._broker.disk.link(f"{self._broker.settings.data_dir}/{path}", second)
        except FileNotFoundError:
            return False
        backup.names[path] = second
        return True

    # --- backups that nobody reads

    def _touch(self, backup: Backup) -> None:
        loop = asyncio.get_running_loop()
        backup.read_at = loop.time()
        if backup.id in self._open and backup.id not in self._timers:
            self._timers[backup.id] = loop.call_later(limits.BACKUP_IDLE_SECONDS_MAX, self._look, backup)

    def _look(self, backup: Backup) -> None:
        self._timers.pop(backup.id, None)
        loop = asyncio.get_running_loop()
        left_s = backup.read_at + limits.BACKUP_IDLE_SECONDS_MAX - loop.time()
        if backup.id not in self._open:
            return
        if left_s > 0 or backup.under_way:
            self._timers[backup.id] = loop.call_later(max(left_s, 1.0), self._look, backup)
            return
        logger.warning("backup %s ends: nothing of it was read for %g s", backup.id, limits.BACKUP_IDLE_SECONDS_MAX)
        ending = loop.create_task(self.end(backup.id))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
