"""The two ends of `braid cp`: records come out of a topic or a file of JSON lines, and go into one.

A line of a file is one object: `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`. Bytes that are not UTF-8
stand in base64, under a name that ends in `_base64`; of headers as `{"base64": ...}`. So nothing is lost on the way through a file.

What is copied says where it comes from: the header `braid-source` is `topic/partition/offset`, `braid-timestamp` the time at which
it was first written. A copy that is resumed finds in the target itself how far it came, so nothing is copied twice.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from braidmq.base.errors import BraidError
from braidmq.cli.record_format import put_bytes
from braidmq.cli.starting_point import StartingPoint

if TYPE_CHECKING:
    from braidmq.client.sync import Client, Delivery

SOURCE_HEADER: Final = "braid-source"
TIMESTAMP_HEADER: Final = "braid-timestamp"
_TAIL_RECORDS: Final = 2000
_UNSETTLED_MAX: Final = 5000


@dataclass(frozen=True, slots=True)
class Item:
    """A record on its way."""

    topic: str
    partition: int
    """-1 where it is not known."""
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.key or b"") + len(self.value)

    @property
    def source(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


# --- sources


class TopicSource:
    def __init__(
        self, client: Client, topic: str, partitions: list[int] | None, start: StartingPoint, stop: StartingPoint
    ) -> None:
        self._client = client
        self.topic = topic
        found = client.metadata(topic).partitions
        for number in partitions or ():
            if not 0 <= number < len(found):
                raise BraidError("PARTITION_NOT_FOUND", partition=number)
        self.partitions = len(found)
        self.ranges = {
            part.partition: (self._place(part.partition, start, part.oldest, part.newest),
                             self._place(part.partition, stop, part.oldest, part.newest))
            for part in found if partitions is None or part.partition in partitions
        }  # fmt: skip

    def _place(self, partition: int, point: StartingPoint, oldest: int, newest: int) -> int:
        match point.kind:
            case "earliest":
                return oldest
            case "latest":
                return newest
            case "time":
                return min(newest, self._client.offset_for_time(self.topic, partition, point.value))
        return min(newest, max(oldest, point.value))

    def resume_after(self, last: dict[int, int]) -> None:
        self.ranges = {part: (max(start, last.get(part, -1) + 1), stop) for part, (start, stop) in self.ranges.items()}

    @property
    def total(self) -> int:
        return sum(max(0, stop - start) for start, stop in self.ranges.values())

    def items(self) -> Iterator[Item]:
        for partition, (start, stop) in self.ranges.items():
            offset = start
            while offset < stop:
                found = self._client.fetch(self.topic, partition, offset)
                for record in found.records:
                    if record.offset >= stop:
                        break
                    yield Item(self.topic, partition, record.offset, record.timestamp, record.key, record.value, record.headers)
                if found.next_offset <= offset:
                    # Nothing is visible any more up to the end: it expired, or retention took it.
                    break
                offset = found.next_offset


class FileSource:
    total: int | None = None
    partitions = 0

    def __init__(self, path: str) -> None:
        self._path = path
        self._last: dict[int, int] = {}

    def resume_after(self, last: dict[int, int]) -> None:
        self._last = last

    def items(self) -> Iterator[Item]:
        with nullcontext(sys.stdin.buffer) if self._path == "-" else open(self._path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    item = read_line(line, self._path, number)
                    if item.offset < 0 or item.offset > self._last.get(item.partition, -1):
                        yield item


def read_line(line: bytes, path: str, number: int) -> Item:
    """A record from its JSON; what is wrong with it is said with the line's number."""
    try:
        document = json.loads(line)
        value = _bytes_of(document, "value")
        if value is None:
            raise ValueError("it has no value")
        headers = {name: _header(content) for name, content in (document.get("headers") or {}).items()}
        return Item(
            str(document.get("topic", "")), int(document.get("partition", -1)), int(document.get("offset", -1)),
            int(document.get("timestamp", -1)), _bytes_of(document, "key"), value, headers,
        )  # fmt: skip
    except (ValueError, TypeError, AttributeError) as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"{path}, line {number}: {fault}") from None


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in document:
        return base64.b64decode(document[f"{name}_base64"], validate=True)
    value = document.get(name)
    return None if value is None else str(value).encode()


def _header(content: Any) -> bytes:
    return base64.b64decode(content["base64"], validate=True) if isinstance(content, dict) else str(content).encode()


