"""Where the rows of a batch go, each sink once however often the batch is tried.

A sink knows a batch by who writes it and its number (`Batch`), and writes down with the rows, in one step, that it has them. A
batch that it has already is passed over. So several sinks need no common transaction: after a crash in between, the batch comes
again, and only those that lack it take it.
"""

from braidmq.spark.pipeline.sinks.making import make_sink
from braidmq.spark.pipeline.sinks.sink import Batch, Replacing, Sink

__all__ = ["Batch", "Replacing", "Sink", "make_sink"]
