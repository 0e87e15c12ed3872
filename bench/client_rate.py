"""How fast our own Python client is: `python bench/client_rate.py --address 127.0.0.1:9092`. Prints one line of JSON.

First a Producer sends records for the time given and waits until all of them are acknowledged; then a Consumer reads
exactly those records back, one by one, as an application would. Both rates count whole round trips: nothing is left in a
buffer when the clock stops.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Final

from braidmq.client import connect

VALUE: Final = bytes(97 + i * 7 % 26 for i in range(100))
SAMPLE_EVERY: Final = 1000
"""Of so many records one outcome is looked at; `flush` has waited for all of them by then."""
CONSUME_TIMEOUT_S: Final = 60.0


async def produce(address: str, topic: str, seconds: float) -> tuple[int, float]:
    """Records acknowledged, and the seconds that took."""
    async with connect(address) as client:
        await client.create_topic(topic, 1)
        async with client.producer() as producer:
            send, outcomes, count = producer.send, [], 0
            started = time.perf_counter()
            deadline = started + seconds
            while time.perf_counter() < deadline:
                for _ in range(SAMPLE_EVERY):
                    outcome = await send(topic, VALUE)
                outcomes.append(outcome)
                count += SAMPLE_EVERY
            await producer.flush()
            elapsed = time.perf_counter() - started
            for outcome in outcomes:
                await outcome
    return count, elapsed


async def consume(address: str, topic: str, expected: int) -> float:
    """The seconds it takes to read `expected` records."""
    async with connect(address) as client, client.consumer(topic) as consumer:
        seen = size = 0
        started = time.perf_counter()
        async for record in consumer:
            size += len(record.value)
            seen += 1
            if seen == expected:
                break
        elapsed = time.perf_counter() - started
    if size != expected * len(VALUE):
        raise SystemExit(f"read {size} bytes of values, expected {expected * len(VALUE)}")
    return elapsed


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(address: str, topic: str, seconds: float) -> dict[str, float]:
    before = cpu_s()
    count, produce_s = await produce(address, topic, seconds)
    between = cpu_s()
    consume_s = await asyncio.wait_for(consume(address, topic, count), CONSUME_TIMEOUT_S)
    return {
        "messages": count,
        "produce_per_s": count / produce_s,
        "consume_per_s": count / consume_s,
        "producer_cpu_us_per_message": (between - before) / count * 1e6,
        "consumer_cpu_us_per_message": (cpu_s() - between) / count * 1e6,
    }


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/client_rate.py", description=__doc__)
    parser.add_argument("--address", required=True, help="host:port of a broker")
    parser.add_argument("--topic", default="client-rate")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to produce (4)")
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        print(json.dumps(runner.run(measure(args.address, args.topic, args.seconds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
