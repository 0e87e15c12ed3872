"""`braid ctx`: brokers under names, with TLS and credentials, so that commands need not be told each time."""

from __future__ import annotations

import argparse
import os

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options
from braidmq.cli.contexts import Context, ContextFile, contexts_path
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

_EPILOG = """examples:
  braid ctx add prod --server flymqs://mq.example.org:9092 --user ops --password-command 'pass show mq/ops'
  braid ctx use prod
  braid topic ls --ctx prod"""


def register(commands: Subparsers) -> None:
    group = add_group(commands, "ctx", "Keep brokers under names, with TLS and credentials.")

    about = "Add a context, or replace the one of that name."
    add = group.add_parser("add", help=about, description=f"{about} Its file is for your eyes only.", epilog=_EPILOG)
    add.add_argument("name", metavar="NAME", help="name of the context")
    add.add_argument("--password-env", metavar="NAME", help="variable that holds the password")
    add.add_argument("--password-command", metavar="COMMAND", help="command whose first line of output is the password")
    add.add_argument(
        "--store-password", action="store_true", help="keep the password of --password-file, or one that is typed, in the context"
    )
    add.add_argument("--use", action="store_true", help="use it from now on")
    add_server_options(add)
    add.set_defaults(run=run_add)

    use = add_verb(group, "use", "Use a context from now on.", run_use, "`--ctx` and BRAID_CTX choose another for one command.")
    use.add_argument("name", metavar="NAME", nargs="?", help="name of the context; none goes back to flags and variables")

    add_output_option(add_verb(group, "ls", "List the contexts.", run_ls))

    show = add_verb(group, "show", "Show a context, without its password.", run_show)
    show.add_argument("name", metavar="NAME", nargs="?", help="name of the context [the one in use]")
    add_output_option(show)

    rm = add_verb(group, "rm", "Remove a context.", run_rm)
    rm.add_argument("name", metavar="NAME", help="name of the context")


def run_add(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note
    from braidmq.cli.passwords import ask_password, read_password

    stored = ContextFile.load()
    password = None
    if args.store_password:
        password = read_password(args.password_file) if args.password_file else ask_password(f"password of {args.user}: ")
        if password is None:
            raise BraidError("INVALID_ARGUMENT", reason="--password-file names the password where there is no terminal to ask at")
    sources = (args.password_env, args.password_command, args.password_file)
    if sum(source is not None for source in sources) > 1:
        raise BraidError("INVALID_ARGUMENT", reason="a password comes from one place: a file, a variable or a command")
    if any(source is not None for source in (*sources, password)) and args.user is None:
        raise BraidError("INVALID_ARGUMENT", reason="a password needs a --user")
    stored.contexts[args.name] = Context(
        servers=args.server or [], user=args.user, password=password,
        password_file=None if args.store_password else _whole(args.password_file), password_env=args.password_env,
        password_command=args.password_command, tls_ca_file=_whole(args.tls_ca_file), tls_cert_file=_whole(args.tls_cert_file),
        tls_key_file=_whole(args.tls_key_file),
    )  # fmt: skip
    if args.use or not stored.current:
        stored.current = args.name
    stored.save()
    note(f"{args.name} is in {contexts_path()}{'; it is in use' if stored.current == args.name else ''}")
    return Exit.OK


def _whole(path: str | None) -> str | None:
    """A path that means the same wherever the context is used."""
    return None if path is None else os.path.abspath(path)


def run_use(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note

    stored = ContextFile.load()
    if args.name is not None:
        stored.get(args.name)
    stored.current = args.name
    stored.save()
    note(f"{args.name} is in use" if args.name else "no context is in use")
    return Exit.OK


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    stored = ContextFile.load()
    if args.output == "json":
        print_json([{"name": name, "current": name == stored.current, **entry.shown()} for name, entry in stored.contexts.items()])
    else:
        rows = [
            ("*" if name == stored.current else "", name, ",".join(entry.servers) or "127.0.0.1:9092", entry.user or "")
            for name, entry in sorted(stored.contexts.items())
        ]
        print_table(("", "NAME", "SERVERS", "USER"), rows)
    return Exit.OK


def run_show(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table

    stored = ContextFile.load()
    name = args.name or stored.current
    if name is None:
        raise BraidError("INVALID_ARGUMENT", reason="no context is in use; name one")
    shown = stored.get(name).shown()
    if args.output == "json":
        print_json({"name": name, "current": name == stored.current, **shown})
    else:
        print_table(("SETTING", "VALUE"), [("name", name), *((key, str(value)) for key, value in shown.items())])
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note

    stored = ContextFile.load()
    stored.get(args.name)
    del stored.contexts[args.name]
    if stored.current == args.name:
        stored.current = None
    stored.save()
    note(f"{args.name} removed")
    return Exit.OK
