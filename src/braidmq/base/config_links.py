"""Other brokers that this one connects to: one link is one URL.

    blipmq://KEY@host:port              a BlipMQ broker to federate with, and the API key it wants; blipmqs:// is TLS
    fq://USER:PASSWORD@host:port/QUEUE/TYPE?exchange=E&program=P&permanent=true
                                        an fq broker to take messages from: what is bound to which queue there; fqs:// is TLS

What stands before `@` may be left out, and so may the path: the queue is invented then, and its type is `mem:drop,private`. A
character that has a meaning in a URL is written with `%`, as in `%26` for `&`. Secrets are shown nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from braidmq.base.config_listen import PORTS, split_address

DEFAULT_QUEUE_TYPE: Final = "mem:drop,private"
HIDDEN: Final = "(hidden)"


@dataclass(frozen=True, slots=True)
class FederationLink:
    """A BlipMQ broker to federate with."""

    host: str
    port: int
    tls: bool = False
    api_key: str = field(default="", repr=False)

    def __str__(self) -> str:
        secret = f"{HIDDEN}@" if self.api_key else ""
        return f"{'blipmqs' if self.tls else 'blipmq'}://{secret}{_address(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An fq broker to take messages from, and one binding there."""

    host: str
    port: int
    exchange: str
    program: str = ""
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    queue: str = ""
    """Empty: each connection invents one."""
    queue_type: str = DEFAULT_QUEUE_TYPE
    permanent: bool = False
    """Whether the binding outlives the connection."""

    def __str__(self) -> str:
        from urllib.parse import quote

        secret = f":{HIDDEN}" if self.password else ""
        user = f"{quote(self.user, safe='')}{secret}@" if self.user or secret else ""
        path = f"{quote(self.queue, safe='')}/{quote(self.queue_type, safe=':,=')}"
        query = f"exchange={quote(self.exchange, safe='')}&program={quote(self.program, safe='')}"
        permanent = "&permanent=true" if self.permanent else ""
        return f"{'fqs' if self.tls else 'fq'}://{user}{_address(self.host, self.port)}/{path}?{query}{permanent}"


def parse_federation_link(text: str) -> FederationLink:
    """The link that `text` names; `ValueError` says what is wrong with it."""
    from urllib.parse import unquote

    tls, rest = _scheme(text, "blipmq")
    secret, address = _secret(rest.removesuffix("/"))
    host, port = _peer(address, PORTS["blipmq"])
    return FederationLink(host, port, tls, unquote(secret))


def parse_upstream(text: str) -> Upstream:
    """The link that `text` names; `ValueError` says what is wrong with it."""
    from urllib.parse import parse_qsl, unquote

    tls, rest = _scheme(text, "fq")
    place, _, query = rest.partition("?")
    secret, place = _secret(place)
    address, _, path = place.partition("/")
    host, port = _peer(address, PORTS["fq"])
    user, _, password = secret.partition(":")
    queue, _, queue_type = path.partition("/")
    options = dict(parse_qsl(query, keep_blank_values=True))
    exchange = options.pop("exchange", "")
    program = options.pop("program", "")
    permanent = options.pop("permanent", "false")
    if options:
        raise ValueError(f"unknown option `{next(iter(options))}`; an upstream takes exchange, program and permanent")
    if not exchange:
        raise ValueError(f"{host}:{port} needs ?exchange=NAME")
    if permanent not in ("true", "false"):
        raise ValueError(f"permanent is true or false, not `{permanent}`")
    return Upstream(
        host, port, exchange, program, tls, unquote(user), unquote(password), unquote(queue),
        unquote(queue_type) or DEFAULT_QUEUE_TYPE, permanent == "true",
    )  # fmt: skip


def _scheme(text: str, protocol: str) -> tuple[bool, str]:
    """Whether it is the protocol behind TLS, and what follows the scheme. Refusals do not repeat the text: it holds secrets."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme.lower() not in (protocol, protocol + "s"):
        raise ValueError(f"a link begins with {protocol}:// or {protocol}s://")
    return scheme.lower() != protocol, rest


def _secret(rest: str) -> tuple[str, str]:
    secret, _, place = rest.rpartition("@")
    return secret, place


def _peer(address: str, usual_port: int) -> tuple[str, int]:
    host, port = split_address(address, usual_port)
    if port == 0 or address.startswith((":", "*")):
        raise ValueError(f"`{address}` is not a place to connect to")
    return host, port


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
