"""Every option of the data source `braid`, declared once: its name, what it takes, and what it is for.

Spark hands options over as text, with names in lower case. A name that nobody knows is an error with the nearest one; Spark's own
options (`path`, `checkpointLocation` and the like) are let through.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from braidmq.base import config_kinds as kinds
from braidmq.base.errors import BraidError
from braidmq.base.limits import KIB, MIB

Positions = Literal["earliest", "latest", "group"] | dict[str, dict[int, int]]
"""Where to begin or to end: a word, or offsets by topic and partition. Of these -2 is the earliest and -1 the latest."""

EARLIEST: Final = -2
LATEST: Final = -1
_FOREIGN: Final = frozenset({"path", "checkpointlocation", "querytype", "queryname", "outputmode"})


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    read: Callable[[str], Any]
    takes: str
    doc: str
    use: str
    """`read`, `write` or `both`."""
    default: str = ""


def _word(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _names(text: str) -> tuple[str, ...]:
    """`a,b`, or a JSON list where names have commas in them."""
    if text.lstrip().startswith("["):
        found = json.loads(text)
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ValueError("it is no JSON list of names")
        names = found
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or not all(names):
        raise ValueError("a name is empty")
    return tuple(dict.fromkeys(names))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise ValueError(f"it is no regular expression: {fault}") from None
    return text


def _positions(text: str, words: tuple[str, ...]) -> Any:
    if not text.lstrip().startswith("{"):
        if text.lower() not in words:
            raise ValueError(f"it is none of {', '.join(words)}, and no JSON")
        return text.lower()
    try:
        found = json.loads(text)
        positions = {str(topic): {int(part): int(at) for part, at in parts.items()} for topic, parts in found.items()}
    except (ValueError, AttributeError, TypeError):
        raise ValueError('it is no JSON of the form {"topic": {"0": 5}}') from None
    for topic, parts in positions.items():
        for partition, offset in parts.items():
            if partition < 0 or offset < EARLIEST:
                raise ValueError(f"there is no offset {offset} of partition {partition} of {topic}")
    return positions


def _starting(text: str) -> Any:
    return _positions(text, ("earliest", "latest", "group"))


def _ending(text: str) -> Any:
    return _positions(text, ("earliest", "latest", "group"))


def _moment_ms(text: str) -> int:
    """Milliseconds since 1970, or an ISO time; one that names no zone is UTC."""
    if text.strip().isdecimal():
        return _MILLISECONDS.read(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("it is neither milliseconds since 1970 nor a time such as 2026-01-31T12:00:00Z") from None
    since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    if since < timedelta(0):
        raise ValueError("it is before 1970")
    # Rounded up: the millisecond that it lies in began before it.
    return -(-since // timedelta(milliseconds=1))


def _read(kind: kinds.Kind[Any]) -> Callable[[str], Any]:
    return kind.read


_MILLISECONDS: Final = kinds.count(0, 1 << 62)
_COUNT: Final = kinds.count(1, 1 << 62)
_SIZE: Final = kinds.size(1 * KIB, 1 << 50)
_BOOLEAN: Final = kinds.boolean()
_SECONDS: Final = kinds.duration(0.001, 86400)
_OFFSETS: Final = 'JSON as `{"topic": {"0": 5}}` (-2 the earliest, -1 the latest)'

OPTIONS: Final = (
    Option("servers", _word, "host:port, several with commas", "Where the broker is.", "both", "127.0.0.1:9092"),
    Option("subscribe", _names, "names with commas, or a JSON list", "Topics to read.", "read"),
    Option("subscribePattern", _pattern, "regular expression",
           "Topics to read: those whose whole name it matches, new ones too.", "read"),
    Option("startingOffsets", _starting, f"earliest, latest, group, or {_OFFSETS}",
           "Where a new query begins; one that has a checkpoint goes on where it was. `group` is what `group` has committed; a "
           "partition of which it has committed nothing begins at the earliest.", "read",
           "latest for a stream, earliest for a table"),
    Option("endingOffsets", _ending, f"earliest, latest, group, or {_OFFSETS}",
           "Where a table ends. Not for streams.", "read", "latest"),
    Option("startingTimestamp", _moment_ms, "milliseconds since 1970, or `2026-01-31T12:00:00Z` (UTC without a zone)",
           "Begin with the first record written at or after a time, in place of `startingOffsets`.", "read"),
    Option("maxOffsetsPerTrigger", _COUNT.read, "a number", "Most records of a micro-batch, over all partitions.", "read"),
    Option("maxBytesPerTrigger", _SIZE.read, "a size such as 64MiB",
           "About how many stored bytes a micro-batch may read, over all partitions.", "read"),
    Option("minPartitions", _COUNT.read, "a number", "Least number of tasks: partitions with many records are split.", "read"),
    Option("group", _word, "a name",
           "The consumer group that shows how far a stream is, and what `group` above means. A stream without one shows nothing. "
           "Given to source and sink alike, it moves with the rows.", "both"),
    Option("holdRetention", _BOOLEAN.read, "true or false",
           "Keep what the group of a stream has not read yet, within `retention_hold_bytes` of the topic. Sets the property "
           "`retention_hold` of the topic, which needs the admin permission.", "read", "false"),
    Option("failOnDataLoss", _BOOLEAN.read, "true or false",
           "Whether a query fails when retention removed records that it has not read, or a topic was deleted or made anew. With "
           "`false` the gap is logged and counted, and the query goes on.", "read", "true"),
    Option("schema", _word, "a name in the registry", "Decode values by it: adds the columns `data` and `error`.", "read"),
    Option("schemaVersion", _COUNT.read, "a number", "Which version of the schema to decode by.", "read", "the latest"),
    Option("topic", _word, "a name", "Where rows go. A column `topic` goes before it.", "write"),
    Option("exactlyOnce", _BOOLEAN.read, "true or false",
           "Write all rows of a batch at one moment, and only once. With `false` rows are written as they come: faster, and "
           "doubled by a task that is repeated.", "write", "true"),
    Option("writer", _word, "a name",
           "Who writes: what a batch is known by, together with its number, so that it is written once.", "write",
           "the id of the query; of `df.write` a new one each time"),
    Option("user", _word, "a name", "User to log in as.", "both"),
    Option("password", _word, "text", "The user's password.", "both"),
    Option("tls", _BOOLEAN.read, "true or false", "Speak TLS. Any other TLS option implies it.", "both", "false"),
    Option("tlsCaFile", _word, "a path on every executor", "Authorities (PEM) that may vouch for the broker.", "both"),
    Option("tlsCertFile", _word, "a path on every executor", "The certificate (PEM) of this client.", "both"),
    Option("tlsKeyFile", _word, "a path on every executor", "The key of `tlsCertFile`.", "both"),
    Option("tlsServerName", _word, "a name", "Name that the certificate of the broker has to carry.", "both"),
    Option("encryptionKey", _word, "64 hexadecimal characters",
           "Decrypts values that were read, encrypts those that are written.", "both"),
    Option("timeout", _SECONDS.read, "a duration such as 60s",
           "How long a task tries to reach the broker again before it fails.", "both", "60s"),
    Option("fetchBytes", kinds.size(1 * KIB, 8 * MIB).read, "a size up to 8MiB",
           "How much one fetch asks for; memory of a task follows it.", "read", "4MiB"),
)  # fmt: skip

_BY_KEY: Final = {option.name.lower(): option for option in OPTIONS}


class Options:
    """The options of one reader or writer, checked. It can be pickled."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, Any] = {}
        for key, text in given.items():
            option = _BY_KEY.get(key.lower())
            if option is None:
                if key.lower() in _FOREIGN:
                    continue
                names = [known.name for known in OPTIONS]
                raise BraidError("CONFIG_UNKNOWN_KEY", key=key, origin="the options", suggestion=kinds.nearest(key, names))
            try:
                self._values[option.name] = option.read(text)
            except ValueError as fault:
                raise BraidError("CONFIG_INVALID_VALUE", key=option.name, origin="the options", reason=str(fault)) from None

    def get(self, name: str, default: Any = None) -> Any:
        assert name.lower() in _BY_KEY, name
        return self._values.get(name, default)

    def has(self, name: str) -> bool:
        return name in self._values

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Options that mean nothing here."""
        for name in names:
            if name in self._values:
                raise BraidError("CONFIG_INVALID_VALUE", key=name, origin="the options", reason=why)
