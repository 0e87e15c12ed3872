"""A folder of Parquet files, exactly once without a table format.

Executors write below `_braid/`, where readers do not look. Then the driver writes down, in one file, which of them belong to the
batch and where they go: from there on the batch is decided. Then it moves them into place. A crash before the decision leaves
nothing that is read; after it, the moves are finished when the batch comes again. A reader in between may see some of the files of
a batch before the others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame

from braidmq.spark.pipeline.definition import TableSink
from braidmq.spark.pipeline.sinks.files import file_system, write_files
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, never, with_partitions, writer_name


class ParquetSink:
    def __init__(self, definition: TableSink, path: str) -> None:
        self._definition = definition
        self._path = path
        self.label = f"table:{definition.path}"

    def write(self, frame: DataFrame, batch: Batch) -> int | None:
        from pyarrow import fs

        system, root = file_system(self._path)
        base = f"{root}/_braid/{writer_name(batch, self.label)}"
        decision = f"{base}/{batch.number:020d}.json"
        staging = f"{base}/{batch.number:020d}"
        if system.get_file_info(decision).type == fs.FileType.File:
            with system.open_input_stream(decision) as stream:
                self._move(json.loads(stream.read())["files"], staging)
            return None
        if system.get_file_info(staging).type == fs.FileType.Directory:
            system.delete_dir(staging)
        frame = with_partitions(frame, self._definition.partition_by, self.label)
        scheme = self._path.split("://")[0] + "://" if "://" in self._path else ""
        files = write_files(frame, scheme + staging, self._definition.partition_by, f"part-{batch.number:010d}")
        names = [each.path for each in files]
        system.create_dir(base, recursive=True)
        with system.open_output_stream(decision + ".new") as stream:
            stream.write(json.dumps({"files": names}).encode())
        system.move(decision + ".new", decision)
        self._move(names, staging)
        return sum(each.rows for each in files)

    def _move(self, names: Sequence[str], staging: str) -> None:
        """Put files into place that are not there yet."""
        from pyarrow import fs

        system, root = file_system(self._path)
        for name in names:
            if system.get_file_info(f"{staging}/{name}").type == fs.FileType.File:
                system.create_dir(f"{root}/{name}".rpartition("/")[0], recursive=True)
                system.move(f"{staging}/{name}", f"{root}/{name}")
        if system.get_file_info(staging).type == fs.FileType.Directory:
            system.delete_dir(staging)

    def replace(self, frame: DataFrame, batch: Batch, replacing: Replacing) -> int | None:
        raise never(self.label, self.refuses(()))

    def refuses(self, columns: Sequence[str]) -> str:
        return f"{self.label} is a folder of Parquet files, where no row can be replaced; `format: delta` can"
