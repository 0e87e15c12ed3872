"""The hot functions by themselves, compiled and plain, in nanoseconds a record: `python bench/micro.py`.

No sockets, no disk and no event loop: what is left is the cost that the broker pays for every message. The plain figures
say what a machine without a compiler gets.
"""

from __future__ import annotations

import argparse
import importlib
import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from braidmq.hot.flatbuffer import publish_frame, string
from braidmq.wire.fq.messages import Message, encode_message, encode_tail

RECORDS: Final = 1000
VALUE: Final = b"v" * 100
TOPIC: Final = b"bench"
NOW_MS: Final = 1_700_000_000_000
FETCH_RECORDS: Final = 500
BYTES_MAX: Final = 8 << 20

Task = Callable[[], object]


def produce_frame(topic: bytes, value: bytes, partition: int) -> bytes:
    payload = struct.pack(">H", len(topic)) + topic + struct.pack(">I", 0) + struct.pack(">I", len(value)) + value
    payload += struct.pack(">i", partition)
    return struct.pack(">BBBBI", 0xAF, 1, 1, 1, len(payload)) + payload


def parse_task(hot: ModuleType, topics: int) -> Task:
    """A received buffer of PRODUCE frames into batches and answers, as one turn of the broker's loop does it."""
    names = [TOPIC + b"%05d" % i for i in range(topics)]
    buffer = bytearray(b"".join(produce_frame(names[i % topics], VALUE, 0) for i in range(RECORDS)))
    routes = hot.RouteTable()
    for name in names:
        routes.add(hot.Route(name, [hot.Accumulator(None, 0)], 1))

    def task() -> None:
        dirty: list[Any] = []
        answers = hot.ByteBuffer()
        position, count, _ = hot.parse_produce(buffer, 0, len(buffer), routes, NOW_MS, dirty, answers)
        if count != RECORDS or position != len(buffer):
            raise RuntimeError(f"parse_produce took {count} of {RECORDS} records")
        for accumulator in dirty:
            accumulator.seal(NOW_MS, 0)
            accumulator.reset()
            accumulator.dirty = False
        answers.take()

    return task


def stored(hot: ModuleType, records_a_batch: int) -> bytes:
    """A stretch of a log with `RECORDS` records."""
    batches = []
    for base in range(0, RECORDS, records_a_batch):
        accumulator = hot.Accumulator(None, base)
        for _ in range(records_a_batch):
            accumulator.append(None, VALUE)
        batches.append(accumulator.take(NOW_MS, 0))
    return b"".join(batches)


def tasks(hot: ModuleType) -> Iterator[tuple[str, int, Task]]:
    """Each function: what to call it, how many records one call handles, and the call."""
    yield "parse_produce + seal, 1 topic", RECORDS, parse_task(hot, 1)
    yield "parse_produce + seal, 64 topics", RECORDS, parse_task(hot, 64)

    keys: list[bytes | None] = [None] * RECORDS
    values = [VALUE] * RECORDS
    batch = hot.encode_batch(keys, values)
    yield "encode_batch", RECORDS, lambda: hot.encode_batch(keys, values)
    yield "stamp_batch", RECORDS, lambda: hot.stamp_batch(batch, 7, 0, NOW_MS)

    for shape, size in (("1 record a batch", 1), ("1,000 records a batch", RECORDS)):
        log = stored(hot, size)
        yield f"decode_records, {shape}", RECORDS, partial(hot.decode_records, log, 0, RECORDS, make_tuple)
        yield f"collect_rows of 500, {shape}", FETCH_RECORDS, partial(
            hot.collect_rows, log, 0, len(log), 0, FETCH_RECORDS, BYTES_MAX
        )
        yield f"span_batches, {shape}", RECORDS, partial(hot.span_batches, log, 0, len(log), 0, BYTES_MAX)
        yield f"scan_batches, {shape}", RECORDS, partial(hot.scan_batches, log, 0, len(log), 0, 4096)
    log = stored(hot, RECORDS)
    slices, size = hot.collect_rows(log, 0, len(log), 0, FETCH_RECORDS, BYTES_MAX)[:2]
    yield "reorder_rows of 500", FETCH_RECORDS, lambda: hot.reorder_rows(slices, size)
    yield "crc32c, 100 B a record", RECORDS, lambda: hot.crc32c(log)


