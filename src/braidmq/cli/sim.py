"""`braid sim`: a cluster in one process, under everything that goes wrong, from one seed.

The same seed is the same history, step by step: what a failing seed did can be looked at again with `--trace`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option


def register(commands: Subparsers) -> None:
    about = "Simulate a cluster under crashes, lost messages and cuts of the network, and check what its clients saw."
    more = (
        "A seed is one history: machines that lose power, a network that loses, repeats and reorders, nodes that lose the quorum. "
        "Status 1 when a record was lost, doubled, reordered, made up or torn, when replicas differ, or when something hangs."
    )
    parser = commands.add_parser("sim", help=about, description=f"{about} {more}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the first seed [0]")
    parser.add_argument("--seeds", type=int, default=1, metavar="COUNT", help="how many seeds, one after the other [1]")
    parser.add_argument(
        "--scenario", choices=("replicas", "nodes", "moving", "all"), default="all",
        help="replicated logs under a small controller, whole nodes with their brokers, these with transactions while partitions "
        "go from node to node, or one after the other [all]",
    )  # fmt: skip
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    add_output_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json
    from braidmq.sim.moving import MovingWorld
    from braidmq.sim.nodes import NodeWorld
    from braidmq.sim.replicas import ReplicaWorld
    from braidmq.sim.scenario import Scenario, Tell, outcome, simulate

    kinds: dict[str, type[Scenario]] = {"replicas": ReplicaWorld, "nodes": NodeWorld, "moving": MovingWorld}
    chosen = [args.scenario] if args.scenario in kinds else list(kinds)
    tell: Tell | None = (lambda line: print(line, file=sys.stderr)) if args.trace else None
    documents: list[dict[str, Any]] = []
    failed = 0
    for seed in range(args.seed, args.seed + args.seeds):
        for name in chosen:
            world = simulate(kinds[name], seed, tell)
            complaints = world.history.complaints
            failed += bool(complaints)
            document = {"seed": seed, "scenario": name, **outcome(world), "complaints": complaints}
            documents.append(document)
            if args.output == "text":
                _print(document)
    if args.output == "json":
        print_json(documents)
    return Exit.FAILED if failed else Exit.OK


def _print(document: dict[str, Any]) -> None:
    complaints = document["complaints"]
    print(
        f"seed {document['seed']} {document['scenario']}: {document['acked']} records acknowledged, {document['read']} read, "
        f"{document['crashes']} crashes, {document['messages']} messages in {document['seconds']} s: "
        f"{'FAILED' if complaints else 'ok'}"
    )
    for complaint in complaints[:10]:
        print(f"  {complaint}")
    if complaints:
        print(f"  again: braid sim --seed {document['seed']} --scenario {document['scenario']} --trace")
