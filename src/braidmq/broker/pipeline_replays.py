"""Replays that somebody asked for: the part of a pipeline's state that a run takes its orders from.

The broker processes nothing. It keeps what is to be processed once more, gives it to the run that asks, and writes down what the
run says became of it. A replay is `requested`, `running`, and then `done`, `failed` or `cancelled`. One that a run took and did not
end has failed when that run ends: records can be replayed as often as anybody likes, so it is asked for again.

A wish is a JSON object: `offsets` (topic, partition, first, end), or `since_ms` with or without `until_ms`, or `letters`; and
`skip`, the sinks to leave alone. What its pipeline makes of it only the run can tell, because the broker does not read definitions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.errors import BraidError

REQUESTED: Final = "requested"
RUNNING: Final = "running"
ENDS: Final = ("done", "failed", "cancelled")
_KEYS: Final = {"offsets", "since_ms", "until_ms", "letters", "skip"}


@dataclass(slots=True)
class Replay:
    number: int
    by: str
    """Who asked."""
    wish: str
    """What is to be processed, as JSON."""
    asked_ms: int
    state: str = REQUESTED
    run: int = 0
    """The run that took it."""
    started_ms: int = 0
    ended_ms: int = 0
    result: str = ""
    """What became of it, for people."""


class ReplayList:
    """The replays of one pipeline, the oldest first."""

    def __init__(self, next_number: int = 1, replays: list[Replay] | None = None) -> None:
        self.next_number = next_number
        self.all: list[Replay] = replays or []

    def get(self, number: int) -> Replay | None:
        return next((each for each in self.all if each.number == number), None)

    def waiting(self) -> list[Replay]:
        return [each for each in self.all if each.state == REQUESTED]

    def under_way(self, run: int) -> Replay | None:
        """What a run has taken and not ended."""
        return next((each for each in self.all if each.state == RUNNING and each.run == run), None)

    # --- commands

    def ask(self, by: str, wish: str, now_ms: int, most: int) -> Replay | None:
        """None where `most` wait already."""
        if len(self.waiting()) >= most:
            return None
        replay = Replay(self.next_number, by, wish, now_ms)
        self.next_number += 1
        self.all.append(replay)
        for old in [each for each in self.all if each.state in ENDS][: max(0, len(self.all) - limits.PIPELINE_REPLAYS_KEPT)]:
            self.all.remove(old)
        return replay

    def take(self, run: int, now_ms: int) -> Replay | None:
        """The oldest that waits, for a run; the one it has where it asks again."""
        replay = self.under_way(run) or next(iter(self.waiting()), None)
        if replay is not None and replay.state == REQUESTED:
            replay.state, replay.run, replay.started_ms = RUNNING, run, now_ms
        return replay

    def end(self, number: int, state: str, result: str, now_ms: int) -> Replay | None:
        """None where it is not as it has to be: one that waits is cancelled, and the first word about one that was taken counts."""
        replay = self.get(number)
        if replay is None or replay.state != (REQUESTED if state == "cancelled" else RUNNING):
            return None
        replay.state, replay.result, replay.ended_ms = state, result, now_ms
        return replay

    def run_ended(self, run: int, now_ms: int) -> None:
        lost = self.under_way(run)
        if lost is not None:
            self.end(lost.number, "failed", f"run {run} ended before it was done; it can be asked for again", now_ms)

    # --- snapshots

    def snapshot(self) -> list[Any]:
        rows = [[r.number, r.by, r.wish, r.asked_ms, r.state, r.run, r.started_ms, r.ended_ms, r.result] for r in self.all]
        return [self.next_number, rows]


def restored(document: list[Any]) -> ReplayList:
    next_number, rows = document
    return ReplayList(next_number, [Replay(*row) for row in rows])


# --- wishes


def checked_wish(document: bytes | str) -> str:
    """A wish as the broker keeps it; INVALID_ARGUMENT says what is wrong with it."""
    try:
        wish = json.loads(document)
    except (ValueError, RecursionError):
        raise _wrong("it is not JSON") from None
    if not isinstance(wish, dict) or not wish.keys() <= _KEYS:
        raise _wrong(f"it is an object of {', '.join(sorted(_KEYS))}")
    chosen = [name for name in ("offsets", "since_ms", "letters") if wish.get(name) not in (None, False, [])]
    if len(chosen) != 1:
        raise _wrong("it names one of offsets, since_ms and letters")
    kept: dict[str, Any] = {chosen[0]: True if chosen[0] == "letters" else wish[chosen[0]]}
    if chosen == ["offsets"]:
        kept["offsets"] = _spans(wish["offsets"])
    elif chosen == ["since_ms"]:
        kept["since_ms"] = _time(wish["since_ms"])
    if wish.get("until_ms") is not None:
        kept["until_ms"] = _time(wish["until_ms"])
        if chosen != ["since_ms"] or kept["until_ms"] <= kept["since_ms"]:
            raise _wrong("until_ms goes with since_ms, and comes after it")
    if wish.get("skip"):
        kept["skip"] = _names(wish["skip"])
        if chosen == ["letters"]:
            raise _wrong("letters go through the whole pipeline, so no sink is skipped")
    text = json.dumps(kept, ensure_ascii=False)
    if len(text.encode()) > limits.PIPELINE_REPORT_BYTES_MAX:
        raise _wrong(f"it takes more than {limits.PIPELINE_REPORT_BYTES_MAX} bytes")
    return text


def _spans(given: Any) -> list[list[Any]]:
    if not isinstance(given, list):
        raise _wrong("offsets are a list")
    for span in given:
        match span:
            case [str(), int(partition), int(first), int(end)] if partition >= 0 and 0 <= first < end < 1 << 63:
                continue
        raise _wrong("a span is [topic, partition, first, end], and ends after its beginning")
    return given


def _time(given: Any) -> int:
    if type(given) is not int or not 0 <= given < 1 << 52:
        raise _wrong("a time is milliseconds since the epoch")
    return given


def _names(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise _wrong("skip is a list of sinks")
    return given


def _wrong(reason: str) -> BraidError:
    return BraidError("INVALID_ARGUMENT", reason=f"a replay: {reason}")
