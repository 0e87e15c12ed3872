"""The whole grammar of `braid`, put together from its commands.

Every command module is imported here, so none of them imports anything heavy at its top: `braid --help` must not pay for a
broker, a client or numpy. A test holds that.
"""

from __future__ import annotations

import argparse
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


def build_parser() -> argparse.ArgumentParser:
    """The parser; after parsing, `args.run` is the function of the chosen command."""
    from braidmq.cli import bench, completion, config, consume, log, produce, serve, topic, version

    parser = BraidParser(prog="braid", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"braid {__version__}", help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (serve, topic, produce, consume, bench, log, config, completion, version):
        module.register(commands)
    return parser


def add_output_option(parser: argparse.ArgumentParser) -> None:
    """`-o text|json`, the same on every command that reads."""
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the answer [text]")


def add_group(commands: Subparsers, name: str, help_text: str) -> Subparsers:
    """A command that only holds other commands."""
    group = commands.add_parser(name, help=help_text, description=help_text)
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True)
