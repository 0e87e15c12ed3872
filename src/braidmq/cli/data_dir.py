"""Reads a data directory without a broker: which topics it has, and where the files of each partition are.

A broker keeps topics in directories named after numbers; the names are in its metadata journal. This reads the newest whole
snapshot and the commands after it, as the broker does at its start, but changes nothing. The journal of a crashed broker may
end in a torn batch, and that of a running one in a batch being written: what is whole before it counts.

The journal of an encrypted directory needs the broker's keys, from the same variables. Without them partitions are known by their
directories only, which is enough to check them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from braidmq import hot
from braidmq.base.disk import Buffer
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import is_encrypted, load_keys
from braidmq.broker.machines import METADATA, TOPICS, MachineGroup
from braidmq.broker.topics import TopicTable
from braidmq.cli.log_walk import Batch, mapped, segment_paths, walk
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """One partition's directory, and the name under which people know it."""

    name: str
    """`topic/partition`, or the path where no topic claims the directory."""
    directory: str


def find_partitions(path: str) -> list[PartitionPlace]:
    """The partitions that `path` means: a data directory, `DATA_DIR/topic`, `DATA_DIR/topic/partition`, or one real directory."""
    if os.path.isdir(path):
        if os.path.exists(os.path.join(path, "FORMAT")):
            return _all_partitions(path)
        if segment_paths(path):
            return [PartitionPlace(path, path)]
    data_dir, rest = _split(path)
    if data_dir is None:
        raise BraidError("DATA_DIR_INVALID", path=path, reason="there is no broker's data in it")
    return _named(data_dir, rest)


def data_dir_of(path: str) -> str | None:
    """The data directory that holds `path`, or None when it is in none."""
    return path if os.path.exists(os.path.join(path, "FORMAT")) else _split(path)[0]


def _split(path: str) -> tuple[str | None, str]:
    """The data directory at the beginning of `path`, and what follows it. A topic's name may contain slashes."""
    parts = os.path.normpath(path).split(os.sep)
    for end in range(len(parts) - 1, 0, -1):
        head = os.sep.join(parts[:end]) or os.sep
        if os.path.exists(os.path.join(head, "FORMAT")):
            return head, "/".join(parts[end:])
    if os.path.exists("FORMAT"):
        return ".", "/".join(parts)
    return None, path


def _all_partitions(data_dir: str) -> list[PartitionPlace]:
    places = []
    internal = os.path.join(data_dir, "internal")
    if os.path.isdir(internal):
        places += [PartitionPlace(f"__{name}/0", os.path.join(internal, name)) for name in sorted(os.listdir(internal))]
    try:
        table = read_topics(data_dir)
    except BraidError as fault:
        if fault.code != "ENCRYPTION_KEY_MISSING":
            raise
        table = TopicTable()
    for topic in table.all():
        places += _partitions_of(data_dir, topic.name, topic.id)
    topics = os.path.join(data_dir, "topics")
    for name in sorted(os.listdir(topics), key=lambda name: (len(name), name)) if os.path.isdir(topics) else ():
        if not name.isdigit() or table.by_id(int(name)) is None:
            directory = os.path.join(topics, name)
            places += [PartitionPlace(os.path.join(directory, part), os.path.join(directory, part)) for part in _numbers(directory)]
    return places


def _partitions_of(data_dir: str, topic: str, topic_id: int) -> list[PartitionPlace]:
    directory = os.path.join(data_dir, "topics", str(topic_id))
    return [PartitionPlace(f"{topic}/{part}", os.path.join(directory, part)) for part in _numbers(directory)]


def _numbers(directory: str) -> list[str]:
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [str(number) for number in sorted(int(name) for name in names if name.isdigit())]


def _named(data_dir: str, rest: str) -> list[PartitionPlace]:
    """The partitions of `topic` or `topic/partition` in a data directory."""
    table = read_topics(data_dir)
    topic = table.get(rest)
    if topic is not None:
        return _partitions_of(data_dir, topic.name, topic.id)
    name, _, partition = rest.rpartition("/")
    topic = table.get(name)
    if topic is None:
        raise BraidError("TOPIC_NOT_FOUND", topic=rest)
    found = [place for place in _partitions_of(data_dir, topic.name, topic.id) if place.name == rest]
    if found:
        return found
    if partition.isdigit() and int(partition) < topic.partitions:
        # A partition has a directory from its first record on.
        return []
    raise BraidError("PARTITION_NOT_FOUND", partition=partition)


def read_topics(data_dir: str) -> TopicTable:
    """The topics of a data directory, as its journal says."""
    table = TopicTable()
    directory = os.path.join(data_dir, "internal", "metadata")
    if not os.path.isdir(directory):
        return table
    codec = stored_form(data_dir)
    machines = MachineGroup({TOPICS: table}, METADATA)
    offset = _restore_snapshot(directory, machines, codec)
    for path in segment_paths(directory):
        view = mapped(path)
        for item in walk(view):
            if not isinstance(item, Batch):
                break
            if item.header.next_offset > offset:
                data = plain_batch(codec, path, view, item)
                commands, offset = hot.decode_records(data, offset, item.header.records, _value)
                _apply(machines, commands)
    return table


def stored_form(data_dir: str | None) -> BatchCodec:
    """What reads the batches of a data directory: with the keys in the environment, if something there is encrypted."""
    disk = RealDisk()
    if data_dir is None or not is_encrypted(disk, data_dir):
        return BatchCodec()
    return BatchCodec("none", load_keys(os.environ, os.environ.get("BRAID_ENCRYPTION_KEY_FILE") or None, disk))


def plain_batch(codec: BatchCodec, path: str, view: memoryview, batch: Batch) -> Buffer:
    """The batch, neither compressed nor encrypted."""
    stored = view[batch.position : batch.position + batch.header.length]
    return codec.decode(stored, path, batch.position) if batch.header.flags & layout.FLAGS_OPAQUE else stored


def _value(_offset: int, _timestamp: int, _key: bytes | None, value: bytes, _attrs: bytes) -> bytes:
    return value


def _apply(machines: MachineGroup, commands: list[bytes]) -> None:
    for command in commands:
        try:
            machines.apply(json.loads(command.decode("utf-8", "surrogatepass")))
        except BraidError:
            # Refused commands are in the journal too, and are refused again.
            continue


def _restore_snapshot(directory: str, machines: MachineGroup, codec: BatchCodec) -> int:
    """Restore the newest whole snapshot; returns the offset of the first command after it."""
    for name in sorted(os.listdir(directory), reverse=True):
        if name.startswith("snapshot-") and name.endswith(".json"):
            with open(os.path.join(directory, name), "rb") as stream:
                head, _, body = stream.read().partition(b"\n")
            if head == b"%08x" % hot.crc32c(body):
                body = codec.unseal(body, name, os.path.join(directory, name))
                document: dict[str, Any] = json.loads(body.decode("utf-8", "surrogatepass"))
                machines.restore(document["state"])
                return int(document["offset"])
    return 0
