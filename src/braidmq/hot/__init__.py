"""The loops that touch every message, compiled where possible.

`pure.py` says in plain Python what each function does and serves where there is no compiler; `_native.pyx` does the same
in Cython. Importers use this package and never notice; `IMPLEMENTATION` tells which one runs. `BRAID_PURE=1` in the
environment chooses the plain one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING or os.environ.get("BRAID_PURE") == "1":
    from braidmq.hot import pure as _chosen

    _IMPLEMENTATION = "pure"
else:
    try:
        from braidmq.hot import _native as _chosen

        _IMPLEMENTATION = "compiled"
    except ImportError:
        from braidmq.hot import pure as _chosen

        _IMPLEMENTATION = "pure"

IMPLEMENTATION: Final[str] = _IMPLEMENTATION

Accumulator = _chosen.Accumulator
ByteBuffer = _chosen.ByteBuffer
Route = _chosen.Route
RouteTable = _chosen.RouteTable
avro_columns = _chosen.avro_columns
collect_rows = _chosen.collect_rows
crc32c = _chosen.crc32c
decode_records = _chosen.decode_records
encode_batch = _chosen.encode_batch
encode_columns = _chosen.encode_columns
encode_deliveries = _chosen.encode_deliveries
encode_messages = _chosen.encode_messages
fnv1a = _chosen.fnv1a
gather_columns = _chosen.gather_columns
hash_cells = _chosen.hash_cells
json_columns = _chosen.json_columns
parse_messages = _chosen.parse_messages
parse_produce = _chosen.parse_produce
parse_publish = _chosen.parse_publish
reorder_rows = _chosen.reorder_rows
scan_batches = _chosen.scan_batches
span_batches = _chosen.span_batches
stamp_batch = _chosen.stamp_batch
verify_batches = _chosen.verify_batches

NEED_MORE: Final = 0
"""`parse_produce` stopped because the last frame is not complete."""
OTHER_FRAME: Final = 1
"""It stopped at a frame for the general path."""
FULL: Final = 2
"""It stopped because a batch reached its target size: flush, then go on."""
SWITCH: Final = 3
"""`parse_messages` stopped because the next message is for another exchange: call it again."""

COLLECTED: Final = 0
"""`collect_rows` or `span_batches` took all there is."""
SPECIAL: Final = 1
"""It stopped at a batch whose rows may not be served as they lie (compressed, encrypted, control, expiring at an unknown time)."""
DAMAGED: Final = 2
"""It stopped at bytes that are no batch, or at a batch cut off by the end."""
LIMITED: Final = 3
"""It stopped because it has as many records or bytes as were asked for."""
EXPIRED: Final = 4
"""`span_batches` stopped at a batch of which some record is expired."""

__all__ = [
    "COLLECTED", "DAMAGED", "EXPIRED", "FULL", "IMPLEMENTATION", "LIMITED", "NEED_MORE", "OTHER_FRAME", "SPECIAL", "SWITCH",
    "Accumulator", "ByteBuffer", "Route", "RouteTable", "avro_columns", "collect_rows", "crc32c", "decode_records", "encode_batch",
    "encode_columns", "encode_deliveries", "encode_messages", "fnv1a", "gather_columns", "hash_cells", "json_columns",
    "parse_messages", "parse_produce", "parse_publish", "reorder_rows", "scan_batches", "span_batches", "stamp_batch",
    "verify_batches",
]
