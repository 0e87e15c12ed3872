"""`braid help`: cheat sheets, one screen each. A test parses every command on them."""

from __future__ import annotations

import argparse
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers

SHEETS: Final = ("topics", "groups", "schemas", "security", "operations", "trouble")


def register(commands: Subparsers) -> None:
    about = "Print a cheat sheet."
    parser = commands.add_parser("help", help=about, description=f"{about} There are {', '.join(SHEETS)}.")
    parser.add_argument("sheet", metavar="SHEET", nargs="?", help="what it is about; without it, all sheets are listed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.sheet is None:
        for name in SHEETS:
            print(f"braid help {name:<12} {sheet(name).splitlines()[0]}")
        return Exit.OK
    if args.sheet not in SHEETS:
        raise BraidError("INVALID_ARGUMENT", reason=f"there is no sheet `{args.sheet}`; there are {', '.join(SHEETS)}")
    print(sheet(args.sheet), end="")
    return Exit.OK


def sheet(name: str) -> str:
    from importlib import resources

    return resources.files("braidmq.cli").joinpath("sheets", f"{name}.txt").read_text(encoding="utf-8")
