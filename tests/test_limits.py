"""Limits that no other test goes over: each is exceeded here, and the broker or the code says so."""

from __future__ import annotations

import struct

import pytest

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.names import check_group
from braidmq.broker.topics import TopicTable, check_properties
from braidmq.log.index import SparseIndex


def test_a_group_name_may_be_long_but_not_longer() -> None:
    check_group("g" * limits.GROUP_NAME_BYTES_MAX)
    with pytest.raises(BraidError, match="INVALID_GROUP"):
        check_group("g" * (limits.GROUP_NAME_BYTES_MAX + 1))


@pytest.mark.parametrize("size", [limits.SEGMENT_BYTES_MIN - 1, limits.SEGMENT_BYTES_MAX + 1])
def test_a_topic_cannot_ask_for_segments_outside_the_range(size: int) -> None:
    with pytest.raises(BraidError, match="segment_bytes is"):
        check_properties({"segment_bytes": str(size)})


@pytest.mark.parametrize("size", [limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX])
def test_the_ends_of_the_range_are_allowed(size: int) -> None:
    check_properties({"segment_bytes": str(size)})


def test_the_table_of_topics_is_bounded() -> None:
    assert limits.TOPICS_MAX == 1_000_000
    table = TopicTable(2)
    for name in ("a", "b"):
        table.apply(table.create(name, 1, 0, {}))
    with pytest.raises(BraidError, match="TOPIC_LIMIT"):
        table.apply(table.create("c", 1, 0, {}))
    assert table.apply(table.create("a", 1, 0, {})) is table.get("a"), "one that exists is no new one"


def test_an_index_has_one_entry_an_interval_and_no_more() -> None:
    index = SparseIndex()
    step = limits.INDEX_INTERVAL_BYTES // 4
    for number in range(17):
        index.add(number, number * step, number)
    assert len(index) == 5
    entries = index.encode(17 * step)[-5 * 24 :]
    assert [position for _, position, _ in struct.iter_unpack("<QQq", entries)] == [
        n * limits.INDEX_INTERVAL_BYTES for n in range(5)
    ]
