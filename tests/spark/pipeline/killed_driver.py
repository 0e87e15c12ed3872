"""`braid pipeline run`, and beside it in the same Spark a query with an accident that ends all of it.

Words: the accident (`failing_source.py`), a file that says when the query begins, broker, source, sink, checkpoint, a file that
remembers the accident; then those of `braid pipeline run`.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from copying import copy, register_failing

from braidmq.cli.main import main


class Broker:
    def __init__(self, address: str) -> None:
        self.address = address


def die(accident: str, begin: str, server: str, source: str, sink: str, checkpoint: str, happened: str) -> None:
    from pyspark.sql import SparkSession

    while not Path(begin).exists():
        time.sleep(0.1)
    spark = SparkSession.builder.getOrCreate()
    # A session belongs to the threads that have used it, and Spark looks for registered sources in the session of the thread.
    spark.createDataFrame([], "n int")
    register_failing(spark)
    copy(spark, Broker(server), source, sink, checkpoint, f"{accident} {happened}").awaitTermination()


if __name__ == "__main__":
    threading.Thread(target=die, args=sys.argv[1:8], daemon=True).start()
    sys.exit(main(["pipeline", "run", *sys.argv[8:]]))
