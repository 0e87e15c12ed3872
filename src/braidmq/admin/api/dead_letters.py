"""Dead letters: which topics have some, looking at them, sending them back, letting them go."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated

from braidmq.admin.api.messages import shown
from braidmq.admin.call import Call, Nothing
from braidmq.admin.masking import Mask, mask_of
from braidmq.admin.shapes import Bounds
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.broker.dead_letters import Letter
from braidmq.broker.pace import Pace
from braidmq.security.rules import Rule


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter."""

    id: str
    topic: Annotated[str, "where the record came from"]
    data: Annotated[str, "its value, in base64"]
    error: str
    retries: int
    timestamp: Annotated[str, "of the last failure"]
    reason: str
    value: Annotated[str, "its value as text, where it is text"]
    partition: Annotated[int, "of the record; -1 where it never got into its topic"]
    offset: int
    first_failure: str
    letter_partition: int
    letter_offset: Annotated[int, "in the topic of the dead letters"]
    key: str | None = None


@dataclass(frozen=True, slots=True)
class LetterQuery:
    """Which letters."""

    max_messages: Annotated[int, Bounds(1, 1000), "how many at most"] = 100
    filter: Annotated[str, Bounds(0, 4096), "as FETCH takes it; also looked for in reason and error"] = ""
    start: Annotated[str, Bounds(0, 2048), "the id to begin with"] = ""


@dataclass(frozen=True, slots=True)
class LetterTopic:
    """A topic that has dead letters."""

    topic: str
    dead_letter_topic: str
    letters: Annotated[int, "how many there are at most: some may have been sent back"]
    size_bytes: int
    unknown: Annotated[bool, "whether a leader does not answer, so that there may be more"] = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Which letters are to be sent back."""

    filter: Annotated[str, Bounds(0, 4096), "as in a query"] = ""
    all: Annotated[bool, "has to be said where there is no filter"] = False
    max_messages: Annotated[int, Bounds(0, 1_000_000), "0 is no limit"] = 0


@dataclass(frozen=True, slots=True)
class Counted:
    """How many."""

    count: int


async def list_letter_topics(call: Call[Nothing, Nothing]) -> list[LetterTopic]:
    """The topics that have dead letters, of those that the caller may read."""
    broker = call.broker
    letters = broker.dead_letters
    topics = []
    pace = Pace()
    suffix = broker.settings.dlq_suffix
    for name in [name for name in broker.topic_names() if name.endswith(suffix)]:
        await pace.step()
        topic = broker.topics.get(name)
        origin = letters.origin_of(name)
        if topic is not None and letters.topic_name(origin) == name and len(call.visible((name, origin))) == 2:
            topics.append(topic)
    return [
        LetterTopic(letters.origin_of(pile.topic.name), pile.topic.name, pile.letters, pile.size_bytes, pile.unknown)
        for pile in await letters.reads.piles(topics) if pile.letters or pile.unknown
    ]  # fmt: skip


async def list_letters(call: Call[LetterQuery, Nothing]) -> list[LetterRow]:
    """Dead letters of a topic, the oldest first. Ask again with the last id as `start` for more."""
    query = call.query
    letters = call.broker.dead_letters
    # They lie in a topic that may have an ACL of its own.
    for name in (letters.origin_of(call.path["topic"]), letters.topic_name(call.path["topic"])):
        call.require(Rule.READ_TOPIC, name, what="list_letters")
    found = await letters.letters(call.path["topic"], query.max_messages, matching=query.filter, start=query.start)
    mask = mask_of(call, call.broker.topics.get(letters.origin_of(call.path["topic"])))
    return [_row(letter, mask) for letter in found]


async def purge_letters(call: Call[Nothing, Nothing]) -> None:
    """Let all dead letters of a topic go."""
    count = await call.broker.dead_letters.purge(call.path["topic"])
    call.note("config.change", call.path["topic"], "purge dead letters", count=str(count))


async def discard_letter(call: Call[Nothing, Nothing]) -> Counted:
    """Let one dead letter go, for good."""
    await call.broker.dead_letters.discard(call.path["topic"], call.path["id"])
    call.note("config.change", call.path["topic"], "discard dead letter", letter=call.path["id"])
    return Counted(1)


async def replay_letter(call: Call[Nothing, Nothing]) -> Counted:
    """Send one dead letter back to its topic."""
    await call.broker.dead_letters.replay_id(call.path["topic"], call.path["id"])
    call.note("config.change", call.path["topic"], "replay dead letters", count="1")
    return Counted(1)


async def replay_letters(call: Call[Nothing, Replay]) -> Counted:
    """Send dead letters back to their topic: those that a filter chooses, or all."""
    body = call.body
    if not body.filter and not body.all:
        raise BraidError("INVALID_ARGUMENT", reason="a replay of many names a filter, or says that it means all")
    count = await call.broker.dead_letters.replay_matching(call.path["topic"], body.filter, body.max_messages)
    call.note("config.change", call.path["topic"], "replay dead letters", count=str(count))
    return Counted(count)


def _row(letter: Letter, mask: Mask | None) -> LetterRow:
    key, raw = (letter.key, letter.value) if mask is None else (mask.key(letter.key), mask.value(letter.value))
    value, encoding = shown(raw)
    return LetterRow(
        letter.id, letter.origin_topic, base64.b64encode(raw).decode(), letter.error, letter.attempts,
        rfc3339(letter.last_ms), letter.reason, value if encoding == "text" else "", letter.origin_partition, letter.origin_offset,
        rfc3339(letter.first_ms), letter.partition, letter.offset, None if key is None else shown(key)[0],
    )  # fmt: skip
