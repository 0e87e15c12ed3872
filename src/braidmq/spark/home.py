"""A SPARK_HOME whose Python workers start faster: all of PySpark's own, except `pyspark.zip`.

Spark puts that archive in front of the installed package, and Python keeps no compiled form of what it reads from an archive: every
worker, and there is one for each plan of a Python data source, would compile PySpark anew. Without it workers import the same
version from where it is installed. That is right on one machine, where workers are the Python that asks; clusters get PySpark as
ever.

The directory holds links only. It lies among the user's caches, under a name that changes with the installation it is for.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_LINKED: Final = ("bin", "sbin", "jars")


def light_home(environ: Mapping[str, str]) -> str | None:
    """Where such a home is; None where none can be made, and Spark's own has to do."""
    import pyspark

    real = Path(pyspark.__file__).parent
    name = f"spark-{pyspark.__version__}-{hashlib.sha256(str(real).encode()).hexdigest()[:16]}"
    home = Path(caches(environ), name)
    try:
        if not home.is_dir():
            _make(real, home)
    except OSError:
        return None
    return str(home)


def caches(environ: Mapping[str, str]) -> Path:
    """Our folder among the user's caches."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base, "braidmq")


def _make(real: Path, home: Path) -> None:
    """Make it whole, then give it its name: another process may be doing the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=home.parent, prefix="new-"))
    (new / "python/lib").mkdir(parents=True)
    for name in _LINKED:
        (new / name).symlink_to(real / name)
    for archive in (real / "python/lib").glob("py4j-*.zip"):
        (new / "python/lib" / archive.name).symlink_to(archive)
    try:
        os.rename(new, home)
    except OSError:
        if not home.is_dir():
            raise
        _remove(new)


def _remove(folder: Path) -> None:
    """Take a home apart that another process was faster with."""
    for name in _LINKED:
        (folder / name).unlink()
    for archive in (folder / "python/lib").iterdir():
        archive.unlink()
    for each in (folder / "python/lib", folder / "python", folder):
        each.rmdir()