def taken(hot: ModuleType, route_key: bytes, parse: Callable[[Any, list[Any], Any], int]) -> Any:
    """The accumulator of a route with `RECORDS` records that `parse` put there."""
    routes = hot.RouteTable()
    accumulator = hot.Accumulator(None, 0)
    routes.add(hot.Route(route_key, [accumulator], 1))
    count = parse(routes, [], hot.ByteBuffer())
    if count != RECORDS:
        raise RuntimeError(f"{count} of {RECORDS} frames were taken")
    return accumulator


def push_tasks(hot: ModuleType) -> Iterator[tuple[str, int, Task]]:
    """Frames of the protocols that push, in and out. Parsing includes a fresh batch, as it does in the broker."""
    for qos in (0, 1):
        frames = b"".join(
            publish_frame(string(TOPIC), VALUE, b"%08d" % i if qos else None, i + 1, 0, 0, qos) for i in range(RECORDS)
        )

        def parse_publish(routes: Any, dirty: list[Any], out: Any, frames: bytes = frames) -> int:
            return int(hot.parse_publish(frames, 0, len(frames), routes, 0, BYTES_MAX, 0, 0, dirty, out)[1])

        yield f"parse_publish, QoS {qos}", RECORDS, partial(taken, hot, TOPIC, parse_publish)
        batch = taken(hot, TOPIC, parse_publish).take(NOW_MS, 0)
        yield f"encode_messages, QoS {qos}", RECORDS, partial(message_frames, hot, batch, qos)

    tail = encode_tail(b"bench", (b"\x0a\0\0\x01", b"\x7f\0\0\x01"))
    messages = b"".join(encode_message(Message(TOPIC, b"bench.route", b"%016d" % i, VALUE), False) for i in range(RECORDS))

    def parse_messages(routes: Any, dirty: list[Any], out: Any) -> int:
        return int(hot.parse_messages(messages, 0, len(messages), routes, 0, tail, BYTES_MAX, dirty, out)[1])

    yield "parse_messages (fq)", RECORDS, partial(taken, hot, TOPIC, parse_messages)
    stored_messages = taken(hot, TOPIC, parse_messages).take(NOW_MS, 0)
    yield "encode_deliveries (fq)", RECORDS, partial(deliveries, hot, stored_messages, tail)


def message_frames(hot: ModuleType, batch: bytes, qos: int) -> bytes:
    out = hot.ByteBuffer()
    ids: list[Any] | None = [] if qos else None
    if hot.encode_messages([batch], 0, RECORDS, TOPIC, 1, qos, 1000, None, out, ids)[0] != RECORDS:
        raise RuntimeError("encode_messages left records out")
    made: bytes = out.take()
    return made


def deliveries(hot: ModuleType, batch: bytes, tail: bytes) -> bytes:
    out = hot.ByteBuffer()
    if hot.encode_deliveries([batch], 0, RECORDS, TOPIC, tail, None, None, out)[0] != RECORDS:
        raise RuntimeError("encode_deliveries left records out")
    made: bytes = out.take()
    return made


def make_tuple(*fields: object) -> tuple[object, ...]:
    return fields


def best_ns(task: Task, seconds: float) -> float:
    """The fastest call within the time given, after one that does not count."""
    task()
    best = float("inf")
    deadline = time.perf_counter() + seconds
    while True:
        started = time.perf_counter_ns()
        task()
        best = min(best, time.perf_counter_ns() - started)
        if time.perf_counter() > deadline:
            return best


def implementations() -> dict[str, ModuleType]:
    found = {"plain": importlib.import_module("braidmq.hot.pure")}
    try:
        found = {"compiled": importlib.import_module("braidmq.hot._native"), **found}
    except ImportError:
        print("the compiled hot path is not built: only the plain one is measured", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/micro.py", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each function (0.3)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    args = parser.parse_args()

    figures: dict[str, dict[str, float]] = {}
    for name, hot in implementations().items():
        for what, records, task in (*tasks(hot), *push_tasks(hot)):
            figures.setdefault(what, {})[name] = best_ns(task, args.seconds) / records
    if args.json:
        print(json.dumps(figures))
        return 0
    print(f"{'ns a record':<40} {'compiled':>10} {'plain':>10} {'times':>8}")
    for what, row in figures.items():
        compiled, plain = row.get("compiled"), row["plain"]
        times = f"{plain / compiled:8.1f}" if compiled else f"{'-':>8}"
        print(f"{what:<40} {f'{compiled:.1f}' if compiled else '-':>10} {plain:>10.1f} {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
