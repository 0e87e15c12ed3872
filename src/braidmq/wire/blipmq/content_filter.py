"""Expressions that say which messages a subscriber wants.

    expr = and { "or" and }         and  = not { "and" not }
    not  = [ "not" ] prim           prim = "(" expr ")" | "exists" ref
                                         | ref op lit | ref "in" "(" lit { "," lit } ")"
    op   = "=" "!=" "<" "<=" ">" ">=" "contains"
    ref  = "topic" | "size" | "qos" | "payload" | "meta." key | "payload." path
    path = name or index { "." name or index }         lit = JSON string, number, true, false, null

`payload` is the text of the payload, `payload.<path>` a value in it when it is JSON; `size` is its length in bytes. A comparison
with a value that is not there, or is of another type than the literal, is false, also `!=`; `not` turns that round. Strings
are ordered by their characters. `contains` looks for a text in a text, or for a value in an array.

An expression comes from a stranger: its length, its nesting and the number of its comparisons are bounded, there is nothing in
it that can loop, and a payload that is no JSON, or nests too deeply, has no values. It is compiled to closures once, and the
payload is parsed at most once a message, however many expressions ask.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from braidmq.base import limits
from braidmq.base.errors import BraidError

_MISSING: Final = object()
_UNREAD: Final = object()


class Candidate:
    """A message that expressions are asked about. What is costly is worked out when the first of them asks."""

    __slots__ = ("_document", "_text", "metadata", "payload", "qos", "topic")

    def __init__(self, topic: str, payload: bytes, qos: int, metadata: Mapping[str, str]) -> None:
        self.topic = topic
        self.payload = payload
        """Not compressed, whatever it was sent as."""
        self.qos = qos
        self.metadata = metadata
        self._text: object = _UNREAD
        self._document: object = _UNREAD

    @property
    def text(self) -> object:
        """The payload as text, if it is UTF-8."""
        if self._text is _UNREAD:
            try:
                self._text = self.payload.decode()
            except UnicodeDecodeError:
                self._text = _MISSING
        return self._text

    @property
    def document(self) -> object:
        """The payload as JSON, if it is."""
        if self._document is _UNREAD:
            try:
                self._document = json.loads(self.payload, parse_constant=_no_number)
            except (ValueError, RecursionError):
                self._document = _MISSING
        return self._document


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_Test = Callable[[Candidate], bool]
_Value = Callable[[Candidate], object]


class ContentFilter:
    """A compiled expression: call it with a `Candidate`."""

    __slots__ = ("_test", "text")

    def __init__(self, text: str, test: _Test) -> None:
        self.text = text
        self._test = test

    def __call__(self, candidate: Candidate) -> bool:
        return self._test(candidate)


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*")
      | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![\w.-]))
      | (?P<op>!=|<=|>=|=|<|>)
      | (?P<mark>[(),])
      | (?P<word>[^\s"(),=!<>]+)
    )""",
    re.VERBOSE,
)
_WORDS: Final[dict[str, object]] = {"true": True, "false": False, "null": None}
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_expression(text: str) -> ContentFilter:
    """The filter that `text` describes. INVALID_EXPRESSION, with the position, when it is none."""
    if len(text) > limits.BLIPMQ_EXPRESSION_CHARACTERS_MAX:
        limit = limits.BLIPMQ_EXPRESSION_CHARACTERS_MAX
        raise BraidError("INVALID_EXPRESSION", position=limit, reason=f"{len(text)} characters are more than {limit}")
    return ContentFilter(text, _Parser(text).whole())


