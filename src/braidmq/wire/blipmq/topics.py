"""Topic names and filters: levels between slashes, `+` for one level, `#` for the rest, `$share/<group>/` for shared work.

Names are compared as they are written: no case is folded, nothing is normalised, empty levels count. A first level that begins
with `$` is the broker's own; a filter that begins with a wildcard never matches one.

Dead letters of a topic `T` are read as `$DLQ/T`. The log keeps them in a topic named `T` with a suffix; `stored_name` and
`shown_name` lead from one to the other.
"""

from __future__ import annotations

from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.shape import shape

DEAD_LETTER_PREFIX: Final = "$DLQ/"
AUTH_TOPIC: Final = "$SYS/auth"
"""Publishing an API key here is how clients without metadata log in."""
SHARE_PREFIX: Final = "$share/"
ONE_LEVEL: Final = "+"
ALL_BELOW: Final = "#"

_CONTROL: Final = ("\0", "\n", "\r")


def _check_text(text: str) -> list[str]:
    """The levels of a topic or filter."""
    if not text:
        raise BraidError("INVALID_TOPIC", reason="empty")
    if len(text) > limits.BLIPMQ_TEXT_CHARACTERS_MAX:
        raise BraidError("INVALID_TOPIC", reason=f"{len(text)} characters are more than {limits.BLIPMQ_TEXT_CHARACTERS_MAX}")
    for character in _CONTROL:
        if character in text:
            raise BraidError("INVALID_TOPIC", reason=f"it holds the character U+{ord(character):04X}")
    levels = text.split("/")
    if len(levels) > limits.BLIPMQ_LEVELS_MAX:
        raise BraidError("INVALID_TOPIC", reason=f"{len(levels)} levels are more than {limits.BLIPMQ_LEVELS_MAX}")
    return levels


def is_reserved(topic: str) -> bool:
    """Whether the topic is the broker's own."""
    return topic.startswith("$")


def check_topic(topic: str) -> None:
    """INVALID_TOPIC unless messages may be published to a topic of that name, UNAUTHORIZED for one of the broker's own."""
    _check_text(topic)
    for wildcard in (ONE_LEVEL, ALL_BELOW):
        if wildcard in topic:
            raise BraidError("INVALID_TOPIC", reason=f"{wildcard} is a wildcard, which only filters may hold")
    if is_reserved(topic):
        raise BraidError("UNAUTHORIZED")


@shape
class TopicFilter:
    """A filter that was found to be sound."""

    text: str
    """As it was sent."""
    pattern: str
    """Without the shared group."""
    group: str | None
    """Each message goes to one member of the group."""
    levels: tuple[str, ...]
    wild: bool
    """Whether there is a wildcard; without one the pattern is a topic."""

    def matches(self, topic: str) -> bool:
        if not self.wild:
            return topic == self.pattern
        levels = self.levels
        if is_reserved(topic) and levels[0] in (ONE_LEVEL, ALL_BELOW):
            return False
        names = topic.split("/")
        for index, level in enumerate(levels):
            if level == ALL_BELOW:
                return True
            if index == len(names) or (level != ONE_LEVEL and level != names[index]):
                return False
        return len(names) == len(levels)

    def covers(self, other: TopicFilter) -> bool:
        """Whether this filter matches every topic that `other` can match."""
        mine, theirs = self.levels, other.levels
        if theirs[0].startswith("$") and mine[0] in (ONE_LEVEL, ALL_BELOW):
            return False
        for index, level in enumerate(mine):
            if level == ALL_BELOW:
                return True
            if index == len(theirs) or theirs[index] == ALL_BELOW:
                return False
            if level != ONE_LEVEL and level != theirs[index]:
                return False
        return len(theirs) == len(mine)


def parse_filter(text: str) -> TopicFilter:
    """The filter of a Subscribe or Unsubscribe; INVALID_TOPIC with the reason."""
    _check_text(text)
    pattern, group = text, None
    if text.startswith(SHARE_PREFIX):
        group, slash, pattern = text.removeprefix(SHARE_PREFIX).partition("/")
        if not group or not slash or not pattern:
            raise BraidError("INVALID_TOPIC", reason="a shared filter is $share/<group>/<filter>")
        if ONE_LEVEL in group or ALL_BELOW in group:
            raise BraidError("INVALID_TOPIC", reason="the name of a shared group holds no wildcard")
    levels = pattern.split("/")
    wild = False
    for index, level in enumerate(levels):
        if ONE_LEVEL not in level and ALL_BELOW not in level:
            continue
        wild = True
        if len(level) > 1:
            raise BraidError("INVALID_TOPIC", reason=f'level "{level}" mixes a wildcard with text')
        if level == ALL_BELOW and index < len(levels) - 1:
            raise BraidError("INVALID_TOPIC", reason="# is the last level or none")
    return TopicFilter(text, pattern, group, tuple(levels), wild)


def stored_name(topic: str, dead_letter_suffix: str) -> str:
    """The log's name for a topic."""
    if topic.startswith(DEAD_LETTER_PREFIX):
        return topic.removeprefix(DEAD_LETTER_PREFIX) + dead_letter_suffix
    return topic


def shown_name(name: str, dead_letter_suffix: str) -> str:
    """What BlipMQ calls a topic of the log."""
    if dead_letter_suffix and name.endswith(dead_letter_suffix) and len(name) > len(dead_letter_suffix):
        return DEAD_LETTER_PREFIX + name.removesuffix(dead_letter_suffix)
    return name
