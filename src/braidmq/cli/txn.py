"""`braid txn`: transactions that are open, and ending one."""

from __future__ import annotations

import argparse

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb


def register(commands: Subparsers) -> None:
    group = add_group(commands, "txn", "Transactions: list the open ones, and abort them.")

    ls = add_verb(group, "ls", "List the transactions that are open.", run_ls)
    add_output_option(ls)
    add_server_options(ls)

    abort = add_verb(group, "abort", "Roll transactions back, whoever began them.", run_abort, "Asks first when run on a terminal.")
    abort.add_argument("ids", metavar="ID", nargs="+", help="id of a transaction")
    add_removal_options(abort, "aborted")
    add_server_options(abort)
    abort.set_defaults(rest="ids")


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.times import show_time

    with open_client(args) as client:
        found = client.txn.ls()
    rows = [(each.id, each.owner or "-", each.state, show_time(each.started_ms), each.records) for each in found]
    if args.output == "json":
        print_json([
            {"id": each.id, "owner": each.owner, "state": each.state, "started_ms": each.started_ms, "records": each.records}
            for each in found
        ])  # fmt: skip
    else:
        print_table(("ID", "OWNER", "STATE", "STARTED", "RECORDS"), rows)
    return Exit.OK


def run_abort(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        records = {each.id: each.records for each in client.txn.ls()}
        for name in args.ids:
            if name not in records:
                raise BraidError("TRANSACTION_NOT_FOUND", id=name)
        count = sum(records[name] for name in args.ids)
        if not args.dry_run and not confirmed(args, f"abort {', '.join(map(printable, args.ids))} with {count:,} records"):
            return Exit.FAILED
        for name in args.ids:
            if not args.dry_run:
                client.txn.abort(name)
            note(f"{'would abort' if args.dry_run else 'aborted'} {printable(name)}: {records[name]:,} records")
    return Exit.OK
