"""The kinds of value a setting can have: how each is read, checked and shown.

A kind reads what any source gives it, text from flags and the environment as well as the typed values of TOML and JSON,
and answers with one Python type. What it cannot read is a `ValueError` whose text tells the reader what the setting takes;
the caller adds which setting and where the value came from. Nothing is guessed: `256M` is refused rather than taken for
one of its two meanings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Generic, TypeVar

from braidmq.base.config_keys import ApiKey, parse_api_key
from braidmq.base.config_links import FederationLink, Upstream, parse_federation_link, parse_upstream
from braidmq.base.config_listen import HttpListen, Listen, parse_http_listen, parse_listen, split_address

T = TypeVar("T")
S = TypeVar("S", bound=str)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How values of one kind are read and shown."""

    name: str
    """One word for the reference: `size`, `duration`, `count` ..."""
    takes: str
    """What a value looks like, for the reference and for error texts."""
    read: Callable[[object], T]
    show: Callable[[T], str]
    choices: tuple[str, ...] = ()
    """The whole range, where it is a short list: shells complete from it."""
    repeats: bool = False
    """Whether a flag may be given more than once."""


# --- numbers

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_DURATION_UNITS: Final = {
    "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400), "w": Fraction(604800),
}  # fmt: skip
_NUMBER: Final = re.compile(r"\d[\d_]*(?:\.\d+)?", re.ASCII)
_SIZE: Final = re.compile(rf"({_NUMBER.pattern})\s*([A-Za-z]*)", re.ASCII)
_DURATION_PART: Final = re.compile(rf"({_NUMBER.pattern})\s*(ms|s|m|h|d|w)\s*", re.ASCII)


def read_size(value: object) -> int:
    """Bytes of `256MiB`, `1GB`, `4096` or an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or not (match := _SIZE.fullmatch(value.strip())):
        raise ValueError(f"`{value}` is not a size; write bytes, or a number with a unit as in 256MiB or 1GB")
    number, unit = match.groups()
    factor = _SIZE_UNITS.get(unit.lower())
    if factor is None:
        raise ValueError(f"`{unit}` is not a unit of size; use B, kB, MB, GB, TB (1000) or KiB, MiB, GiB, TiB (1024)")
    total = Fraction(number.replace("_", "")) * factor
    if total.denominator != 1:
        raise ValueError(f"`{value}` is not a whole number of bytes")
    return int(total)


def show_size(size: int) -> str:
    for unit, factor in (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    for unit, factor in (("TB", 1000**4), ("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def read_duration(value: object) -> float:
    """Seconds of `7d`, `1h30m`, `500ms`, `30` or a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise ValueError(f"`{value}` is not a duration")
        return float(value)
    wrong = ValueError(f"`{value}` is not a duration; write seconds, or numbers with units as in 500ms, 30s, 1h30m or 7d")
    if not isinstance(value, str) or not (text := value.strip()):
        raise wrong
    if _NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    total = Fraction(0)
    position = 0
    while position < len(text):
        part = _DURATION_PART.match(text, position)
        if part is None:
            raise wrong
        total += Fraction(part[1].replace("_", "")) * _DURATION_UNITS[part[2]]
        position = part.end()
    return float(total)


def show_duration(seconds: float) -> str:
    if seconds == 0:
        return "0"
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds % factor == 0:
            return f"{int(seconds // factor)}{unit}"
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds / 1000 == seconds else f"{seconds:.9f}".rstrip("0")


def size(least: int, most: int, *, zero: bool = False) -> Kind[int]:
    """Bytes between `least` and `most`; with `zero` also 0, which switches the thing off."""
    between = f"{show_size(least)} to {show_size(most)}"

    def read(value: object) -> int:
        return _bounded(read_size(value), least, most, between, zero)

    return Kind("size", _or_zero(f"{between}, as 256MiB, 1GB or bytes", zero), read, show_size)


def duration(least: float, most: float, *, zero: bool = False) -> Kind[float]:
    """Seconds between `least` and `most`; with `zero` also 0, which switches the thing off."""
    between = f"{show_duration(least)} to {show_duration(most)}"

    def read(value: object) -> float:
        return _bounded(read_duration(value), least, most, between, zero)

    return Kind("duration", _or_zero(f"{between}, as 500ms, 30s, 24h, 7d or seconds", zero), read, show_duration)


def milliseconds(least: int, most: int, *, zero: bool = False) -> Kind[int]:
    """Milliseconds between `least` and `most`; with `zero` also 0, which switches the thing off."""
    between = f"{show_milliseconds(least)} to {show_milliseconds(most)}"

    def read(value: object) -> int:
        bare = not isinstance(value, str) or _NUMBER.fullmatch(value.strip()) is not None
        found = read_duration(value) * (1 if bare else 1000)
        if abs(found - round(found)) > 1e-6:
            raise ValueError(f"`{value}` is not a whole number of milliseconds")
        return _bounded(round(found), least, most, between, zero)

    takes = _or_zero(f"{between}, as 500ms, 30s or milliseconds", zero)
    return Kind("duration", takes, read, show_milliseconds)


