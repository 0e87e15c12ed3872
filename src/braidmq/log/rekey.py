"""Encrypting anew, with the newest key, what older keys encrypted: after it they can be left out.

Only the key changes. Every batch keeps its length and its place, so indexes, checkpoints and the mark of an orderly stop stay
true. What is not encrypted stays as it is, and so does what is damaged: a key that damage may need is not let go.

Faults: a segment is written beside the old one, synced, and takes its name in one step. A crash at any point leaves each
segment whole, under its old key or the new one; what was begun is removed by the next run.
"""

from __future__ import annotations

from typing import Final

from braidmq import hot
from braidmq.base import limits
from braidmq.base.disk import Buffer, Disk
from braidmq.base.key_ring import KeyRing
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec, sealed_with
from braidmq.log.key_use import SEALED_ENDING, partition_directories
from braidmq.log.segment import LOG_ENDING

_UNFINISHED_ENDING: Final = ".rekey"
_WRITE_BYTES: Final = 4 * limits.MIB


def rekey(disk: Disk, data_dir: str, keys: KeyRing) -> list[str]:
    """Encrypt everything with the newest of `keys`; returns the files that were written anew.

    The directory must be locked, and the newest key proven (`open_keys`).
    """
    codec = BatchCodec("none", keys)
    changed = []
    for directory in partition_directories(disk, data_dir):
        for name in disk.list_directory(directory):
            path = f"{directory}/{name}"
            if name.endswith(_UNFINISHED_ENDING):
                disk.remove_file(path)
            elif name.endswith(LOG_ENDING) and _rekey_segment(disk, path, codec, keys.newest_id):
                disk.sync_directory(directory)
                changed.append(path)
            elif name.endswith(SEALED_ENDING) and _rekey_sealed(disk, path, name, codec, keys.newest_id):
                changed.append(path)
    return changed


def _rekey_segment(disk: Disk, path: str, codec: BatchCodec, newest_id: int) -> bool:
    size = disk.file_size(path)
    view = disk.map_file(path, size).view if size else memoryview(b"")
    # Up to here batches can be told apart; what follows is copied as it lies.
    whole, _ = hot.verify_batches(view, 0, size)
    if not _holds_other_keys(view, whole, newest_id):
        return False
    unfinished = path + _UNFINISHED_ENDING
    disk.remove_file(unfinished)
    file = disk.open_append(unfinished)
    try:
        pending: list[Buffer] = []
        pending_bytes = at = 0
        while at < whole:
            length = layout.read_header(view, at).length
            pending.append(codec.rekeyed(view[at : at + length], path, at))
            pending_bytes += length
            at += length
            if pending_bytes >= _WRITE_BYTES:
                file.append(pending)
                pending, pending_bytes = [], 0
        file.append([*pending, view[whole:]])
        assert file.size == size, "a new key changes no length"
        file.sync()
    finally:
        file.close()
    disk.rename(unfinished, path)
    return True


def _holds_other_keys(view: memoryview, whole: int, newest_id: int) -> bool:
    at = 0
    while at < whole:
        head = layout.read_header(view, at)
        if head.flags & layout.FLAG_ENCRYPTED and head.key_id != newest_id:
            return True
        at += head.length
    return False


def _rekey_sealed(disk: Disk, path: str, name: str, codec: BatchCodec, newest_id: int) -> bool:
    checksum, _, body = disk.read_file(path).partition(b"\n")
    if sealed_with(body) in (None, newest_id) or checksum != b"%08x" % hot.crc32c(body):
        return False
    body = codec.seal(codec.unseal(body, name, path), name)
    disk.replace_file(path, b"%08x\n" % hot.crc32c(body) + body)
    return True
