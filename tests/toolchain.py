"""What the machine that runs the tests can build."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def compiler_exists() -> bool:
    """Whether the install could have built the compiled hot path: a C compiler and Python's headers."""
    compiler = os.environ.get("CC", sysconfig.get_config_var("CC") or "cc").split()[0]
    return shutil.which(compiler) is not None and Path(sysconfig.get_path("include"), "Python.h").exists()
