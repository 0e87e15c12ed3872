"""What commands print: tables for people, JSON for programs, and faults in one form.

Results go to standard output, everything about them (faults, hints, warnings, summaries) to standard error, so that a pipe carries
results only.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterable, Sequence

from braidmq.base.errors import BraidError
from braidmq.cli.terminal import paint


def print_json(document: object) -> None:
    """One JSON document, indented for whoever reads it."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    kept = list(rows)
    lines = [[f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in kept]
    numeric = [bool(kept) and all(isinstance(row[i], int) for row in kept) for i in range(len(headings))]
    widths = [max(len(line[i]) for line in [list(headings), *lines]) for i in range(len(headings))]

    def join(line: Sequence[str]) -> str:
        placed = (
            text.rjust(width) if right else text.ljust(width) for text, width, right in zip(line, widths, numeric, strict=True)
        )
        return "  ".join(placed).rstrip()

    print(paint(join(headings), "bold", sys.stdout))
    for line in lines:
        print(join(line))


def printable(text: str) -> str:
    """`text` with control characters escaped, so that a topic name cannot drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def warn(text: str) -> None:
    print(f"{paint('warning', 'yellow', sys.stderr)}: {text}", file=sys.stderr)


def note(text: str) -> None:
    """A line about the results, for people."""
    print(text, file=sys.stderr)


def print_fault(fault: BraidError | OSError) -> None:
    """`error: CODE: text`, and what to do about it where the table knows."""
    label = paint("error", "red", sys.stderr)
    if isinstance(fault, BraidError):
        print(f"{label}: {printable(str(fault))}", file=sys.stderr)
        print(f"{paint('hint', 'cyan', sys.stderr)}: {fault.hint}", file=sys.stderr)
        return
    code = errno.errorcode.get(fault.errno or 0, type(fault).__name__)
    text = fault.strerror or str(fault)
    where = f": {fault.filename}" if fault.filename is not None else ""
    print(f"{label}: {code}: {printable(text + where)}", file=sys.stderr)
