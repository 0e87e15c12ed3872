"""Filter expressions: what they mean, where they are wrong, and what a hostile one costs."""

from __future__ import annotations

import json
import random
import re

import pytest
from blipmq_cases import quick
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.blipmq import Candidate, parse_expression

DOCUMENT = {
    "temp": 21.5, "n": 3, "name": "pump", "on": True, "off": False, "none": None, "tags": ["a", 7, None], "deep": [{"x": 1}],
}  # fmt: skip
READING = Candidate("sensor/1", json.dumps(DOCUMENT).encode(), 1, {"x-site": "oslo", "x-a.b": "dotted"})
TEXT = Candidate("logs", "error: schön".encode(), 0, {})
BINARY = Candidate("raw", b"\xff\xfe", 0, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('topic = "sensor/1"', True),
        ('topic != "sensor/1"', False),
        ("qos = 1", True),
        ("qos >= 1 and qos <= 1", True),
        ("size > 10", True),
        (f"size = {len(READING.payload)}", True),
        ("payload.temp > 20", True),
        ("payload.temp > 21.5", False),
        ("payload.temp >= 21.5", True),
        ("payload.temp < 22 and payload.n = 3", True),
        ("payload.n = 3.0", True),
        ('payload.n = "3"', False),
        ('payload.n != "3"', False),
        ('not payload.n != "3"', True),
        ('payload.name = "pump"', True),
        ('payload.name < "q"', True),
        ('payload.name contains "um"', True),
        ('payload.name contains "x"', False),
        ("payload.name contains 1", False),
        ('payload.tags contains "a"', True),
        ("payload.tags contains 7", True),
        ("payload.tags contains null", True),
        ("payload.tags contains true", False),
        ("payload.on = true", True),
        ("payload.on = 1", False),
        ("payload.on > false", False),
        ("payload.off = false", True),
        ("payload.none = null", True),
        ("payload.none != null", False),
        ("payload.missing = null", False),
        ("payload.missing != 1", False),
        ("not payload.missing = 1", True),
        ("exists payload.none", True),
        ("exists payload.missing", False),
        ("exists payload.deep.0.x", True),
        ("payload.deep.0.x = 1", True),
        ("exists payload.deep.1", False),
        ("exists payload.deep.-1", False),
        ("exists payload.name.0", False),
        ('meta.x-site = "oslo"', True),
        ('meta.x-a.b = "dotted"', True),
        ("exists meta.x-none", False),
        ('topic in ("a", "sensor/1")', True),
        ("payload.n in (1, 2)", False),
        ("payload.n in (3)", True),
        ("payload.none in (1, null)", True),
        ('payload contains "pump"', True),
        ("qos = 0 or qos = 1", True),
        ("qos = 0 and qos = 1 or size > 0", True),
        ("qos = 0 and (qos = 1 or size > 0)", False),
        ("not (qos = 0 or qos = 2)", True),
        ("  ( ( qos = 1 ) )  ", True),
        ("payload.temp > -1e3", True),
        ('payload.name = "pu\\u006dp"', True),
    ],
)
def test_what_an_expression_means(text: str, expected: bool) -> None:
    assert parse_expression(text)(READING) is expected


@pytest.mark.parametrize(
    ("text", "candidate", "expected"),
    [
        ('payload contains "schön"', TEXT, True),
        ("exists payload", TEXT, True),
        ("exists payload.a", TEXT, False),
        ("exists payload", BINARY, False),
        ('payload = ""', BINARY, False),
        ('not payload = ""', BINARY, True),
        ("size = 2", BINARY, True),
    ],
)
def test_payloads_that_are_no_json_or_no_text(text: str, candidate: Candidate, expected: bool) -> None:
    assert parse_expression(text)(candidate) is expected


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b'{"a":NaN}', b'{"a":Infinity}', b"[" * 200_000, b'{"a":' + b"9" * 5000 + b"}", b"\xff"],
    ids=["empty", "cut", "nan", "infinity", "deep", "digits", "bytes"],
)
def test_a_payload_that_is_no_json_has_no_values(payload: bytes) -> None:
    assert parse_expression("exists payload.a")(Candidate("t", payload, 0, {})) is False


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "missing"),
        ("   ", 3, "missing"),
        ("qos", 3, "a comparison is missing"),
        ("qos =", 5, "missing"),
        ("qos = x", 6, "missing"),
        ("qos == 1", 5, "missing"),
        ("qos = 1 qos", 8, "after the end"),
        ("qos = 1 and", 11, "missing"),
        ("(qos = 1", 8, '"\\)" is missing'),
        ("qos = 1)", 7, "after the end"),
        ("qos in 1", 7, '"\\(" is missing'),
        ("qos in ()", 8, "missing"),
        ("qos in (1", 9, '"\\)" is missing'),
        ("qos in (1 2)", 10, '"\\)" is missing'),
        ("colour = 1", 0, '"colour" is not'),
        ("meta. = 1", 0, '"meta." is not'),
        ("meta = 1", 0, '"meta" is not'),
        ("payload. = 1", 0, "empty step"),
        ("payload.a..b = 1", 0, "empty step"),
        ("qos = 'a'", 6, "missing"),
        ('topic = "a', 8, "neither"),
        ('topic = "\\x"', 8, "neither"),
        ("qos = 01", 6, "missing"),
        ("qos = 1.", 6, "missing"),
        ("not not qos = 1", 4, "is not"),
        ("and", 0, '"and" is not'),
        ("exists", 6, "missing"),
        ("qos = " + "9" * 5000, 1024, "characters"),
        ("qos ! 1", 4, "neither"),
    ],
)
def test_a_wrong_expression_says_where(text: str, position: int, reason: str) -> None:
    with pytest.raises(BraidError, match=reason) as caught:
        parse_expression(text)
    assert caught.value.code == "INVALID_EXPRESSION"
    assert caught.value.fields["position"] == position
    assert f"at position {position}" in caught.value.text


