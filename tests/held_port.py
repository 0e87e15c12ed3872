"""A port of the loopback that is known before anybody listens on it, and that nobody else gets meanwhile.

A port that was free a moment ago may be somebody's by now: the next connection that any process opens may get it. So it is kept
bound, without listening. With SO_REUSEADDR, which servers set, another socket may still bind and listen on it when it is asked
for by number; the system hands it to nobody who asks for any port. Connections are refused as long as nobody listens.
"""

from __future__ import annotations

import socket
import weakref


class HeldPort:
    """Held for as long as this object lives."""

    def __init__(self) -> None:
        holding = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.close = weakref.finalize(self, holding.close)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind(("127.0.0.1", 0))
        self.number: int = holding.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.number}"
