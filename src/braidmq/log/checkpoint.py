"""The checkpoint: up to where each partition is known to be whole, so that a start need not read the rest again.

One file for the whole data directory, replaced atomically. A checkpoint that is missing, damaged or from another format
costs time at the next start, never data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from braidmq import hot
from braidmq.base.disk import Disk
from braidmq.base.json_pieces import json_pieces

_FORMAT: Final = 1


@dataclass(slots=True)
class PartitionCheckpoint:
    segment: int
    """First offset of the newest segment."""
    position: int
    """Bytes of it that are whole and synced."""
    next_offset: int
    """The offset that follows them."""
    producers: list[list[object]] = field(default_factory=list)
    expiring: list[object] = field(default_factory=list)
    """An `ExpiryCursor`; empty without one."""
    epochs: list[list[int]] = field(default_factory=list)
    """An `EpochTable`; empty where nobody ever led."""

    def row(self) -> list[object]:
        whole = [self.segment, self.position, self.next_offset, self.producers, self.expiring, self.epochs]
        return whole if self.epochs else whole[:5] if self.expiring else whole[:4]


@dataclass(slots=True)
class Checkpoint:
    partitions: dict[str, PartitionCheckpoint] = field(default_factory=dict)
    """By the partition's directory below the data directory."""

    def save(self, disk: Disk, path: str) -> None:
        rows = {name: entry.row() for name, entry in self.partitions.items()}
        body = "".join(json_pieces({"format": _FORMAT, "partitions": rows})).encode()
        disk.replace_file(path, b"%08x\n" % hot.crc32c(body) + body)

    @classmethod
    def load(cls, disk: Disk, path: str) -> Checkpoint:
        """The checkpoint in `path`, or an empty one when there is none to trust."""
        try:
            data = disk.read_file(path)
            head, _, body = data.partition(b"\n")
            if int(head, 16) != hot.crc32c(body):
                return cls()
            document = json.loads(body)
            if document["format"] != _FORMAT:
                return cls()
            partitions = {name: PartitionCheckpoint(*row) for name, row in document["partitions"].items()}
            return cls(partitions)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return cls()