def test_length_depth_and_comparisons_are_bounded() -> None:
    most = limits.BLIPMQ_EXPRESSION_CHARACTERS_MAX
    assert parse_expression("qos = 1".ljust(most))(READING)
    with pytest.raises(BraidError, match=str(most)):
        parse_expression("qos = 1".ljust(most + 1))
    deep = limits.BLIPMQ_EXPRESSION_DEPTH_MAX - 1
    assert parse_expression("(" * deep + "qos = 1" + ")" * deep)(READING)
    with pytest.raises(BraidError, match="nested deeper than 16"):
        parse_expression("(" * (deep + 1) + "qos = 1" + ")" * (deep + 1))
    wide = limits.BLIPMQ_EXPRESSION_COMPARISONS_MAX
    assert parse_expression(" or ".join(["qos = 1"] * wide))(READING)
    with pytest.raises(BraidError, match="more than 64 comparisons"):
        parse_expression(" or ".join(["qos = 1"] * (wide + 1)))


def test_the_payload_is_parsed_once_for_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    loads = json.loads

    def counted(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        return loads(*arguments, **named)  # type: ignore[arg-type]

    filters = [parse_expression(f"payload.n = {number}") for number in range(5)]
    monkeypatch.setattr(json, "loads", counted)
    candidate = Candidate("t", b'{"n": 3}', 0, {})
    assert [test(candidate) for test in filters] == [False, False, False, True, False]
    assert calls == 1
    assert filters[3].text == "payload.n = 3"


@quick
@given(st.text(max_size=80) | st.text(alphabet='qos=!<>()," payload.meta01x', max_size=60))
def test_any_text_is_an_expression_or_a_refusal(text: str) -> None:
    try:
        test = parse_expression(text)
    except BraidError as error:
        assert error.code == "INVALID_EXPRESSION"
        assert 0 <= int(str(error.fields["position"])) <= len(text)
    else:
        assert test(READING) in (True, False)


# --- against another evaluator

VALUES = {"topic": '"sensor/1"', "qos": "1", "payload.n": "3", "payload.name": '"pump"'}


def made(rng: random.Random, depth: int) -> tuple[str, str]:
    """An expression, and the same in Python."""
    match rng.randrange(5 if depth else 1):
        case 0:
            name = rng.choice(sorted(VALUES))
            literal = rng.choice(["1", "3", '"pump"', '"sensor/1"'])
            op = rng.choice(["=", "!=", "<", ">="])
            same = VALUES[name].startswith('"') == literal.startswith('"')
            return f"{name} {op} {literal}", f"({VALUES[name]} {'==' if op == '=' else op} {literal})" if same else "False"
        case 1:
            text, python = made(rng, depth - 1)
            return f"not ({text})", f"(not {python})"
        case 2:
            text, python = made(rng, depth - 1)
            return f"({text})", python
        case kind:
            word = "and" if kind == 3 else "or"
            parts = [made(rng, depth - 1) for _ in range(rng.randint(2, 3))]
            texts = [f"({text})" if word == "and" else text for text, _ in parts]
            return f" {word} ".join(texts), "(" + f" {word} ".join(python for _, python in parts) + ")"


def test_expressions_mean_the_same_as_in_another_language() -> None:
    rng = random.Random(7)
    outcomes = set()
    for _ in range(2000):
        text, python = made(rng, 3)
        if len(text) > limits.BLIPMQ_EXPRESSION_CHARACTERS_MAX or len(re.findall(r"[=<>]+", text)) > 64:
            continue
        expected = bool(eval(python, {"__builtins__": {}}))
        assert parse_expression(text)(READING) is expected, text
        outcomes.add(expected)
    assert outcomes == {True, False}
