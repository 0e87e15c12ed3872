"""Exchanges of fq and topics of the broker are the same thing under two rules for names.

An exchange is any 0 to 127 bytes. A topic has a name that people can type and read. Where the bytes of an exchange are such a name
they are the topic's; all others get a name that spells the bytes out: `fq-bytes:` and the bytes, with `%` and two digits for
whatever is not plain ASCII. Nothing is lost: `topic_exchange` undoes `exchange_topic`, no two exchanges share a topic, and no
two topics share an exchange. An exchange that itself reads like a spelled-out name is therefore spelled out once more.
"""

from __future__ import annotations

import re
from typing import Final

from braidmq.base.limits import TOPIC_NAME_BYTES_MAX
from braidmq.base.naming import name_fault

_MARK: Final = "fq-bytes:"
_PLAIN: Final = re.compile(rb"[ -$&-~]")
_CODE: Final = re.compile(rb"%([0-9A-F]{2})")


def exchange_topic(exchange: bytes) -> str:
    """The topic that an exchange is."""
    name = _as_name(exchange)
    return _spelled(exchange) if name is None or _unspelled(name) is not None else name


def topic_exchange(topic: str) -> bytes:
    """The exchange that a topic is. More than 127 bytes: fq has no name for it."""
    spelled = _unspelled(topic)
    return topic.encode("utf-8", "surrogatepass") if spelled is None else spelled


def _as_name(raw: bytes) -> str | None:
    """The bytes as the name of a topic, if they are one as they stand."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return None
    # Names that begin with two underscores belong to the broker; a stranger must not reach them by way of an exchange.
    if name in (".", "..") or name.startswith("__") or name_fault(name, TOPIC_NAME_BYTES_MAX):
        return None
    return name


def _spelled(raw: bytes) -> str:
    return _MARK + "".join(chr(byte) if _PLAIN.match(bytes((byte,))) else f"%{byte:02X}" for byte in raw)


def _unspelled(topic: str) -> bytes | None:
    """The bytes that `topic` spells out; None if it is no spelled-out name."""
    if not topic.startswith(_MARK) or not topic.isascii():
        return None
    raw = _CODE.sub(lambda found: bytes((int(found[1], 16),)), topic[len(_MARK) :].encode())
    if _spelled(raw) != topic:
        return None
    # Bytes that are a name as they stand are not spelled out, unless they read like a spelled-out name themselves.
    name = _as_name(raw)
    return raw if name is None or _unspelled(name) is not None else None