def show_milliseconds(value: int) -> str:
    return show_duration(value / 1000)


def count(least: int, most: int) -> Kind[int]:
    """A whole number between `least` and `most`."""

    def read(value: object) -> int:
        if isinstance(value, str):
            text = value.strip().replace("_", "")
            value = int(text) if text.isascii() and text.removeprefix("-").isdigit() else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"`{value}` is not a whole number")
        return _bounded(value, least, most, f"{least} to {most}", zero=False)

    return Kind("count", f"{least} to {most}", read, str)


N = TypeVar("N", int, float)


def _bounded(value: N, least: float, most: float, between: str, zero: bool) -> N:
    if (value == 0 and zero) or least <= value <= most:
        return value
    raise ValueError(f"{value:g} is out of range: {_or_zero(between, zero)}" if isinstance(value, float) else
                     f"{value} is out of range: {_or_zero(between, zero)}")  # fmt: skip


def _or_zero(text: str, zero: bool) -> str:
    return f"0 (off), or {text}" if zero else text


# --- words

_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")


def read_boolean(value: object) -> bool:
    word = str(value).strip().lower()
    if isinstance(value, (bool, str)) and word in (*_TRUE, *_FALSE):
        return word in _TRUE
    raise ValueError(f"`{value}` is neither true nor false")


def boolean() -> Kind[bool]:
    return Kind("boolean", "true or false", read_boolean, lambda value: "true" if value else "false", ("true", "false"))


def choice(*values: S) -> Kind[S]:
    """One of a few words."""
    by_word = {value.lower(): value for value in values}

    def read(value: object) -> S:
        chosen = by_word.get(value.strip().lower()) if isinstance(value, str) else None
        if chosen is None:
            raise ValueError(f"`{value}` is not one of {', '.join(values)}{nearest(str(value), values)}")
        return chosen

    return Kind("choice", ", ".join(values), read, str, tuple(values))


def choices(*values: S) -> Kind[tuple[S, ...]]:
    """One or more of a few words: a list, or text with commas."""
    one = choice(*values)

    def read(value: object) -> tuple[S, ...]:
        found = tuple(dict.fromkeys(one.read(item) for item in _items(value)))
        if not found:
            raise ValueError(f"at least one of {', '.join(values)} is needed")
        return found

    return Kind("choices", f"one or more of {', '.join(values)}", read, ",".join, tuple(values), repeats=True)


def text(length_max: int) -> Kind[str]:
    """Text of at least one character."""
    takes = f"1 to {length_max} characters"

    def read(value: object) -> str:
        found = _read_text(value)
        if not 1 <= len(found) <= length_max:
            raise ValueError(f"{len(found)} characters; it takes {takes}")
        return found

    return Kind("text", takes, read, str)


def optional_text(length_max: int) -> Kind[str]:
    """Text that may be empty."""
    takes = f"up to {length_max} characters"

    def read(value: object) -> str:
        found = "" if value is None else _read_text(value)
        if len(found) > length_max:
            raise ValueError(f"{len(found)} characters; it takes {takes}")
        return found

    return Kind("text", takes, read, str)


def share() -> Kind[float]:
    """A part of a whole, from 0 to 1."""

    def read(value: object) -> float:
        try:
            found = float(str(value)) if not isinstance(value, bool) else math.nan
        except ValueError:
            found = math.nan
        if not 0 <= found <= 1:
            raise ValueError(f"`{value}` is not a number from 0 to 1")
        return found

    return Kind("share", "a number from 0 to 1", read, lambda value: f"{value:g}")


def optional_address(usual_port: int) -> Kind[str | None]:
    """host:port, or none when empty."""

    def read(value: object) -> str | None:
        found = "" if value is None else _read_text(value)
        return _address(found, usual_port) if found else None

    return Kind("address", "host:port", read, lambda value: value or "")


def addresses(usual_port: int) -> Kind[tuple[str, ...]]:
    """Any number of addresses: a list, or text with commas."""

    def read(value: object) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_address(_read_text(item), usual_port) for item in _items(value)))

    return Kind("addresses", "host:port", read, _show_all, repeats=True)


def _address(text: str, usual_port: int) -> str:
    host, port = split_address(text, usual_port)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoints() -> Kind[tuple[str, ...]]:
    """Any number of HTTP servers: a list, or text with commas."""

    def read(value: object) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(parse_http_listen(_read_text(item), 2379)) for item in _items(value)))

    return Kind("endpoints", "http:// or https:// with host:port", read, _show_all, repeats=True)


def ipv4_address() -> Kind[str | None]:
    """The four numbers of an IPv4 address, which need not be one of this machine; none when empty."""

    def read(value: object) -> str | None:
        import ipaddress

        found = "" if value is None else _read_text(value)
        if not found:
            return None
        try:
            address = ipaddress.IPv4Address(found)
        except ipaddress.AddressValueError:
            raise ValueError(f"`{found}` is not an IPv4 address") from None
        if address.is_unspecified or address.is_loopback:
            raise ValueError(f"{address} would be every broker's")
        return str(address)

    return Kind("address", "an IPv4 address other than 0.0.0.0 and 127.0.0.1", read, lambda value: value or "")


