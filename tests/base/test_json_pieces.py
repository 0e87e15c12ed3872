"""JSON in pieces says what JSON says, and no piece is long."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from braidmq.base import json_pieces as module
from braidmq.base.json_pieces import Deferred, json_pieces

_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=20,
)


@given(_plain, st.integers(0, 1300))
def test_it_reads_back(part: Any, size: int) -> None:
    document = {"part": part, "rows": [[n, part] for n in range(size)], "by name": {str(n): n for n in range(size)}, "": []}
    assert json.loads("".join(json_pieces(document))) == document
    assert "".join(json_pieces(part)) == json.dumps(part, separators=(",", ":"), ensure_ascii=False)


def test_what_is_deferred_is_made_when_it_is_written() -> None:
    made: list[str] = []

    def make() -> Any:
        made.append("rows")
        return ([n] for n in range(3))

    pieces = json_pieces({"a": {"b": Deferred(make)}, "c": Deferred(lambda: {"d": Deferred(lambda: iter(()))})})
    assert not made
    assert "".join(pieces) == '{"a":{"b":[[0],[1],[2]]},"c":{"d":[]}}' and made == ["rows"]


def test_pieces_are_short_and_texts_are_kept() -> None:
    odd = "ü\ud800\u2028\""
    document = {"rows": [[n, odd] for n in range(10_000)], "names": {f"{odd}{n}": n for n in range(10_000)}}
    pieces = list(json_pieces(document))
    assert json.loads("".join(pieces)) == document
    assert max(piece.count("\ud800") for piece in pieces) <= module._ITEMS and len(pieces) >= 2 * 10_000 / module._ITEMS
