"""`braid config`: what a broker started now would run with, and why.

`show` takes every flag of `braid serve`, so that the answer is about the very command line that is about to run.
"""

from __future__ import annotations

import argparse
import os

from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option
from braidmq.cli.setting_flags import add_setting_flags, given_flags


def register(commands: Subparsers) -> None:
    group = add_group(commands, "config", "Show the settings and where they come from, or check a file of settings.")

    about = "Print each setting, its value and where the value comes from."
    show = group.add_parser("show", help=about, description=f"{about} Takes the flags of `braid serve`.")
    add_output_option(show)
    add_setting_flags(show)
    show.set_defaults(run=run_show)

    about = "Check a file of settings without starting anything."
    check = group.add_parser("check", help=about, description=about)
    check.add_argument("file", metavar="FILE", help="TOML file, or JSON when its name ends in .json")
    check.set_defaults(run=run_check)


def run_show(args: argparse.Namespace) -> int:
    from braidmq.base.config import SETTINGS, load_config
    from braidmq.cli.output import print_json, print_table, warn

    config = load_config(given_flags(args), os.environ, args.config)
    if args.output == "json":
        settings = {}
        for setting in SETTINGS:
            value = getattr(config, setting.key)
            origin = config.origins[setting.key]
            plain = [str(item) for item in value] if setting.kind.repeats else _plain(value)
            settings[setting.key] = {"value": plain, "source": origin.source, "name": origin.name}
        print_json({"settings": settings, "warnings": list(config.warnings)})
        return Exit.OK
    rows = []
    for setting in SETTINGS:
        value = getattr(config, setting.key)
        rows.append((setting.key, "" if value is None else setting.kind.show(value), str(config.origins[setting.key])))
    print_table(("SETTING", "VALUE", "FROM"), rows)
    for text in config.warnings:
        warn(text)
    return Exit.OK


def _plain(value: object) -> object:
    """What JSON has a form for stays what it is; the rest is as one would write it."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def run_check(args: argparse.Namespace) -> int:
    from braidmq.base.config import load_config
    from braidmq.cli.output import warn

    config = load_config({}, {}, args.file)
    for text in config.warnings:
        warn(text)
    given = sum(origin.source == "file" for origin in config.origins.values())
    print(f"{args.file}: {given} settings, all valid")
    return Exit.OK
