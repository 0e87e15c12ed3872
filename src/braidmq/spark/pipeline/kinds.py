"""What a field of a pipeline definition may hold.

A kind turns what somebody wrote into the value that the compiler uses, or says what is wrong with it in one sentence. YAML and
Python go through the same kinds, and the reference page is made from them, so there is one place that knows what `within: 1 hour`
means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from braidmq.base.config_kinds import read_size
from braidmq.base.limits import KIB
from braidmq.base.naming import PIPELINE_NAME

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS: Final = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip


Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that is wrong; `path` leads to the part that is meant, where it is not the whole."""

    text: str
    path: Path = ()

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.text}" if self.path else self.text


class Fault(ValueError):
    """What is wrong with a value: everything, not only what was found first."""

    def __init__(self, text: str, path: Path = (), more: Sequence[Complaint] = ()) -> None:
        self.complaints = tuple(more) or (Complaint(text, path),)
        super().__init__("; ".join(map(str, self.complaints)))


class Complaints:
    """Collects what is wrong with the parts of something."""

    def __init__(self) -> None:
        self.found: list[Complaint] = []

    def take(self, path: Path, accept: Callable[[Any], Any], value: Any) -> Any:
        """What `accept` makes of a value; None when it complains."""
        try:
            return accept(value)
        except Fault as fault:
            self.found += [Complaint(each.text, (*path, *each.path)) for each in fault.complaints]
            return None

    def end(self) -> None:
        """Raise what was found."""
        if self.found:
            raise Fault("", more=self.found)


class Millis(int):
    """A length or a point of time in milliseconds, as a kind has made it: it is taken as it is when it comes by again."""


class Kind(Protocol):
    def accept(self, value: Any) -> Any:
        """The value in its final form; raises `Fault`."""
        ...

    def describe(self) -> str:
        """What may stand there, for the reference page."""
        ...


class Text:
    """Text that is not empty."""

    def accept(self, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Fault(f"expected text, found {shown(value)}")
        if not str(value).strip():
            raise Fault("is empty")
        return str(value)

    def describe(self) -> str:
        return "text"


class Name:
    """A name that is used in paths and in other names."""

    def accept(self, value: Any) -> str:
        text = Text().accept(value)
        if not PIPELINE_NAME.fullmatch(text):
            raise Fault(f"{text!r} is not a name: up to 100 letters, digits, dots, dashes and underscores, a letter or digit first")
        return text

    def describe(self) -> str:
        return "name"


class Flag:
    def accept(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise Fault(f"expected true or false, found {shown(value)}")
        return value

    def describe(self) -> str:
        return "true or false"


class Count:
    def __init__(self, least: int = 1) -> None:
        self._least = least

    def accept(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Fault(f"expected a whole number, found {shown(value)}")
        if value < self._least:
            raise Fault(f"{value} is less than {self._least}")
        return value

    def describe(self) -> str:
        return f"whole number, {self._least} or more"


class Size:
    """A number of bytes such as `64MiB`."""

    def accept(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Fault(f"expected a size such as `64MiB`, found {shown(value)}")
        try:
            size = read_size(value)
        except ValueError as fault:
            raise Fault(str(fault)) from None
        if size < KIB:
            raise Fault(f"{shown(value)} is less than 1KiB")
        return size

    def describe(self) -> str:
        return "size, as `64MiB`"


class Duration:
    """A length of time such as `10 seconds`; kept as milliseconds."""

    def accept(self, value: Any) -> Millis:
        if isinstance(value, Millis):
            return value
        found = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        if found is None or found[2] not in _UNITS:
            raise Fault(f"expected a length of time such as `10 seconds` or `1 hour`, found {shown(value)}")
        total = round(float(found[1]) * _UNITS[found[2]])
        if total < 1:
            raise Fault("is shorter than a millisecond")
        return Millis(total)

    def describe(self) -> str:
        return "length of time, as `10 seconds` or `1 hour`"


class Moment:
    """A time such as `2025-01-31T12:00:00Z`; kept as milliseconds since 1970. Without a zone it is UTC."""

    def accept(self, value: Any) -> Millis:
        if isinstance(value, Millis):
            return value
        text = value.isoformat() if isinstance(value, datetime) else value
        try:
            moment = datetime.fromisoformat(text)
        except (TypeError, ValueError):
            raise Fault(f"expected a time such as 2025-01-31T12:00:00Z, found {shown(value)}") from None
        return Millis(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))

    def describe(self) -> str:
        return "time, as `2025-01-31T12:00:00Z`"


class Start:
    """Where a first run begins; offsets may be a mapping of topics to partitions to offsets."""

    def accept(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return json.dumps(value)
        text = Text().accept(value)
        if text in ("earliest", "latest", "group"):
            return text
        try:
            offsets = json.loads(text)
        except ValueError:
            offsets = None
        if not isinstance(offsets, Mapping):
            raise Fault(f"{shown(value)} is not `earliest`, `latest`, `group` or offsets as {{topic: {{partition: offset}}}}")
        return text

    def describe(self) -> str:
        return "`earliest`, `latest`, `group`, or offsets as `{topic: {partition: offset}}`"


class Choice:
    def __init__(self, *words: str) -> None:
        self.words = words

    def accept(self, value: Any) -> str:
        if value not in self.words:
            raise Fault(f"{shown(value)} is not one of {', '.join(self.words)}{did_you_mean(str(value), self.words)}")
        return str(value)

    def describe(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)


class Many:
    """A list; one item may stand alone."""

    def __init__(self, item: Kind, least: int = 1) -> None:
        self.item = item
        self._least = least

    def accept(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, Mapping) or value is None:
            raise Fault(f"expected a list, found {shown(value)}")
        items = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        if len(items) < self._least:
            raise Fault("is empty")
        complaints = Complaints()
        accepted = tuple([complaints.take((index,), self.item.accept, each) for index, each in enumerate(items)])
        complaints.end()
        return accepted

    def describe(self) -> str:
        return f"list of {self.item.describe()}"


class Pairs:
    """A mapping from names to values of one kind."""

    def __init__(self, value: Kind, least: int = 1) -> None:
        self.value = value
        self._least = least

    def accept(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Fault(f"expected a mapping, found {shown(value)}")
        if len(value) < self._least:
            raise Fault("is empty")
        complaints = Complaints()
        accepted = {str(name): complaints.take((str(name),), self.value.accept, each) for name, each in value.items()}
        complaints.end()
        return accepted

    def describe(self) -> str:
        return f"mapping of names to {self.value.describe()}"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """` (did you mean X?)` where something like it is known."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1, 0.6)
    return f" (did you mean `{close[0]}`?)" if close else ""


def shown(value: Any) -> str:
    """A value as an error quotes it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
