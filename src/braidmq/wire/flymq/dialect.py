"""The two layouts of FlyMQ that exist in the world.

`DOCUMENTED` is what the protocol's documents say and what our own client speaks. `V126` is what the clients published as
version 1.26 really send and expect; it differs in the FETCH and AUTH answers, in the length byte of a SUBSCRIBE mode and
in the ERROR frame. A connection starts in one of them and may be moved to `V126`, for good, by the first request that
only such a client can have sent.
"""

from __future__ import annotations

from enum import Enum


class Dialect(Enum):
    DOCUMENTED = "documented"
    V126 = "v126"
