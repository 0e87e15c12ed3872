"""Ctrl-C at a good moment.

A loop that prints and then notes what it printed must not be stopped between the two. Inside `with Interrupts() as
interrupts:` the first Ctrl-C is raised only where the loop waits (`interrupts.waiting = True`) or asks (`check`); a second one is
raised at once, for when the loop itself is stuck. Python's own behaviour is back afterwards.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    def __init__(self) -> None:
        self.waiting = False
        """Whether Ctrl-C may be raised right here."""
        self._asked = False
        self._previous: Any = None

    def __enter__(self) -> Interrupts:
        # Only the main thread gets signals; elsewhere there is nothing to hold back.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.waiting or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def check(self) -> None:
        """Raise the Ctrl-C that came meanwhile."""
        if self._asked:
            raise KeyboardInterrupt
