"""What a disk holds, as opposed to what processes see: the model below `FaultyDisk`.

Files and directories exist in two forms, `seen` (the page cache) and `durable` (the platter), with the unsynced changes
that lead from one to the other. This module only knows how such changes become durable, survive or get lost; which call
causes what, and which faults strike, is `disk_faulty.py`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from braidmq.base.disk import Buffer

SECTOR_BYTES: Final = 512
"""What a disk writes as a whole or not at all."""

Unsynced = Literal["random", "lost", "kept", "torn"]


@dataclass(frozen=True, slots=True)
class Write:
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    size: int


@dataclass(slots=True, eq=False)
class File:
    seen: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Write | Truncate] = field(default_factory=list)
    names: int = 1
    linked: bool = True
    """Whether a name leads to it; without one it takes no space."""


@dataclass(slots=True, eq=False)
class Directory:
    seen: dict[str, File | Directory] = field(default_factory=dict)
    durable: dict[str, File | Directory] = field(default_factory=dict)


Node = File | Directory


@dataclass(frozen=True, slots=True)
class NameChange:
    """Entries that change together or not at all; a node of None means that the name is gone."""

    entries: tuple[tuple[Directory, str, Node | None], ...]

    def keys(self) -> set[tuple[int, str]]:
        return {(id(directory), name) for directory, name, _ in self.entries}

    def make_seen(self) -> None:
        for directory, name, node in self.entries:
            _put(directory.seen, name, node)

    def make_durable(self) -> None:
        for directory, name, node in self.entries:
            _put(directory.durable, name, node)


def _put(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


# --- contents


def overwrite(content: bytearray, position: int, data: Buffer) -> None:
    """Put `data` at `position`, with zeros before it where nothing was."""
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut `content`, or extend it with zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _sectors(write: Write) -> Iterator[Write]:
    """The write cut where the disk's sectors end."""
    start = 0
    while start < len(write.data):
        stop = min(len(write.data), start + SECTOR_BYTES - (write.position + start) % SECTOR_BYTES)
        yield Write(write.position + start, write.data[start:stop])
        start = stop


def settle_writes(file: File, mode: Unsynced, rng: random.Random) -> None:
    """Make durable what survives of the file's unsynced changes, and forget the rest."""
    content = file.durable
    for change in file.unsynced:
        fate = rng.choice(("lost", "kept", "torn")) if mode == "random" else mode
        if isinstance(change, Truncate):
            if fate == "kept" or (fate == "torn" and rng.random() < 0.5):
                resize(content, change.size)
        elif fate == "kept":
            overwrite(content, change.position, change.data)
        elif fate == "torn":
            for piece in _sectors(change):
                if rng.random() < 0.5:
                    overwrite(content, piece.position, piece.data)
            # The new size is metadata and may arrive without the data it stands for.
            end = change.position + len(change.data)
            if end > len(content) and rng.random() < 0.5:
                resize(content, end)
    file.unsynced = []


# --- names


def sync_names(changes: list[NameChange], directory: Directory) -> list[NameChange]:
    """Make every change in `directory` durable, and whatever those build on; returns the changes still unsynced."""
    wanted: set[tuple[int, str]] = set()
    due: list[NameChange] = []
    later: list[NameChange] = []
    for change in reversed(changes):
        keys = change.keys()
        if keys & wanted or any(place is directory for place, _, _ in change.entries):
            wanted |= keys
            due.append(change)
        else:
            later.append(change)
    for change in reversed(due):
        change.make_durable()
    return later[::-1]


def settle_names(changes: list[NameChange], mode: Unsynced, rng: random.Random) -> None:
    """Make durable what survives of `changes`; a change that builds on a lost one is lost as well."""
    lost: set[tuple[int, str]] = set()
    for change in changes:
        survives = mode == "kept" or (mode != "lost" and rng.random() < 0.5)
        if survives and not change.keys() & lost:
            change.make_durable()
        else:
            lost |= change.keys()


def power_up(directory: Directory, mode: Unsynced, rng: random.Random) -> None:
    """Let the durable form of the tree, with what survives of unsynced writes, be the one that is seen."""
    directory.seen = dict(directory.durable)
    for name in sorted(directory.seen):
        node = directory.seen[name]
        if isinstance(node, Directory):
            power_up(node, mode, rng)
        else:
            settle_writes(node, mode, rng)
            node.seen = bytearray(node.durable)
            node.linked = True


def count_names(root: Directory) -> None:
    """Let every file know how many names lead to it now."""
    found = list(files_below(root))
    for file in found:
        file.names = 0
    for file in found:
        file.names += 1


def files_below(directory: Directory) -> Iterator[File]:
    """Every file that a name leads to now."""
    for node in directory.seen.values():
        if isinstance(node, Directory):
            yield from files_below(node)
        else:
            yield node


class TreeCopy:
    """A copy of every file and directory that either form of the tree, or an unsynced change of it, leads to."""

    def __init__(self, root: Directory, changes: list[NameChange]) -> None:
        self._copies: dict[int, Node] = {}
        self.root = self._directory(root)
        self.changes = [NameChange(tuple(self._entry(*entry) for entry in change.entries)) for change in changes]

    def _entry(self, place: Directory, name: str, node: Node | None) -> tuple[Directory, str, Node | None]:
        return self._directory(place), name, None if node is None else self._node(node)

    def _node(self, node: Node) -> Node:
        return self._directory(node) if isinstance(node, Directory) else self._file(node)

    def _directory(self, node: Directory) -> Directory:
        known = self._copies.get(id(node))
        if known is None:
            known = self._copies[id(node)] = Directory()
            known.seen = {name: self._node(below) for name, below in node.seen.items()}
            known.durable = {name: self._node(below) for name, below in node.durable.items()}
        assert isinstance(known, Directory)
        return known

    def _file(self, node: File) -> File:
        known = self._copies.get(id(node))
        if known is None:
            known = File(bytearray(node.seen), bytearray(node.durable), list(node.unsynced), node.names, node.linked)
            self._copies[id(node)] = known
        assert isinstance(known, File)
        return known
