"""Route programs: the grammar, what each part matches, everything that is refused, and a fuzz of the parser."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.fq.program import EXACT, PREFIX, Program, parse_program


def matches(text: bytes | str, route: bytes, payload: bytes = b"") -> bool:
    found = parse_program(text.encode() if isinstance(text, str) else text).matches(route, payload)
    assert isinstance(found, bool)
    return found


# --- heads


@pytest.mark.parametrize("size", [0, 7, 8, 9, 16, 120])
@pytest.mark.parametrize("quoted", [False, True])
def test_prefix_and_exact_of_many_lengths(size: int, quoted: bool) -> None:
    head = bytes(0x61 + number % 26 for number in range(size))
    written = b'"' + head + b'"' if quoted else head
    prefix, exact = parse_program(b"prefix:" + written), parse_program(b"exact:" + written)
    assert (prefix.kind, prefix.head, exact.kind, exact.head) == (PREFIX, head, EXACT, head)
    for route in (head, head + b"x", head + b"\0" * 7, head[:-1], head[:-1] + b"!", b"!" + head[1:], b"x" + head, b""):
        assert prefix.matches(route, b"") is route.startswith(head)
        assert exact.matches(route, b"") is (route == head)
    assert prefix.matches_all is (size == 0)
    assert exact.matches_all is False


@pytest.mark.parametrize(
    ("text", "head"),
    [
        (b"prefix:", b""),
        (b'prefix:""', b""),
        (b"prefix:a.b", b"a.b"),
        (b"prefix:a\tb", b"a\tb"),
        (b"prefix:a\\ b", b"a b"),
        (b"prefix:foo(true())", b"foo(true())"),
        (b'prefix:a"b', b'a"b'),
        (b'prefix:"a b"', b"a b"),
        (b'prefix:"a\\"b"', b'a"b'),
        (b"prefix:a\\\\b", b"a\\b"),
        (b"prefix:\\x00\\xff\\x4A\\x4a", b"\0\xffJJ"),
        (b"prefix:\\n\\r\\t\\0\\q", b"nrt0q"),
        (b"prefix:\\x41\\x", None),
        (b"prefix:\xff\xfe", b"\xff\xfe"),
        (b'prefix:"\0\n"', b"\0\n"),
    ],
)
def test_route_strings(text: bytes, head: bytes | None) -> None:
    if head is None:
        with pytest.raises(BraidError, match="INVALID_PROGRAM"):
            parse_program(text)
    else:
        assert parse_program(text).head == head


# --- rules


@pytest.mark.parametrize(
    ("rule", "route", "payload", "expected"),
    [
        ("true()", b"r", b"", True),
        ('route_contains("b")', b"abc", b"", True),
        ('route_contains("x")', b"abc", b"x", False),
        ('route_contains("")', b"", b"", True),
        ('payload_prefix("M")', b"", b"Mx", True),
        ('payload_prefix("M")', b"", b"xM", False),
        ('payload_prefix("Mx")', b"", b"M", False),
        ('payload_prefix("")', b"", b"", True),
        ('payload_contains("yz")', b"", b"xyz", True),
        ('payload_contains("zy")', b"", b"xyz", False),
        ("sample(1)", b"", b"", True),
        ("sample(1.5)", b"", b"", True),
        ("sample(0)", b"", b"", False),
        ("sample(-1)", b"", b"", False),
        ("sample(1e1)", b"", b"", True),
        ("sample(0x10)", b"", b"", True),
        ("sample(0x0p0)", b"", b"", False),
        ("sample(0x1p99999)", b"", b"", True),
        ("sample(-0x1p99999)", b"", b"", False),
        ("sample(.5e1)", b"", b"", True),
        ("sample(5.)", b"", b"", True),
        ("sample(+1)", b"", b"", True),
        ("sample(inf)", b"", b"", True),
        ("sample(-infinity)", b"", b"", False),
        ("sample(nan)", b"", b"", False),
        ("(true())", b"", b"", True),
        ("(((true())))", b"", b"", True),
        ("(true() && sample(0))", b"", b"", False),
        ("(sample(0) && true())", b"", b"", False),
        ("(sample(0) || true())", b"", b"", True),
        ("(sample(0) || sample(0))", b"", b"", False),
        ('((route_contains("a") || route_contains("b")) && payload_prefix("M"))', b"b", b"M", True),
        ('((route_contains("a") || route_contains("b")) && payload_prefix("M"))', b"c", b"M", False),
        ('(route_contains("a") || (route_contains("b") && payload_prefix("M")))', b"a", b"x", True),
        ('(route_contains("a") || (route_contains("b") && payload_prefix("M")))', b"b", b"x", False),
        (' \t\n\v\f\r( \ttrue ( )\n&&\vroute_contains ( "b" ) ) \n', b"b", b"", True),
        ("(true()&&true())", b"", b"", True),
        (r'payload_prefix("\n\r\t\0\\\"")', b"", b'\n\r\t\0\\"', True),
        (r'payload_prefix("\x41\q")', b"", rb"\x41\q", True),
    ],
)
def test_rules(rule: str, route: bytes, payload: bytes, expected: bool) -> None:
    assert matches(f"prefix: {rule}", route, payload) is expected
    assert matches(f'prefix:""{rule}', route, payload) is expected
    assert matches(f"exact:no {rule}", route, payload) is False


def test_the_program_of_the_documentation() -> None:
    program = parse_program(b'prefix:foo (payload_prefix("M") && route_contains("bar"))')
    messages = {(b"foo.bar", b"M"): True, (b"foo.bar", b"N"): False, (b"foo", b"M"): False, (b"bar", b"M"): False}
    assert {message: program.matches(*message) for message in messages} == messages


def test_a_sample_is_a_share() -> None:
    numbers = iter([0.0, 0.49, 0.5, 0.99])
    program = parse_program(b"prefix: sample(0.5)", lambda: next(numbers))
    assert [program.matches(b"", b"") for _ in range(4)] == [True, True, False, False]
    chance = parse_program(b"prefix: sample(0.3)")
    assert 1000 < sum(chance.matches(b"", b"") for _ in range(5000)) < 2000


def test_what_need_not_be_looked_at() -> None:
    for text in (b"prefix:", b'prefix:"" true()', b'prefix: (true() || route_contains("x"))', b"prefix: (true() && (true()))"):
        assert parse_program(text).matches_all, text
    for text in (b"prefix:a", b"exact:", b"prefix: sample(1)", b'prefix: (true() && payload_contains(""))'):
        assert not parse_program(text).matches_all, text
    assert not parse_program(b'prefix:x route_contains("payload")').needs_payload
    assert parse_program(b'prefix:x payload_prefix("")').needs_payload


def test_programs_with_the_same_text_are_equal() -> None:
    assert parse_program(b"prefix:a") == parse_program(b"prefix:a") != parse_program(b'prefix:"a"')
    assert len({parse_program(b"prefix:a"), parse_program(b"prefix:a")}) == 1


# --- refusals


@pytest.mark.parametrize(
    ("text", "reason", "at"),
    [
        ("", "neither", 0),
        ("nonsense", "neither", 0),
        ("prefix", "neither", 0),
        ("Prefix:a", "neither", 0),
        (" prefix:a", "neither", 0),
        ("exact :a", "neither", 0),
        ('prefix:"a', "a quote that is not closed", 7),
        ("prefix:a\\", "a backslash at the end", 8),
        ('prefix:"a\\', "a backslash at the end", 9),
        ("prefix:\\xg1", "two hexadecimal digits", 9),
        ("prefix:a true() true()", "behind the rule", 16),
        ("prefix:a true())", "behind the rule", 15),
        ('prefix:"a"b', "`(` expected", 11),
        ("prefix:a true() && true()", "behind the rule", 16),
        ("prefix:a (true() && true() && true())", "`)` expected", 27),
        ("prefix:a (true() | true())", "expected", 17),
        ("prefix:a (true() & true())", "expected", 17),
        ("prefix:a (true() &| true())", "expected", 17),
        ("prefix:a (true()", "expected", 16),
        ("prefix:a (true() &&", "a rule expected", 19),
        ("prefix:a (true() && true()", "`)` expected", 26),
        ("prefix:a ()", "a rule expected", 10),
        ("prefix:a (", "a rule expected", 10),
        ("prefix:a &&", "a rule expected", 9),
        ("prefix:a 1", "a rule expected", 9),
        ("prefix:a true", "`(` expected", 13),
        ("prefix:a nosuch()", "unknown function `nosuch`", 9),
        ("prefix:a True()", "unknown function `True`", 9),
        ("prefix:a true(1)", "wrong arguments of `true`", 9),
        ("prefix:a sample()", "wrong arguments of `sample`", 9),
        ('prefix:a sample("1")', "wrong arguments of `sample`", 9),
        ("prefix:a sample(true)", "wrong arguments of `sample`", 9),
        ("prefix:a sample(1, 2)", "wrong arguments of `sample`", 9),
        ("prefix:a route_contains(1)", "wrong arguments", 9),
        ("prefix:a payload_prefix()", "wrong arguments", 9),
        ('prefix:a payload_contains("a","b")', "wrong arguments", 9),
        ("prefix:a payload_contains(false)", "wrong arguments", 9),
        ("prefix:a sample(1,)", "a string, a number", 18),
        ("prefix:a sample(,1)", "a string, a number", 16),
        ("prefix:a sample(1 2)", "`,` or `)` expected", 18),
        ("prefix:a sample(1x)", "`,` or `)` expected", 17),
        ("prefix:a sample(0x)", "`,` or `)` expected", 17),
        ("prefix:a sample(infi)", "a string, a number", 16),
        ("prefix:a sample(truex)", "a string, a number", 16),
        ("prefix:a sample(", "a string, a number", 16),
        ("prefix:a sample(1", "`,` or `)` expected", 17),
        ('prefix:a route_contains("a', "a quote that is not closed", 24),
        ('prefix:a route_contains("a\\', "a backslash at the end", 26),
        ("prefix:a __import__('os')", "a string, a number", 20),
    ],
)
def test_what_is_refused(text: str, reason: str, at: int) -> None:
    with pytest.raises(BraidError) as caught:
        parse_program(text.encode())
    assert caught.value.code == "INVALID_PROGRAM"
    assert reason in str(caught.value.fields["reason"])
    assert caught.value.fields["at"] == at


def test_the_limits() -> None:
    most = limits.FQ_PROGRAM_BYTES_MAX
    assert parse_program(b"prefix:" + b"a" * (most - 7)).head == b"a" * (most - 7)
    with pytest.raises(BraidError, match="more than 1024 bytes"):
        parse_program(b"prefix:" + b"a" * (most - 6))
    depth = limits.FQ_PROGRAM_DEPTH_MAX
    assert matches(b"prefix: " + b"(" * depth + b"true()" + b")" * depth, b"")
    with pytest.raises(BraidError, match="more than 32 levels"):
        parse_program(b"prefix: " + b"(" * (depth + 1) + b"true()" + b")" * (depth + 1))
    arguments = limits.FQ_PROGRAM_ARGUMENTS_MAX
    with pytest.raises(BraidError, match="wrong arguments"):
        parse_program(b"prefix: true(" + b",".join([b"1"] * arguments) + b")")
    with pytest.raises(BraidError, match="more than 16 arguments"):
        parse_program(b"prefix: true(" + b",".join([b"1"] * (arguments + 1)) + b")")


# --- fuzz


def a_rule(rng: random.Random, depth: int) -> tuple[str, Callable[[bytes, bytes], bool]]:
    """A rule and, made without the parser, what it means."""
    word = rng.choice(["", "a", "b", "ab", "."])
    space = rng.choice(["", " ", "\t\n"])
    if depth and rng.random() < 0.6:
        left, means_left = a_rule(rng, depth - 1)
        right, means_right = a_rule(rng, depth - 1)
        match rng.randrange(3):
            case 0:
                return f"({space}{left}{space}&&{right})", lambda r, p: means_left(r, p) and means_right(r, p)
            case 1:
                return f"({left}||{space}{right}{space})", lambda r, p: means_left(r, p) or means_right(r, p)
            case _:
                return f"({space}{left})", means_left
    match rng.randrange(5):
        case 0:
            return f'route_contains({space}"{word}")', lambda r, p: word.encode() in r
        case 1:
            return f'payload_contains("{word}"{space})', lambda r, p: word.encode() in p
        case 2:
            return f'payload_prefix{space}("{word}")', lambda r, p: p.startswith(word.encode())
        case 3:
            return "true()", lambda r, p: True
        case _:
            share = rng.choice(["0", "1", "0.0", "1e0", "-1", "0x1"])
            return f"sample({share})", lambda r, p: share in ("1", "1e0", "0x1")


def disagreement(understand: Callable[[bytes], Program], rounds: int) -> str | None:
    for turn in range(rounds):
        rng = random.Random(turn)
        head = rng.choice(["", "a", "ab", "abc"])
        kind = rng.choice([PREFIX, EXACT])
        rule, means = a_rule(rng, rng.randrange(5))
        text = f"{kind}:{head} {rule}"
        if len(text) > limits.FQ_PROGRAM_BYTES_MAX:
            continue
        program = understand(text.encode())
        for _ in range(5):
            route = bytes(rng.choice(b"ab.c") for _ in range(rng.randrange(5)))
            payload = bytes(rng.choice(b"ab.c") for _ in range(rng.randrange(5)))
            fits = route.startswith(head.encode()) if kind == PREFIX else route == head.encode()
            if program.matches(route, payload) != (fits and means(route, payload)):
                return f"{text!r} with {route!r} and {payload!r}"
    return None


def test_any_program_means_what_it_says(rounds: Callable[[int, int], int]) -> None:
    assert disagreement(parse_program, rounds(1500, 30_000)) is None


def test_a_parser_that_errs_is_caught() -> None:
    """The canary: operators swapped, and parentheses that bind otherwise."""
    assert disagreement(lambda text: parse_program(text.replace(b"||", b"&&")), 300) is not None
    assert disagreement(lambda text: parse_program(text.replace(b"exact:", b"prefix:")), 300) is not None


def broken_programs(rng: random.Random) -> Iterator[bytes]:
    rule, _ = a_rule(rng, 3)
    text = bytearray(f"prefix:ab {rule}".encode()[: limits.FQ_PROGRAM_BYTES_MAX])
    for _ in range(6):
        at = rng.randrange(len(text))
        text[at : at + rng.randrange(2)] = rng.choice([b"(", b")", b'"', b"\\", b"&", b"|", b",", b"\0", b" ", b"0x", b"\xff", b""])
        yield bytes(text)


def test_a_broken_program_is_refused_or_understood_and_nothing_else(rounds: Callable[[int, int], int]) -> None:
    refused = understood = 0
    for turn in range(rounds(1500, 30_000)):
        for text in broken_programs(random.Random(turn)):
            try:
                assert parse_program(text).matches(b"ab", b"payload") in (True, False)
                understood += 1
            except BraidError as fault:
                assert fault.code == "INVALID_PROGRAM", text
                refused += 1
    assert refused > 100 and understood > 100