class _Parser:
    """One token of look-ahead, one method a line of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self._depth = 0
        self._comparisons = 0
        self._kind = self._token = ""
        self._at = 0
        self._advance()

    def whole(self) -> _Test:
        test = self._either()
        if self._kind:
            self._fail(f'"{self._token}" after the end of the expression')
        return test

    def _advance(self) -> None:
        rest = self._text[self._next :]
        blank = len(rest) - len(rest.lstrip())
        self._at = self._next + blank
        if not rest.strip():
            self._kind, self._token, self._next = "", "", len(self._text)
            return
        found = _TOKEN.match(self._text, self._next)
        if found is None:
            self._fail("neither a word nor a JSON value")
        self._kind = str(found.lastgroup)
        self._token = found[self._kind]
        self._next = found.end()

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise BraidError("INVALID_EXPRESSION", position=self._at if position is None else position, reason=reason)

    def _is_word(self, word: str) -> bool:
        return self._kind == "word" and self._token == word

    def _expect(self, mark: str) -> None:
        if self._kind != "mark" or self._token != mark:
            self._fail(f'"{mark}" is missing')
        self._advance()

    def _either(self) -> _Test:
        self._depth += 1
        if self._depth > limits.BLIPMQ_EXPRESSION_DEPTH_MAX:
            self._fail(f"nested deeper than {limits.BLIPMQ_EXPRESSION_DEPTH_MAX}")
        tests = [self._both()]
        while self._is_word("or"):
            self._advance()
            tests.append(self._both())
        self._depth -= 1
        return tests[0] if len(tests) == 1 else lambda candidate: any(test(candidate) for test in tests)

    def _both(self) -> _Test:
        tests = [self._negated()]
        while self._is_word("and"):
            self._advance()
            tests.append(self._negated())
        return tests[0] if len(tests) == 1 else lambda candidate: all(test(candidate) for test in tests)

    def _negated(self) -> _Test:
        if not self._is_word("not"):
            return self._primary()
        self._advance()
        test = self._primary()
        return lambda candidate: not test(candidate)

    def _primary(self) -> _Test:
        if self._kind == "mark" and self._token == "(":
            self._advance()
            test = self._either()
            self._expect(")")
            return test
        self._comparisons += 1
        if self._comparisons > limits.BLIPMQ_EXPRESSION_COMPARISONS_MAX:
            self._fail(f"more than {limits.BLIPMQ_EXPRESSION_COMPARISONS_MAX} comparisons")
        if self._is_word("exists"):
            self._advance()
            found = self._reference()
            return lambda candidate: found(candidate) is not _MISSING
        value = self._reference()
        if self._kind == "op" or self._is_word("contains"):
            name = self._token
            self._advance()
            return _comparison(name, value, self._literal())
        if self._is_word("in"):
            self._advance()
            self._expect("(")
            literals = [self._literal()]
            while self._kind == "mark" and self._token == ",":
                self._advance()
                literals.append(self._literal())
            self._expect(")")
            return lambda candidate: _equals_any(value(candidate), literals)
        self._fail("a comparison is missing")

    def _reference(self) -> _Value:
        if self._kind != "word":
            self._fail("topic, size, qos, payload, meta.<key> or payload.<path> is missing")
        word, at = self._token, self._at
        self._advance()
        match word:
            case "topic":
                return lambda candidate: candidate.topic
            case "size":
                return lambda candidate: len(candidate.payload)
            case "qos":
                return lambda candidate: candidate.qos
            case "payload":
                return lambda candidate: candidate.text
        head, dot, rest = word.partition(".")
        if head == "meta" and rest:
            return lambda candidate: candidate.metadata.get(rest, _MISSING)
        if head == "payload" and dot:
            steps = rest.split(".")
            if not all(steps):
                self._fail("a path has an empty step", at)
            return lambda candidate: _walk(candidate.document, steps)
        self._fail(f'"{word}" is not topic, size, qos, payload, meta.<key> or payload.<path>', at)

    def _literal(self) -> object:
        literal: object = _MISSING
        if self._kind in ("string", "number"):
            try:
                literal = json.loads(self._token)
            except ValueError as fault:
                self._fail(str(fault))
        elif self._kind == "word":
            literal = _WORDS.get(self._token, _MISSING)
        if literal is _MISSING:
            self._fail("a JSON string, number, true, false or null is missing")
        self._advance()
        return literal


def _walk(value: object, steps: list[str]) -> object:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit():
            # The length of an index is bounded by the length of an expression, and a list is never that long.
            index = int(step)
            value = value[index] if index < len(value) else _MISSING
        else:
            return _MISSING
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_type(value: object, literal: object) -> bool:
    if _is_number(literal):
        return _is_number(value)
    return type(value) is type(literal)


def _equals_any(value: object, literals: list[object]) -> bool:
    return any(_same_type(value, literal) and value == literal for literal in literals)


def _comparison(name: str, value: _Value, literal: object) -> _Test:
    if name == "contains":
        return lambda candidate: _contains(value(candidate), literal)
    if name == "=":

        def equal(candidate: Candidate) -> bool:
            found = value(candidate)
            return _same_type(found, literal) and found == literal

        return equal
    if name == "!=":

        def different(candidate: Candidate) -> bool:
            found = value(candidate)
            return _same_type(found, literal) and found != literal

        return different
    if not _is_number(literal) and not isinstance(literal, str):
        # What has no order is never before or behind anything.
        return lambda candidate: False
    order = _ORDERS[name]

    def ordered(candidate: Candidate) -> bool:
        found = value(candidate)
        return _same_type(found, literal) and order(found, literal)

    return ordered


def _contains(value: object, literal: object) -> bool:
    if isinstance(value, str):
        return isinstance(literal, str) and literal in value
    return isinstance(value, list) and any(_same_type(item, literal) and item == literal for item in value)
