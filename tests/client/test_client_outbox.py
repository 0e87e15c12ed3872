"""The producer's book-keeping, without a network: order, retries, identities, and that every record gets an outcome."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from braidmq.base.errors import BraidError
from braidmq.base.limits import PRODUCER_BATCHES_KEPT
from braidmq.client.faults import ServerError
from braidmq.client.models import RecordMetadata
from braidmq.client.outbox import IDENTITIES_MAX, SEQUENCE_MASK, Lane, Outbox, PendingBatch
from braidmq.log.producers import ProducerTable

LOST = BraidError("CONNECTION_LOST", server="s", reason="r")
GAP = ServerError("OUT_OF_ORDER_SEQUENCE", "gap")
FULL = ServerError("STORAGE_FULL", "full")
BAD = ServerError("INVALID_BATCH", "bad")


def make_outbox(*, linger_s: float = 0.0, timeout_s: float = 100.0, may_duplicate: bool = False) -> Outbox:
    return Outbox(
        linger_s=linger_s, delivery_timeout_s=timeout_s, retries_may_duplicate=may_duplicate,
        new_producer_id=itertools.count(1000).__next__,
    )  # fmt: skip


def make_lane(partition: int = 0) -> Lane:
    """A lane whose producer the server knows already."""
    lane = Lane("t", partition, 1)
    lane.established = True
    return lane


def add(outbox: Outbox, lane: Lane, value: bytes, now_s: float = 0.0, *, seal: bool = True) -> PendingBatch:
    batch = lane.open or outbox.begin(lane, now_s)
    batch.keys.append(None)
    batch.values.append(value)
    batch.size_bytes += 100
    outbox.buffered_bytes += 100
    if seal:
        outbox.seal(lane)
    return batch


def test_batches_go_out_in_order_and_five_at_a_time() -> None:
    outbox, lane = make_outbox(), make_lane()
    batches = [add(outbox, lane, b"%d" % number) for number in range(8)]
    first = outbox.take(0.0)
    assert first == batches[:PRODUCER_BATCHES_KEPT]
    assert outbox.take(0.0) == []
    outbox.acknowledged(first[0], 10, 99)
    assert outbox.take(0.0) == [batches[5]]
    assert [batch.sequence for batch in batches[:6]] == [0, 1, 2, 3, 4, 5]
    assert batches[0].outcome(0) == RecordMetadata("t", 0, 10, 99)
    assert outbox.buffered_bytes == 700


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    outbox, lane = make_outbox(), Lane("t", 0, 1)
    batches = [add(outbox, lane, b"%d" % number) for number in range(8)]
    assert outbox.take(0.0) == batches[:1]
    assert outbox.deadline_s() is None, "only its answer can change that"
    outbox.acknowledged(batches[0], 0, 0)
    assert outbox.take(0.0) == batches[1:6]


def test_an_open_batch_waits_for_its_time() -> None:
    outbox, lane = make_outbox(linger_s=5.0), make_lane()
    batch = add(outbox, lane, b"a", now_s=1.0, seal=False)
    assert add(outbox, lane, b"b", now_s=3.0, seal=False) is batch
    assert outbox.deadline_s() == 6.0
    assert outbox.take(5.9) == []
    assert outbox.take(6.0) == [batch]
    assert outbox.deadline_s() is None


def test_a_lost_connection_sends_the_same_bytes_again_in_order() -> None:
    outbox, lane = make_outbox(), make_lane()
    batches = [add(outbox, lane, b"%d" % number) for number in range(7)]
    for batch in outbox.take(0.0):
        batch.frame = b"frame %d" % batch.sequence
        batch.sent = True
    outbox.acknowledged(batches[0], 0, 0)
    outbox.lost(batches[1:5], LOST, recognises_duplicates=True)
    again = outbox.take(0.0)
    assert again == batches[1:6]
    assert [batch.frame for batch in again[:4]] == [b"frame 1", b"frame 2", b"frame 3", b"frame 4"]
    assert lane.producer_id == 1


def test_without_duplicate_detection_a_loss_is_an_error_unless_duplicates_are_fine() -> None:
    for may_duplicate in (False, True):
        outbox, lane = make_outbox(may_duplicate=may_duplicate), make_lane()
        add(outbox, lane, b"a")
        (batch,) = outbox.take(0.0)
        batch.sent = True
        outbox.lost([batch], LOST, recognises_duplicates=False)
        assert batch.done is not may_duplicate
        if not may_duplicate:
            with pytest.raises(BraidError, match="CONNECTION_LOST"):
                batch.outcome(0)
            assert outbox.empty
            assert list(outbox.failures) == [batch]


def test_what_was_refused_for_now_holds_back_what_follows() -> None:
    outbox, lane = make_outbox(), make_lane()
    batches = [add(outbox, lane, b"%d" % number) for number in range(3)]
    outbox.take(0.0)
    outbox.refused(batches[0], FULL, retry_at_s=2.0)
    assert outbox.take(3.0) == [], "two are in flight still"
    outbox.refused(batches[1], GAP, retry_at_s=9.0)
    outbox.refused(batches[2], GAP, retry_at_s=9.0)
    assert outbox.deadline_s() == 2.0
    assert outbox.take(1.9) == []
    assert outbox.take(2.0) == batches
    assert [batch.sequence for batch in batches] == [0, 1, 2], "nothing was given up, so the numbers stay"
    assert lane.producer_id == 1


def test_after_a_batch_was_given_up_the_rest_begins_a_new_sequence() -> None:
    outbox, lane = make_outbox(), make_lane()
    batches = [add(outbox, lane, b"%d" % number) for number in range(3)]
    for batch in outbox.take(0.0):
        batch.frame = b"old"
    outbox.refused(batches[0], BAD, 0.0)
    with pytest.raises(ServerError, match="INVALID_BATCH"):
        batches[0].outcome(0)
    outbox.refused(batches[1], GAP, 0.0)
    outbox.refused(batches[2], GAP, 0.0)
    assert outbox.take(0.0) == batches[1:2]
    outbox.acknowledged(batches[1], 0, 0)
    assert outbox.take(0.0) == batches[2:]
    assert [batch.sequence for batch in batches[1:]] == [0, 1]
    assert [batch.frame for batch in batches[1:]] == [None, None]
    assert lane.producer_id == 1000


def test_a_server_that_never_accepts_a_sequence_ends_in_an_error() -> None:
    outbox, lane = make_outbox(), make_lane()
    batch = add(outbox, lane, b"a")
    for _ in range(IDENTITIES_MAX):
        assert outbox.take(0.0) == [batch]
        outbox.refused(batch, GAP, 0.0)
    outbox.take(0.0)
    outbox.refused(batch, GAP, 0.0)
    with pytest.raises(ServerError, match="OUT_OF_ORDER_SEQUENCE"):
        batch.outcome(0)
    assert outbox.empty


def test_what_waited_for_too_long_fails_but_not_what_is_on_the_wire() -> None:
    outbox, lane, other = make_outbox(timeout_s=10.0, linger_s=1.0), make_lane(), make_lane(1)
    flying = add(outbox, lane, b"a")
    outbox.take(0.0)
    late = [add(outbox, other, b"b"), add(outbox, other, b"c", seal=False)]
    young = add(outbox, lane, b"d", now_s=5.0)
    reason = BraidError("TIMED_OUT", what="delivering a record", seconds=10.0)
    outbox.expire(9.9, reason)
    assert not any(batch.done for batch in (flying, young, *late))
    outbox.expire(10.0, reason)
    assert [batch.done for batch in (flying, *late, young)] == [False, True, True, False]
    assert outbox.buffered_bytes == 200


def test_sequences_begin_again_after_31_bits() -> None:
    outbox, lane = make_outbox(), make_lane()
    lane.sequence = SEQUENCE_MASK
    first, second = add(outbox, lane, b"a"), add(outbox, lane, b"b")
    outbox.take(0.0)
    assert (first.sequence, second.sequence) == (SEQUENCE_MASK, 0)


def test_a_batch_nobody_accepts_goes_again_in_the_other_form() -> None:
    outbox, lane = make_outbox(), make_lane()
    batches = [add(outbox, lane, b"a"), add(outbox, lane, b"b")]
    outbox.take(0.0)
    outbox.not_accepted(batches[0])
    assert outbox.take(0.0) == []
    outbox.not_accepted(batches[1])
    assert outbox.take(0.0) == batches
    outcomes: list[RecordMetadata | BraidError] = [RecordMetadata("t", 0, 5, 6)]
    outbox.answered_one_by_one(batches[0], outcomes)
    outbox.answered_one_by_one(batches[1], [LOST])
    assert batches[0].outcome(0).offset == 5
    assert batches[1].first_error() is LOST
    assert list(outbox.failures) == [batches[1]]


class _Signal:
    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True


def test_whoever_waits_is_told() -> None:
    outbox, lane = make_outbox(), make_lane()
    batch = add(outbox, lane, b"a")
    waiting = batch.settled(_Signal)
    assert batch.settled(_Signal) is waiting
    outbox.take(0.0)
    outbox.acknowledged(batch, 0, 0)
    assert isinstance(waiting, _Signal) and waiting.is_set
    late = PendingBatch.written(lane, 3, 4).settled(_Signal)
    assert isinstance(late, _Signal) and late.is_set


# --- against the broker's own memory of producers


def run_against_broker(seed: int, table: ProducerTable | None = None) -> None:
    """Any mix of losses and refusals: everything accepted is stored once and in order, everything else fails."""
    chance = random.Random(seed)
    outbox, lane = make_outbox(), Lane("t", 0, 1)
    table = ProducerTable() if table is None else table
    stored: list[bytes] = []
    refused_for_good = {b"%d" % chance.randrange(30) for _ in range(chance.randrange(4))}
    batches = [add(outbox, lane, b"%d" % number) for number in range(30)]
    for _ in range(10_000):
        if outbox.empty:
            break
        flying = outbox.take(0.0)
        for batch in flying:
            batch.sent = True
        answers: list[Callable[[], None]] = []
        for batch in flying:
            if chance.random() < 0.15 or batch.values[0] in refused_for_good:
                fault = BAD if batch.values[0] in refused_for_good else FULL
                answers.append(lambda batch=batch, fault=fault: outbox.refused(batch, fault, 0.0))  # type: ignore[misc]
                continue
            try:
                known = table.find_duplicate(lane.producer_id, 0, batch.sequence, 1)
            except BraidError as gap:
                fault = ServerError(gap.code, gap.text)
                answers.append(lambda batch=batch, fault=fault: outbox.refused(batch, fault, 0.0))  # type: ignore[misc]
                continue
            if known is None:
                known = (len(stored), 0)
                table.record(lane.producer_id, 0, batch.sequence, 1, *known)
                stored.append(batch.values[0])
            answers.append(lambda batch=batch, at=known[0]: outbox.acknowledged(batch, at, 0))  # type: ignore[misc]
        cut = chance.randrange(len(answers) + 1) if chance.random() < 0.3 else len(answers)
        for answer in answers[:cut]:
            answer()
        outbox.lost(list(lane.in_flight), LOST, recognises_duplicates=True)
    assert outbox.empty
    assert outbox.buffered_bytes == 0
    accepted = [batch for batch in batches if batch.error is None]
    assert [batch.base_offset for batch in accepted] == sorted({batch.base_offset for batch in accepted})
    assert [stored[batch.base_offset] for batch in accepted] == [b"%d" % batches.index(batch) for batch in accepted]
    assert len(stored) == len(accepted) == 30 - len(refused_for_good)


@pytest.mark.parametrize("seed", range(200))
def test_any_mix_of_losses_and_refusals_stores_each_record_once_and_in_order(seed: int) -> None:
    run_against_broker(seed)


class _Forgetful(ProducerTable):
    """A broker that recognises nothing."""

    def find_duplicate(self, *_: int) -> None:
        return None


def test_the_proof_notices_a_broker_that_stores_duplicates() -> None:
    with pytest.raises(AssertionError):
        for seed in range(50):
            run_against_broker(seed, _Forgetful())
