"""Finding a peer's program, or the reason why there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from processes import BUILD

INSTALLED_HERE: Final = BUILD / "peers" / "bin"
"""Where `bench/install-peers` puts what comes as a Python package."""


class PeerMissing(Exception):
    """The peer is not installed, or too old for what is asked; the text says so."""


def find(name: str, hint: str) -> Path:
    """The program: what the script installed, then the environment's own, then the system's."""
    # Debian keeps servers in sbin, which is not on every user's path.
    places = [str(INSTALLED_HERE), str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise PeerMissing(f"{name} is not installed ({hint})")
    return Path(found)


def version_of(program: Path, *words: str) -> str:
    """The first line a program says about itself."""
    answer = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=10, check=False)
    return (answer.stdout or answer.stderr).strip().partition("\n")[0]
