"""`braid acl`: who may use which topics."""

from __future__ import annotations

import argparse

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

_PATTERN = "name of a topic, or a pattern as orders.*"


def register(commands: Subparsers) -> None:
    group = add_group(commands, "acl", "Access to topics: list, show, set and remove it.")

    ls = add_verb(group, "ls", "List the topics and patterns that have an ACL.", run_ls)
    add_output_option(ls)
    add_server_options(ls)

    get = add_verb(group, "get", "Show who may use a topic.", run_get)
    get.add_argument("topic", metavar="TOPIC", help=_PATTERN)
    add_output_option(get)
    add_server_options(get)

    change = add_verb(group, "set", "Say who may use a topic.", run_set, "It replaces what was said before.")
    change.add_argument("topic", metavar="TOPIC", help=_PATTERN)
    change.add_argument("--public", action="store_true", help="everybody")
    change.add_argument("--allow-user", action="append", default=[], metavar="NAME", help="this user")
    change.add_argument("--allow-role", action="append", default=[], metavar="ROLE", help="users with this role")
    add_server_options(change)

    rm = add_verb(group, "rm", "Remove ACLs, so that the default applies again.", run_rm, "Asks first when run on a terminal.")
    rm.add_argument("topics", metavar="TOPIC", nargs="+", help=_PATTERN)
    add_removal_options(rm)
    add_server_options(rm)
    rm.set_defaults(rest="topics")


def _row(topic: str, public: bool, users: tuple[str, ...], roles: tuple[str, ...]) -> tuple[str, str, str, str]:
    return topic, "yes" if public else "no", ", ".join(users) or "-", ", ".join(roles) or "-"


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table

    with open_client(args) as client:
        found = client.acl.ls()
    if args.output == "json":
        entries = [{"topic": each.topic, "public": each.public, "users": each.users, "roles": each.roles} for each in found.entries]
        print_json({"default_public": found.default_public, "acls": entries})
    else:
        rows = [_row(each.topic, each.public, each.users, each.roles) for each in found.entries]
        print_table(("TOPIC", "PUBLIC", "USERS", "ROLES"), rows)
        note(f"topics without an ACL are {'public' if found.default_public else 'not public'}")
    return Exit.OK


def run_get(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table

    with open_client(args) as client:
        found = client.acl.get(args.topic)
    if args.output == "json":
        print_json({
            "topic": found.topic, "exists": found.exists, "public": found.public, "default_public": found.default_public,
            "users": found.users, "roles": found.roles,
        })  # fmt: skip
    else:
        print_table(("TOPIC", "PUBLIC", "USERS", "ROLES"), [_row(found.topic, found.public, found.users, found.roles)])
        if not found.exists:
            note("it has no ACL of its own; this is the default")
    return Exit.OK


def run_set(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        client.acl.set(args.topic, public=args.public, users=args.allow_user, roles=args.allow_role)
    who = "everybody" if args.public else ", ".join([*args.allow_user, *args.allow_role]) or "administrators only"
    note(f"{printable(args.topic)}: {printable(who)}")
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        known = {each.topic for each in client.acl.ls().entries}
        for topic in args.topics:
            if topic not in known:
                raise BraidError("INVALID_ARGUMENT", reason=f"{topic} has no ACL")
        if not args.dry_run and not confirmed(args, f"remove the ACL of {', '.join(map(printable, args.topics))}"):
            return Exit.FAILED
        for topic in args.topics:
            if not args.dry_run:
                client.acl.rm(topic)
            note(f"{'would remove' if args.dry_run else 'removed'} the ACL of {printable(topic)}")
    return Exit.OK
