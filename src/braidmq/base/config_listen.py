"""Where the broker listens: one listener is one URL.

The scheme is the protocol, `flymq`, `blipmq` or `fq`; with an `s` at its end it is the same behind TLS. Port 0 picks a free port.
An IPv6 address stands in brackets. An empty host means every IPv4 interface, as in the `:9092` that FlyMQ's own settings use.

A parse either gives a `Listen` that can be bound or a `ValueError` whose text says what to write instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PORTS: Final = {"flymq": 9092, "blipmq": 7878, "fq": 8765}
"""The port where the programs of each protocol look first."""
CLUSTER_PORT: Final = 9093
"""Where nodes of a cluster look for each other."""
SCHEMES: Final = tuple(protocol + tls for protocol in PORTS for tls in ("", "s"))
DIALECTS: Final = ("auto", "documented", "v126")
PORT_MAX: Final = 65535
ANY_HOST: Final = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class Listen:
    """One listener. `host` never carries brackets; `dialect` is what a new FlyMQ connection speaks."""

    scheme: str
    host: str
    port: int
    dialect: str = "auto"

    @property
    def protocol(self) -> str:
        """What is spoken there, behind TLS or not."""
        return self.scheme.removesuffix("s")

    @property
    def tls(self) -> bool:
        return self.scheme.endswith("s")

    @property
    def address(self) -> str:
        """`host:port` with brackets around an IPv6 host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        query = "" if self.dialect == "auto" else f"?dialect={self.dialect}"
        return f"{self.scheme}://{self.address}{query}"


@dataclass(frozen=True, slots=True)
class HttpListen:
    """Where one of the HTTP servers listens; `https` is the same behind TLS."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_http_listen(text: str, usual_port: int) -> HttpListen:
    """`host:port`, or with `http://` or `https://` before it; `ValueError` says what is wrong with it."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "http", text.strip()
    scheme = scheme.lower()
    if scheme not in ("http", "https"):
        raise ValueError(f"unknown scheme `{scheme}`; this listener is http:// or https://")
    host, port = split_address(rest.removesuffix("/"), usual_port)
    return HttpListen(scheme, host, port)


def parse_listen(text: str) -> Listen:
    """The listener that `text` names; `ValueError` says what is wrong with it."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise ValueError(f"`{text}` has no scheme; write flymq://{text}")
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{protocol}://" for protocol in PORTS)
        raise ValueError(f"unknown scheme `{scheme}`; a listener is {known}, or one of them with an s for TLS")
    address, _, query = rest.partition("?")
    protocol = scheme.removesuffix("s")
    host, port = split_address(address.removesuffix("/"), PORTS[protocol])
    if query and protocol != "flymq":
        raise ValueError(f"{protocol} listeners take no options, and `{query}` is one")
    return Listen(scheme, host, port, _dialect(query))


def split_address(address: str, usual_port: int = PORTS["flymq"]) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`."""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            raise ValueError(f"`{address}` is not [ipv6-address]:port")
        _check_ipv6(host)
        port_text = rest[1:]
    else:
        host, colon, port_text = address.rpartition(":")
        if not colon:
            raise ValueError(f"`{address}` has no port; write {address}:{usual_port}, or :0 for any free one")
        if ":" in host:
            raise ValueError(f"`{address}`: an IPv6 address stands in brackets, as in [::1]:{usual_port}")
        if any(not (c.isalnum() or c in "-._*") for c in host):
            raise ValueError(f"`{host}` is not a host name or address")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > PORT_MAX:
        raise ValueError(f"`{port_text}` is not a port (0 to {PORT_MAX})")
    return (ANY_HOST if host in ("", "*") else host), int(port_text)


def _check_ipv6(host: str) -> None:
    import ipaddress

    try:
        ipaddress.IPv6Address(host)
    except ipaddress.AddressValueError:
        raise ValueError(f"`{host}` is not an IPv6 address") from None


def _dialect(query: str) -> str:
    dialect = DIALECTS[0]
    for part in query.split("&") if query else ():
        name, _, value = part.partition("=")
        if name != "dialect":
            raise ValueError(f"unknown option `{name}`; a listener takes dialect={'|'.join(DIALECTS)}")
        if value not in DIALECTS:
            raise ValueError(f"unknown dialect `{value}`; choose {', '.join(DIALECTS)}")
        dialect = value
    return dialect
