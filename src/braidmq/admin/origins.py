"""Refuses requests that another site made a browser send.

Where nobody has to log in, a browser on the machine may reach the admin API, and so may every page that is open in it. Two things
stop that. A page can only get here under a name: one that its owner points at this machine (DNS rebinding) is none of ours, so
names are checked; an address is nobody's name. And a request that changes something has to come from a page of this very server,
by what browsers say of it themselves (`Sec-Fetch-Site`, `Origin`). Programs send neither and are not affected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from braidmq.base.errors import BraidError

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def allowed_hosts(configured: Iterable[str], node: str, listen_host: str) -> frozenset[str]:
    """Names under which the server may be asked; addresses are always fine."""
    return frozenset({"localhost", node.lower(), listen_host.lower(), *(name.lower() for name in configured)})


def check_host(host_header: str, allowed: frozenset[str]) -> None:
    host = _without_port(host_header)
    if "*" in allowed or host in allowed or _is_address(host) or host.endswith(".localhost"):
        return
    raise BraidError("CROSS_SITE", reason=f"{host[:100]!r} is not a name of this server; `admin_hosts` adds names")


def check_origin(method: str, headers: Mapping[str, str]) -> None:
    """For what changes something: not from the page of another site."""
    if method in SAFE_METHODS:
        return
    site = headers.get("sec-fetch-site", "")
    if site not in ("", "same-origin", "none"):
        raise BraidError("CROSS_SITE", reason=f"a page of another site sent it ({site[:20]})")
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise BraidError("CROSS_SITE", reason=f"a page of {origin[:100]!r} sent it")


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host.removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
