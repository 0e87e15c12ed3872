"""A connection's window: no id is used twice at a time, and no Ack settles what its sender has not seen."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from braidmq.broker.push.window import Window

_FEEDS = [cast(Any, f"feed {number}") for number in range(3)]
_FEED = _FEEDS[0]
_NOW, _LATER = 10.0, 20.0


class Owner:
    """Has unsettled deliveries until it says otherwise."""

    def __init__(self) -> None:
        self.settled: set[int] = set()

    def is_unsettled(self, feed: object, offset: int) -> bool:
        return offset not in self.settled


def _owner() -> Any:
    return Owner()


@pytest.mark.parametrize(
    ("under_way", "asked", "fitting"),
    [
        ((), (b"a", b"b"), 2),
        ((b"x",), (b"a", b"b"), 2),
        ((b"b",), (b"a", b"b", b"c"), 1),
        ((b"a",), (b"a", b"b"), 0),
        ((), (b"a", b"b", b"a", b"c"), 2),
        ((b"c",), (b"a", b"b", b"b", b"c"), 2),
        ((), (), 0),
    ],
)
def test_no_id_is_under_way_twice(under_way: tuple[bytes, ...], asked: tuple[bytes, ...], fitting: int) -> None:
    window = Window(10)
    window.sent(_owner(), _FEED, range(len(under_way)), under_way)
    assert window.fitting(asked, _NOW) == fitting
    assert window.room == 10 - len(under_way)


def test_a_window_knows_whose_deliveries_are_under_way() -> None:
    window, owner, other = Window(2), _owner(), _owner()
    window.sent(owner, _FEED, [5, 6], [b"a", b"b"])
    window.sent(other, _FEEDS[1], [5], [b"c"])
    assert len(window) == 3 and window.room == 0
    assert window.find(b"a") == (owner, _FEED, 5) == window.take(b"a")
    assert window.find(b"a") is None is window.take(b"a")
    window.sent(owner, _FEED, [1, 2], [b"d", b"e"])
    window.sent(owner, _FEED, [4], [b"f"])
    assert window.take_many([b"d", b"unknown", b"c", b"f"]) == {(owner, _FEED): [1, 4], (other, _FEEDS[1]): [5]}
    assert len(window) == 2 and window.take_many([]) == {}


def test_what_is_late_leaves_room_and_keeps_its_id() -> None:
    window, owner = Window(2), _owner()
    window.sent(owner, _FEED, [1, 2], [b"a", b"b"])
    window.set_aside(owner, {(_FEED, 1)}, _LATER)
    assert window.room == 1 and len(window) == 1
    assert window.fitting([b"c", b"a"], _NOW) == 1, "an Ack for the late one may be on its way"
    assert window.may_repeat(b"a", (owner, _FEED, 1), _NOW) and not window.may_repeat(b"a", (owner, _FEED, 9), _NOW)
    assert not window.may_repeat(b"b", (owner, _FEED, 9), _NOW), "that one is under way"
    # A late Ack is still one, and the id is free then.
    assert window.take_many([b"a", b"a"]) == {(owner, _FEED): [1]}
    assert window.fitting([b"a"], _NOW) == 1


def test_acks_of_earlier_copies_settle_nothing_else() -> None:
    window, owner = Window(5), _owner()
    window.sent(owner, _FEED, [1], [b"a"])
    window.set_aside(owner, {(_FEED, 1)}, _LATER)
    window.sent(owner, _FEED, [1], [b"a"])
    assert window.take(b"a") == (owner, _FEED, 1), "one Ack settles it"
    assert window.fitting([b"a"], _NOW) == 0, "another one may come, for the other copy"
    assert window.free_at(b"a", _NOW) == _LATER
    assert window.take(b"a") is None
    assert window.fitting([b"a"], _NOW) == 1, "it came"


def test_an_ack_that_does_not_come_is_not_waited_for_for_ever() -> None:
    window, owner = Window(5), _owner()
    window.sent(owner, _FEED, [1], [b"a"])
    window.set_aside(owner, {(_FEED, 1)}, _LATER)
    owner.settled.add(1)
    assert window.fitting([b"a"], _NOW) == 0 and not window.may_repeat(b"a", (owner, _FEED, 2), _NOW)
    assert window.fitting([b"a"], _LATER) == 1
    window.sent(owner, _FEED, [3], [b"b"])
    window.forget(owner, _LATER)
    assert window.fitting([b"b"], _NOW) == 0
    window.purge(_LATER)
    assert window.free_at(b"b", _NOW) is None and window.find(b"b") is None


def test_a_refusal_is_an_answer() -> None:
    window, owner = Window(5), _owner()
    window.sent(owner, _FEED, [1], [b"a"])
    window.refused(b"a")
    assert window.room == 5 and window.fitting([b"a"], _NOW) == 0, "the message is not settled"
    owner.settled.add(1)
    assert window.fitting([b"a"], _NOW) == 1, "and no Ack is on its way"
    window.sent(owner, _FEED, [2], [b"b"])
    window.set_aside(owner, {(_FEED, 2)}, _LATER)
    window.refused(b"b")
    assert window.free_at(b"b", _NOW) is None and window.find(b"b") == (owner, _FEED, 2)


def test_a_partition_may_be_forgotten() -> None:
    window, owner = Window(5), _owner()
    window.sent(owner, _FEEDS[0], [1], [b"a"])
    window.sent(owner, _FEEDS[1], [1], [b"b"])
    window.sent(owner, _FEEDS[0], [2], [b"c"])
    window.set_aside(owner, {(_FEEDS[0], 2)}, _LATER)
    window.forget(owner, _LATER, _FEEDS[0])
    assert window.find(b"a") is None is window.find(b"c") and window.find(b"b") == (owner, _FEEDS[1], 1)


@pytest.mark.parametrize("seed", range(30))
def test_an_ack_settles_only_what_was_received(seed: int) -> None:
    """A client that acknowledges everything it receives, late and in any order; messages share a few ids."""
    chance = random.Random(seed)
    window, owner = Window(8), _owner()
    ids = {offset: b"%d" % chance.randrange(5) for offset in range(60)}
    waiting, back = list(ids), list[int]()
    on_the_way: list[int] = []
    """Copies that the client has not received."""
    answers: list[int] = []
    """Copies that it received and is about to acknowledge."""
    received: set[int] = set()
    for now in range(2000):
        match chance.randrange(5):
            case 0 if waiting and window.room and window.fitting([ids[waiting[0]]], now):
                offset = waiting.pop(0)
                window.sent(owner, _FEED, [offset], [ids[offset]])
                on_the_way.append(offset)
            case 1 if back and window.room:
                offset = chance.choice(back)
                if window.may_repeat(ids[offset], (owner, _FEED, offset), now):
                    back.remove(offset)
                    window.sent(owner, _FEED, [offset], [ids[offset]])
                    on_the_way.append(offset)
            case 2 if on_the_way:
                answers.append(on_the_way.pop(0))
                received.add(answers[-1])
            case 3 if answers:
                settled = window.take_many([ids[answers.pop(chance.randrange(len(answers)))]])
                for offset in settled.get((owner, _FEED), ()):
                    assert offset in received, "nobody acknowledged it"
                    owner.settled.add(offset)
                    if offset in back:
                        back.remove(offset)
            case 4 if chance.random() < 0.3:
                flying = {offset for offset in ids if window.find(ids[offset]) == (owner, _FEED, offset)} - set(back)
                late = {offset for offset in flying - owner.settled if chance.random() < 0.5}
                window.set_aside(owner, {(_FEED, offset) for offset in late}, 10_000.0)
                back += sorted(late)
    assert len(owner.settled) > 10