def path() -> Kind[str]:
    """A path, with `~` expanded."""

    def read(value: object) -> str:
        found = _read_path(value)
        if found is None:
            raise ValueError("the path is empty")
        return found

    return Kind("path", "a path", read, str)


def optional_path() -> Kind[str | None]:
    """A path or, when empty, none."""
    return Kind("path", "a path", _read_path, lambda value: value or "")


def _read_path(value: object) -> str | None:
    from os.path import expanduser

    return expanduser(_read_text(value)) or None


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{value}` is not text")
    if any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise ValueError("control characters are not allowed")
    return value.strip()


# --- lists


def listeners() -> Kind[tuple[Listen, ...]]:
    """One or more listener URLs: a list, or text with commas."""

    def read(value: object) -> tuple[Listen, ...]:
        found = _parsed(value, Listen, parse_listen)
        if not found:
            raise ValueError("at least one listener is needed")
        bound = [listener.address for listener in found if listener.port]
        twice = next((address for address in bound if bound.count(address) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is named twice")
        return found

    takes = (
        "flymq://, blipmq:// or fq:// with host:port; flymqs://, blipmqs:// or fqs:// for TLS; flymq with "
        "?dialect=auto|documented|v126"
    )
    return Kind("listeners", takes, read, _show_all, repeats=True)


def http_listener(usual_port: int) -> Kind[HttpListen]:
    """Where an HTTP server listens."""

    def read(value: object) -> HttpListen:
        if isinstance(value, HttpListen):
            return value
        return parse_http_listen(_read_text(value), usual_port)

    return Kind("listener", "host:port, with https:// before it for TLS; port 0 picks a free port", read, str)


def host_names() -> Kind[tuple[str, ...]]:
    """Any number of host names: a list, or text with commas."""

    def read(value: object) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_host_name(_read_text(item)) for item in _items(value)))

    return Kind("names", "host names, or * for any", read, _show_all, repeats=True)


def _host_name(text: str) -> str:
    name = text.strip().lower().removesuffix(".")
    if name != "*" and (not name or any(not (c.isalnum() or c in "-._") for c in name)):
        raise ValueError(f"`{text}` is not a host name; write it without scheme and port")
    return name


def api_keys() -> Kind[tuple[ApiKey, ...]]:
    """Any number of API keys: a list, or text with commas."""

    def read(value: object) -> tuple[ApiKey, ...]:
        return _parsed(value, ApiKey, parse_api_key)

    takes = "USER=KEY, or USER=sha256:HEX with the digest of a key; a key that holds a comma is written the second way"
    return Kind("keys", takes, read, _show_all, repeats=True)


def federation_links() -> Kind[tuple[FederationLink, ...]]:
    """Any number of BlipMQ brokers: a list, or text with commas."""

    def read(value: object) -> tuple[FederationLink, ...]:
        return _parsed(value, FederationLink, parse_federation_link)

    return Kind("links", "blipmq://KEY@host:port, blipmqs:// for TLS", read, _show_all, repeats=True)


def upstreams() -> Kind[tuple[Upstream, ...]]:
    """Any number of fq brokers: a list, or text with commas before each scheme."""

    def read(value: object) -> tuple[Upstream, ...]:
        return _parsed(value, Upstream, parse_upstream, _BEFORE_UPSTREAM)

    takes = "fq://USER:PASSWORD@host:port/QUEUE/TYPE?exchange=NAME&program=TEXT&permanent=true, fqs:// for TLS"
    return Kind("links", takes, read, _show_all, repeats=True)


_COMMA: Final = re.compile(",")
_BEFORE_UPSTREAM: Final = re.compile(r",(?=\s*fqs?://)")
"""The type of a queue holds commas itself."""


def _parsed(value: object, type_: type[T], parse: Callable[[str], T], between: re.Pattern[str] = _COMMA) -> tuple[T, ...]:
    """The items of a list. A refusal does not repeat them: they may hold secrets."""
    found: list[T] = []
    for item in _items(value, between):
        if isinstance(item, type_):
            found.append(item)
        elif isinstance(item, str):
            found.append(parse(item))
        else:
            raise ValueError(f"an item is of type {type(item).__name__}, not text")
    return tuple(found)


def _show_all(value: Iterable[object]) -> str:
    return ",".join(map(str, value))


def _items(value: object, between: re.Pattern[str] = _COMMA) -> list[object]:
    if isinstance(value, str):
        return [part for part in (piece.strip() for piece in between.split(value)) if part]
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in (_items(part, between) if isinstance(part, str) else [part])]
    return [value]


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest of `known`, or nothing when none is near."""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{found[0]}`?" if found else ""
