"""Everything the broker has decided to do and everything that waits for a decision, as a state machine.

A *piece of work* moves staged records into partitions: a committed transaction, delayed messages that are due, dead letters
on their way in or out. Its command in the journal is the decision. From then on it will happen, once, whatever becomes of the
process; `done` says that it did. What the decision uses up (a delayed message, a letter that is replayed, the count of a
record's failures) is used up by the same command, so nothing can be used twice and a crash finds either all of it or none.

    reserve N                                        numbers below N may be in use
    producer ID EPOCH                                an instance of a transactional producer took over
    commit NUMBER ID EPOCH TARGETS OFFSETS           a transaction is committed
    delay NUMBER DUE REF SIZE                        a message waits for its time
    move [NUMBER REF]...                             messages that wait are staged somewhere else now
    cancel NUMBER                                    it does not any more
    deliver NUMBER [TOPIC PARTITION [NUMBER...]]...  delayed messages go to their topics
    give_up NUMBER DELAYED TARGETS                   a delayed message that cannot be delivered becomes a dead letter
    fail TOPIC GROUP PARTITION OFFSET TIME TOKEN     a record could not be processed
    bury NUMBER TOPIC GROUP PARTITION OFFSET TARGETS and becomes a dead letter
    expire NUMBER TOPIC PARTITION EXPIRY OFFSET TARGETS    expired records become dead letters
    refuse NUMBER TOPIC PARTITION PRODUCER EPOCH SEQUENCE RECORDS TARGETS  records of a batch become dead letters
    replay NUMBER TOPIC [PARTITION OFFSET TOPIC PARTITION REF]...   dead letters go back where they came from
    purge TOPIC PARTITION OFFSET                     letters below the offset are none any more
    stage, publish, unstage                          staged writes, see `stage_table.py`
    done NUMBER                                      the work is in its partitions
    forget_topic TOPIC                               a topic is deleted

A target is [topic id, partition, [ref...]]; a ref is the offset of a staged record, which for staged writes is a whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.delayed_table import DelayedTable
from braidmq.broker.letter_table import Failure, LetterTable
from braidmq.broker.stage_table import StageTable

STAGING: Final = "staging"
DELAYED: Final = "delayed"
STAGES: Final = "stages"


@dataclass(slots=True)
class Target:
    """Staged records that go to one partition, in order."""

    topic_id: int
    partition: int
    refs: list[int]


@dataclass(slots=True)
class Work:
    number: int
    source: str
    """Which log the records are staged in."""
    targets: list[Target]
    offsets: list[list[Any]] = field(default_factory=list)
    """Consumer offsets that are committed with it: topic id, group, partition, offset."""
    owners: dict[int, int] = field(default_factory=dict)
    """Ref to the number that staged it, where that is not the number of the work."""


class WorkTable:
    def __init__(self) -> None:
        self.reserved = 1
        self.work: dict[int, Work] = {}
        """Decided and not known to be done."""
        self.committed: dict[int, None] = {}
        """Numbers of the last committed transactions, in order."""
        self.producers: dict[str, int] = {}
        """Transactional id to the epoch of its newest producer; the one taken over longest ago first."""
        self.delayed = DelayedTable()
        self.letters = LetterTable()
        self.stages = StageTable()

    def apply(self, command: list[Any]) -> Any:
        """Carry out one command. Decisions return the work, None when there is nothing left to do."""
        match command:
            case ["delay", int(number), int(due_ms), int(ref), int(size)]:
                self.delayed.add(number, due_ms, ref, size)
            case ["done", int(number)]:
                return self.work.pop(number, None)
            case ["reserve", int(upto)]:
                self.reserved = max(self.reserved, upto)
            case ["commit", int(number), str(name), int(epoch), list(targets), list(offsets)]:
                return self._commit(number, name, epoch, targets, offsets)
            case ["deliver", int(number), list(targets)]:
                return self._deliver(number, targets)
            case ["cancel", int(number)]:
                return self.delayed.remove(number) is not None
            case ["move", list(moves)]:
                return sum(self.delayed.move(number, ref) for number, ref in moves)
            case ["give_up", int(number), int(delayed), list(targets)]:
                return None if self.delayed.remove(delayed) is None else self._decide(number, targets)
            case ["fail", int(topic_id), str(group), int(partition), int(offset), int(now_ms), int(token)]:
                failure: Failure = self.letters.fail(topic_id, group, partition, offset, now_ms, token)
                return failure
            case ["bury", int(number), int(topic_id), str(group), int(partition), int(offset), list(targets)]:
                return self._decide(number, targets) if self.letters.bury(topic_id, group, partition, offset) else None
            case ["expire", int(number), int(topic_id), int(partition), int(expiry_ms), int(offset), list(targets)]:
                return self._decide(number, targets) if self.letters.expire(topic_id, partition, expiry_ms, offset) else None
            case ["refuse", int(number), *batch, list(targets)]:
                return self._decide(number, targets) if self.letters.refuse(*batch) else None
            case ["replay", int(number), int(topic_id), list(letters)]:
                return self._replay(number, topic_id, letters)
            case ["purge", int(topic_id), int(partition), int(offset)]:
                self.letters.strike(topic_id, partition, 0, offset)
            case ["discard", int(topic_id), int(partition), int(offset)]:
                if self.letters.is_gone(topic_id, partition, offset):
                    return False
                self.letters.strike(topic_id, partition, offset, offset + 1)
                return True
            case ["stage", *batch]:
                return self.stages.stage(*batch)
            case ["publish", int(number), str(writer), int(epoch), list(tasks), list(offsets)]:
                return self._publish(number, writer, epoch, tasks, offsets)
            case ["unstage", str(writer), int(epoch)]:
                self.stages.drop(writer, epoch)
            case ["producer", str(name), int(epoch)]:
                self._take_over(name, epoch)
            case ["forget_topic", int(topic_id)]:
                self.letters.forget_topic(topic_id)
            case _:
                raise AssertionError(f"unknown work command {command[:1]}")
        return None

    def _decide(self, number: int, targets: list[list[Any]], source: str = STAGING) -> Work:
        work = self.work[number] = Work(number, source, [Target(*target) for target in targets])
        return work

    def _commit(self, number: int, name: str, epoch: int, targets: list[list[Any]], offsets: list[list[Any]]) -> Work:
        current = self.producers.get(name, epoch) if name else epoch
        if current != epoch:
            raise BraidError("FENCED_PRODUCER", producer=name, epoch=epoch, current=current)
        self.committed[number] = None
        if len(self.committed) > limits.TRANSACTIONS_REMEMBERED:
            del self.committed[next(iter(self.committed))]
        work = self._decide(number, targets)
        work.offsets = offsets
        return work

    def _publish(self, number: int, writer: str, epoch: int, tasks: list[list[int]], offsets: list[list[Any]]) -> Work | None:
        published = self.stages.publish(number, writer, epoch, tasks)
        if published is None:
            return None
        targets, owners = published
        work = self._decide(number, targets, STAGES)
        work.offsets, work.owners = offsets, owners
        return work

    def _deliver(self, number: int, targets: list[list[Any]]) -> Work | None:
        taken: list[list[Any]] = []
        owners: dict[int, int] = {}
        for topic_id, partition, messages in targets:
            refs = []
            for message in messages:
                ref = self.delayed.remove(message)
                if ref is not None:
                    # It was not cancelled meanwhile.
                    refs.append(ref)
                    owners[ref] = message
            if refs:
                taken.append([topic_id, partition, refs])
        if not taken:
            return None
        work = self._decide(number, taken, DELAYED)
        work.owners = owners
        return work

    def _replay(self, number: int, letters_topic: int, letters: list[list[int]]) -> Work | None:
        targets: dict[tuple[int, int], list[int]] = {}
        for letter_partition, letter_offset, topic_id, partition, ref in letters:
            if not self.letters.is_gone(letters_topic, letter_partition, letter_offset):
                self.letters.strike(letters_topic, letter_partition, letter_offset, letter_offset + 1)
                targets.setdefault((topic_id, partition), []).append(ref)
        return self._decide(number, [[*place, refs] for place, refs in targets.items()]) if targets else None

    def _take_over(self, name: str, epoch: int) -> None:
        known = self.producers.pop(name, -1)
        self.producers[name] = max(known, epoch)
        if len(self.producers) > limits.TRANSACTIONAL_IDS_REMEMBERED:
            del self.producers[next(iter(self.producers))]

    # --- snapshots

    def snapshot(self) -> Any:
        return {
            "reserved": self.reserved,
            "work": [
                [w.number, w.source, [[t.topic_id, t.partition, t.refs] for t in w.targets], w.offsets, list(w.owners.items())]
                for w in self.work.values()
            ],
            "committed": list(self.committed),
            "producers": dict(self.producers),
            "delayed": self.delayed.snapshot(),
            "letters": self.letters.snapshot(),
            "stages": self.stages.snapshot(),
        }

    def restore(self, document: Any) -> None:
        self.reserved = document["reserved"]
        for number, source, targets, offsets, owners in document["work"]:
            self.work[number] = Work(number, source, [Target(*target) for target in targets], offsets, dict(owners))
        self.committed = dict.fromkeys(document["committed"])
        self.producers = dict(document["producers"])
        self.delayed.restore(document["delayed"])
        self.letters.restore(document["letters"])
        if "stages" in document:
            # A snapshot from before there were any has none.
            self.stages.restore(document["stages"])


def number_in(text: str, prefix: str) -> int:
    """The number in an id such as `txn-7`, -1 where it is no such id."""
    digits = text.removeprefix(prefix)
    if len(digits) + len(prefix) != len(text) or not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        return -1
    return int(digits) if digits == str(int(digits)) else -1
