"""What `braid` does differently on a terminal: colour, and a progress line on standard error.

Colour only where a person sees it: the stream is a terminal, `NO_COLOR` is unset or empty, and `TERM` is not `dumb`. The
progress line rewrites itself at most ten times a second and leaves nothing behind in a log file, because off a terminal it
is never written.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final, TextIO

REDRAW_SECONDS: Final = 0.1
BAR_CELLS: Final = 24

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at `stream`. A closed stream has nobody looking."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def colour_wanted(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO) -> str:
    """`text` in `style` when `stream` shows colour, else as it is."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if colour_wanted(stream) else text


class Progress:
    """A line that says how far a long command is: count, rate and, when the total is known, a bar."""

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = is_terminal(self._stream)
        self._what = what
        self._total = total
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False

    def update(self, done: int) -> None:
        """Redraw, unless the last drawing is too fresh."""
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = now
            self._draw(done, now - self._started)

    def close(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _draw(self, done: int, elapsed: float) -> None:
        rate = done / elapsed if elapsed > 0 else 0.0
        line = f"{done:,} {self._what}  {rate:,.0f}/s"
        if self._total:
            filled = min(BAR_CELLS, BAR_CELLS * done // self._total)
            line = f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}] {done * 100 // self._total:3d}%  {line}"
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
        self._drawn = True
