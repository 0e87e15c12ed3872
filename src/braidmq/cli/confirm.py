"""Asking before something goes for good, the same way in every command."""

from __future__ import annotations

import argparse
import sys


def add_removal_options(parser: argparse.ArgumentParser, what: str = "removed") -> None:
    """`--dry-run` and `--yes`, which every destructive verb has."""
    parser.add_argument("--dry-run", action="store_true", help=f"say what would be {what}, and change nothing")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def confirmed(args: argparse.Namespace, question: str) -> bool:
    """Whether the person at the terminal agrees. Without a person there is nobody to ask, and the command is the answer."""
    from braidmq.cli.output import note
    from braidmq.cli.terminal import is_terminal

    if args.yes or not is_terminal(sys.stdin):
        return True
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing changed")
    return False
