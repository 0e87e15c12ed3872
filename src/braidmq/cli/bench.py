"""`braid bench`: how fast is the broker from here, through our own client?

A quick look, not the project's benchmark (`bench/` has that): one client process, one connection each way, everything
that a program pays for included. Without `--topic` it makes a topic of its own and removes it afterwards.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option

if TYPE_CHECKING:
    from braidmq.client.sync import Client

WARM_UP_MESSAGES: Final = 100
SIZE_BYTES_MAX: Final = 16 * 1024 * 1024


def register(commands: Subparsers) -> None:
    group = add_group(commands, "bench", "Measure a broker with the client of this package.")
    for name, about, count in (
        ("produce", "Send messages as fast as they are acknowledged.", 200_000),
        ("consume", "Read messages as fast as they come; sends them first when the topic holds none.", 200_000),
        ("latency", "Send one message at a time and measure each round trip.", 2_000),
    ):
        parser = group.add_parser(name, help=about, description=about)
        parser.add_argument("--count", type=int, default=count, metavar="N", help=f"messages [{count:,}]")
        parser.add_argument("--size", default="100", metavar="SIZE", help="bytes of a message, as 100 or 1KiB [100]")
        parser.add_argument("--topic", metavar="TOPIC", help="topic to use and keep [a new one, removed afterwards]")
        parser.add_argument("--partitions", type=int, default=1, metavar="N", help="partitions of a new topic [1]")
        add_output_option(parser)
        add_server_options(parser)
        parser.set_defaults(run=run, what=name)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json

    if args.count < 1:
        raise BraidError("INVALID_ARGUMENT", reason="--count must be at least 1")
    value = bytes(_size(args.size))
    with open_client(args) as client, _topic(client, args) as topic:
        measure = {"produce": produce, "consume": consume, "latency": latency}[args.what]
        result = measure(client, topic, args.count, value)
    if args.output == "json":
        print_json({"what": args.what, "messages": args.count, "message_bytes": len(value), **result})
    else:
        for name, figure in result.items():
            print(f"{name.replace('_', ' '):<28} {figure:>14,.1f}" if isinstance(figure, float) else f"{name:<28} {figure:>14,}")
    return Exit.OK


def _size(text: str) -> int:
    from braidmq.base.config_kinds import size

    try:
        return size(0, SIZE_BYTES_MAX).read(text)
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"--size: {fault}") from None


@contextmanager
def _topic(client: Client, args: argparse.Namespace) -> Iterator[str]:
    """The topic of this run; one of our own making is removed at the end, whatever happens."""
    import secrets

    if args.topic is not None:
        client.create_topic(args.topic, args.partitions)
        yield args.topic
        return
    name = f"braid-bench-{secrets.token_hex(4)}"
    client.create_topic(name, args.partitions)
    try:
        yield name
    finally:
        client.delete_topic(name)


def produce(client: Client, topic: str, count: int, value: bytes) -> dict[str, float]:
    """Messages through a producer, until the last one is acknowledged."""
    with client.producer() as producer:
        for _ in range(WARM_UP_MESSAGES):
            producer.send(topic, value)
        producer.flush()
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(count):
            producer.send(topic, value)
        producer.flush()
        return _rates(count, len(value), time.perf_counter() - started, time.process_time() - cpu)


def consume(client: Client, topic: str, count: int, value: bytes) -> dict[str, float]:
    """Messages through a consumer. A topic with too few gets the rest first."""
    missing = count - client.metadata(topic).records
    if missing > 0:
        produce(client, topic, missing, value)
    with client.consumer(topic, start="earliest") as consumer:
        consumer.start()
        cpu, started = time.process_time(), time.perf_counter()
        size = 0
        for seen, record in enumerate(consumer, 1):
            size += len(record.value)
            if seen == count:
                break
        return _rates(count, size / count, time.perf_counter() - started, time.process_time() - cpu)


def latency(client: Client, topic: str, count: int, value: bytes) -> dict[str, float]:
    """Single requests, each waiting for its acknowledgement."""
    for _ in range(min(WARM_UP_MESSAGES, count)):
        client.produce(topic, value)
    times = []
    clock = time.perf_counter
    for _ in range(count):
        started = clock()
        client.produce(topic, value)
        times.append(clock() - started)
    times.sort()
    return {
        "requests_per_s": count / sum(times),
        "p50_us": percentile(times, 0.50) * 1e6,
        "p90_us": percentile(times, 0.90) * 1e6,
        "p99_us": percentile(times, 0.99) * 1e6,
        "max_us": times[-1] * 1e6,
    }


def percentile(ordered: list[float], part: float) -> float:
    """The value below or at which `part` of the sorted values lie."""
    import math

    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _rates(count: int, size: float, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {
        "messages_per_s": count / seconds,
        "megabytes_per_s": count * size / seconds / 1e6,
        "client_cpu_us_per_message": cpu_seconds / count * 1e6,
        "seconds": seconds,
    }
