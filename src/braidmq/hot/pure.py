"""What the hot loops do, in plain Python: the description of the compiled twin, and its stand-in without a compiler.

Nothing here trusts a length it read. Small numbers say why a loop stopped; their names are in `braidmq.hot`.
"""

from braidmq.hot.pure_avro import avro_columns
from braidmq.hot.pure_batch import crc32c, decode_records, encode_batch, fnv1a, shape_fault, stamp_batch
from braidmq.hot.pure_blipmq import encode_messages, parse_publish
from braidmq.hot.pure_columns import encode_columns, gather_columns, hash_cells
from braidmq.hot.pure_fq import SWITCH, encode_deliveries, parse_messages
from braidmq.hot.pure_json import json_columns
from braidmq.hot.pure_produce import FULL, NEED_MORE, OTHER_FRAME, Accumulator, ByteBuffer, Route, RouteTable, parse_produce
from braidmq.hot.pure_walk import (
    COLLECTED,
    DAMAGED,
    EXPIRED,
    LIMITED,
    SPECIAL,
    collect_rows,
    reorder_rows,
    scan_batches,
    span_batches,
    verify_batches,
)

__all__ = [
    "COLLECTED", "DAMAGED", "EXPIRED", "FULL", "LIMITED", "NEED_MORE", "OTHER_FRAME", "SPECIAL", "SWITCH", "Accumulator",
    "ByteBuffer", "Route", "RouteTable", "avro_columns", "collect_rows", "crc32c", "decode_records", "encode_batch",
    "encode_columns", "encode_deliveries", "encode_messages", "fnv1a", "gather_columns", "hash_cells", "json_columns",
    "parse_messages", "parse_produce", "parse_publish", "reorder_rows", "scan_batches", "shape_fault", "span_batches",
    "stamp_batch", "verify_batches",
]  # fmt: skip
