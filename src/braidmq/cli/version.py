"""`braid version`: what runs here."""

from __future__ import annotations

import argparse

from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option


def register(commands: Subparsers) -> None:
    about = "Print the version, the hot path in use and the Python it runs on."
    parser = commands.add_parser("version", help=about, description=about)
    add_output_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import platform

    from braidmq import __version__, hot
    from braidmq.cli.output import print_json

    if args.output == "json":
        print_json({"version": __version__, "hot_path": hot.IMPLEMENTATION, "python": platform.python_version()})
    else:
        print(f"braid {__version__} (hot path: {hot.IMPLEMENTATION}; Python {platform.python_version()})")
    return Exit.OK
