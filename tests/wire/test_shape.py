"""`@shape`: what messages are declared with behaves as a frozen dataclass does to those who use it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import field, fields, replace

from braidmq.wire.shape import shape


@shape
class Point:
    x: int
    y: int = 0
    secret: str = field(default="", repr=False, compare=False)


@shape
class Hidden:
    password: str

    def __repr__(self) -> str:
        return "Hidden()"


@shape
class More(Hidden):
    extra: int = 1


def test_equality_and_hash_look_at_the_fields_that_count() -> None:
    assert Point(1) == Point(1, 0, "s") != Point(1, 2) and hash(Point(1)) == hash(Point(1, 0, "s"))
    assert Point(1) != (1, 0) and len({Point(1), Point(1), Point(2)}) == 2


def test_what_is_to_be_hidden_stays_hidden() -> None:
    assert repr(Point(1, 2, "s")) == "Point(x=1, y=2)"
    assert repr(More("p")) == "Hidden()", "a repr that hides something is inherited"


def test_it_is_copied_matched_and_taken_apart_as_a_dataclass() -> None:
    point = Point(1, 2)
    assert pickle.loads(pickle.dumps(point)) == copy.copy(point) == replace(point) == point
    assert [each.name for each in fields(point)] == ["x", "y", "secret"] and not hasattr(point, "__dict__")
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)
