"""Route programs: which messages of an exchange a queue gets.

    prefix:foo (payload_prefix("M") && route_contains("bar"))

    program      = ( "prefix:" | "exact:" ) route-string [ rule ]
    route-string = '"' { byte | escape } '"'  |  { any byte but a space | escape }
    rule         = call | "(" rule "&&" rule ")" | "(" rule "||" rule ")" | "(" rule ")"
    call         = name "(" [ argument { "," argument } ] ")"
    argument     = string | number | "true" | "false"

A program comes from a stranger and runs for every message, so it is bounded in length, in depth and in arguments, and it is turned
into one Python function when it is bound. That function is compiled from an expression made of a few fixed pieces; the strings of
the program are values that it is given, never part of its source.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, NoReturn

from braidmq.base.errors import BraidError
from braidmq.base.limits import FQ_PROGRAM_ARGUMENTS_MAX, FQ_PROGRAM_BYTES_MAX, FQ_PROGRAM_DEPTH_MAX
from braidmq.wire.shape import shape

PREFIX: Final = "prefix"
EXACT: Final = "exact"

Matches = Callable[[bytes, bytes], bool]
Argument = bytes | float | bool
Chance = Callable[[], float]

_SPACE: Final = re.compile(rb"[ \t\n\v\f\r]*")
_NAME: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER: Final = re.compile(
    rb"[+-]?(?:(0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?)|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?|nan)",
    re.IGNORECASE,
)
"""What C reads as a number."""
_ARGUMENT_ESCAPES: Final = {0x5C: b"\\", 0x22: b'"', 0x6E: b"\n", 0x72: b"\r", 0x74: b"\t", 0x30: b"\0"}

_FUNCTIONS: Final[dict[tuple[str, ...], str]] = {
    ("true",): "True",
    ("sample", "number"): "chance() < {0}",
    ("route_contains", "string"): "{0} in route",
    ("payload_prefix", "string"): "payload[{0}_size] == {0}",
    ("payload_contains", "string"): "{0} in payload",
}
"""Name and kinds of the arguments, and the expression it stands for; `{0}` is where the first argument is named.

