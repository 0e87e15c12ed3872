"""CRC-32C for what has one form for both twins: compiled where the hot path is, else the package's.

The package is not loaded where nobody needs it: it takes longer to import than most of the broker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("BRAID_PURE") == "1":
    from braidmq.hot.pure_batch import crc32c
else:
    try:
        from braidmq.hot._native import crc32c
    except ImportError:
        from braidmq.hot.pure_batch import crc32c

__all__ = ["crc32c"]
