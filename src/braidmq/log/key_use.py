"""Which encryption keys the files of a data directory still need.

Headers of batches are readable without any key, so this needs none. It is asked when a key was left out: what nothing needs may go,
and a key that something needs must come back before the broker starts. Where a file cannot be walked to its end the answer
is that it may need every key: leaving a key out must never be what makes data unreadable.
"""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.base import limits
from braidmq.base.disk import Disk
from braidmq.hot import layout
from braidmq.log.batch_codec import sealed_with
from braidmq.log.segment import LOG_ENDING

SEALED_ENDING = ".json"


def keys_in_use(disk: Disk, data_dir: str, key_ids: set[int]) -> set[int]:
    """Those of `key_ids` that something in the data directory was encrypted with. Reads every header: may take long."""
    used: set[int] = set()
    for directory in partition_directories(disk, data_dir):
        for name in disk.list_directory(directory):
            path = f"{directory}/{name}"
            if name.endswith(LOG_ENDING):
                used |= _keys_of_segment(disk, path, key_ids)
            elif name.endswith(SEALED_ENDING):
                key_id = sealed_with(disk.read_file(path).partition(b"\n")[2])
                used |= key_ids & {key_id}
        if used == key_ids:
            break
    return used


def partition_directories(disk: Disk, data_dir: str) -> Iterator[str]:
    """Every directory that may hold segments."""
    for name in disk.list_directory(f"{data_dir}/internal"):
        yield f"{data_dir}/internal/{name}"
    for topic in disk.list_directory(f"{data_dir}/topics"):
        for partition in disk.list_directory(f"{data_dir}/topics/{topic}"):
            yield f"{data_dir}/topics/{topic}/{partition}"


def _keys_of_segment(disk: Disk, path: str, key_ids: set[int]) -> set[int]:
    size = disk.file_size(path)
    used: set[int] = set()
    if size == 0:
        return used
    view = disk.map_file(path, size).view
    at = 0
    while at < size:
        if size - at < layout.HEADER_BYTES:
            return key_ids
        head = layout.read_header(view, at)
        if head.magic != layout.MAGIC or not layout.HEADER_BYTES <= head.length <= limits.BATCH_BYTES_MAX:
            return key_ids
        if head.flags & layout.FLAG_ENCRYPTED and head.key_id in key_ids:
            used.add(head.key_id)
        at += head.length
    return used
