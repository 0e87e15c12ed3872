"""`braid role`: what roles there are, and what they permit."""

from __future__ import annotations

import argparse

from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb


def register(commands: Subparsers) -> None:
    group = add_group(commands, "role", "Roles that users may have.")
    ls = add_verb(group, "ls", "List the roles with what they permit.", run_ls)
    add_output_option(ls)
    add_server_options(ls)


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    with open_client(args) as client:
        found = client.role.ls()
    if args.output == "json":
        print_json([{"role": each.name, "permissions": each.permissions, "description": each.description} for each in found])
    else:
        rows = [(each.name, ", ".join(each.permissions) or "-", each.description) for each in found]
        print_table(("ROLE", "PERMISSIONS", "DESCRIPTION"), rows)
    return Exit.OK
