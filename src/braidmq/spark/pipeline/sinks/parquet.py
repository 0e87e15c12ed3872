"""A folder of Parquet files, exactly once without a table format.

Executors write below `_braid/`, where readers do not look, each try of a batch in a folder of its own. Then the driver writes down,
in one file, which of them belong to the batch and where they go: from there on the batch is decided. Then it moves them into place.
A crash before the decision leaves nothing that is read; after it, the moves are finished when the batch comes again. A reader in
between may see some of the files of a batch before the others.

Two drivers may be at the same batch, where one takes over from another that still runs. The first to decide wins, and the other
finishes what it decided. Batches of a writer follow one another, so a decision stands for all batches before it: those that are
older are cleaned up, and a driver that comes too late with one of them finds that it was decided.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from pyspark.sql import DataFrame

from braidmq.base.errors import BraidError
from braidmq.spark.pipeline.definition import TableSink
from braidmq.spark.pipeline.sinks.files import file_system, write_files
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, never, with_partitions, writer_name

logger = logging.getLogger("braidmq.pipeline")

_OURS: Final = re.compile(r"(\d{20})(?:-[0-9a-f]+)?(\.json(?:\.\w+)?)?")
"""Names of folders of tries, of decisions, and of what stands beside a decision: that it is being written, or that it was done."""
_KEPT: Final = 2
"""Decisions that stay: one would do, if nobody ever looked just when it makes room for the next."""


class ParquetSink:
    def __init__(self, definition: TableSink, path: str) -> None:
        self._definition = definition
        self._path = path
        self.label = f"table:{definition.path}"

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        system, root = file_system(self._path)
        attempts = _Attempts(system, root, f"{root}/_braid/{writer_name(batch, self.label)}")
        if attempts.is_decided(batch.number):
            return None
        attempt = f"{batch.number:020d}-{uuid4().hex}"
        frame = with_partitions(frame, self._definition.partition_by, self.label)
        scheme = self._path.split("://")[0] + "://" if "://" in self._path else ""
        folder = f"{scheme}{attempts.base}/{attempt}"
        files = write_files(frame, folder, self._definition.partition_by, f"part-{batch.number:010d}")
        mine = attempts.decide(batch.number, attempt, [each.path for each in files])
        return sum(each.rows for each in files) if mine else None

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        raise never(self.label, self.refuses(()))

    def refuses(self, columns: Sequence[str]) -> str:
        return f"{self.label} is a folder of Parquet files, where no row can be replaced; `format: delta` can"


class _Found(NamedTuple):
    name: str
    number: int
    is_decision: bool
    is_folder: bool


class _Attempts:
    """What one writer keeps beside its files: the tries of batches, and which of them counts."""

    def __init__(self, system: Any, root: str, base: str) -> None:
        self._system = system
        self._root = root
        self.base = base

    def is_decided(self, number: int) -> bool:
        """Whether the batch, or one that came after it, is in the table; what of that was interrupted is finished."""
        last = max((each.number for each in self._list() if each.is_decision), default=-1)
        if last == number:
            self._finish(number)
        return last >= number

    def decide(self, number: int, attempt: str, files: Sequence[str]) -> bool:
        """Have this try be the one that counts, and move its files into place; False where another one counts."""
        document = {"files": list(files), "attempt": attempt}
        mine = not self._exists(self._decision(number)) and self._write_first(number, json.dumps(document).encode())
        if mine and any(each.is_decision and each.number > number for each in self._list()):
            # Batches after it are in the table, so it is too: this decision came after its own had been cleaned up.
            self._system.delete_file(self._decision(number))
            mine = False
        if not self.is_decided(number):
            raise BraidError("INTERNAL", reason=f"the decision on batch {number} in {self.base} is gone")
        self._clean(number)
        return mine

    def _write_first(self, number: int, document: bytes) -> bool:
        """Write a decision, whole or not at all, unless there is one."""
        from pyarrow import fs

        decision, new = self._decision(number), f"{self._decision(number)}.{uuid4().hex}"
        self._system.create_dir(self.base, recursive=True)
        with self._system.open_output_stream(new) as stream:
            stream.write(document)
        if isinstance(self._system, fs.LocalFileSystem):
            try:
                os.link(new, decision)
                os.unlink(new)
                return True
            except FileExistsError:
                os.unlink(new)
                return False
            except OSError:
                logger.debug("%s knows no links", self.base)
        # Here the last of two that are at it in the same moment wins, and the other one reads so.
        self._system.move(new, decision)
        return self._read(decision) == document

    def _finish(self, number: int) -> None:
        """Move the files of a decision into place, as far as they are not there."""
        decision = self._decision(number)
        document = json.loads(self._read(decision))
        folder = f"{self.base}/{document.get('attempt', f'{number:020d}')}"
        if self._exists(f"{decision}.done"):
            return
        for name in document["files"]:
            self._place(f"{folder}/{name}", f"{self._root}/{name}")
        with self._system.open_output_stream(f"{decision}.done"):
            pass

    def _place(self, staged: str, target: str) -> None:
        if self._exists(target):
            return
        self._system.create_dir(target.rpartition("/")[0], recursive=True)
        try:
            self._system.move(staged, target)
        except OSError as fault:
            # Somebody else may be finishing the same decision.
            if not self._exists(target):
                raise BraidError("INTERNAL", reason=f"{staged} is neither there nor in its place: {fault}") from fault

    def _clean(self, number: int) -> None:
        """Let go of what batches up to this one have left, but not of the last decision."""
        for each in self._list():
            try:
                if each.is_folder and each.number <= number:
                    self._system.delete_dir(f"{self.base}/{each.name}")
                elif not each.is_folder and each.number <= number - _KEPT:
                    self._system.delete_file(f"{self.base}/{each.name}")
            except OSError as fault:
                # Somebody else cleans up too, or still writes there: the next batch looks again.
                logger.debug("%s could not be removed: %s", each.name, fault)

    def _decision(self, number: int) -> str:
        return f"{self.base}/{number:020d}.json"

    def _exists(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self._system.get_file_info(path).type == fs.FileType.File)

    def _read(self, path: str) -> bytes:
        with self._system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _list(self) -> list[_Found]:
        from pyarrow import fs

        found = []
        for each in self._system.get_file_info(fs.FileSelector(self.base, allow_not_found=True)):
            ours = _OURS.fullmatch(each.base_name)
            if ours is not None:
                is_folder = each.type == fs.FileType.Directory
                found.append(_Found(each.base_name, int(ours[1]), ours[2] == ".json" and not is_folder, is_folder))
        return found
