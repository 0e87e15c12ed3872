"""A Spark session that is ready for topics.

`spark.read.format("braid")` works in any session of a Python that has BraidMQ installed. What this adds is what Spark does not do
by itself: it finds Java, lets workers run on the Python that asks (Spark would take whatever `python3` is on the PATH), turns on
Arrow, and sets the session to UTC so that timestamps mean the same everywhere. Everything can be overridden by `config`.

What it leaves off is the filter pushdown of Python data sources (`spark.sql.python.filterPushdown.enabled`). Spark 4.3 keeps the
filters of one query for the next one over the same DataFrame: after `df.where("offset < 3").count()`, `df.count()` is 3, whatever
the data source says. Nobody should get a wrong count for the sake of a faster one; who uses a DataFrame once can turn it on.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.spark.home import light_home
from braidmq.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What sessions of every kind get. Spark Connect takes these too: none of them has to be known before the server starts."""

ONE_MACHINE: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
"""What `local[...]` gets on top: no web server that nobody asked for, no port that others reach, few shuffle files."""


def session(
    app_name: str = "braid",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on `master` (`local[*]` where neither is named), or on the Spark Connect server `remote`, ready for `braid`.

    `config` are settings of Spark; they win over ours. As ever with Spark, a session that exists already in this process is
    returned as it is, with the settings that can still be changed.
    """
    if master is not None and remote is not None:
        raise BraidError("INVALID_ARGUMENT", reason="a session has a master or a remote, not both")
    if importlib.util.find_spec("pyspark") is None:
        raise BraidError("SPARK_UNAVAILABLE", package="pyspark")
    # A server elsewhere has its own Java and Python; `local[...]` as a remote starts one here.
    elsewhere = remote is not None and remote.startswith("sc://")
    if not elsewhere:
        use_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        home = light_home(os.environ) if _is_here(remote or master or "local[*]") else None
        if home is not None and os.environ["PYSPARK_PYTHON"] == sys.executable:
            os.environ.setdefault("SPARK_HOME", home)

    from pyspark.sql import SparkSession

    settings = dict(SETTINGS)
    if remote is not None:
        builder = SparkSession.builder.remote(remote)
    else:
        master = master or "local[*]"
        builder = SparkSession.builder.master(master)
    if (remote or master or "").startswith("local["):
        settings |= ONE_MACHINE
    settings |= config or {}
    for key, value in settings.items():
        builder = builder.config(key, value)
    # Spark finds the data source itself, by the name of the module `pyspark_braid`: it is installed wherever this is.
    return builder.appName(app_name).getOrCreate()


def _is_here(place: str) -> bool:
    """Whether all of Spark runs on this machine, with this Python."""
    return place == "local" or place.startswith(("local[", "local-cluster["))
