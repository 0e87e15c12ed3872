"""The whole grammar of `braid`, put together from its commands.

Every command module is imported here, so none of them imports anything heavy at its top: `braid --help` must not pay for a
broker, a client or numpy. A test holds that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from braidmq import __version__

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_DESCRIPTION = "BraidMQ: a durable message broker. Start one with `braid serve`."
_EPILOG = "`braid COMMAND --help` explains a command. Exit statuses: docs/reference/commands.md."


class BraidParser(argparse.ArgumentParser):
    """argparse without abbreviated options, which would break scripts whenever an option is added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["allow_abbrev"] = False
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)


def build_parser(only: str = "") -> argparse.ArgumentParser:
    """The parser; after parsing, `args.run` is the function of the chosen command.

    Where that is known already, `only` is its name, and the options of no other command are put together.
    """
    from braidmq.cli import (
        acl,
        audit,
        backup,
        bench,
        cluster,
        completion,
        config,
        consume,
        cp,
        ctx,
        debug,
        delayed,
        dev,
        discover,
        dlq,
        doctor,
        group,
        help,
        log,
        pipeline,
        produce,
        role,
        schema,
        serve,
        sim,
        status,
        top,
        topic,
        txn,
        user,
        version,
    )

    parser = BraidParser(prog="braid", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"braid {__version__}", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    data = (serve, dev, topic, produce, consume, cp, group, schema, dlq, delayed, txn, pipeline)
    keeping = (cluster, status, top, discover, doctor, debug, backup, bench, sim, log, ctx, config)
    modules = (*data, user, role, acl, audit, *keeping, completion, help, version)
    chosen = [module for module in modules if only == module.__name__.rpartition(".")[2]]
    for module in chosen or modules:
        module.register(commands)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a command line; ends the program as argparse does when they make no sense.

    A list of words at the end may be interrupted by options (`produce TOPIC --key k VALUE`). argparse gives such a list up at
    the first option, so a command names the list in `rest`, and what argparse could not place is added to it.
    """
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(only=words[0] if words else "")
    args, left = parser.parse_known_args(argv)
    if not left:
        return args
    before, after = (left[: left.index("--")], left[left.index("--") + 1 :]) if "--" in left else (left, [])
    if not hasattr(args, "rest") or any(word.startswith("-") and word != "-" for word in before):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    getattr(args, args.rest).extend(before + after)
    return args


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """`-o text|json`, the same on every command that reads."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the answer [text]")


def add_verb(
    group: Subparsers, name: str, about: str, run: Callable[[argparse.Namespace], int], more: str = ""
) -> argparse.ArgumentParser:
    """A command below another; `about` is its line in the list of commands, `more` goes on from there."""
    parser = group.add_parser(name, help=about, description=f"{about} {more}".strip())
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Subparsers, name: str, help_text: str) -> Subparsers:
    """A command that only holds other commands."""
    group = commands.add_parser(name, help=help_text, description=help_text)
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True)
