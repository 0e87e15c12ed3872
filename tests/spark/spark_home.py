"""A SPARK_HOME that starts Python workers faster: all of PySpark's own, except `pyspark.zip`.

Spark puts that archive in front of the installed package, and Python keeps no compiled form of what it reads from an archive: every
worker would compile PySpark anew. Without it the workers import the same version from where it is installed.
"""

from __future__ import annotations

from pathlib import Path

import pyspark


def overlay_spark_home(directory: Path) -> Path:
    """Make the overlay in `directory`."""
    real = Path(pyspark.__file__).parent
    (directory / "python/lib").mkdir(parents=True)
    for name in ("bin", "sbin", "jars"):
        (directory / name).symlink_to(real / name)
    (py4j,) = (real / "python/lib").glob("py4j-*.zip")
    (directory / "python/lib" / py4j.name).symlink_to(py4j)
    return directory
