"""What Spark looks for by this module's name: installing BraidMQ is enough for `spark.read.format("braid")`."""

from braidmq.spark.source import BraidDataSource as DefaultSource

__all__ = ["DefaultSource"]
