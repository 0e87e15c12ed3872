"""Apache Spark on topics: the data source `braid`, and what is built on it.

Needs the extra `spark`. Nothing here is imported by the rest of BraidMQ.
"""