def line_of(item: Item) -> bytes:
    document: dict[str, object] = {
        "topic": item.topic, "partition": item.partition, "offset": item.offset, "timestamp": item.timestamp
    }  # fmt: skip
    put_bytes(document, "key", item.key)
    put_bytes(document, "value", item.value)
    if item.headers:
        document["headers"] = {name: _header_text(value) for name, value in item.headers.items()}
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _header_text(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


# --- targets


class Target(Protocol):
    def last_copied(self, topic: str) -> dict[int, int]:
        """For each partition of the source the last offset that is here already."""
        ...

    def put(self, item: Item) -> None: ...

    def finish(self) -> None:
        """Everything is durable when this returns."""
        ...


class TopicTarget:
    def __init__(self, client: Client, topic: str, mapping: str, mark: bool) -> None:
        self._client = client
        self._topic = topic
        self._keep = mapping == "keep"
        self._mark = mark
        self._producer = client.producer()
        self._waiting: list[Delivery] = []

    def last_copied(self, topic: str) -> dict[int, int]:
        if not self._keep or not self._mark:
            reason = "--resume needs records that stay in their partition and say where they are from: `--map keep`, no --plain"
            raise BraidError("INVALID_ARGUMENT", reason=reason)
        if self._topic not in self._client.list_topics():
            return {}
        last = {}
        for part in self._client.metadata(self._topic).partitions:
            found = self._last_in(part.partition, part.oldest, part.newest, f"{topic}/{part.partition}/" if topic else "")
            if found is not None:
                last[part.partition] = found
        return last

    def _last_in(self, partition: int, oldest: int, newest: int, prefix: str) -> int | None:
        """The offset of the newest record here that was copied from `prefix`, looked for from the end."""
        stop = newest
        while stop > oldest:
            start = max(oldest, stop - _TAIL_RECORDS)
            offset, last = start, None
            while offset < stop:
                found = self._client.fetch(self._topic, partition, offset, max_records=stop - offset)
                for record in found.records:
                    source = record.headers.get(SOURCE_HEADER, b"").decode("utf-8", "replace")
                    if source and source.startswith(prefix):
                        last = int(source.rpartition("/")[2])
                if found.next_offset <= offset:
                    break
                offset = found.next_offset
            if last is not None:
                return last
            stop = start
        return None

    def put(self, item: Item) -> None:
        headers = dict(item.headers)
        if self._mark and item.offset >= 0:
            headers[SOURCE_HEADER] = item.source.encode()
            headers.setdefault(TIMESTAMP_HEADER, b"%d" % item.timestamp)
        partition = item.partition if self._keep and item.partition >= 0 else None
        sent = self._producer.send(self._topic, item.value, key=item.key, headers=headers or None, partition=partition)
        self._waiting.append(sent)
        if len(self._waiting) >= _UNSETTLED_MAX:
            self._settle()

    def _settle(self) -> None:
        """The first failure is raised: a copy with a hole in it is none."""
        waiting, self._waiting = self._waiting, []
        for delivery in waiting:
            delivery.result()

    def finish(self) -> None:
        self._producer.flush()
        self._settle()


class FileTarget:
    """JSON lines, under the name that was asked for only when all are there; a resumed file is added to."""

    def __init__(self, path: str, resume: bool) -> None:
        self._path = path
        self._stream: BinaryIO
        self._making = path
        self._last: dict[int, int] = {}
        if path == "-":
            self._stream = sys.stdout.buffer
        elif resume and os.path.exists(path):
            self._stream = open(path, "r+b")  # noqa: SIM115
            self._go_on()
        elif os.path.exists(path):
            raise BraidError("INVALID_ARGUMENT", reason=f"{path} exists; name another file, or --resume")
        else:
            # A copy that may be resumed has its name from the beginning.
            self._making = path if resume else f"{path}.partial"
            self._stream = open(self._making, "wb")  # noqa: SIM115

    def _go_on(self) -> None:
        """Read what is there, and cut off a line that was never finished."""
        end = 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            item = read_line(line, self._path, number)
            self._last[item.partition] = max(item.offset, self._last.get(item.partition, -1))
            end += len(line)
        self._stream.truncate(end)
        self._stream.seek(end)

    def last_copied(self, topic: str) -> dict[int, int]:
        return self._last

    def put(self, item: Item) -> None:
        self._stream.write(line_of(item))

    def close(self) -> None:
        """Let go of the file; of one that was not finished and cannot be resumed nothing stays."""
        if self._path != "-" and not self._stream.closed:
            self._stream.close()
            if self._making != self._path:
                os.unlink(self._making)

    def finish(self) -> None:
        self._stream.flush()
        if self._path != "-":
            os.fsync(self._stream.fileno())
            self._stream.close()
            if self._making != self._path:
                os.replace(self._making, self._path)
