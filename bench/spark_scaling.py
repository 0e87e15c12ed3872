"""How reading and aggregating a topic scales with executors: one against two, each a process with one core, in `local-cluster`.

    .venv/bin/python bench/spark_scaling.py [--rows 2000000] [--repeats 3]

An executor is a JVM and a Python worker, and both work at once. One that may run anywhere takes two cores by itself, and nothing
is left that a second one could show. So every executor is held to a core of its own, worker included. The broker and the driver run
anywhere: with one executor they have the other core, with two they share, and the figure is a lower bound of what executors on
machines of their own add. Both clusters are asked in turn, with the same topic.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VALUE = b"x" * 100
PARTITIONS = 8
WANTED = 1.6


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--executors", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.executors:
        measure(args.server, args.executors, args.repeats)
        return 0
    with tempfile.TemporaryDirectory(prefix="braid-bench-") as work:
        ready = Path(work, "ready.json")
        command = [sys.executable, "-m", "braidmq", "serve", "--data-dir", f"{work}/data", "--ready-file", str(ready)]
        flags = ["--listen", "flymq://127.0.0.1:0", "--durability", "os"]
        flags += [f"--no-{name}-enabled" for name in ("admin", "metrics", "health")]
        broker = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not ready.exists():
                assert broker.poll() is None, "the broker ended"
                time.sleep(0.05)
            server = json.loads(ready.read_text())["flymq"]
            fill(server, args.rows)
            rates = {count: run(server, count, args) for count in (1, 2)}
        finally:
            broker.terminate()
            broker.wait(30)
    for count, rate in rates.items():
        print(f"{count} executors: {rate / 1e6:.2f} million rows a second")
    ratio = rates[2] / rates[1]
    print(f"two against one: {ratio:.2f} (wanted: {WANTED}), on {len(os.sched_getaffinity(0))} cores that the broker shares")
    return 0


def fill(server: str, rows: int) -> None:
    from braidmq import hot
    from braidmq.client import sync

    with sync.connect(server) as client:
        client.create_topic("bench", PARTITIONS)
        batch_rows = 10_000
        batch = hot.encode_batch([None] * batch_rows, [VALUE] * batch_rows)
        for number in range(rows // batch_rows):
            client.produce_batch("bench", number % PARTITIONS, batch)


def run(server: str, executors: int, args: argparse.Namespace) -> float:
    """The best rate of a cluster, measured in a process of its own: a JVM has one cluster in its life."""
    words = ["--server", server, "--executors", str(executors), "--repeats", str(args.repeats)]
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return float(done.stdout.splitlines()[-1])


def measure(server: str, executors: int, repeats: int) -> None:
    from braidmq.spark import session

    config = {
        "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "1g", "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
    }  # fmt: skip
    spark = session("scaling", master=f"local-cluster[{executors},1,1024]", config=config)
    topic = spark.read.format("braid").options(servers=server, subscribe="bench").load()
    work = topic.selectExpr("sum(crc32(value)) AS sum", "count(*) AS rows")
    work.first()
    hold_to_cores(executors)
    best = 0.0
    for _ in range(repeats + 1):
        began = time.perf_counter()
        rows = work.first()["rows"]
        best = max(best, rows / (time.perf_counter() - began))
    spark.stop()
    print(best)


def hold_to_cores(executors: int) -> None:
    """Give each executor of this process, with all threads and Python workers that it has or will have, one core."""
    parents = {int(path.name): parent_of(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    mine = [pid for pid in parents if descends(pid, os.getpid(), parents)]
    found = sorted(pid for pid in mine if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes())
    found = [pid for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    assert len(found) == executors, f"{len(found)} executors run, not {executors}"
    for core, executor in zip(sorted(os.sched_getaffinity(0)), found, strict=False):
        for pid in (each for each in mine if descends(each, executor, parents)):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})


def parent_of(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid and pid != ancestor:
        pid = parents.get(pid, 0)
    return pid == ancestor


if __name__ == "__main__":
    sys.exit(main())
