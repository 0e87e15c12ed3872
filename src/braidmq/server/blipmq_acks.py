"""Runs of Acks, read without taking each of them apart.

A subscriber at QoS 1 sends one Ack a message, and most clients send them in the layout that fast encoders use. Those are
recognised by their constant parts; whatever looks different is left to the general way.

     4  root, vtable, table: constant up to the sequence number
    28  sequence number and timestamp, which an Ack needs not
    44  type, vtable and table of the Ack, no error code: constant
    68  u32 length of the message_id, then the message_id, NUL and padding
"""

from __future__ import annotations

import struct
from typing import Final

from braidmq.hot.flatbuffer import ack_frame

_U32 = struct.Struct("<I")
_EXAMPLE: Final = ack_frame(b"id", 0, 0)
_HEAD: Final = _EXAMPLE[4:28]
_BODY: Final = _EXAMPLE[44:68]
_ID_AT: Final = 72
_RUN_BYTES_MAX: Final = 32 * 1024
"""Copied at a time: what follows the Acks may be something else."""


def parse_acks(data: memoryview, start: int, stop: int) -> tuple[int, list[bytes]]:
    """The message_ids of a run of plain Acks that begins at `start`, and where the run ends."""
    ids: list[bytes] = []
    if bytes(data[start + 4 : start + 28]) != _HEAD or bytes(data[start + 44 : start + 68]) != _BODY:
        return start, ids
    # Slices of bytes are cheaper than slices of a view, so one copy of the run pays for itself.
    run = bytes(data[start : min(stop, start + _RUN_BYTES_MAX)])
    size_of = _U32.unpack_from
    position, end = 0, len(run)
    while position + _ID_AT <= end:
        frame_end = position + 4 + size_of(run, position)[0]
        if frame_end > end or run[position + 4 : position + 28] != _HEAD or run[position + 44 : position + 68] != _BODY:
            break
        own_end = position + _ID_AT + size_of(run, position + 68)[0]
        if own_end > frame_end:
            break
        ids.append(run[position + _ID_AT : own_end])
        position = frame_end
    return start + position, ids
