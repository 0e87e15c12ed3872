"""Which member of a group reads which partition: pure functions of who is there and what there is.

Members come in the order in which they joined, so a newcomer takes from the others and does not turn everything round. Every
partition goes to exactly one of the members that named its topic.

* `range` cuts each topic into runs of neighbouring partitions, as even as they can be; members that share topics with
  equally many partitions get the same numbers of each, which is what joins by key need.
* `roundrobin` deals all partitions of all topics out one by one, so that members with the same topics differ by one at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from braidmq.base.errors import BraidError

Assignment = dict[str, tuple[int, ...]]
"""Topic to partitions."""
Subscriptions = Sequence[tuple[str, Collection[str]]]
"""Members in the order in which they joined, each with its topics."""

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
STRATEGIES: Final = (RANGE, ROUND_ROBIN)


def check_strategy(strategy: str) -> str:
    """The strategy that a join named; the empty one is `range`."""
    if strategy and strategy not in STRATEGIES:
        raise BraidError("INVALID_ARGUMENT", reason=f"strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    return strategy or RANGE


def assign(strategy: str, members: Subscriptions, partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Divide all `partitions` (a count for each topic) between the members; each member has an entry."""
    readers: dict[str, list[str]] = {topic: [] for topic in sorted(partitions)}
    for member, topics in members:
        for topic in topics:
            if topic in readers:
                readers[topic].append(member)
    divide = _ranges if strategy == RANGE else _in_turn
    shares: dict[str, Assignment] = {member: {} for member, _ in members}
    for topic, member, numbers in divide(readers, partitions):
        shares[member][topic] = numbers
    return shares


def _ranges(readers: Mapping[str, list[str]], partitions: Mapping[str, int]) -> list[tuple[str, str, tuple[int, ...]]]:
    shares: list[tuple[str, str, tuple[int, ...]]] = []
    for topic, members in readers.items():
        first = 0
        for rank, member in enumerate(members):
            size, more = divmod(partitions[topic], len(members))
            following = first + size + (rank < more)
            if following > first:
                shares.append((topic, member, tuple(range(first, following))))
            first = following
    return shares


def _in_turn(readers: Mapping[str, list[str]], partitions: Mapping[str, int]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Deal to whoever has the fewest so far, topics with the fewest readers first: these have nowhere else to go."""
    rank = {member: n for n, member in enumerate(dict.fromkeys(member for members in readers.values() for member in members))}
    dealt = dict.fromkeys(rank, 0)
    shares: list[tuple[str, str, tuple[int, ...]]] = []
    for topic in sorted(readers, key=lambda name: (len(readers[name]), name)):
        waiting = [(dealt[member], rank[member], member) for member in readers[topic]]
        if not waiting:
            continue
        heapq.heapify(waiting)
        taken: dict[str, list[int]] = {}
        for number in range(partitions[topic]):
            count, order, member = waiting[0]
            heapq.heapreplace(waiting, (count + 1, order, member))
            dealt[member] += 1
            taken.setdefault(member, []).append(number)
        shares += [(topic, member, tuple(numbers)) for member, numbers in taken.items()]
    return shares
