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
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, Protocol, TypeVar

from braidmq.base.errors import BraidError
from braidmq.base.limits import REQUEST_LIST_ITEMS_MAX
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


class TrailingBool:
    """A bool at the very end that a sender may leave out, which then reads as false."""

    size_min = 0

    def read(self, source: Source) -> bool:
        return BOOL.read(source) if source.left else False

    def write(self, sink: Sink, value: bool, name: str) -> None:
        BOOL.write(sink, value, name)


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
    """A count, of four bytes unless told otherwise, then the items."""

    def __init__(self, item: WireType[T], count: Fixed[int] | None = None, items_max: int = 0xFFFFFFFF) -> None:
        assert item.size_min > 0, "an item of no bytes would let any count pass the check"
        self.item = item
        self.count = U32 if count is None else count
        self.items_max = items_max
        self.size_min = self.count.size_min

    def read(self, source: Source) -> tuple[T, ...]:
        return self.read_items(source, self.count.read(source))

    def read_items(self, source: Source, count: int) -> tuple[T, ...]:
        if count * self.item.size_min > source.left:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"{count} items cannot lie in the {source.left} bytes left")
        if count > self.items_max:
            raise BraidError("MALFORMED_PAYLOAD", reason=f"a list of {count} items, {self.items_max} at most")
        read = self.item.read
        return tuple([read(source) for _ in range(count)])

    def write(self, sink: Sink, value: tuple[T, ...], name: str) -> None:
        if len(value) > self.items_max:
            raise BraidError("INVALID_ARGUMENT", reason=f"{name} has {len(value)} items, {self.items_max} at most")
        self.count.write(sink, len(value), f"the length of {name}")
        self.write_items(sink, value, name)

    def write_items(self, sink: Sink, value: tuple[T, ...], name: str) -> None:
        write = self.item.write
        for item in value:
            write(sink, item, name)


def asked(item: WireType[T], count: Fixed[int] | None = None) -> Many[T]:
    """A list inside a request. It is capped, because a frame of tiny items takes seconds to read while everybody else waits."""
    return Many(item, count, REQUEST_LIST_ITEMS_MAX)


class Pair:
    """Two texts, such as a name and its value."""

    size_min = 4

    def read(self, source: Source) -> tuple[str, str]:
        first = STR.read(source)
        return first, STR.read(source)

    def write(self, sink: Sink, value: tuple[str, str], name: str) -> None:
        first, second = value
        STR.write(sink, first, name)
        STR.write(sink, second, name)


class Prefixed(Generic[T]):
    """A message after a length of four bytes, so that readers can skip the fields they do not know."""

    size_min = _U32.size

    def __init__(self, item: WireType[T]) -> None:
        self._item = item

    def read(self, source: Source) -> T:
        (size,) = source.unpack(_U32)
        return self._item.read(Source(source.take(size), source.dialect))

    def write(self, sink: Sink, value: T, name: str) -> None:
        inner = Sink(sink.dialect)
        self._item.write(inner, value, name)
        sink.add(_U32.pack(inner.size))
        for part in inner.parts:
            sink.add(part)


class ByDialect(Generic[T]):
    """A message whose layout depends on the dialect."""

    def __init__(self, documented: WireType[T], v126: WireType[T]) -> None:
        self._layouts: dict[Dialect, WireType[T]] = {Dialect.DOCUMENTED: documented, Dialect.V126: v126}
        self.size_min = min(documented.size_min, v126.size_min)

    def read(self, source: Source) -> T:
        return self._layouts[source.dialect].read(source)

    def write(self, sink: Sink, value: T, name: str) -> None:
        self._layouts[sink.dialect].write(sink, value, name)


class OnlyV126(Generic[T]):
    """A request under an opcode that the documents do not list, so that its opcode alone shows a published client."""

    def __init__(self, item: WireType[T]) -> None:
        self._item = item
        self.size_min = item.size_min

    def read(self, source: Source) -> T:
        source.dialect = Dialect.V126
        return self._item.read(source)

    def write(self, sink: Sink, value: T, name: str) -> None:
        if sink.dialect is not Dialect.V126:
            # Sent anyway it would move the connection to v126, and later answers could not be read.
            raise BraidError("INVALID_ARGUMENT", reason=f"{type(value).__name__} under this opcode exists only in the v126 dialect")
        self._item.write(sink, value, name)


