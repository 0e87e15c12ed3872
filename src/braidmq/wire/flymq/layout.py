"""The wire types of FlyMQ, and layouts made of them.

A message is described once, as a table row: `Layout(Consume, topic=STR, partition=I32, offset=U64)` both reads and writes
a `Consume`. Neighbouring fields of fixed size are joined into one `struct` when the row is made, so that describing
costs little at run time. All integers are big-endian.

Reading trusts nothing: every length is checked against the bytes that are left before anything is made from it, a list's
count against the least that so many items take, and text must be UTF-8. What fails is MALFORMED_PAYLOAD. Writing a value that
its field cannot hold is INVALID_ARGUMENT and names the field. Source and sink carry the dialect; the few fields that
differ between dialects look at it, and a field that only a v126 client can have written sets it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields as dataclass_fields
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from braidmq.base.errors import BraidError
from braidmq.wire.flymq.dialect import Dialect
from braidmq.wire.flymq.frames import encode_header

T = TypeVar("T")

_U32: Final = struct.Struct(">I")


class Source:
    """A payload being read, from front to back."""

    __slots__ = ("data", "dialect", "end", "position")

    def __init__(self, data: bytes | memoryview, dialect: Dialect) -> None:
        self.data = data
        self.dialect = dialect
        self.position = 0
        self.end = len(data)

    @property
    def left(self) -> int:
        return self.end - self.position

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        start = self.position
        after = start + form.size
        if after > self.end:
            raise self._short(form.size)
        self.position = after
        return form.unpack_from(self.data, start)

    def take(self, size: int) -> bytes | memoryview:
        """The next `size` bytes, as a slice of what the source was given: a copy of `bytes`, a view of a view."""
        start = self.position
        after = start + size
        if after > self.end:
            raise self._short(size)
        self.position = after
        return self.data[start:after]

    def _short(self, size: int) -> BraidError:
        return BraidError("MALFORMED_PAYLOAD", reason=f"{size} bytes needed at byte {self.position}, {self.left} left")


class Sink:
    """A payload being written: parts that are joined, and so copied, once."""

    __slots__ = ("dialect", "parts", "size")

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def add(self, part: bytes | memoryview) -> None:
        self.parts.append(part)
        self.size += len(part)

    def frame(self, op: int) -> bytes:
        """The whole frame; a payload over the limit is refused before it is joined."""
        return b"".join((encode_header(op, self.size), *self.parts))


class WireType(Protocol[T]):
    """How one kind of value lies on the wire."""

    size_min: int
    """The fewest bytes a value can take: what a list's count is checked against."""

    def read(self, source: Source) -> T: ...

    def write(self, sink: Sink, value: T, name: str) -> None:
        """Append `value`; `name` is for the error when it does not fit."""
        ...


class Fixed(Generic[T]):
    """A value that one `struct` letter describes."""

    def __init__(self, letter: str, kind: str) -> None:
        self.letter = letter
        self.kind = kind
        self.form = struct.Struct(">" + letter)
        self.size_min = self.form.size

    def read(self, source: Source) -> T:
        (value,) = source.unpack(self.form)
        return value  # type: ignore[no-any-return]

    def write(self, sink: Sink, value: T, name: str) -> None:
        try:
            sink.add(self.form.pack(value))
        except struct.error:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} must be {self.kind}, not {value!r}") from None


class Text:
    """UTF-8 after a length of one or two bytes."""

    def __init__(self, letter: str, bytes_max: int) -> None:
        self.prefix = struct.Struct(">" + letter)
        self.bytes_max = bytes_max
        self.size_min = self.prefix.size

    def read(self, source: Source) -> str:
        (size,) = source.unpack(self.prefix)
        start = source.position
        try:
            return str(source.take(size), "utf-8")
        except UnicodeDecodeError:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"the text at byte {start} is not UTF-8") from None

    def write(self, sink: Sink, value: str, name: str) -> None:
        try:
            data = value.encode()
        except UnicodeEncodeError:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} cannot be written as UTF-8") from None
        if len(data) > self.bytes_max:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} takes {len(data)} bytes, {self.bytes_max} at most")
        sink.add(self.prefix.pack(len(data)) + data)


class TrailingText(Text):
    """Text at the very end that a sender may leave out, which then reads as empty."""

    def __init__(self, letter: str, bytes_max: int) -> None:
        super().__init__(letter, bytes_max)
        self.size_min = 0

    def read(self, source: Source) -> str:
        return super().read(source) if source.left else ""


class Blob:
    """Raw bytes after a length of four; read as a copy that outlives the payload."""

    size_min = _U32.size

    def read(self, source: Source) -> bytes:
        (size,) = source.unpack(_U32)
        return bytes(source.take(size))

    def write(self, sink: Sink, value: bytes | memoryview, name: str) -> None:
        sink.add(_U32.pack(len(value)))
        sink.add(value)


class BlobView(Blob):
    """The same, read without a copy where the payload is a view; valid as long as the payload is."""

    def read(self, source: Source) -> bytes | memoryview:  # type: ignore[override]
        (size,) = source.unpack(_U32)
        return source.take(size)


