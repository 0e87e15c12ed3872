"""`braid discover`: brokers in the local network that answer by mDNS; `flymq-discover` is the same under FlyMQ's name and flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.cli.exits import Exit
from braidmq.cli.parser import BraidParser, Subparsers, add_output_option

if TYPE_CHECKING:
    from braidmq.cluster.membership.mdns import FoundNode

_TIMEOUT_S = 5.0


def register(commands: Subparsers) -> None:
    about = "Find nodes in the local network that run with `discovery`."
    parser = commands.add_parser("discover", help=about, description=about)
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help="how long to listen for answers [5]")
    parser.add_argument("--cluster-id", default="", metavar="ID", help="only nodes of this cluster")
    parser.add_argument("--interface", action="append", default=[], metavar="ADDRESS", help="ask on this address only [all]")
    add_output_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table

    nodes = find(args.timeout, args.cluster_id, args.interface)
    if args.output == "json":
        print_json([row(node) for node in nodes])
    elif nodes:
        headings = ("NODE", "CLUSTER", "CLUSTER ADDRESS", "CLIENT ADDRESS", "VERSION")
        print_table(headings, [(n.node_id, n.cluster_id, n.cluster_addr, n.client_addr, n.version) for n in nodes])
    else:
        note("nobody answered; nodes answer when they run with --discovery, in networks that carry multicast")
    return Exit.OK


def find(timeout_s: float, cluster_id: str = "", interfaces: Sequence[str] = ()) -> list[FoundNode]:
    import asyncio

    from braidmq.cluster.membership.mdns import discover

    return asyncio.run(discover(timeout_s, cluster_id, interfaces))


def row(node: FoundNode) -> dict[str, str]:
    """As FlyMQ writes it: what is not known is left out."""
    fields = ("node_id", "cluster_id", "cluster_addr", "client_addr", "version")
    return {name: value for name in fields if (value := getattr(node, name)) or name in ("node_id", "cluster_addr")}


# --- flymq-discover


def flymq_main(argv: Sequence[str] | None = None) -> int:
    """`flymq-discover`. Status 0 with nothing found, 1 on failure."""
    from braidmq.base.errors import BraidError
    from braidmq.cli.output import print_fault

    args = flymq_parser().parse_args(argv)
    try:
        nodes = find(args.timeout, "", args.interface)
    except (BraidError, OSError) as fault:
        print_fault(fault)
        return 1
    if args.json:
        from braidmq.cli.output import print_json

        print_json([row(node) for node in nodes])
    elif args.quiet:
        print(",".join(node.cluster_addr for node in nodes))
    else:
        for node in nodes:
            print(f"{node.node_id}  {node.cluster_addr}  {node.client_addr}  {node.cluster_id}  {node.version}".rstrip())
    return 0


def flymq_parser() -> argparse.ArgumentParser:
    from braidmq import __version__

    parser = BraidParser(prog="flymq-discover", description="Find FlyMQ and BraidMQ nodes in the local network.")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS", help="how long to listen for answers [5]")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--quiet", "-q", action="store_true", help="print cluster addresses alone, joined by commas")
    parser.add_argument("--interface", action="append", default=[], metavar="ADDRESS", help="ask on this address only [all]")
    version = f"flymq-discover (braid {__version__})"
    parser.add_argument("--version", "-v", action="version", version=version, help="print the version")
    return parser
