"""Reads a .proto file (proto2 or proto3) into the form of a file descriptor, without a compiler.

The whole file is split into tokens first; then one method a construct. What describes messages is read: messages, enums,
fields, maps, oneofs, reserved and extension ranges, packages, imports. Services and options that do not change the wire format
are stepped over. Groups, `extend` and editions are refused by name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.schemas.schema import invalid

SCALARS: Final = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9, "bytes": 12,
    "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
MESSAGE: Final = 11
ENUM: Final = 14
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_MAP_KEYS: Final = set(SCALARS) - {"double", "float", "bytes"}
_NUMBER_MAX: Final = (1 << 29) - 1
_ENUM_MAX: Final = (1 << 31) - 1
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>\.?[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[+-][0-9]+)?)
      | (?P<name>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<sign>[{}\[\]()<>=;,:+\-./])""",
    re.VERBOSE | re.DOTALL,
)
_CHOICE: Final = re.compile(r"^[ \t]*//[ \t]*message:[ \t]*([A-Za-z_][\w.]*)[ \t]*$", re.MULTILINE)


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    line: int


@dataclass(slots=True)
class ProtoFile:
    """What the file says: a descriptor, with types of fields by name until they are resolved, and the message it is about."""

    descriptor: Any
    chosen: str
    scopes: list[tuple[Any, str]] = field(default_factory=list)
    """Each message with its full name, in the order of the file."""


def parse_proto(text: str, descriptor: Any) -> ProtoFile:
    """Fill `descriptor`, an empty FileDescriptorProto."""
    choice = _CHOICE.search(text)
    reader = _Reader(_tokens(text), ProtoFile(descriptor, choice[1] if choice else ""))
    try:
        reader.file()
    except (ValueError, TypeError, OverflowError) as error:
        raise reader.fault(str(error)) from error
    return reader.result


def _tokens(text: str) -> list[_Token]:
    tokens = []
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise invalid("protobuf", f"line {line}: unexpected {text[at : at + 20]!r}")
        if found.lastgroup != "space":
            tokens.append(_Token(str(found.lastgroup), found[0], line))
        line += found[0].count("\n")
        at = found.end()
    return tokens


