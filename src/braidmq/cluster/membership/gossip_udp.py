"""Gossip over UDP: the sockets and the clock of `Swim`.

Names in addresses are looked up beside the loop; what would have been sent meanwhile is lost, as packets are.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from braidmq.base.config_listen import split_address
from braidmq.cluster.membership.gossip_codec import Status
from braidmq.cluster.membership.swim import Swim

_LOOKED_UP_S: Final = 30.0
"""How long an address of a name is good."""

logger = logging.getLogger("braidmq.gossip")


class Gossip:
    def __init__(self, swim: Swim) -> None:
        self.swim = swim
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._numeric: dict[str, tuple[float, Any]] = {}
        self._looking_up: dict[str, asyncio.Task[None]] = {}

    @classmethod
    async def open(cls, make: Callable[[str], Swim], host: str, port: int) -> Gossip:
        """Listen there; `make` gets the address and makes the node's view of the others. Raises OSError."""
        loop = asyncio.get_running_loop()
        made: list[Gossip] = []

        def protocol() -> asyncio.DatagramProtocol:
            return _Waiting(made)

        transport, _ = await loop.create_datagram_endpoint(protocol, (host, port))
        name = transport.get_extra_info("sockname")
        gossip = cls(make(f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"))
        made.append(gossip)
        gossip._transport = transport
        gossip.swim.start(loop.time())
        gossip._turn()
        return gossip

    def join(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            self.swim.join(address)
        self._turn()

    def tell(self, about: str) -> None:
        self.swim.tell(about)
        self._turn()

    def is_dead(self, node: str) -> bool:
        return self.swim.status_of(node) in (Status.DEAD, Status.LEFT)

    async def close(self) -> None:
        """Tell the others, and stop."""
        self.swim.leave()
        self._flush()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._looking_up.values()):
            task.cancel()
        await asyncio.gather(*self._looking_up.values(), return_exceptions=True)
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            # The socket is closed in the next turn of the loop, which may be the last.
            await asyncio.sleep(0)

    # --- called by the loop

    def heard(self, data: bytes, sender: Any) -> None:
        host, port = sender[:2]
        self.swim.receive(self._loop.time(), f"[{host}]:{port}" if ":" in host else f"{host}:{port}", data)
        self._turn()

    def _turn(self) -> None:
        """Do what is due, send what that made, and sleep until there is more."""
        if self._timer is not None:
            self._timer.cancel()
        self.swim.tick(self._loop.time())
        self._flush()
        if self._transport is not None:
            self._timer = self._loop.call_at(self.swim.next_wake, self._turn)

    # --- sending

    def _flush(self) -> None:
        packets, self.swim.outgoing = self.swim.outgoing, []
        for address, data in packets:
            numeric = self._numeric_of(address)
            if numeric is not None and self._transport is not None:
                self._transport.sendto(data, numeric)

    def _numeric_of(self, address: str) -> Any:
        known = self._numeric.get(address)
        if known is not None and known[0] > self._loop.time():
            return known[1]
        host, port = split_address(address)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if address not in self._looking_up:
                task = self._looking_up[address] = self._loop.create_task(self._look_up(address, host, port))
                task.add_done_callback(lambda _: self._looking_up.pop(address, None))
            return None if known is None else known[1]
        self._numeric[address] = (float("inf"), (host, port))
        return host, port

    async def _look_up(self, address: str, host: str, port: int) -> None:
        try:
            found = await self._loop.getaddrinfo(host, port)
        except OSError as fault:
            logger.debug("%s has no address: %s", host, fault)
            return
        self._numeric[address] = (self._loop.time() + _LOOKED_UP_S, found[0][4][:2])


class _Waiting(asyncio.DatagramProtocol):
    """Stands in until the address is known, and passes on what comes."""

    def __init__(self, made: list[Gossip]) -> None:
        self._made = made

    def datagram_received(self, data: bytes, addr: Any) -> None:
        for gossip in self._made:
            gossip.heard(data, cast(tuple[str, int], addr))

    def error_received(self, exc: Exception) -> None:
        # Somebody's port is closed. Its silence says the same.
        logger.debug("gossip: %s", exc)
