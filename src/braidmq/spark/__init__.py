"""Topics as tables and streams of Apache Spark.

`import braidmq.spark` alone imports neither PySpark nor Java: what needs them imports them when it is called, so that the command
line and the installer can ask questions about Spark on machines that have none.
"""

from braidmq.spark.session import session

__all__ = ["session"]
