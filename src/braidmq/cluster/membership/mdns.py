"""Nodes in the local network, by mDNS: a node answers to two names of a service, ours and FlyMQ's, and whoever looks finds it.

Discovery only. That an answer comes says nothing about the health of a node, and that none comes says nothing either; many networks
carry no multicast at all. A node of another cluster is another cluster's business.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.config_listen import split_address
from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

SERVICES: Final = ("_braidmq._tcp.local.", "_flymq._tcp.local.")
_RESOLVE_MS_MAX: Final = 3000

logger = logging.getLogger("braidmq.discovery")


@dataclass(frozen=True, slots=True, order=True)
class FoundNode:
    """A node that answered."""

    node_id: str
    cluster_id: str
    cluster_addr: str
    client_addr: str
    version: str


def _zeroconf(interfaces: Sequence[str]) -> AsyncZeroconf:
    try:
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncZeroconf
    except ModuleNotFoundError:
        raise BraidError("DISCOVERY_UNAVAILABLE", reason="the package zeroconf is not installed") from None
    try:
        return AsyncZeroconf(interfaces=list(interfaces) or InterfaceChoice.Default)
    except OSError as fault:
        raise BraidError("DISCOVERY_UNAVAILABLE", reason=fault.strerror or str(fault)) from fault


class Announcement:
    """That a node is here, as long as it is open."""

    def __init__(self, zeroconf: AsyncZeroconf, infos: list[AsyncServiceInfo]) -> None:
        self._zeroconf = zeroconf
        self._infos = infos

    @classmethod
    async def open(cls, node: FoundNode, interfaces: Sequence[str] = ()) -> Announcement:
        """Answer from now on, on all interfaces or on some addresses. Raises DISCOVERY_UNAVAILABLE."""
        zeroconf = _zeroconf(interfaces)
        from zeroconf.asyncio import AsyncServiceInfo

        host, port = split_address(node.cluster_addr)
        numeric = await _addresses(host, port)
        about = {
            "node_id": node.node_id, "cluster_id": node.cluster_id, "cluster_addr": node.cluster_addr,
            "client_addr": node.client_addr, "version": node.version,
        }  # fmt: skip
        # A name has 63 bytes at most, and a dot would divide it.
        label = node.node_id.replace(".", "-").encode()[:50].decode(errors="ignore")
        infos = [
            AsyncServiceInfo(service, f"{label}.{service}", port=port, properties=about, parsed_addresses=numeric,
                             server=f"{label}-{port}.local.")
            for service in SERVICES
        ]  # fmt: skip
        try:
            # Each asks first whether somebody has the name already, which takes a while.
            probed = await asyncio.gather(*(zeroconf.async_register_service(info, allow_name_change=True) for info in infos))
            await asyncio.gather(*probed)
        except BaseException:
            await _closed(zeroconf)
            raise
        return cls(zeroconf, infos)

    async def close(self) -> None:
        said = await asyncio.gather(*(self._zeroconf.async_unregister_service(info) for info in self._infos))
        await asyncio.gather(*said)
        await _closed(self._zeroconf)


async def _closed(zeroconf: AsyncZeroconf) -> None:
    await zeroconf.async_close()
    # Its sockets are closed in the next turn of the loop, which may be the last.
    await asyncio.sleep(0)


async def _addresses(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    except OSError as fault:
        raise BraidError("DISCOVERY_UNAVAILABLE", reason=f"{host} has no address: {fault}") from None
    return list(dict.fromkeys(str(row[4][0]) for row in found))


async def discover(timeout_s: float, cluster_id: str = "", interfaces: Sequence[str] = ()) -> list[FoundNode]:
    """The nodes that answer within a time, of one cluster or of all. Raises DISCOVERY_UNAVAILABLE."""
    zeroconf = _zeroconf(interfaces)
    from zeroconf import ServiceStateChange
    from zeroconf.asyncio import AsyncServiceBrowser

    found: dict[str, FoundNode] = {}
    asking: set[asyncio.Task[None]] = set()

    def heard(zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is not ServiceStateChange.Removed:
            task = asyncio.get_running_loop().create_task(resolve(service_type, name))
            asking.add(task)
            task.add_done_callback(asking.discard)

    async def resolve(service_type: str, name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(service_type, name)
        if await info.async_request(zeroconf.zeroconf, _RESOLVE_MS_MAX):
            node = _node(info)
            # Both services tell of it; ours knows more than FlyMQ's own nodes do.
            if node is not None and cluster_id in ("", node.cluster_id) and (node.node_id not in found or node.version):
                found[node.node_id] = node

    browser = AsyncServiceBrowser(zeroconf.zeroconf, list(SERVICES), handlers=[heard])
    try:
        await asyncio.sleep(timeout_s)
    finally:
        await browser.async_cancel()
        for task in list(asking):
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await _closed(zeroconf)
    return sorted(found.values())


def _node(info: AsyncServiceInfo) -> FoundNode | None:
    """What a service says of itself; None where it does not say who it is. Anybody may answer, so nothing is trusted."""
    try:
        about = {key.decode(): (value or b"").decode()[:255] for key, value in info.properties.items()}
    except UnicodeDecodeError:
        return None
    addresses = info.parsed_addresses()
    node_id = about.get("node_id", "")
    if not node_id.isprintable() or not node_id or not addresses or not info.port:
        return None
    numeric = next((address for address in addresses if ipaddress.ip_address(address.partition("%")[0]).version == 4), addresses[0])
    cluster_addr = f"[{numeric}]:{info.port}" if ":" in numeric else f"{numeric}:{info.port}"
    texts = {key: text for key, text in about.items() if text.isprintable()}
    return FoundNode(node_id, texts.get("cluster_id", ""), cluster_addr, texts.get("client_addr", ""), texts.get("version", ""))
