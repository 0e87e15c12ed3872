"""FETCH with a filter: which records it finds, where it stops, and that its answer always fits a frame."""

from __future__ import annotations

import pytest
from flymq_peer import NAMES, V126, Peer, new_topic
from running_broker import RunningBroker

from braidmq.wire.flymq import DeleteTopic, Fetch, Fetched, FetchedItem, Ok

FILTER_RECORDS = [
    (b"", b"Hello World"),
    (b"user-7", b"nothing"),
    (b"", b'{"order": {"id": 7, "note": null}}'),
    (b"", b'{"order": 7}'),
    (b"", b"$.order.id"),
    (b"", b"{broken"),
    (b"", b"a.b"),
    (b"", b"caf\xc3\xa9 \xff\xfe"),
]


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("hello", [0]),
        ("USER", [1]),
        ("$.order.id", [2, 4]),
        ("$.order.note", [2]),
        ("$.order", [2, 3, 4]),
        ("$.missing", []),
        ("^H.*d$", [0]),
        ("^h.*d$", []),
        (r"user-\d", [1]),
        ("a.b", [6]),
        ("br?o", [5]),
        ("(unclosed", []),
        ("café", [7]),
        ("(a+)+$x", []),
    ],
)
@pytest.mark.parametrize("binary", [False, True], ids=["fetch", "binary"])
def test_fetch_filter(standing: RunningBroker, text: str, matching: list[int], binary: bool) -> None:
    with Peer(standing.addresses[NAMES["v126"]], V126) as peer:
        topic = peer.create(new_topic())
        for key, value in FILTER_RECORDS:
            peer.produce(topic, value, key=key)
        expected = tuple(FetchedItem(*FILTER_RECORDS[number], number) for number in matching)
        assert peer.ask(Fetch(topic, 0, 0, 100, text, binary)) == Fetched(expected, len(FILTER_RECORDS))
        if matching:
            # It stops right after the last one it may return, and goes on there.
            assert peer.ask(Fetch(topic, 0, 0, 1, text, binary)) == Fetched(expected[:1], matching[0] + 1)
            assert peer.ask(Fetch(topic, 0, matching[0] + 1, 100, text, binary)) == Fetched(expected[1:], len(FILTER_RECORDS))


def test_a_filter_finds_the_one_in_ten_thousand(standing: RunningBroker) -> None:
    with Peer(standing.addresses[NAMES["v126"]], V126) as peer:
        topic = peer.create(new_topic())
        values = [b"straw %d" % number for number in range(10_000)]
        values[8_765] = b"needle"
        peer.produce(topic, *values)
        assert peer.ask(Fetch(topic, 0, 0, 10, "needle")) == Fetched((FetchedItem(b"", b"needle", 8_765),), 10_000)


def test_a_filtered_answer_stays_within_a_frame(standing: RunningBroker) -> None:
    """Two records that match and are large, the second larger than what the first leaves of a frame."""
    with Peer(standing.addresses[NAMES["v126"]], V126) as peer:
        topic = peer.create(new_topic())
        small, large = b"x" * (6 << 20), b"x" * (30 << 20)
        peer.produce(topic, small, large)
        first = peer.ask(Fetch(topic, 0, 0, 10, "xxx"))
        assert isinstance(first, Fetched), first
        assert [len(item.value) for item in first.items] == [len(small)] and first.next_offset == 1
        second = peer.ask(Fetch(topic, 0, first.next_offset, 10, "xxx"))
        assert [len(item.value) for item in second.items] == [len(large)] and second.next_offset == 2
        assert peer.ask(DeleteTopic(topic)) == Ok()
