"""Programs that `braid dev` runs beside itself, each with its output in a file.

They live in sessions of their own: Ctrl-C reaches `braid dev` alone, which then ends them in order, the pipeline before its
broker. Should `braid dev` itself be killed, the kernel ends them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_TAIL_BYTES: Final = 4096


class Child:
    """One program: this Python with `-m braidmq` and further words."""

    def __init__(self, words: Sequence[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self.log = log
        libc = ctypes.CDLL(None, use_errno=True)

        def dies_with_parent() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "braidmq", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(os.environ if environ is None else environ),
                start_new_session=True,
                preexec_fn=dies_with_parent,  # noqa: PLW1509 (children start before any thread does)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The end of what it printed."""
        with self.log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()

    def stop(self, patience_s: float) -> int:
        """End it as an operator would; what does not end in time is killed, with all that it started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()
