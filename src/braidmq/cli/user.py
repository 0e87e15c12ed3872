"""`braid user`: accounts, their roles, passwords and quotas."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.wire.flymq import UserInfo

_NEW_PASSWORD = "file with the new password, - is standard input [asked for at the terminal]"


def register(commands: Subparsers) -> None:
    group = add_group(commands, "user", "Users: list, add, change and remove them.")

    ls = add_verb(group, "ls", "List the users with their roles.", run_ls)
    add_output_option(ls)
    add_server_options(ls)

    show = add_verb(group, "show", "Show a user; without a name, who this command is.", run_show)
    show.add_argument("name", metavar="NAME", nargs="?", help="name of the user [who is logged in]")
    add_output_option(show)
    add_server_options(show)

    add = add_verb(group, "add", "Add a user.", run_add)
    add.add_argument("name", metavar="NAME", help="name of the user")
    add.add_argument("--role", action="append", default=[], metavar="ROLE", help="role of the user, as admin, producer or consumer")
    add.add_argument("--new-password-file", metavar="FILE", help=_NEW_PASSWORD)
    add_server_options(add)

    change = add_verb(group, "set", "Change a user's roles, or whether it may log in.", run_set)
    change.add_argument("name", metavar="NAME", help="name of the user")
    change.add_argument("--role", action="append", metavar="ROLE", help="its roles from now on; guest permits nothing")
    change.add_argument("--enable", action="store_true", help="let it log in again")
    change.add_argument("--disable", action="store_true", help="refuse its logins")
    add_server_options(change)

    passwd = add_verb(
        group, "passwd", "Change a password.", run_passwd,
        "One's own needs the old password, which is the one logged in with; an administrator changes another's without.",
    )  # fmt: skip
    passwd.add_argument("name", metavar="NAME", nargs="?", help="name of the user [who is logged in]")
    passwd.add_argument("--new-password-file", metavar="FILE", help=_NEW_PASSWORD)
    add_server_options(passwd)

    quota = add_verb(
        group, "quota", "Show or set what users may spend a second.", run_quota,
        "Without a name it shows the users that have a quota of their own. A rate is a number, 0 for any, or `default`: the"
        " broker's own setting. What is not given stays.",
    )  # fmt: skip
    quota.add_argument("name", metavar="NAME", nargs="?", help="name of the user [all that have one of their own]")
    quota.add_argument("--bytes-per-s", metavar="SIZE", help="bytes a second that it may send and fetch, as 10MB")
    quota.add_argument("--requests-per-s", metavar="N", help="requests a second that it may make")
    add_output_option(quota)
    add_server_options(quota)

    rm = add_verb(group, "rm", "Remove users.", run_rm, "Asks first when run on a terminal.")
    rm.add_argument("names", metavar="NAME", nargs="+", help="name of a user")
    add_removal_options(rm)
    add_server_options(rm)
    rm.set_defaults(rest="names")


def _document(user: UserInfo) -> dict[str, object]:
    return {
        "user": user.user, "roles": user.roles, "permissions": user.permissions, "enabled": user.enabled, "created": user.created,
        "updated": user.updated,
    }  # fmt: skip


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.times import show_time

    with open_client(args) as client:
        found = client.user.ls()
    if args.output == "json":
        print_json([_document(user) for user in found])
    else:
        rows = [
            (user.user, ", ".join(user.roles) or "-", "yes" if user.enabled else "no", show_time(user.created * 1000))
            for user in found
        ]
        print_table(("USER", "ROLES", "ENABLED", "CREATED"), rows)
    return Exit.OK


def run_show(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable

    with open_client(args) as client:
        if args.name is None:
            identity = client.whoami()
            document: dict[str, object] = {
                "user": identity.user, "authenticated": identity.authenticated, "roles": identity.roles,
            }  # fmt: skip
        else:
            document = _document(client.user.show(args.name))
    if args.output == "json":
        print_json(document)
        return Exit.OK
    for name, value in document.items():
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        print(f"{name + ':':<15} {printable(shown) or '-'}")
    return Exit.OK


def run_add(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable, warn
    from braidmq.cli.passwords import new_password

    password = new_password(args.new_password_file, args.name)
    with open_client(args) as client:
        known = {role.name for role in client.role.ls()}
        for role in args.role:
            if role not in known:
                warn(f"there is no role {printable(role)}; it grants nothing until there is")
        client.user.add(args.name, password, args.role)
    note(f"added {printable(args.name)}")
    return Exit.OK


def run_set(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    if args.enable and args.disable:
        raise BraidError("INVALID_ARGUMENT", reason="--enable and --disable exclude each other")
    enabled = True if args.enable else False if args.disable else None
    if args.role is None and enabled is None:
        raise BraidError("INVALID_ARGUMENT", reason="say what to change: --role, --enable or --disable")
    with open_client(args) as client:
        user = client.user.set(args.name, roles=args.role, enabled=enabled)
    state = "enabled" if user.enabled else "disabled"
    note(f"{printable(user.user)}: {state}, roles {printable(', '.join(user.roles)) or '-'}")
    return Exit.OK


def run_passwd(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable
    from braidmq.cli.passwords import new_password

    with open_client(args) as client:
        own = client.settings.username
        name = args.name or own
        if name is None:
            raise BraidError("INVALID_ARGUMENT", reason="name a user, or log in as one")
        old = client.settings.password or "" if name == own else ""
        client.user.passwd(name, new_password(args.new_password_file, name), old)
    note(f"changed the password of {printable(name)}")
    return Exit.OK


def run_quota(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    changes = args.bytes_per_s is not None or args.requests_per_s is not None
    if changes and args.name is None:
        raise BraidError("INVALID_ARGUMENT", reason="name the user whose quota it is")
    bytes_per_s = _rate(args.bytes_per_s, "--bytes-per-s", "quota_bytes_per_s")
    requests_per_s = _rate(args.requests_per_s, "--requests-per-s", "quota_requests_per_s")
    with open_client(args) as client:
        found = client.user.quotas(args.name or "")
        if changes:
            (known,) = found.quotas
            client.user.set_quota(
                args.name,
                known.bytes_per_s if args.bytes_per_s is None else bytes_per_s,
                known.requests_per_s if args.requests_per_s is None else requests_per_s,
            )
            found = client.user.quotas(args.name)
    if args.output == "json":
        print_json({
            "default": {"bytes_per_s": found.default_bytes_per_s, "requests_per_s": found.default_requests_per_s},
            "quotas": [
                {"user": each.user, "bytes_per_s": each.bytes_per_s, "requests_per_s": each.requests_per_s}
                for each in found.quotas
            ],
        })  # fmt: skip
        return Exit.OK
    rows = [
        (
            each.user,
            _shown_rate(each.bytes_per_s, found.default_bytes_per_s),
            _shown_rate(each.requests_per_s, found.default_requests_per_s),
        )
        for each in found.quotas
    ]
    print_table(("USER", "BYTES/S", "REQUESTS/S"), rows)
    return Exit.OK


def _rate(text: str | None, option: str, setting: str) -> int | None:
    """What an option asks for, read as the setting is that holds for everybody; None is the default."""
    from braidmq.base.config_settings import SETTINGS

    if text is None or text == "default":
        return None
    (kind,) = (known.kind for known in SETTINGS if known.key == setting)
    try:
        rate: int = kind.read(text)
        return rate
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"{option}: {fault}") from None


def _shown_rate(rate: int | None, default: int) -> str:
    number = default if rate is None else rate
    return (f"{number:,}" if number else "any") + (" (default)" if rate is None else "")


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        for name in args.names:
            client.user.show(name)
        if not args.dry_run and not confirmed(args, f"remove {', '.join(map(printable, args.names))}"):
            return Exit.FAILED
        for name in args.names:
            if not args.dry_run:
                client.user.rm(name)
            note(f"{'would remove' if args.dry_run else 'removed'} {printable(name)}")
    return Exit.OK
