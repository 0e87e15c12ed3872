"""What the features cost, asked of a broker over its socket: `python bench/feature_work.py WORK --address 127.0.0.1:9092`.

Prints one line of JSON. `json-checks` needs no broker. Requests are made before the clock starts and sent a window at a time; an
answer that is an error ends the run.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from braidmq import hot
from braidmq.schemas.json_schema import JsonSchema
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

DELAYED_LINES: Final = 200
DELAYED_WINDOW: Final = 50
DELAY_MS: Final = 12 * 3_600_000
LATE: Final = 400
LATE_FROM_MS: Final = 200
LATE_TO_MS: Final = 2200
GROUPS: Final = 10_000
TRANSACTION: Final = 10_000
CHECKED_BATCH: Final = 1000
WINDOW: Final = 2000
ROUND: Final = 5000
SECONDS: Final = 2.0
VALUE: Final = b"v" * 100

FIELDS: Final[dict[str, object]] = {
    "id": {"type": "integer", "minimum": 0},
    "name": {"type": "string", "maxLength": 100},
    "email": {"type": "string", "pattern": "@"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "active": {"type": "boolean"},
    "score": {"type": "number"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "kind": {"enum": ["a", "b", "c"]},
    "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "note": {"type": ["string", "null"]},
}
SCHEMA: Final = json.dumps(
    {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
).encode()
GOOD: Final = {
    "id": 7, "name": "Ann Example", "email": "ann@example.org", "age": 41, "active": True, "score": 0.75, "tags": ["x", "y"],
    "kind": "b", "address": {"city": "Bern"}, "note": None,
}  # fmt: skip


class Line:
    """One connection that sends windows of requests and counts what comes back."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 20)

    def ask(self, request: flymq.Request) -> flymq.Response:
        (answer,) = self.ask_all([flymq.encode_request(request, Dialect.DOCUMENTED)])
        return flymq.decode_response(request.op, answer[0], answer[1], Dialect.DOCUMENTED)

    def ask_all(self, frames: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Opcode and payload of every answer."""
        answers = []
        for at in range(0, len(frames), WINDOW):
            some = frames[at : at + WINDOW]
            sender = threading.Thread(target=self.send, args=(some,))
            sender.start()
            answers += self.receive(len(some))
            sender.join()
        return answers

    def send(self, frames: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join(frames))

    def receive(self, count: int) -> list[tuple[int, bytes]]:
        answers = []
        for _ in range(count):
            _, _, opcode, _, size = struct.unpack(">BBBBI", self._stream.read(8))
            payload = self._stream.read(size)
            if opcode == flymq.Op.ERROR:
                raise SystemExit(f"the broker answered {payload!r}")
            answers.append((opcode, payload))
        return answers


def frames_of(requests: Iterator[flymq.Request]) -> list[bytes]:
    return [flymq.encode_request(request, Dialect.DOCUMENTED) for request in requests]


# --- schemas


def json_checks(_address: str) -> dict[str, float]:
    """Checks a second of processor time, of messages that fit; one that does not must be noticed."""
    schema = JsonSchema(SCHEMA)
    value = json.dumps(GOOD).encode()
    if schema.check(value) or not schema.check(json.dumps({**GOOD, "age": -1}).encode()):
        raise SystemExit("the schema decides wrongly")
    check, checked = schema.check, 0
    # What is asked for is a rate a core: time in which others had the core does not count.
    started = time.process_time()
    while (elapsed := time.process_time() - started) < SECONDS:
        for _ in range(ROUND):
            check(value)
        checked += ROUND
    return {"checks_per_s": checked / elapsed}


def checked_produce(address: str) -> dict[str, float]:
    """Records a second that a broker checks and stores: batches of 1,000 for a topic with a schema."""
    line = Line(address)
    line.ask(flymq.RegisterSchema("bench", "json", SCHEMA))
    line.ask(flymq.CreateTopic("checked", 1, {"schema": "bench"}))
    value = json.dumps(GOOD).encode()
    batch = hot.encode_batch([None] * CHECKED_BATCH, [value] * CHECKED_BATCH, None, -1, -1, -1)
    frames = frames_of(iter([flymq.ProduceBatch("checked", 0, batch)])) * 8
    sent, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        sent += CHECKED_BATCH * len(line.ask_all(frames))
    info = line.ask(flymq.Metadata("checked"))
    assert isinstance(info, flymq.TopicMetadata)
    if info.partitions[0].newest != sent:
        raise SystemExit(f"{sent} records were acknowledged, and the topic holds {info.partitions[0].newest}")
    return {"checks_per_s": sent / elapsed}


# --- delayed records


def delay(address: str, count: int) -> dict[str, float]:
    """Have records wait for half a day."""
    lines = [Line(address) for _ in range(DELAYED_LINES)]
    lines[0].ask(flymq.CreateTopic("later", 1, {}))
    (frame,) = frames_of(iter([flymq.ProduceDelayed("later", VALUE, DELAY_MS)]))
    started = time.perf_counter()
    # A connection waits for each of them to be on the disk; a sync serves all connections.
    for _ in range(count // (DELAYED_LINES * DELAYED_WINDOW)):
        for line in lines:
            line.send([frame] * DELAYED_WINDOW)
        for line in lines:
            line.receive(DELAYED_WINDOW)
    return {"delayed_per_s": count / (time.perf_counter() - started)}


def lateness(address: str) -> dict[str, float]:
    """How late records come that are due soon, while many others wait: the time of the record is that of its delivery."""
    line = Line(address)
    line.ask(flymq.CreateTopic("soon", 1, {}))
    due: dict[bytes, int] = {}
    requests = [
        flymq.ProduceDelayed("soon", b"%d" % number, LATE_FROM_MS + number * (LATE_TO_MS - LATE_FROM_MS) // LATE, partition=0)
        for number in range(LATE)
    ]
    for request in requests:
        answer = line.ask(request)
        assert isinstance(answer, flymq.Delayed)
        due[request.data] = answer.timestamp + request.delay_ms
    late: list[int] = []

    def take(_offset: int, timestamp: int, _key: bytes | None, value: bytes, _attrs: bytes) -> None:
        late.append(timestamp - due.pop(value))

    deadline = time.monotonic() + 60
    while due:
        if time.monotonic() > deadline:
            raise SystemExit(f"{len(due)} of {LATE} delayed records did not come")
        answer = line.ask(flymq.FetchBatches("soon", 0, len(late), 1 << 20, 1, 1000))
        assert isinstance(answer, flymq.FetchedBatches)
        hot.decode_records(answer.batches, len(late), 1 << 20, take)
    late.sort()
    if late[0] < 0:
        raise SystemExit(f"a record came {-late[0]} ms before it was due")
    waiting = line.ask(flymq.DelayedList("later", 10))
    assert isinstance(waiting, flymq.DelayedMessages)
    if len(waiting.messages) != 10:
        raise SystemExit("what waits is not there any more")
    return {"late_p50_ms": late[len(late) // 2], "late_p99_ms": late[len(late) * 99 // 100], "late_max_ms": late[-1]}


# --- groups


def many_groups(address: str) -> dict[str, float]:
    """Ten thousand groups on a topic with records: list them, and ask for the lag of each."""
    line = Line(address)
    line.ask(flymq.CreateTopic("read", 1, {}))
    line.ask_all(frames_of(flymq.Produce("read", b"", VALUE, 0) for _ in range(1000)))
    line.ask_all(frames_of(flymq.Commit("read", f"group-{number:05d}", 0, number % 1000) for number in range(GROUPS)))
    lags = frames_of(flymq.GroupLag("read", f"group-{number:05d}") for number in range(GROUPS))
    started = time.perf_counter()
    listed = line.ask(flymq.ListGroups())
    list_s = time.perf_counter() - started
    assert isinstance(listed, flymq.Groups)
    if len(listed.groups) != GROUPS:
        raise SystemExit(f"{len(listed.groups)} of {GROUPS} groups were listed")
    started = time.perf_counter()
    answers = line.ask_all(lags)
    lag_s = time.perf_counter() - started
    last = flymq.decode_response(flymq.Op.GROUP_LAG, *answers[-1], Dialect.DOCUMENTED)
    assert isinstance(last, flymq.PartitionLags)
    if last.partitions[0].lag != 1000 - (GROUPS - 1) % 1000:
        raise SystemExit(f"the lag of the last group is {last.partitions[0].lag}")
    return {"list_ms": list_s * 1000, "lag_ms": lag_s * 1000}


# --- transactions


def one_commit(address: str) -> dict[str, float]:
    """Ten thousand records of one transaction, and a reader that polls without pause meanwhile: it sees none of them, or all."""
    line = Line(address)
    line.ask(flymq.CreateTopic("together", 1, {}))
    begun = line.ask(flymq.TxnBegin())
    assert isinstance(begun, flymq.TxnDone)
    line.ask_all(frames_of(flymq.TxnProduce(begun.id, "together", VALUE, partition=0) for _ in range(TRANSACTION)))
    seen: set[int] = set()
    polls = 0
    done = threading.Event()
    fault: list[BaseException] = []

    def read() -> None:
        nonlocal polls
        try:
            reader = Line(address)
            while not done.is_set():
                info = reader.ask(flymq.Metadata("together"))
                assert isinstance(info, flymq.TopicMetadata)
                seen.add(info.partitions[0].newest)
                fetched = reader.ask(flymq.Fetch("together", 0, 0, TRANSACTION))
                assert isinstance(fetched, flymq.Fetched)
                seen.add(len(fetched.items))
                polls += 1
        except BaseException as problem:
            fault.append(problem)
            raise

    reading = threading.Thread(target=read)
    reading.start()
    while polls == 0 and reading.is_alive():
        time.sleep(0.001)
    started = time.perf_counter()
    line.ask(flymq.TxnCommit(begun.id))
    commit_s = time.perf_counter() - started
    after = polls
    while polls <= after + 1 and reading.is_alive():
        time.sleep(0.001)
    done.set()
    reading.join()
    if fault or seen != {0, TRANSACTION}:
        raise SystemExit(f"a reader saw {sorted(seen)} records; {fault}")
    return {"commit_ms": commit_s * 1000, "polls": polls}


WORKS: Final[dict[str, Callable[[str], dict[str, float]]]] = {
    "json-checks": json_checks, "checked-produce": checked_produce, "delay-many": partial(delay, count=1_000_000),
    "delay-some": partial(delay, count=100_000), "lateness": lateness, "groups": many_groups, "commit": one_commit,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/feature_work.py", description=__doc__)
    parser.add_argument("work", choices=WORKS, help="what to measure")
    parser.add_argument("--address", default="127.0.0.1:9092", help="of the broker (127.0.0.1:9092)")
    args = parser.parse_args()
    print(json.dumps(WORKS[args.work](args.address)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
