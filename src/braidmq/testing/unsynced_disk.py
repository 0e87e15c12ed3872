"""The operating system's disk without waiting for it: files are as real, and would not survive the loss of power.

A test directory need not, and a sync takes longer than everything else that a broker does at its start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from braidmq.base.disk import AppendFile
from braidmq.base.disk_real import RealAppendFile, RealDisk


class _UnsyncedFile(RealAppendFile):
    __slots__ = ()

    def sync(self) -> None:
        self._clean_to = self._size


class UnsyncedDisk(RealDisk):
    def open_append(self, path: str) -> RealAppendFile:
        return _UnsyncedFile(self, path)

    def sync_files(self, files: Iterable[AppendFile]) -> None:
        for file in files:
            file.sync()

    def sync_directory(self, path: str) -> None:
        """Nothing waits, but a directory that is not there is as missing as ever."""
        with os.scandir(path):
            pass

    def replace_file(self, path: str, data: bytes) -> None:
        self.write_file(path, data)
