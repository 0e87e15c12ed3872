"""`braid delayed`: records that wait for their time."""

from __future__ import annotations

import argparse
import time
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

LISTED_MAX: Final = 10_000
"""So many are looked through by a dry run."""


def register(commands: Subparsers) -> None:
    group = add_group(commands, "delayed", "Delayed records: list and cancel them.")

    ls = add_verb(group, "ls", "List what waits for its time, the soonest first.", run_ls)
    ls.add_argument("topic", metavar="TOPIC", nargs="?", default="", help="only for this topic [all]")
    ls.add_argument("--max", type=int, default=100, metavar="N", help="at most so many [100]")
    add_output_option(ls)
    add_server_options(ls)

    cancel = add_verb(group, "cancel", "Drop records that are still waiting.", run_cancel, "Asks first when run on a terminal.")
    cancel.add_argument("ids", metavar="ID", nargs="+", help="id of a delayed record, as producing it printed")
    add_removal_options(cancel, "cancelled")
    add_server_options(cancel)
    cancel.set_defaults(rest="ids")


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.times import show_age, show_time

    with open_client(args) as client:
        found = client.delayed.ls(args.topic, args.max)
    if args.output == "json":
        print_json([{"id": each.id, "topic": each.topic, "due_ms": each.due_ms, "bytes": each.size} for each in found])
    else:
        now_ms = round(time.time() * 1000)
        rows = [(each.id, each.topic, show_time(each.due_ms), show_age(each.due_ms - now_ms), each.size) for each in found]
        print_table(("ID", "TOPIC", "DUE", "IN", "BYTES"), rows)
    return Exit.OK


def run_cancel(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        if args.dry_run:
            waiting = {each.id for each in client.delayed.ls("", LISTED_MAX)}
            missing = next((name for name in args.ids if name not in waiting), None)
            if missing is not None and len(waiting) < LISTED_MAX:
                raise BraidError("MESSAGE_NOT_FOUND", id=missing)
        if not args.dry_run and not confirmed(args, f"cancel {', '.join(map(printable, args.ids))}"):
            return Exit.FAILED
        for name in args.ids:
            if not args.dry_run:
                client.delayed.cancel(name)
            note(f"{'would cancel' if args.dry_run else 'cancelled'} {printable(name)}")
    return Exit.OK
