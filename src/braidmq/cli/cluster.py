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
    require = add_verb(
        group, "require", "Say how many replicas a topic is to have, and how many an acknowledgement needs.", run_require,
        "Missing replicas are copied in the background; those that are too many stay until `reassign` names others. A larger "
        "min_insync holds as soon as every partition has so many replicas in sync.",
    )  # fmt: skip
    require.add_argument("topic", metavar="TOPIC", help="name of the topic")
    require.add_argument("--replicas", type=int, default=0, metavar="N", help="nodes that are to have each partition")
    require.add_argument("--min-insync", type=int, default=0, metavar="N", help="replicas in sync that an acknowledgement needs")
    add_server_options(require)
    empty = add_verb(
        group, "decommission", "Empty a node: everything it has goes to others.", run_decommission,
        "Asks first when run on a terminal. Once nothing is left there, which --wait waits for, stop the node for good; a minute "
        "later the others forget it.",
    )  # fmt: skip
    empty.add_argument("node", metavar="NODE", help="name of the node")
    empty.add_argument("--undo", action="store_true", help="let it have partitions again")
    empty.add_argument("--wait", action="store_true", help="return when nothing is left there")
    add_removal_options(empty)
    add_server_options(empty)
    forget = add_verb(
        group, "forget", "A node does not come back: others get what it had, and the cluster goes on without it.", run_forget,
        "For a machine that is lost. Asks first when run on a terminal. What only that node had is lost with it. Should it come "
        "back all the same, it has to begin with an empty data directory.",
    )  # fmt: skip
    forget.add_argument("node", metavar="NODE", help="name of the node")
    forget.add_argument("--wait", action="store_true", help="return when the cluster knows it no more")
    add_removal_options(forget)
    add_server_options(forget)
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
    journals = document["journals"]
    behind = [name for name in journals.get("replicas", ()) if name not in journals["isr"]]
    if behind:
        found.append(f"the broker's own journals have a replica that is behind: {', '.join(behind)}")
    rows = document["partitions"]
    led = [row for row in rows if row["leader"]]
    for text, those in (
        ("without a leader", [row for row in rows if not row["leader"]]),
        ("with fewer replicas in sync than acknowledgements need", [row for row in led if len(row["isr"]) < row["min_insync"]]),
        ("with replicas that are behind", [row for row in led if not set(row["replicas"]) <= set(row["isr"])]),
        ("with fewer replicas than they are to have", [row for row in rows if len(row["replicas"]) < row["factor"]]),
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
        isr = document["journals"].get("isr", ())
        having = document["journals"].get("replicas", ())
        print(f"its journals are on {printable(_names(having))}, in sync: {printable(_names(isr))}")
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


def _steer(args: argparse.Namespace, verb: str, *words: str, node: str = "") -> int:
    """`node` is the one that is to be empty when `--wait` is over."""
    from braidmq.cli.output import note, print_table, printable

    with open_client(args) as client:
        done = client.cluster.steer(verb, *words)
    if done["moves"]:
        rows = [(move["topic"], move["partition"], move["from_node"] or "-", move["to_node"] or "-") for move in done["moves"]]
        print_table(("TOPIC", "PARTITION", "LED BY", "NOW BY"), rows)
    note(printable(done["message"]))
    return _wait(args, node) if getattr(args, "wait", False) else Exit.OK


def _wait(args: argparse.Namespace, node: str) -> int:
    """Until nothing is on its way any more, or nothing left on `node`; says what it waits for whenever that changes."""
    from braidmq.cli.output import note, printable

    def matters(move: dict[str, Any]) -> bool:
        return node in (*move["leaves"], *move["target"]) if node else bool(move["target"])

    said = ""
    with open_client(args) as client:
        while moves := [move for move in client.cluster.progress() if matters(move)]:
            text = f"{len(moves):,} partitions are on their way: {_way(moves[0])}{' ...' if len(moves) > 1 else ''}"
            if text != said:
                said = text
                note(printable(text))
            time.sleep(_LOOK_AGAIN_S)
    note(f"{printable(node)} has nothing left" if node else "everything is where it is to be")
    return Exit.OK


def _way(move: dict[str, Any]) -> str:
    where = f"{move['topic']}/{move['partition']}"
    if not move["target"]:
        return f"{where} is still on {_names(move['leaves'])}"
    missing = f", waits for {_names(move['waits_for'])}" if move["waits_for"] else ""
    return f"{where} to {_names(move['target'])}{missing}"


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
    from braidmq.cli.output import printable

    if args.undo:
        return _steer(args, "recommission", args.node)
    if args.dry_run:
        _say_what_would_move(args)
        return Exit.OK
    if not confirmed(args, f"move everything away from {printable(args.node)}"):
        return Exit.FAILED
    return _steer(args, "decommission", args.node, node=args.node)


def _say_what_would_move(args: argparse.Namespace) -> None:
    from braidmq.cli.output import note, printable

    document = _document(args)
    having = [row for row in document["partitions"] if args.node in row["replicas"]]
    left = sum(1 for row in document["nodes"] if row["node"] != args.node and row["status"] != "leaving")
    note(f"would move {len(having):,} partitions away from {printable(args.node)}")
    short = sum(1 for row in having if row["factor"] > left)
    if short:
        note(f"{short:,} of them would have fewer replicas than they are to have: {left} nodes would be left")


def run_forget(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    if args.dry_run:
        _say_what_would_move(args)
        return Exit.OK
    if not confirmed(args, f"go on without {printable(args.node)} for good"):
        return Exit.FAILED
    ended = _steer(args, "forget", args.node, node=args.node)
    if args.wait:
        while args.node in (row["node"] for row in _document(args)["nodes"]):
            time.sleep(_LOOK_AGAIN_S)
        note(f"the cluster has forgotten {printable(args.node)}")
    return ended


def run_require(args: argparse.Namespace) -> int:
    if args.replicas <= 0 and args.min_insync <= 0:
        raise BraidError("INVALID_ARGUMENT", reason="say how many with --replicas, --min-insync or both")
    return _steer(args, "require", args.topic, str(args.replicas), str(args.min_insync))


def run_start(args: argparse.Namespace) -> int:
    from braidmq.cli.cluster_nodes import run_nodes
    from braidmq.cli.connection import duration_option

    if not 1 <= args.nodes <= _NODES_MAX:
        raise BraidError("INVALID_ARGUMENT", reason=f"--nodes is 1 to {_NODES_MAX}")
    return run_nodes(args.data_dir, args.nodes, args.first_port, duration_option(args.restart_after, "--restart-after"))
