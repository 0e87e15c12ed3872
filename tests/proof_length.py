"""How long a proof runs: short in `make test`, at full length in `make test-long`."""

from __future__ import annotations

import os

LONG = os.environ.get("BRAID_TEST_LONG") == "1"


def length(short: int, full: int) -> int:
    """`short`, or `full` where somebody has the time."""
    return full if LONG else short