class _Reader:
    def __init__(self, tokens: list[_Token], result: ProtoFile) -> None:
        self._tokens = tokens
        self._at = 0
        self.result = result
        self._proto3 = False

    # --- tokens

    def fault(self, reason: str) -> BraidError:
        line = self._tokens[min(self._at, len(self._tokens)) - 1].line if self._tokens else 1
        return invalid("protobuf", f"line {line}: {reason}")

    def _ahead(self, count: int) -> str:
        return self._tokens[self._at + count].text if self._at + count < len(self._tokens) else ""

    def _peek(self) -> str:
        return self._ahead(0)

    def _next(self, kind: str = "") -> str:
        if self._at >= len(self._tokens):
            raise self.fault("the file ends too early")
        token = self._tokens[self._at]
        self._at += 1
        if kind and token.kind != kind:
            raise self.fault(f"expected a {kind}, not {token.text!r}")
        return token.text

    def _take(self, text: str) -> bool:
        if self._peek() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str) -> None:
        if self._next() != text:
            raise self.fault(f"expected {text!r}, not {self._tokens[self._at - 1].text!r}")

    def _identifier(self) -> str:
        name = self._next("name")
        if "." in name:
            raise self.fault(f"{name!r} is not a plain name")
        return name

    def _string(self) -> str:
        value = str(ast.literal_eval(self._next("text")))
        while self._at < len(self._tokens) and self._tokens[self._at].kind == "text":
            value += str(ast.literal_eval(self._next("text")))
        return value

    def _integer(self, lowest: int, highest: int) -> int:
        sign = -1 if self._take("-") else 1
        text = self._next("number")
        octal = len(text) > 1 and text[0] == "0" and text.isdigit()
        if len(text) > 20:
            raise self.fault("a number is too long")
        value = sign * (int(text, 8) if octal else int(text, 0))
        if not lowest <= value <= highest:
            raise self.fault(f"{value} is not {lowest} to {highest}")
        return value

    def _constant(self) -> str:
        """The value of an option or a default, as text."""
        if self._peek() == "{":
            self._skip_block()
            return ""
        if self._at < len(self._tokens) and self._tokens[self._at].kind == "text":
            return self._string()
        sign = "-" if self._take("-") else ""
        self._take("+")
        return sign + self._next()

    def _skip_block(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            text = self._next()
            depth += (text == "{") - (text == "}")

    def _skip_statement(self) -> None:
        while self._peek() not in (";", "{"):
            self._next()
        if self._peek() == "{":
            self._skip_block()
            self._take(";")
        else:
            self._next()

    # --- the file

    def file(self) -> None:
        descriptor = self.result.descriptor
        while self._at < len(self._tokens):
            match self._next():
                case "syntax":
                    self._expect("=")
                    syntax = self._string()
                    if syntax not in ("proto2", "proto3"):
                        raise self.fault(f"syntax {syntax!r} is neither proto2 nor proto3")
                    self._proto3 = syntax == "proto3"
                    if self._proto3:
                        # A descriptor that says nothing is proto2.
                        descriptor.syntax = syntax
                    self._expect(";")
                case "package":
                    descriptor.package = self._next("name")
                    self._expect(";")
                case "import":
                    if not self._take("public"):
                        self._take("weak")
                    descriptor.dependency.append(self._string())
                    self._expect(";")
                case "option" | "service":
                    self._skip_statement()
                case "message":
                    self._message(descriptor.message_type.add(), descriptor.package, 1)
                case "enum":
                    self._enum(descriptor.enum_type.add())
                case ";":
                    continue
                case other:
                    raise self.fault(f"{other!r} is not supported")

    # --- messages

    def _message(self, message: Any, scope: str, depth: int) -> None:
        if depth > limits.SCHEMA_DEPTH_MAX // 4:
            raise self.fault(f"messages nest deeper than {limits.SCHEMA_DEPTH_MAX // 4} levels")
        message.name = self._identifier()
        full = f"{scope}.{message.name}" if scope else message.name
        self.result.scopes.append((message, full))
        synthetic: list[Any] = []
        self._expect("{")
        while not self._take("}"):
            word = self._peek()
            following = self._ahead(1)
            if word == "message" and self._ahead(2) == "{":
                self._next()
                self._message(message.nested_type.add(), full, depth + 1)
            elif word == "enum" and self._ahead(2) == "{":
                self._next()
                self._enum(message.enum_type.add())
            elif word == "oneof" and self._ahead(2) == "{":
                self._next()
                self._oneof(message, full)
            elif word == "map" and following == "<":
                self._map(message, full)
            elif word == "option":
                self._skip_statement()
            elif word == "reserved":
                self._next()
                self._reserved(message, _NUMBER_MAX, 1)
            elif word == "extensions":
                self._next()
                self._ranges(message.extension_range, _NUMBER_MAX, 1)
                self._skip_statement()
            elif word in ("extend", "group") or following == "group":
                raise self.fault(f"{'group' if following == 'group' else word!r} is not supported")
            elif word == ";":
                self._next()
            else:
                self._labelled(message, synthetic)
        self._check_reserved(message)
        for item in synthetic:
            # A proto3 `optional` is a oneof of its own, after all those that are written.
            item.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{item.name}")

    def _check_reserved(self, message: Any) -> None:
        for item in message.field:
            if item.name in message.reserved_name or any(each.start <= item.number < each.end for each in message.reserved_range):
                raise self.fault(f"field {item.name} of {message.name} uses a reserved name or number")

    def _labelled(self, message: Any, synthetic: list[Any]) -> None:
        label = self._next() if self._peek() in _LABELS else ""
        if not label and not self._proto3:
            raise self.fault("a proto2 field begins with optional, required or repeated")
        if label == "required" and self._proto3:
            raise self.fault("proto3 has no required fields")
        item = message.field.add(label=_LABELS.get(label, 1))
        self._field(item)
        if label == "optional" and self._proto3:
            item.proto3_optional = True
            synthetic.append(item)

    def _field(self, item: Any) -> None:
        type_name = self._next("name")
        if type_name in SCALARS:
            item.type = SCALARS[type_name]
        else:
            item.type_name = type_name
        item.name = self._identifier()
        self._expect("=")
        item.number = self._integer(1, _NUMBER_MAX)
        self._field_options(item)
        self._expect(";")

    def _field_options(self, item: Any) -> None:
        if not self._take("["):
            return
        while True:
            name = self._option_name()
            self._expect("=")
            value = self._constant()
            if name == "default":
                item.default_value = value
            elif name == "packed":
                item.options.packed = value == "true"
            if self._take("]"):
                return
            self._expect(",")

    def _option_name(self) -> str:
        name = ""
        while self._peek() not in ("=", ""):
            name += self._next()
        return name

    def _oneof(self, message: Any, full: str) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._identifier())
        self._expect("{")
        while not self._take("}"):
            if self._peek() == "option":
                self._skip_statement()
            elif self._peek() in (*_LABELS, "map", "group"):
                raise self.fault(f"a oneof of {full} cannot hold {self._peek()!r}")
            else:
                item = message.field.add(label=1, oneof_index=index)
                self._field(item)

    def _map(self, message: Any, full: str) -> None:
        self._next()
        self._expect("<")
        key = self._next("name")
        if key not in _MAP_KEYS:
            raise self.fault(f"{key} cannot be the key of a map")
        self._expect(",")
        value = self._next("name")
        self._expect(">")
        item = message.field.add(label=_LABELS["repeated"], type=MESSAGE, name=self._identifier())
        self._expect("=")
        item.number = self._integer(1, _NUMBER_MAX)
        self._field_options(item)
        self._expect(";")
        entry = message.nested_type.add(name="".join(part[:1].upper() + part[1:] for part in item.name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=SCALARS[key])
        held = entry.field.add(name="value", number=2, label=1)
        if value in SCALARS:
            held.type = SCALARS[value]
        else:
            held.type_name = value
        item.type_name = f".{full}.{entry.name}"
        self.result.scopes.append((entry, f"{full}.{entry.name}"))

    # --- enums and ranges

    def _enum(self, enum: Any) -> None:
        enum.name = self._identifier()
        self._expect("{")
        while not self._take("}"):
            if self._peek() == "option":
                following = self._option_is_allow_alias()
                if following:
                    enum.options.allow_alias = True
                self._skip_statement()
            elif self._peek() == "reserved":
                self._next()
                self._reserved(enum, _ENUM_MAX, 0)
            elif not self._take(";"):
                value = enum.value.add(name=self._identifier())
                self._expect("=")
                value.number = self._integer(-_ENUM_MAX - 1, _ENUM_MAX)
                self._field_options(value)
                self._expect(";")

    def _option_is_allow_alias(self) -> bool:
        return [token.text for token in self._tokens[self._at : self._at + 4]] == ["option", "allow_alias", "=", "true"]

    def _reserved(self, holder: Any, most: int, past_the_end: int) -> None:
        if self._tokens[min(self._at, len(self._tokens) - 1)].kind == "text":
            while True:
                holder.reserved_name.append(self._string())
                if not self._take(","):
                    break
        else:
            self._ranges(holder.reserved_range, most, past_the_end)
        self._expect(";")

    def _ranges(self, ranges: Any, most: int, past_the_end: int) -> None:
        """Ranges of messages are stored with the number after their end, those of enums with their last."""
        while True:
            first = last = self._integer(-_ENUM_MAX - 1, most)
            if self._take("to"):
                last = most if self._take("max") else self._integer(first, most)
            ranges.add(start=first, end=last + past_the_end)
            if not self._take(","):
                return
