"""The command connection of fq, in both directions: two bytes of code, then fields; no length of the whole.

A field may come in any number of pieces. A wrong length or an unknown code leaves no way to find the next command, so the reader
fails for good; before it does, it returns what came whole in front of the fault. Memory is bounded by the largest command, and
nothing is allocated for a length that was only announced. Every encoder returns one reply in one piece, because clients read
each field with one call and give up on a short one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, Generic, TypeVar

from braidmq.base.errors import BraidError
from braidmq.base.limits import ERROR_TEXT_BYTES_MAX, FQ_KEY_BYTES_MAX, FQ_NAME_BYTES_MAX
from braidmq.wire.fq.auth import AUTH_FIELDS, Auth
from braidmq.wire.shape import shape


class Code(IntEnum):
    """What a command or reply begins with."""

    ERROR = 0xEEEE
    AUTH = 0xAAAA
    AUTH_ACCEPTED = 0xAA00
    HEARTBEAT_REQUEST = 0x4848
    HEARTBEAT = 0xBEA7
    BIND = 0xB170
    BOUND = 0xB171
    UNBIND = 0x071B
    UNBOUND = 0x171B
    STATUS_REQUEST = 0xC7A7
    STATUS = 0x57A7
    STRAY = 0x0000
    """A published client sends it behind each status request; it means nothing."""


AUTH_PLAIN: Final = 0
FLAG_PEER: Final = 0x0001
FLAGS_PERMANENT: Final = 0x0110
"""Both bits: the binding is kept across restarts."""
FLAG_TRANSIENT: Final = 0x0100
"""This bit without 0010: the kept copy is deleted, the live binding stays."""
REFUSED: Final = 0xFFFFFFFF
"""The route id of a bind or unbind that was not done."""

STATUS_KEYS: Final = (
    "dropped_in", "no_exchange", "no_route", "routed", "dropped", "size_dropped", "msgs_in", "msgs_out", "octets_in", "octets_out",
)  # fmt: skip
"""In the order that clients get them. Without a data connection there is only the first."""

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_CODE_U16: Final = struct.Struct(">HH")
_CODE_U32: Final = struct.Struct(">HI")


@shape
class Heartbeat:
    """A sign of life, either way."""


@shape
class HeartbeatRequest:
    """The broker is to send heartbeats so often, and to expect some; 0 ends both."""

    interval_ms: int


@shape
class Bind:
    flags: int
    exchange: bytes
    program: bytes

    @property
    def peer(self) -> bool:
        return bool(self.flags & FLAG_PEER)

    @property
    def permanent(self) -> bool | None:
        """Whether the binding is to be kept; None: as it is, and a new one is not."""
        bits = self.flags & FLAGS_PERMANENT
        return {FLAGS_PERMANENT: True, FLAG_TRANSIENT: False}.get(bits)


@shape
class Unbind:
    route_id: int
    exchange: bytes


@shape
class StatusRequest:
    pass


@shape
class ErrorReply:
    """The last thing that a broker sends."""

    text: bytes


@shape
class AuthAccepted:
    key: bytes


@shape
class Bound:
    """`REFUSED` in place of the id: the program makes no sense, or the client may not."""

    route_id: int


@shape
class Unbound:
    route_id: int


@shape
class Status:
    counters: tuple[tuple[str, int], ...]


Command = Auth | Heartbeat | HeartbeatRequest | Bind | Unbind | StatusRequest
Reply = ErrorReply | AuthAccepted | Heartbeat | Bound | Unbound | Status
C = TypeVar("C")


class _Short(Exception):
    """The bytes end inside a command."""


class _Source:
    """Bytes being read from front to back; what is not there yet raises `_Short`."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self.data = data
        self.position = position

    def u16(self) -> int:
        return int(_U16.unpack_from(self.data, self._advance(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack_from(self.data, self._advance(4))[0])

    def str16(self, what: str, most: int = 0xFFFF) -> bytes:
        size = self.u16()
        if size > most:
            raise BraidError("MALFORMED_FQ", reason=f"{what} of {size} bytes")
        return self.take(size)

    def take(self, size: int) -> bytes:
        at = self._advance(size)
        return bytes(self.data[at : at + size])

    def _advance(self, size: int) -> int:
        at = self.position
        if at + size > len(self.data):
            raise _Short
        self.position = at + size
        return at


class _Reader(Generic[C]):
    """Cuts a byte stream into commands.

    `receive` returns what the bytes complete. A fault raises; when whole commands came in front of it they are returned first,
    `failure` is set, and the next call raises.
    """

    __slots__ = ("_partial", "failure")

    def __init__(self) -> None:
        self._partial = b""
        self.failure: BraidError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes held of a command that is not complete."""
        return len(self._partial)

    def receive(self, data: bytes | bytearray | memoryview) -> list[C]:
        if self.failure is not None:
            raise self.failure
        source = _Source(self._partial + bytes(data), 0)
        found: list[C] = []
        start = 0
        try:
            while True:
                command = self._next(source)
                start = source.position
                if command is not None:
                    found.append(command)
        except _Short:
            self._partial = bytes(source.data[start:])
        except BraidError as fault:
            self.failure = fault
            self._partial = b""
            if not found:
                raise
        return found

    def _next(self, source: _Source) -> C | None:
        raise NotImplementedError


class CommandReader(_Reader[Command]):
    """What a client sends after the mode word. The first command has to be AUTH, and it comes once."""

    __slots__ = ("authenticated",)

    def __init__(self) -> None:
        super().__init__()
        self.authenticated = False
        """Whether AUTH was read; not whether it was believed."""

    def first(self, data: bytes | memoryview) -> tuple[Command | None, int] | None:
        """The command that `data` begins with (None for one that means nothing) and its size; None while it is not complete.

        For whoever keeps the bytes and runs one command at a time; `receive` is for everybody else.
        """
        source = _Source(data, 0)
        try:
            return self._next(source), source.position
        except _Short:
            return None

    def _next(self, source: _Source) -> Command | None:
        code = source.u16()
        if not self.authenticated:
            auth = _read_auth(source, code)
            self.authenticated = True
            return auth
        match code:
            case Code.HEARTBEAT:
                return Heartbeat()
            case Code.HEARTBEAT_REQUEST:
                return HeartbeatRequest(source.u16())
            case Code.BIND:
                flags = source.u16()
                return Bind(flags, source.str16("an exchange", FQ_NAME_BYTES_MAX), source.str16("a program"))
            case Code.UNBIND:
                route_id = source.u32()
                return Unbind(route_id, source.str16("an exchange", FQ_NAME_BYTES_MAX))
            case Code.STATUS_REQUEST:
                return StatusRequest()
            case Code.STRAY:
                return None
        raise BraidError("MALFORMED_FQ", reason=f"unknown command {code:04x}")


def _read_auth(source: _Source, code: int) -> Auth:
    if code != Code.AUTH:
        raise BraidError("FQ_AUTH_EXPECTED")
    if source.u16() != AUTH_PLAIN:
        raise BraidError("FQ_AUTH_METHOD")
    fields = []
    for what, most in AUTH_FIELDS:
        size = source.u16()
        if size > most:
            raise BraidError("FQ_NAME_TOO_LONG", what=what)
        fields.append(source.take(size))
    return Auth(*fields)


class ReplyReader(_Reader[Reply]):
    """What a broker sends on a command connection."""

    __slots__ = ()

    def _next(self, source: _Source) -> Reply:
        code = source.u16()
        match code:
            case Code.HEARTBEAT:
                return Heartbeat()
            case Code.BOUND:
                return Bound(source.u32())
            case Code.UNBOUND:
                return Unbound(source.u32())
            case Code.STATUS:
                return Status(_read_counters(source))
            case Code.AUTH_ACCEPTED:
                return AuthAccepted(source.str16("a key", FQ_KEY_BYTES_MAX))
            case Code.ERROR:
                return ErrorReply(source.str16("an error"))
        raise BraidError("MALFORMED_FQ", reason=f"unknown reply {code:04x}")


def _read_counters(source: _Source) -> tuple[tuple[str, int], ...]:
    counters: list[tuple[str, int]] = []
    while name := source.str16("a counter's name", FQ_NAME_BYTES_MAX):
        if len(counters) == 100:
            raise BraidError("MALFORMED_FQ", reason="a status without an end")
        counters.append((name.decode("utf-8", "backslashreplace"), source.u32()))
    return tuple(counters)


# --- encoders


def _str16(raw: bytes, what: str, most: int = 0xFFFF) -> bytes:
    if len(raw) > most:
        raise BraidError("INVALID_ARGUMENT", reason=f"{what} has {len(raw)} bytes, {most} at most")
    return _U16.pack(len(raw)) + raw


def _number(value: int, most: int, what: str) -> int:
    if not 0 <= value <= most:
        raise BraidError("INVALID_ARGUMENT", reason=f"{what} {value} is outside 0 to {most}")
    return value


def encode_command(command: Command) -> bytes:
    """A command as a client sends it."""
    match command:
        case Auth():
            parts = zip((command.user, command.queue, command.password), AUTH_FIELDS, strict=True)
            return _CODE_U16.pack(Code.AUTH, AUTH_PLAIN) + b"".join(_str16(raw, what, most) for raw, (what, most) in parts)
        case Heartbeat():
            return _U16.pack(Code.HEARTBEAT)
        case HeartbeatRequest():
            return _CODE_U16.pack(Code.HEARTBEAT_REQUEST, _number(command.interval_ms, 0xFFFF, "the interval"))
        case Bind():
            head = _CODE_U16.pack(Code.BIND, _number(command.flags, 0xFFFF, "the flags"))
            return head + _str16(command.exchange, "the exchange", FQ_NAME_BYTES_MAX) + _str16(command.program, "the program")
        case Unbind():
            head = _CODE_U32.pack(Code.UNBIND, _number(command.route_id, 0xFFFFFFFF, "the route id"))
            return head + _str16(command.exchange, "the exchange", FQ_NAME_BYTES_MAX)
        case StatusRequest():
            return _U16.pack(Code.STATUS_REQUEST)


def encode_reply(reply: Reply) -> bytes:
    """A reply as a broker sends it, in one piece."""
    match reply:
        case Heartbeat():
            return _U16.pack(Code.HEARTBEAT)
        case Bound():
            return _CODE_U32.pack(Code.BOUND, reply.route_id)
        case Unbound():
            return _CODE_U32.pack(Code.UNBOUND, reply.route_id)
        case Status():
            return encode_status(reply.counters)
        case AuthAccepted():
            return _U16.pack(Code.AUTH_ACCEPTED) + _str16(reply.key, "the key", FQ_KEY_BYTES_MAX)
        case ErrorReply():
            return _U16.pack(Code.ERROR) + _str16(reply.text[:ERROR_TEXT_BYTES_MAX], "the text")


def encode_status(counters: Iterable[tuple[str, int]]) -> bytes:
    """STATUS; values wrap at 32 bits, as they always did."""
    parts = [_U16.pack(Code.STATUS)]
    for name, value in counters:
        parts += (_str16(name.encode(), "a counter's name", FQ_NAME_BYTES_MAX), _U32.pack(value & 0xFFFFFFFF))
    parts.append(b"\0\0")
    return b"".join(parts)


def encode_error(error: BraidError) -> bytes:
    """ERROR with the text that fq programs know. The connection is closed behind it."""
    return encode_reply(ErrorReply(error.fq_text.encode("utf-8", "backslashreplace")))
