"""Where a client connects: one server is `host:port`, or a URL whose scheme says whether TLS is spoken."""

from __future__ import annotations

from dataclasses import dataclass

from braidmq.base.config_listen import PORTS, split_address


@dataclass(frozen=True, slots=True)
class Address:
    """One server. `tls` is None when the address leaves it to the other settings."""

    host: str
    port: int
    tls: bool | None = None

    @property
    def place(self) -> tuple[str, int]:
        """Where it is, however it is spoken to."""
        return self.host, self.port

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, protocol: str = "flymq") -> Address:
    """`host`, `host:port`, `[v6]:port`, or either behind `flymq://` or `flymqs://`; `ValueError` says what is wrong.

    Other protocols have schemes of their own, and a port of their own where none is given.
    """
    tls_by_scheme: dict[str, bool | None] = {"": None, protocol: False, f"{protocol}s": True}
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "", scheme
    if scheme.lower() not in tls_by_scheme:
        raise ValueError(f"unknown scheme `{scheme}`; a server is host:port, {protocol}://host:port or {protocol}s://host:port")
    rest = rest.removesuffix("/")
    if not rest:
        raise ValueError("a server address is empty")
    if (rest.startswith("[") and rest.endswith("]")) or ":" not in rest:
        rest += f":{PORTS[protocol]}"
    host, port = split_address(rest, PORTS[protocol])
    if port == 0:
        raise ValueError(f"`{text}` has no port that can be connected to")
    # An empty host is a listener's word for "every interface"; a client means its own machine by it.
    return Address("127.0.0.1" if rest.startswith(":") else host, port, tls_by_scheme[scheme.lower()])


def parse_addresses(value: object) -> tuple[Address, ...]:
    """Addresses of a text with commas, or of a list of texts and `Address`es."""
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, Address):
        return (items,)
    if not isinstance(items, list | tuple):
        raise ValueError(f"`{value}` is not a list of servers")
    found: list[Address] = []
    for item in items:
        if isinstance(item, Address):
            found.append(item)
        elif isinstance(item, str):
            found.extend(parse_address(part) for part in item.split(",") if part.strip())
        else:
            raise ValueError(f"`{item}` is not a server address")
    if not found:
        raise ValueError("at least one server is needed, as in 127.0.0.1:9092")
    return tuple(dict.fromkeys(found))
