"""Apache Spark on topics: sessions, the data source `braid`, and what is built on it.

Needs the extra `spark`. `import braidmq.spark` alone imports neither PySpark nor Java: what needs them imports them when it is
called, so that the command line and the installer can ask about Spark on machines that have none.
"""

from braidmq.spark.products.archive import history
from braidmq.spark.session import session

__all__ = ["history", "session"]
