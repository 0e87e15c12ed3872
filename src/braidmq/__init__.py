"""BraidMQ: one durable log, three wire protocols, and Apache Spark."""

__version__ = "0.1.0"
