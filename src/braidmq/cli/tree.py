"""The command line seen as data: what completion scripts and the reference page are generated from.

argparse keeps its tree in attributes without public names; this is the one module that reads them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FILE_METAVARS: Final = frozenset({"FILE", "DIR", "PATH", "DATA_DIR"})
TOPIC_METAVAR: Final = "TOPIC"


@dataclass(frozen=True, slots=True)
class Option:
    """A flag, or a positional argument when `flags` is empty."""

    name: str
    flags: tuple[str, ...]
    metavar: str
    """What stands for its value; empty when it takes none."""
    help: str
    choices: tuple[str, ...]
    repeats: bool
    required: bool

    @property
    def takes_file(self) -> bool:
        return self.metavar in FILE_METAVARS

    @property
    def takes_topic(self) -> bool:
        return self.metavar == TOPIC_METAVAR


@dataclass(frozen=True, slots=True)
class Node:
    """One command, with those below it."""

    path: tuple[str, ...]
    help: str
    description: str
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]
    children: tuple[Node, ...]
    epilog: str

    def walk(self) -> Iterator[Node]:
        """This command and all below it, in the order of the help."""
        yield self
        for child in self.children:
            yield from child.walk()


def command_tree(parser: argparse.ArgumentParser, path: tuple[str, ...] = ("braid",), help_text: str = "") -> Node:
    """`parser` as data."""
    options: list[Option] = []
    arguments: list[Option] = []
    children: list[Node] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            children += [command_tree(child, (*path, name), helps.get(name, "")) for name, child in action.choices.items()]
        else:
            (options if action.option_strings else arguments).append(_option(parser, action))
    return Node(
        path, help_text, parser.description or help_text, tuple(options), tuple(arguments), tuple(children), parser.epilog or ""
    )


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    valued = action.nargs != 0
    choices = tuple(map(str, action.choices or ())) if valued else ()
    metavar = action.metavar if isinstance(action.metavar, str) else "|".join(choices) or action.dest.upper()
    return Option(
        action.dest,
        tuple(action.option_strings),
        metavar if valued else "",
        parser._get_formatter()._expand_help(action) if action.help else "",
        choices,
        isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+"),
        action.required,
    )
