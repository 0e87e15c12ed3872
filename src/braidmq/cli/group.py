"""`braid group`: consumer groups, how far they are behind, and moving them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, duration_option, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.client.models import GroupPartition
    from braidmq.client.sync import Client

WATCH_DEFAULT: Final = "2s"


def register(commands: Subparsers) -> None:
    group = add_group(commands, "group", "Consumer groups: list, inspect, move and remove them.")

    ls = add_verb(group, "ls", "List the groups of every topic.", run_ls)
    add_output_option(ls)
    add_server_options(ls)

    show = add_verb(group, "show", "Show a group's state, members and positions.", run_show)
    show.add_argument("group", metavar="GROUP", help="name of the group")
    _add_places(show)
    add_output_option(show)
    add_server_options(show)

    lag = add_verb(group, "lag", "Show how far a group is behind, in records and in time.", run_lag)
    lag.add_argument("group", metavar="GROUP", help="name of the group")
    _add_places(lag)
    lag.add_argument(
        "--watch", nargs="?", const=WATCH_DEFAULT, metavar="DURATION", help=f"show it again, until Ctrl-C [{WATCH_DEFAULT}]"
    )
    lag.add_argument("--count", type=int, metavar="N", help="with --watch: end after so many times")
    add_output_option(lag)
    add_server_options(lag)

    seek = add_verb(
        group, "seek", "Move a group to another place in a topic.", run_seek,
        "Stop its members first: those that run commit over it. Asks first when run on a terminal.",
    )  # fmt: skip
    seek.add_argument("group", metavar="GROUP", help="name of the group; it is created when it is missing")
    seek.add_argument("topic", metavar="TOPIC", help="topic to move it in")
    seek.add_argument(
        "--to", required=True, metavar="WHERE",
        help="earliest, latest, an offset, or @TIME as ISO 8601 or milliseconds since the epoch",
    )  # fmt: skip
    seek.add_argument("--partition", type=int, action="append", metavar="N", help="only this partition [all]")
    add_removal_options(seek, "moved")
    add_output_option(seek)
    add_server_options(seek)

    rm = add_verb(group, "rm", "Remove a group with its offsets.", run_rm, "Asks first when run on a terminal.")
    rm.add_argument("group", metavar="GROUP", help="name of the group")
    rm.add_argument("--topic", metavar="TOPIC", help="only on this topic [all the group's topics]")
    add_removal_options(rm)
    add_server_options(rm)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", metavar="TOPIC", help="only this topic [all the group's topics]")
    parser.add_argument("--partition", type=int, action="append", metavar="N", help="only this partition [all]")


def _wanted(args: argparse.Namespace, parts: Iterable[GroupPartition]) -> list[GroupPartition]:
    """Of some places those that were asked for."""
    return [
        part for part in parts
        if args.topic in (None, part.topic) and (args.partition is None or part.partition in args.partition)
    ]  # fmt: skip


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    with open_client(args) as client:
        found = client.group.ls()
    if args.output == "json":
        print_json([
            {
                "group": info.group, "topic": info.topic, "members": info.members,
                "offsets": {str(place.partition): place.offset for place in info.offsets},
            }
            for info in found
        ])  # fmt: skip
    else:
        rows = [(info.group, info.topic, info.members, len(info.offsets)) for info in found]
        print_table(("GROUP", "TOPIC", "MEMBERS", "COMMITTED PARTITIONS"), sorted(rows))
    return Exit.OK


def run_show(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable

    with open_client(args) as client:
        found = client.group.show(args.group)
    parts = _wanted(args, found.partitions)
    if args.output == "json":
        places = [_document(part) for part in parts]
        print_json({"group": found.group, "state": found.state, "members": found.members, "lag": found.lag, "partitions": places})
        return Exit.OK
    print(f"{printable(found.group)}: {found.state}, {len(found.members)} members, {found.lag:,} records behind")
    for member in found.members:
        print(f"  {printable(member)}")
    _print_lag(parts)
    return Exit.OK


def run_lag(args: argparse.Namespace) -> int:
    if args.count is not None and (args.watch is None or args.count < 1):
        raise BraidError("INVALID_ARGUMENT", reason="--count is at least 1, and goes with --watch")
    interval_s = None if args.watch is None else duration_option(args.watch, "--watch")
    with open_client(args) as client, Interrupts() as interrupts:
        left = 1 if interval_s is None else args.count
        while True:
            _show_lag(args, client, again=interval_s is not None)
            if left is not None:
                left -= 1
                if left == 0:
                    return Exit.OK
            interrupts.waiting = True
            interrupts.check()
            time.sleep(interval_s or 0)
            interrupts.waiting = False


def _show_lag(args: argparse.Namespace, client: Client, *, again: bool) -> None:
    import json
    import sys

    from braidmq.cli.output import print_json
    from braidmq.cli.terminal import is_terminal

    parts = _wanted(args, client.group.lag(args.group, args.topic))
    if args.output == "json":
        documents = [_document(part) for part in parts]
        if again:
            # One line each time, so that a reader can take them apart.
            print(json.dumps({"time_ms": round(time.time() * 1000), "partitions": documents}, ensure_ascii=False), flush=True)
        else:
            print_json(documents)
        return
    if again and is_terminal(sys.stdout):
        print("\x1b[H\x1b[2J", end="")
    _print_lag(parts)
    sys.stdout.flush()


def _document(part: GroupPartition) -> dict[str, object]:
    return {
        "topic": part.topic, "partition": part.partition, "committed": part.committed, "latest": part.latest, "lag": part.lag,
        "lag_ms": part.lag_ms,
    }  # fmt: skip


def _print_lag(parts: list[GroupPartition]) -> None:
    from braidmq.cli.output import print_table
    from braidmq.cli.times import show_age

    rows = [(part.topic, part.partition, part.committed, part.latest, part.lag, show_age(part.lag_ms)) for part in parts]
    print_table(("TOPIC", "PARTITION", "COMMITTED", "NEXT", "LAG", "OLDEST UNREAD"), rows)


def run_seek(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table, printable, warn
    from braidmq.cli.starting_point import parse_point
    from braidmq.client.models import OffsetChange

    point = parse_point(args.to, "--to")

    def move(client: Client, dry_run: bool) -> list[OffsetChange]:
        return client.group.seek(
            args.group, args.topic, "earliest" if point.kind == "earliest" else "latest" if point.kind == "latest" else None,
            offset=point.value if point.kind == "offset" else None,
            timestamp_ms=point.value if point.kind == "time" else None,
            partitions=args.partition, dry_run=dry_run,
        )  # fmt: skip

    with open_client(args) as client:
        changes = move(client, True)
        members = sum(info.members for info in client.group.ls() if (info.topic, info.group) == (args.topic, args.group))
        if members:
            warn(f"the group has {members} members, which commit their own positions over it")
        if not args.dry_run:
            if not confirmed(args, f"move {printable(args.group)} in {len(changes)} partitions of {printable(args.topic)}"):
                return Exit.FAILED
            changes = move(client, False)
    if args.output == "json":
        fields = ("topic", "partition", "before", "after")
        print_json({"dry_run": args.dry_run, "changes": [{name: getattr(change, name) for name in fields} for change in changes]})
    else:
        rows = [(change.partition, change.before, change.after, change.after - change.before) for change in changes]
        print_table(("PARTITION", "BEFORE", "AFTER", "CHANGE"), rows)
        note("would move" if args.dry_run else "moved")
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        found = [info for info in client.group.ls() if info.group == args.group and args.topic in (None, info.topic)]
        if not found:
            raise BraidError("GROUP_NOT_FOUND", topic=args.topic or "*", group=args.group)
        names = ", ".join(printable(info.topic) for info in found)
        if not args.dry_run:
            if not confirmed(args, f"remove group {printable(args.group)} of {names}"):
                return Exit.FAILED
            client.group.rm(args.group, args.topic)
    note(f"{'would remove' if args.dry_run else 'removed'} {printable(args.group)} of {names}")
    return Exit.OK