class Many(Generic[T]):
    """A count of four bytes, then the items."""

    size_min = _U32.size

    def __init__(self, item: WireType[T]) -> None:
        assert item.size_min > 0, "an item of no bytes would let any count pass the check"
        self.item = item

    def read(self, source: Source) -> tuple[T, ...]:
        (count,) = source.unpack(_U32)
        return self.read_items(source, count)

    def read_items(self, source: Source, count: int) -> tuple[T, ...]:
        if count * self.item.size_min > source.left:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"{count} items cannot lie in the {source.left} bytes left")
        read = self.item.read
        return tuple([read(source) for _ in range(count)])

    def write(self, sink: Sink, value: tuple[T, ...], name: str) -> None:
        sink.add(_U32.pack(len(value)))
        self.write_items(sink, value, name)

    def write_items(self, sink: Sink, value: tuple[T, ...], name: str) -> None:
        write = self.item.write
        for item in value:
            write(sink, item, name)


class ByDialect(Generic[T]):
    """A message whose layout depends on the dialect."""

    def __init__(self, documented: WireType[T], v126: WireType[T]) -> None:
        self._layouts: dict[Dialect, WireType[T]] = {Dialect.DOCUMENTED: documented, Dialect.V126: v126}
        self.size_min = min(documented.size_min, v126.size_min)

    def read(self, source: Source) -> T:
        return self._layouts[source.dialect].read(source)

    def write(self, sink: Sink, value: T, name: str) -> None:
        self._layouts[sink.dialect].write(sink, value, name)


class _Run:
    """Neighbouring fixed fields, read and written as one `struct`."""

    def __init__(self, members: list[tuple[str, Fixed[Any]]]) -> None:
        self._members = members
        self._form = struct.Struct(">" + "".join(member.letter for _, member in members))
        self._get = attrgetter(*(name for name, _ in members))
        self._single = len(members) == 1

    def read_into(self, values: list[Any], source: Source) -> None:
        values += source.unpack(self._form)

    def write_from(self, message: object, sink: Sink) -> None:
        values = self._get(message)
        try:
            sink.add(self._form.pack(values) if self._single else self._form.pack(*values))
        except struct.error:
            # One of them does not fit; written one by one, the field to blame names itself.
            for name, member in self._members:
                member.write(sink, getattr(message, name), name)
            raise


class _One:
    """A field that has a type of its own."""

    def __init__(self, name: str, kind: WireType[Any]) -> None:
        self._name = name
        self._kind = kind
        self._get = attrgetter(name)

    def read_into(self, values: list[Any], source: Source) -> None:
        values.append(self._kind.read(source))

    def write_from(self, message: object, sink: Sink) -> None:
        self._kind.write(sink, self._get(message), self._name)


class Layout(Generic[T]):
    """The fields of a message in wire order. It is itself a wire type, so that lists and messages nest.

    `build` is the dataclass, or a `partial` of it that fixes the fields which the opcode implies.
    """

    def __init__(self, build: Callable[..., T], **members: WireType[Any]) -> None:
        self._build = build
        self.size_min = sum(member.size_min for member in members.values())
        names = list(members)
        declared = _declared_names(build)[: len(names)]
        assert set(declared) == set(names), f"{names} are not the first fields of {build}"
        # Values come in wire order and are passed by position: they are sorted first where the dataclass has another order.
        self._reorder = None if names == declared else itemgetter(*(names.index(name) for name in declared))
        self._steps: list[_Run | _One] = []
        run: list[tuple[str, Fixed[Any]]] = []
        for name, member in members.items():
            if isinstance(member, Fixed):
                run.append((name, member))
                continue
            if run:
                self._steps.append(_Run(run))
                run = []
            self._steps.append(_One(name, member))
        if run:
            self._steps.append(_Run(run))

    def read(self, source: Source) -> T:
        values: list[Any] = []
        for step in self._steps:
            step.read_into(values, source)
        return self._build(*(values if self._reorder is None else self._reorder(values)))

    def write(self, sink: Sink, value: T, name: str = "") -> None:
        for step in self._steps:
            step.write_from(value, sink)


def _declared_names(build: Callable[..., Any]) -> list[str]:
    """The fields in the order in which the dataclass takes them."""
    declared: Any = build.func if isinstance(build, partial) else build
    return [field.name for field in dataclass_fields(declared)]


BOOL: Final = Fixed[bool]("?", "a bool")
I32: Final = Fixed[int]("i", "a signed 32-bit integer")
U32: Final = Fixed[int]("I", "an unsigned 32-bit integer")
I64: Final = Fixed[int]("q", "a signed 64-bit integer")
U64: Final = Fixed[int]("Q", "an unsigned 64-bit integer")
STR: Final = Text("H", 0xFFFF)
STR8: Final = Text("B", 0xFF)
TRAILING_STR: Final = TrailingText("H", 0xFFFF)
BYTES: Final = Blob()
BYTES_VIEW: Final = BlobView()
