"""BraidMQ for Apache Spark: topics as tables and streams, and pipelines made of them."""
