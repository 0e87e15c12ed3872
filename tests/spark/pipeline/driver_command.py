"""`braid pipeline run` in a process of its own, which will be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

CONFIG = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.log.level": "ERROR",
}


class DriverCommand:
    """`braid pipeline run` with a query from `in` to `out` beside it, which has an accident (`killed_driver.py`)."""

    def __init__(
        self, file: Path, server: str, environment: dict[str, str], accident: str, source: str = "in", sink: str = "out"
    ) -> None:
        settings = [word for key, value in CONFIG.items() for word in ("--conf", f"{key}={value}")]
        words = [str(file), "--server", server, "--master", "local[4]", "--replace", *settings]
        self.log = file.with_suffix(".log")
        self._begin, self.happened, self.checkpoint = (file.with_name(name) for name in ("begin", "happened", "copied"))
        query = [accident, self._begin, server, source, sink, self.checkpoint, self.happened]
        here = Path(__file__).parent
        paths = [str(path) for path in (here.parent, here.parents[1], here.parents[2] / "src")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, here / "killed_driver.py", *query, *words], cwd=file.parent,
                env=environment | {"PYTHONPATH": os.pathsep.join(paths)}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def begin(self) -> None:
        """Have the query begin that has the accident."""
        self._begin.touch()

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """All of it, as the loss of a machine would: the driver, its JVM and its workers."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
