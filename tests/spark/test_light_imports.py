"""A new Python worker of Spark imports only what reading needs: each of these takes a tenth of a second of CPU or more."""

from __future__ import annotations

import subprocess
import sys

from braidmq import hot

_PROGRAM = """
import sys
import pyspark_braid
from braidmq import hot
from braidmq.spark.columns import Shaping
from braidmq.spark.decode import Decoding
from braidmq.spark.shapes import arrow_schema, record_schema

decoding = Decoding("order", "json", 1, b'{"type": "object", "properties": {"id": {"type": "integer"},"name": {"type": "string"}}}')
shaping = Shaping(arrow_schema(record_schema(decoding)), None, decoding.decoder())
written = hot.encode_batch([None, b"k"], [b'{"id": 1, "name": "a"}', b'{"id": 2}'])
(batch,), _ = shaping.batches("orders", 3, written, 0, 2)
print(*sorted({"asyncio", "pandas", "pyarrow.compute", "braidmq.client._async.client"} & set(sys.modules)))
print(batch.column("topic").to_pylist(), batch.column("partition").to_pylist(), batch.column("data").to_pylist())
"""


def test_reading_imports_neither_pandas_nor_asyncio_nor_compute_functions() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    imported, rows = done.stdout.splitlines()
    assert rows == "['orders', 'orders'] [3, 3] [{'id': 1, 'name': 'a'}, {'id': 2, 'name': None}]"
    if hot.IMPLEMENTATION == "compiled":
        assert imported == ""