class Choice(Generic[T]):
    """An answer with several forms, by class. The value says which one is written; read is the first, unless another is named."""

    def __init__(self, **forms: Layout[Any]) -> None:
        self._forms = forms
        self._first = next(iter(forms.values()))
        self.size_min = min(form.size_min for form in forms.values())

    def form(self, kind: type) -> Layout[Any]:
        return self._forms[kind.__name__]

    def read(self, source: Source) -> T:
        return self._first.read(source)  # type: ignore[no-any-return]

    def write(self, sink: Sink, value: T, name: str) -> None:
        self._forms[type(value).__name__].write(sink, value, name)


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
        self._steps = _steps(members)

    def read(self, source: Source) -> T:
        values: list[Any] = []
        for step in self._steps:
            step.read_into(values, source)
        return self._build(*(values if self._reorder is None else self._reorder(values)))

    def write(self, sink: Sink, value: T, name: str = "") -> None:
        for step in self._steps:
            step.write_from(value, sink)


class Extended(Layout[T]):
    """A layout with fields of our own behind the published ones.

    The extension is all there or not there at all. It is written when one of its fields differs from the dataclass's default, and
    a message without it reads as those defaults, so that published peers and ours understand each other.
    """

    def __init__(self, build: Callable[..., T], extension: Mapping[str, WireType[Any]], **members: WireType[Any]) -> None:
        super().__init__(build, **members)
        declared: Any = build
        fields = dataclass_fields(declared)[len(members) : len(members) + len(extension)]
        assert [field.name for field in fields] == list(extension), f"{list(extension)} do not follow in {build}"
        assert all(field.default is not MISSING for field in fields), f"an extension of {build} without a default"
        assert self._reorder is None
        self._extension = _steps(extension)
        self._defaults = [(field.name, field.default) for field in fields]

    def read(self, source: Source) -> T:
        values: list[Any] = []
        for step in self._steps:
            step.read_into(values, source)
        if source.left:
            for step in self._extension:
                step.read_into(values, source)
        return self._build(*values)

    def write(self, sink: Sink, value: T, name: str = "") -> None:
        super().write(sink, value, name)
        if any(getattr(value, field) != default for field, default in self._defaults):
            for step in self._extension:
                step.write_from(value, sink)


def _steps(members: Mapping[str, WireType[Any]]) -> list[_Run | _One]:
    """How to read and write the fields, neighbouring fixed ones in one go."""
    steps: list[_Run | _One] = []
    run: list[tuple[str, Fixed[Any]]] = []
    for name, member in members.items():
        if isinstance(member, Fixed):
            run.append((name, member))
            continue
        if run:
            steps.append(_Run(run))
            run = []
        steps.append(_One(name, member))
    if run:
        steps.append(_Run(run))
    return steps


def _declared_names(build: Callable[..., Any]) -> list[str]:
    """The fields in the order in which the dataclass takes them."""
    declared: Any = build.func if isinstance(build, partial) else build
    return [field.name for field in dataclass_fields(declared)]


BOOL: Final = Fixed[bool]("?", "a bool")
U8: Final = Fixed[int]("B", "an unsigned 8-bit integer")
U16: Final = Fixed[int]("H", "an unsigned 16-bit integer")
I32: Final = Fixed[int]("i", "a signed 32-bit integer")
U32: Final = Fixed[int]("I", "an unsigned 32-bit integer")
I64: Final = Fixed[int]("q", "a signed 64-bit integer")
U64: Final = Fixed[int]("Q", "an unsigned 64-bit integer")
STR: Final = Text("H", 0xFFFF)
STR8: Final = Text("B", 0xFF)
TRAILING_STR: Final = TrailingText("H", 0xFFFF)
TRAILING_BOOL: Final = TrailingBool()
PAIR: Final = Pair()
BYTES: Final = Blob()
BYTES_VIEW: Final = BlobView()