Comparing a slice is a third faster than `startswith`, and a slice that exists is faster than one that is made.
"""


@shape
class Program:
    """A program that was understood. Two are equal when their texts are."""

    text: bytes
    kind: str = field(compare=False)
    """`PREFIX` or `EXACT`."""
    head: bytes = field(compare=False)
    """What the route begins with, or is."""
    matches: Matches = field(compare=False, repr=False)
    """Whether the queue gets a message with this route and this payload."""
    matches_all: bool = field(compare=False)
    """Whether it gets every message, so that none has to be looked at."""
    needs_payload: bool = field(compare=False)
    """Whether the payload matters; if not, an empty one gives the same answer."""


def parse_program(text: bytes, chance: Chance = random.random) -> Program:
    """Understand and compile a program; INVALID_PROGRAM says what is wrong with it and where.

    `chance` gives numbers from 0 to 1 for `sample`.
    """
    return _Parser(text).program(chance)


class _Parser:
    """Reads a text from front to back and gathers a Python expression, with the values that it names."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0
        self.values: dict[str, Any] = {}

    def program(self, chance: Chance) -> Program:
        text = self.text
        if len(text) > FQ_PROGRAM_BYTES_MAX:
            self._refuse(f"more than {FQ_PROGRAM_BYTES_MAX} bytes", FQ_PROGRAM_BYTES_MAX)
        kind = next((kind for kind in (PREFIX, EXACT) if text.startswith(kind.encode() + b":")), None)
        if kind is None:
            self._refuse("neither `prefix:` nor `exact:`")
        self.at = len(kind) + 1
        head = self._route_string()
        self._space()
        rule = "True"
        if self.at < len(text):
            rule = self._rule(0)
            self._space()
            if self.at < len(text):
                self._refuse("something behind the rule")
        parts = ["route == head"] if kind == EXACT else ["route[head_size] == head"] if head else []
        if rule != "True":
            parts.append(f"({rule})")
        source = " and ".join(parts) or "True"
        return Program(text, kind, head, self._compile(source, head, chance), not parts, "payload" in source)

    def _compile(self, source: str, head: bytes, chance: Chance) -> Matches:
        # Values are default arguments: local names are the fastest that there are.
        names = {"chance": chance, "head": head, **self.values}
        names.update({f"{name}_size": slice(len(value)) for name, value in names.items() if isinstance(value, bytes)})
        used = [name for name in names if re.search(rf"\b{name}\b", source)]
        parameters = "".join(f", {name}={name}" for name in used)
        function: Matches = eval(f"lambda route, payload{parameters}: {source}", {**names, "__builtins__": {}})
        return function

    # --- the route

    def _route_string(self) -> bytes:
        if self.text[self.at : self.at + 1] == b'"':
            return self._quoted(self._route_escape)
        out = bytearray()
        while self.at < len(self.text) and self.text[self.at] != 0x20:
            if self.text[self.at] == 0x5C:
                out += self._route_escape()
            else:
                out.append(self.text[self.at])
                self.at += 1
        return bytes(out)

    def _route_escape(self) -> bytes:
        escaped = self._escaped()
        if escaped != 0x78:
            return bytes((escaped,))
        digits = self.text[self.at : self.at + 2]
        if not re.fullmatch(rb"[0-9A-Fa-f]{2}", digits):
            self._refuse("`\\x` without two hexadecimal digits")
        self.at += 2
        return bytes((int(digits, 16),))

    # --- rules

    def _rule(self, depth: int) -> str:
        self._space()
        if not self._take(b"("):
            return self._call()
        if depth == FQ_PROGRAM_DEPTH_MAX:
            self._refuse(f"more than {FQ_PROGRAM_DEPTH_MAX} levels of parentheses", self.at - 1)
        left = self._rule(depth + 1)
        self._space()
        if self._take(b")"):
            return left
        if self._take(b"&&"):
            operator = "and"
        elif self._take(b"||"):
            operator = "or"
        else:
            self._refuse("`&&`, `||` or `)` expected")
        right = self._rule(depth + 1)
        self._space()
        if not self._take(b")"):
            self._refuse("`)` expected")
        return _joined(left, operator, right)

    def _call(self) -> str:
        begin = self.at
        found = _NAME.match(self.text, begin)
        if found is None:
            self._refuse("a rule expected")
        name = found[0].decode()
        self.at = found.end()
        self._space()
        if not self._take(b"("):
            self._refuse("`(` expected")
        arguments = self._arguments()
        shape = (name, *map(_kind, arguments))
        expression = _FUNCTIONS.get(shape)
        if expression is None:
            known = any(known[0] == name for known in _FUNCTIONS)
            self._refuse(f"wrong arguments of `{name}`" if known else f"unknown function `{name}`", begin)
        return expression.format(*map(self._value, arguments))

    def _arguments(self) -> list[Argument]:
        arguments: list[Argument] = []
        self._space()
        if self._take(b")"):
            return arguments
        while True:
            if len(arguments) == FQ_PROGRAM_ARGUMENTS_MAX:
                self._refuse(f"more than {FQ_PROGRAM_ARGUMENTS_MAX} arguments")
            self._space()
            arguments.append(self._argument())
            self._space()
            if self._take(b")"):
                return arguments
            if not self._take(b","):
                self._refuse("`,` or `)` expected")

    def _argument(self) -> Argument:
        if self.text[self.at : self.at + 1] == b'"':
            return self._quoted(self._argument_escape)
        number = _NUMBER.match(self.text, self.at)
        word = _NAME.match(self.text, self.at)
        if number is not None and (word is None or word.end() <= number.end()):
            self.at = number.end()
            return _number(number)
        if word is not None and word[0] in (b"true", b"false"):
            self.at = word.end()
            return word[0] == b"true"
        self._refuse("a string, a number, `true` or `false` expected")

    def _argument_escape(self) -> bytes:
        escaped = self._escaped()
        return _ARGUMENT_ESCAPES.get(escaped) or b"\\" + bytes((escaped,))

    # --- pieces

    def _value(self, argument: Argument) -> str:
        name = f"value{len(self.values)}"
        self.values[name] = argument
        return name

    def _quoted(self, escape: Callable[[], bytes]) -> bytes:
        begin = self.at
        self.at += 1
        out = bytearray()
        while self.at < len(self.text):
            byte = self.text[self.at]
            if byte == 0x22:
                self.at += 1
                return bytes(out)
            if byte == 0x5C:
                out += escape()
            else:
                out.append(byte)
                self.at += 1
        self._refuse("a quote that is not closed", begin)

    def _escaped(self) -> int:
        """The byte behind the backslash that stands here."""
        if self.at + 1 >= len(self.text):
            self._refuse("a backslash at the end")
        self.at += 2
        return self.text[self.at - 1]

    def _take(self, token: bytes) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def _space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def _refuse(self, reason: str, at: int | None = None) -> NoReturn:
        raise BraidError("INVALID_PROGRAM", reason=reason, at=self.at if at is None else at)


def _kind(argument: Argument) -> str:
    if isinstance(argument, bytes):
        return "string"
    return "boolean" if isinstance(argument, bool) else "number"


def _number(found: re.Match[bytes]) -> float:
    text = found[0].decode()
    if found[1] is None:
        return float(text)
    try:
        return float.fromhex(text)
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


def _joined(left: str, operator: str, right: str) -> str:
    """Two rules as one; what is always true needs no evaluation."""
    if operator == "and":
        return right if left == "True" else left if right == "True" else f"({left} and {right})"
    return "True" if "True" in (left, right) else f"({left} or {right})"
