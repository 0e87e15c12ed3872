"""Which replicas of a partition may be read from besides its leader, as far as this client was told.

A replica in sync, on a node that serves readers, has all that readers may see. Which of them is asked decides the rack: one of
the client's own, where it names a rack, else any; and among equals clients and partitions differ. One that refuses or does not
answer is set aside for a while. Whoever finds none asks the leader. Nothing here asks anybody.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Iterable
from typing import Final

from braidmq.client.addresses import Address

SET_ASIDE_SECONDS: Final = 10.0
"""So long a replica that refused is not asked again: it has lost its leader, or catches up."""


class Replicas:
    """Whoever shares one between threads holds a mutex."""

    def __init__(self) -> None:
        self._readers: dict[str, tuple[Address, str]] = {}
        """Nodes that serve readers: where, and in which rack."""
        self._in_sync: dict[tuple[str, int], tuple[str, ...]] = {}
        self._aside: dict[tuple[tuple[str, int], str, int], float] = {}
        """Until when a node is not asked for a partition; for all of them under no topic."""
        self._turn = random.randrange(1 << 16)

    def know_readers(self, readers: Iterable[tuple[str, Address, str]]) -> None:
        self._readers = {node: (address, rack) for node, address, rack in readers}

    def know_in_sync(self, topic: str, partition: int, nodes: Iterable[str]) -> None:
        self._in_sync[topic, partition] = tuple(sorted(nodes))

    def set_aside(self, address: Address, topic: str = "", partition: int = -1) -> None:
        """Ask others than this node, for one partition or for all, for a while."""
        now_s = time.monotonic()
        self._aside = {key: until_s for key, until_s in self._aside.items() if until_s > now_s}
        self._aside[address.place, topic, partition] = now_s + SET_ASIDE_SECONDS

    def choose(self, topic: str, partition: int, rack: str) -> Address | None:
        """The replica to read from; None where it is to be the leader."""
        nodes = self._in_sync.get((topic, partition), ()) if self._readers else ()
        found = [self._readers[node] for node in nodes if node in self._readers]
        able = [address for address, place in found if place == rack or not rack]
        able = [address for address in able if not self._is_aside(address, topic, partition)]
        if not able:
            return None
        return able[(zlib.crc32(f"{topic}/{partition}".encode()) + self._turn) % len(able)]

    def _is_aside(self, address: Address, topic: str, partition: int) -> bool:
        now_s = time.monotonic()
        return any(self._aside.get(key, 0.0) > now_s for key in ((address.place, topic, partition), (address.place, "", -1)))
