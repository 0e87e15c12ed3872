"""The Protocol Buffers runtime, loaded by name when it is needed: it is an extra, and it brings no types."""

from __future__ import annotations

import importlib
from typing import Any


def runtime(module: str) -> Any:
    """`google.protobuf.<module>`; an ImportError when the package is not there."""
    return importlib.import_module(f"google.protobuf.{module}")
