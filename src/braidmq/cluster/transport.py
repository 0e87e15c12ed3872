"""How brokers of a cluster talk to each other, as an interface: a call to a node by its name, and the answer.

`transport_tcp.py` is the real one. The simulator has another, that loses, repeats, reorders and delays; code above this line
cannot tell them apart.

What a caller may rely on, and nothing more:

* An answer belongs to the call it answers, and a `BraidError` that the other side raised is raised here as the same error.
* `NODE_UNREACHABLE` means that no answer came in time: the other side may have done what was asked, or may do it yet. With the
  field `refused` nobody listened at the node's address.
* A call may reach the other side more than once, and calls may overtake each other. Whoever needs an order puts epochs, offsets or
  numbers into the payload.
* `connected` and `watch` are hints, good for suspicion and never for a decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Protocol

from braidmq.base.disk import Buffer

Handler = Callable[[str, memoryview], Awaitable[Sequence[Buffer]]]
"""Gets the name of the node that asks and the payload, which is the handler's to keep; gives the parts of the answer."""


class ClusterOp(IntEnum):
    """What brokers ask each other, on the cluster port alone."""

    HELLO = 0xE0
    REPLICA_FETCH = 0xE1
    FORWARD_PRODUCE = 0xE2
    JOURNAL_SNAPSHOT = 0xE3
    JOURNAL_SUBMIT = 0xE4
    FORWARD_REQUEST = 0xE5
    WORK_WRITE = 0xE6
    ALTER_ISR = 0xE7
    GOSSIP = 0xE8
    END_EPOCH = 0xE9
    NODE_STATUS = 0xEA
    JOIN = 0xEB
    STEER = 0xEC
    PROGRESS = 0xED
    PARTITION_READ = 0xEE
    HAND_OVER = 0xEF
    NODE_LIST = 0xF0
    PARTITION_PLACES = 0xF1
    PARTITIONS_COME = 0xF2
    PARTITION_LOOK = 0xF3
    PARTITION_SINCE = 0xF4
    PARTITION_LET_GO = 0xF5


class Transport(Protocol):
    @property
    def node(self) -> str:
        """The name of this node."""
        ...

    async def call(self, node: str, op: int, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        """Ask `node`, and wait for its answer. Raises NODE_UNREACHABLE, or what the other side answered with."""
        ...

    def serve(self, op: int, handler: Handler) -> None:
        """Answer calls of `op`, from any node, with `handler`."""
        ...

    def connected(self, node: str) -> bool:
        """Whether a connection to `node` stands at this moment."""
        ...

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        """Have `callback` told when the connection to a node came (True) or went (False)."""
        ...


class AddressBook:
    """Where the nodes are: `host:port` of the cluster port by name. Fed by sessions of the quorum, by gossip and by settings."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def learn(self, node: str, address: str) -> None:
        self._addresses[node] = address

    def forget(self, node: str) -> None:
        self._addresses.pop(node, None)

    def address_of(self, node: str) -> str | None:
        return self._addresses.get(node)

    def nodes(self) -> list[str]:
        return sorted(self._addresses)
