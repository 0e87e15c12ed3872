"""How much memory a reader takes, by the size of the topic: `python bench/spark_memory.py`. Prints a table, or JSON.

A task reads its range in fetches and hands each on as Arrow batches, so what its Python process holds at most should not depend on
how long the range is. This reads topics of growing size in one session of `local[2]`, each partition one task, the smallest first,
and asks the kernel for the most that any Python process of Spark ever held (`VmHWM`). Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

from spark_rate import VALUE_BYTES, Bench, broker, fill

from braidmq.client import sync
from braidmq.spark import session

ROWS: Final = (250_000, 1_000_000, 4_000_000)


def python_peak_mb() -> float:
    """Of all Python processes below this one that serve Spark's tasks."""
    parents, peaks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path("/proc", name, "cmdline").read_bytes()
            lines = Path("/proc", name, "status").read_text().splitlines()
        except OSError:
            continue  # Ended meanwhile.
        fields = dict(line.split(":", 1) for line in lines)
        parents[int(name)] = int(fields["PPid"])
        if b"pyspark.daemon" in command and "VmHWM" in fields:
            peaks[int(name)] = int(fields["VmHWM"].split()[0]) / 1024
    mine = {os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return max((peak for process, peak in peaks.items() if process in mine), default=0.0)


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="bench/spark_memory.py", description=__doc__, formatter_class=raw)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="rows of the topics, fewest first")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="braid-spark-") as name, broker(Path(name)) as address:
        config = {"spark.log.level": "ERROR", "spark.sql.warehouse.dir": f"{name}/warehouse"}
        spark = session("bench", master="local[2]", config=config)
        chance = random.Random(7)
        for rows in sorted(args.rows):
            topic = f"rows-{rows}"
            with sync.connect(address) as client:
                fill(client, topic, rows, lambda begin, end: [chance.randbytes(VALUE_BYTES) for _ in range(begin, end)])
            bench = Bench(spark, address, Path(name), rows)
            bench.noop(bench.table(topic))
            size_mb = round(rows * VALUE_BYTES / 2**20)
            found.append({"rows": rows, "topic_mb": size_mb, "python_peak_mb": round(python_peak_mb(), 1)})
        spark.stop()
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{'rows':>12} {'values, MB':>12} {'most held by a Python process, MB':>36}")
    for row in found:
        print(f"{row['rows']:>12,} {row['topic_mb']:>12,} {row['python_peak_mb']:>36}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
