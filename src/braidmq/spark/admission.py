"""How much of what is there goes into one micro-batch.

Records are shared out by how many wait in each partition, so that a quiet partition is not starved by a busy one and all of them
arrive at about the same time. A limit in bytes becomes one in records through the average size of a stored record of the
partition: near enough to keep a batch in bounds, and it costs no look at the log.
"""

from __future__ import annotations

from typing import Any

from braidmq.spark.places import Places


def admit(
    end: dict[str, dict[str, Any]], start: dict[str, dict[str, Any]], places: Places, records_max: int | None, bytes_max: int | None
) -> dict[str, dict[str, Any]]:
    """An offset between `start` and `end` that keeps to the limits, and moves where there is something to read."""
    waiting: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], int] = {}
    size = 0.0
    for topic, until in end.items():
        known = start.get(topic)
        info = places.get(topic)
        for number, stop in until["next"].items():
            place = info.partitions[int(number)] if info is not None and int(number) < len(info.partitions) else None
            begin = place.oldest if place is not None else stop
            if known is not None and known["id"] == until["id"]:
                begin = max(begin, known["next"].get(number, begin))
            records = max(0, stop - begin)
            waiting[topic, number], first[topic, number] = records, begin
            if place is not None and place.newest > place.oldest:
                size += records * place.size_bytes / (place.newest - place.oldest)
    total = sum(waiting.values())
    most = total
    if records_max is not None:
        most = min(most, records_max)
    if bytes_max is not None and size > bytes_max:
        most = min(most, max(1, int(total * bytes_max / size)))
    if most >= total:
        return end
    shares = _shares(waiting, most)
    return {
        topic: {**until, "next": {
            number: first[topic, number] + shares[topic, number] if waiting[topic, number] else stop
            for number, stop in until["next"].items()
        }}
        for topic, until in end.items()
    }  # fmt: skip


def _shares(waiting: dict[tuple[str, str], int], most: int) -> dict[tuple[str, str], int]:
    """`most` records over partitions, in proportion; what rounding leaves goes to those that wait longest, one each."""
    total = sum(waiting.values())
    shares = {place: count * most // total for place, count in waiting.items()}
    left = most - sum(shares.values())
    for place in sorted(waiting, key=lambda place: waiting[place] - shares[place], reverse=True)[:left]:
        shares[place] += 1
    return shares
