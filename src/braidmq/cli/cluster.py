"""`braid cluster`: look at a cluster and steer it, by whichever node is asked; and start one on this machine to try it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

_NODES_MAX: Final = 9
_LOOK_AGAIN_S: Final = 0.5


def register(commands: Subparsers) -> None:
    group = add_group(commands, "cluster", "A cluster: its nodes, who leads what, moving it; and one to try on this machine.")
    more = "Needs the admin permission. Status 1 when something is wrong: a node away, a partition without enough replicas."
    for name, text, run in (
        ("status", f"Show the nodes, what each has, and what is wrong. {more}", run_status),
        ("leaders", "Show how many partitions each node leads.", run_leaders),
        ("metadata", "Show who leads and who has each partition, and how far behind replicas are.", run_metadata),
    ):
        parser = add_verb(group, name, text, run)
        if name == "metadata":
            parser.add_argument("--topic", metavar="TOPIC", help="only this topic")
        add_output_option(parser)
        add_server_options(parser)
    rebalance = add_verb(group, "rebalance", "Spread the leaders evenly over the replicas in sync.", run_rebalance)
    add_server_options(rebalance)
    reassign = add_verb(
        group, "reassign", "Let another node lead a partition, or others have it.", run_reassign,
        "Data moves in the background, and the partition is served meanwhile; `braid cluster metadata` shows how far it is.",
    )  # fmt: skip
    reassign.add_argument("topic", metavar="TOPIC", help="name of the topic")
    reassign.add_argument("partition", metavar="PARTITION", type=int, help="number of the partition")
    reassign.add_argument("--leader", metavar="NODE", help="node that is to lead")
    reassign.add_argument("--replicas", metavar="NODES", help="all nodes that are to have it, with commas; the first leads")
    reassign.add_argument("--wait", action="store_true", help="return when everything is where it is to be")
    add_server_options(reassign)
    empty = add_verb(
        group, "decommission", "Empty a node: everything it has goes to others.", run_decommission,
        "Asks first when run on a terminal. Once `braid cluster status` shows that it has nothing left, stop it for good.",
    )  # fmt: skip
    empty.add_argument("node", metavar="NODE", help="name of the node")
    empty.add_argument("--undo", action="store_true", help="let it have partitions again")
    empty.add_argument("--wait", action="store_true", help="return when nothing is left there")
    add_removal_options(empty)
    add_server_options(empty)
    start = add_verb(
        group, "start", "Run some nodes on this machine, with an etcd of their own, until Ctrl-C.", run_start,
        "Each node is a program with a directory, a log and ports of its own. One that is killed is started again after a while.",
    )  # fmt: skip
    start.add_argument("--data-dir", default="./data/cluster", metavar="DIR", help="where all of it lies [./data/cluster]")
    start.add_argument("--nodes", type=int, default=3, metavar="N", help="how many [3]")
    start.add_argument(
        "--first-port", type=int, default=9090, metavar="PORT", help="first of a node's ports; the next node's are 100 on [9090]"
    )
    start.add_argument(
        "--restart-after", default="15s", metavar="DURATION", help="pause before a lost node comes back; 0s never [15s]"
    )


def _document(args: argparse.Namespace) -> dict[str, Any]:
    with open_client(args) as client:
        status = client.upkeep.document("status")
        if "cluster" not in status:
            raise BraidError("INVALID_ARGUMENT", reason=f"broker {status['node']} runs alone: it is in no cluster")
        found: dict[str, Any] = client.upkeep.document("cluster")
    return found


def findings(document: dict[str, Any]) -> list[str]:
    """What of a cluster needs a person, worst first."""
    found = [document["trouble"]] if document["trouble"] else []
    found += [f"node {row['node']} is {row['status']}" for row in document["nodes"] if row["status"] in ("dead", "suspect")]
    rows = document["partitions"]
    led = [row for row in rows if row["leader"]]
    for text, those in (
        ("without a leader", [row for row in rows if not row["leader"]]),
        ("with fewer replicas in sync than acknowledgements need", [row for row in led if len(row["isr"]) < row["min_insync"]]),
        ("with replicas that are behind", [row for row in led if not set(row["replicas"]) <= set(row["isr"])]),
    ):
        names = [f"{row['topic']}/{row['partition']}" for row in those]
        if names:
            found.append(f"{len(names):,} partitions {text}: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}")
    return found


def run_status(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table, printable

    document = _document(args)
    wrong = findings(document)
    if args.output == "json":
        print_json({"findings": wrong, **document})
    else:
        name, coordinator = printable(document["cluster_id"]), printable(document["coordinator"] or "nobody")
        print(f"cluster {name}, coordinated by {coordinator}, epoch {document['epoch']}")
        print_table(
            ("NODE", "STATUS", "CLIENTS", "RACK", "LEADERS", "REPLICAS"),
            [
                (row["node"] + (" *" if row["coordinates"] else ""), row["status"], row["client"] or "-", row["rack"] or "-",
                 row["leaders"], row["replicas"])
                for row in document["nodes"]
            ],
        )  # fmt: skip
        for text in wrong:
            print(printable(text))
        if not wrong:
            print("all replicas are in sync")
    return Exit.FAILED if wrong else Exit.OK


def run_leaders(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    document = _document(args)
    spread = {row["node"]: row["leaders"] for row in document["nodes"]}
    if args.output == "json":
        print_json(spread)
    else:
        print_table(("NODE", "LEADERS"), list(spread.items()))
    return Exit.OK


def run_metadata(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    rows = [row for row in _document(args)["partitions"] if args.topic in (None, row["topic"])]
    if args.topic and not rows:
        raise BraidError("TOPIC_NOT_FOUND", topic=args.topic)
    if args.output == "json":
        print_json(rows)
    else:
        print_table(
            ("TOPIC", "PARTITION", "LEADER", "EPOCH", "STATE", "REPLICAS", "IN SYNC", "BEHIND"),
            [
                (row["topic"], row["partition"], row["leader"] or "-", row["epoch"], _state(row), _names(row["replicas"]),
                 _names(row["isr"]), _behind(row["lag"]))
                for row in rows
            ],
        )  # fmt: skip
    return Exit.OK


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']} to {_names(row['target'])}" if row["target"] else str(row["state"])


def _names(nodes: Iterable[str]) -> str:
    return ",".join(nodes) or "-"


def _behind(lag: dict[str, int]) -> str:
    return ", ".join(f"{node} {count:,}" for node, count in lag.items() if count) or "-"


def _steer(args: argparse.Namespace, verb: str, *words: str) -> int:
    from braidmq.cli.output import note, print_table, printable

    with open_client(args) as client:
        done = client.cluster.steer(verb, *words)
    if done["moves"]:
        rows = [(move["topic"], move["partition"], move["from_node"] or "-", move["to_node"] or "-") for move in done["moves"]]
        print_table(("TOPIC", "PARTITION", "LED BY", "NOW BY"), rows)
    note(printable(done["message"]))
    return _wait(args) if getattr(args, "wait", False) else Exit.OK


def _wait(args: argparse.Namespace) -> int:
    """Until nothing is on its way any more; says what it waits for whenever that changes."""
    from braidmq.cli.output import note, printable

    said = -1
    with open_client(args) as client:
        while moves := client.cluster.progress():
            if len(moves) != said:
                said = len(moves)
                first = moves[0]
                where = f"{first['topic']}/{first['partition']} to {', '.join(first['target'])}"
                note(f"{said:,} partitions are on their way: {printable(where)}{' ...' if said > 1 else ''}")
            time.sleep(_LOOK_AGAIN_S)
    note("everything is where it is to be")
    return Exit.OK


def run_rebalance(args: argparse.Namespace) -> int:
    return _steer(args, "rebalance")


def run_reassign(args: argparse.Namespace) -> int:
    replicas = [name.strip() for name in (args.replicas or "").split(",") if name.strip()]
    if replicas:
        nodes = [args.leader, *(name for name in replicas if name != args.leader)] if args.leader else replicas
        return _steer(args, "reassign", args.topic, str(args.partition), *nodes)
    if not args.leader:
        raise BraidError("INVALID_ARGUMENT", reason="say who is to lead with --leader, or who is to have it with --replicas")
    return _steer(args, "lead", args.topic, str(args.partition), args.leader)


def run_decommission(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    if args.undo:
        return _steer(args, "recommission", args.node)
    if args.dry_run:
        having = sum(1 for row in _document(args)["partitions"] if args.node in row["replicas"])
        note(f"would move {having:,} partitions away from {printable(args.node)}")
        return Exit.OK
    if not confirmed(args, f"move everything away from {printable(args.node)}"):
        return Exit.FAILED
    return _steer(args, "decommission", args.node)


def run_start(args: argparse.Namespace) -> int:
    from braidmq.cli.cluster_nodes import run_nodes
    from braidmq.cli.connection import duration_option

    if not 1 <= args.nodes <= _NODES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"--nodes is 1 to {_NODES_MAX}")
    return run_nodes(args.data_dir, args.nodes, args.first_port, duration_option(args.restart_after, "--restart-after"))
