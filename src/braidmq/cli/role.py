"""`braid role`: what roles there are, and what they permit."""

from __future__ import annotations

import argparse
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

PERMISSIONS: Final = ("read", "write", "admin")


def register(commands: Subparsers) -> None:
    group = add_group(commands, "role", "Roles that users may have: list, add, change and remove them.")
    ls = add_verb(group, "ls", "List the roles with what they permit.", run_ls)
    ls.add_argument("name", metavar="NAME", nargs="?", help="only this role")
    add_output_option(ls)
    add_server_options(ls)

    add = add_verb(group, "add", "Add a role.", run_add, "A role without permissions is a name that ACLs can use.")
    add.add_argument("name", metavar="NAME", help="name of the role")
    _add_permission_option(add, "what it permits, on every topic")
    add.add_argument("--description", default="", metavar="TEXT", help="what it is for")
    add_server_options(add)

    change = add_verb(group, "set", "Change a role, at once and for everybody who has it.", run_set)
    change.add_argument("name", metavar="NAME", help="name of the role")
    _add_permission_option(change, "what it permits from now on")
    change.add_argument("--no-permissions", action="store_true", help="it permits nothing from now on")
    change.add_argument("--description", metavar="TEXT", help="what it is for")
    add_server_options(change)

    rm = add_verb(group, "rm", "Remove roles that no user and no ACL names.", run_rm, "Asks first when run on a terminal.")
    rm.add_argument("names", metavar="NAME", nargs="+", help="name of a role")
    add_removal_options(rm)
    add_server_options(rm)
    rm.set_defaults(rest="names")


def _add_permission_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--permission", action="append", choices=PERMISSIONS, help=text)


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    with open_client(args) as client:
        found = [role for role in client.role.ls() if args.name in (None, role.name)]
    if args.name is not None and not found:
        raise BraidError("ROLE_NOT_FOUND", role=args.name)
    if args.output == "json":
        print_json([{"role": each.name, "permissions": each.permissions, "description": each.description} for each in found])
    else:
        rows = [(each.name, ", ".join(each.permissions) or "-", each.description) for each in found]
        print_table(("ROLE", "PERMISSIONS", "DESCRIPTION"), rows)
    return Exit.OK


def run_add(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    permissions = args.permission or []
    with open_client(args) as client:
        client.role.add(args.name, permissions, args.description)
    note(f"added {printable(args.name)}, which permits {', '.join(permissions) or 'nothing by itself'}")
    return Exit.OK


def run_set(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    if args.permission and args.no_permissions:
        raise BraidError("INVALID_ARGUMENT", reason="--permission and --no-permissions exclude each other")
    permissions = [] if args.no_permissions else args.permission
    if permissions is None and args.description is None:
        raise BraidError("INVALID_ARGUMENT", reason="say what to change: --permission, --no-permissions or --description")
    with open_client(args) as client:
        client.role.set(args.name, permissions=permissions, description=args.description)
    note(f"changed {printable(args.name)}")
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        known = {role.name for role in client.role.ls()}
        for name in args.names:
            if name not in known:
                raise BraidError("ROLE_NOT_FOUND", role=name)
        if not args.dry_run and not confirmed(args, f"remove {', '.join(map(printable, args.names))}"):
            return Exit.FAILED
        for name in args.names:
            if not args.dry_run:
                client.role.rm(name)
            note(f"{'would remove' if args.dry_run else 'removed'} {printable(name)}")
    return Exit.OK
