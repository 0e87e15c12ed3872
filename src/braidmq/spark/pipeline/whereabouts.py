"""Where a run runs."""

from __future__ import annotations

import getpass
import os
import socket

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def describe_place(spark: SparkSession) -> str:
    """Where a run runs, for people."""
    try:
        master = spark.conf.get("spark.master") or "Spark Connect"
    except PySparkException:
        master = "Spark Connect"
    return f"{getpass.getuser()}@{socket.gethostname()} pid {os.getpid()} on {master}"
