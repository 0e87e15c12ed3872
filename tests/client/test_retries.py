"""Records that failed and come again: when, in which order, and what they hold back. No network, no clock."""

from __future__ import annotations

import pytest

from braidmq.client.models import Record, TopicPartition
from braidmq.client.retries import RETRY_SECONDS_MAX, Retries, retry_delay_s

PART = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def record(offset: int, partition: int = 0) -> Record:
    return Record("t", partition, offset, 0, None, b"v")


def test_a_record_comes_when_it_is_due_and_not_before() -> None:
    retries: Retries[Record] = Retries()
    assert retries.next_due_s() is None
    retries.add(record(5), 10.0)
    retries.add(record(3), 8.0)
    assert retries.next_due_s() == 8.0
    assert retries.take_due(7.9) is None
    assert retries.take_due(11.0) == record(3)
    assert retries.take_due(11.0) == record(5)
    assert retries.take_due(99.0) is None


def test_nothing_at_or_past_a_record_that_is_not_settled_is_committed() -> None:
    retries: Retries[Record] = Retries()
    positions = {PART: 20, OTHER: 20}
    assert retries.hold(positions) == positions
    retries.add(record(5), 0.0)
    retries.add(record(9), 0.0)
    assert retries.hold(positions) == {PART: 5, OTHER: 20}
    assert retries.hold({PART: 2}) == {PART: 2}
    first = retries.take_due(0.0)
    assert first == record(5)
    assert retries.hold(positions)[PART] == 5, "in the application's hands it is not processed yet"
    retries.settle_handed()
    assert retries.hold(positions)[PART] == 9
    retries.settle(record(9))
    assert retries.hold(positions) == positions
    assert retries.take_due(99.0) is None, "what is settled does not come"
    assert len(retries) == 0


def test_a_record_that_fails_again_waits_again_and_is_not_settled_by_the_others() -> None:
    retries: Retries[Record] = Retries()
    retries.add(record(5), 1.0)
    assert retries.take_due(1.0) == record(5)
    retries.add(record(5), 3.0)
    retries.settle_handed()
    assert retries.hold({PART: 20}) == {PART: 5}
    assert retries.take_due(2.0) is None
    retries.add(record(5), 4.0)
    assert len(retries) == 1, "reported twice it still comes once"
    assert retries.take_due(5.0) == record(5)
    assert retries.take_due(5.0) is None


def test_a_partition_that_is_read_anew_forgets() -> None:
    retries: Retries[Record] = Retries()
    retries.add(record(5), 1.0)
    retries.add(record(6, partition=1), 1.0)
    retries.drop(PART)
    assert retries.hold({PART: 20, OTHER: 20}) == {PART: 20, OTHER: 6}
    assert retries.take_due(2.0) == record(6, partition=1)
    assert retries.take_due(2.0) is None


@pytest.mark.parametrize(
    ("retry_at_ms", "now_ms", "attempts", "wanted"),
    [
        (11_500, 10_000, 1, 1.5),
        (9_000, 10_000, 1, 0.0),
        (3_600_000 + 11_000, 10_000, 1, 1.0),
        (11_000, 3_600_000, 2, 2.0),
        (0, 3_600_000, 1000, RETRY_SECONDS_MAX),
    ],
)
def test_clocks_that_disagree_too_much_are_not_believed(retry_at_ms: int, now_ms: int, attempts: int, wanted: float) -> None:
    assert retry_delay_s(retry_at_ms, now_ms, attempts) == wanted
