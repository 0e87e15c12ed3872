"""A cluster of three nodes on this machine, in ratios: `python bench/cluster.py --help`.

    acks        produce at level `quorum` with three nodes, beside level `fsync` on one: asked for is 0.3 x
    failover    kill -9 of a leader until the first record is acknowledged again: asked for is under 3 s, each time
    hangs       the same for a leader that is stopped, and says nothing any more
    partitions  10,000 partitions: how long a change of metadata takes (under 1 s), and the restart of a node (under 30 s)
    catch_up    a replica that was away for 10 GB: how fast it copies (half the disk's speed), and what that costs producers (0.7 x)

Nodes are programs, started as `braid cluster start` does it, each with an etcd of its own. All of it shares the cores of one
machine, so rates are good for comparing and for nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster_acks
import cluster_catch_up
import cluster_failover
import cluster_partitions


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/cluster.py", description="Measure a cluster of three nodes on this machine.")
    parser.add_argument("--partitions", type=int, default=10_000, help="how many partitions, in thousands [10000]")
    parser.add_argument("--kills", type=int, default=20, help="how many leaders are killed, or hang [20]")
    parser.add_argument("--missing-mb", type=int, default=10_240, help="what the replica misses that was away [10240]")
    parser.add_argument("--first-port", type=int, default=21090, help="first port; 400 from there on are used [21090]")
    parser.add_argument("--keep", action="store_true", help="do not remove the data and logs of the nodes")
    modes: dict[str, Callable[[Path, int], dict[str, Any]]] = {
        "acks": cluster_acks.measure,
        "failover": lambda directory, port: cluster_failover.measure(directory, port, args.kills),
        "hangs": lambda directory, port: cluster_failover.measure(directory, port, args.kills, hang=True),
        "partitions": lambda directory, port: cluster_partitions.measure(directory, port, args.partitions),
        "catch_up": lambda directory, port: cluster_catch_up.measure(directory, port, args.missing_mb),
    }
    parser.add_argument("--only", action="append", choices=tuple(modes), help="run this one; repeatable")
    args = parser.parse_args()
    for number, name in enumerate(args.only or list(modes)):
        directory = Path(tempfile.mkdtemp(prefix="braid-bench-cluster-"))
        try:
            found = modes[name](directory, args.first_port + 1000 * number)
        finally:
            if args.keep:
                print(f"{name}: {directory}", file=sys.stderr)
            else:
                shutil.rmtree(directory, ignore_errors=True)
        print(json.dumps({name: found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
