"""A flag for every setting of the broker, made from the table of settings."""

from __future__ import annotations

import argparse

from braidmq.base.config_settings import BY_KEY, SETTINGS, Setting

_METAVARS = {
    "path": "PATH", "listeners": "URL", "links": "URL", "keys": "USER=KEY", "choices": "NAME", "size": "SIZE",
    "duration": "DURATION", "count": "N", "text": "TEXT", "address": "ADDRESS", "listener": "ADDRESS", "names": "NAME",
    "addresses": "ADDRESS", "endpoints": "URL", "share": "SHARE",
}  # fmt: skip
_DIRECTORIES = ("data_dir", "fq_web_root")


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """`--config` and one flag a setting. Values stay text: the loader reads them as it reads every other source."""
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with settings (environment: BRAID_CONFIG)")
    for setting in SETTINGS:
        _add(parser, setting)


def _add(parser: argparse.ArgumentParser, setting: Setting) -> None:
    help_text = _help(setting)
    if setting.kind.name == "boolean":
        parser.add_argument(setting.flag, dest=setting.key, action=argparse.BooleanOptionalAction, default=None, help=help_text)
    elif setting.kind.repeats:
        parser.add_argument(setting.flag, dest=setting.key, action="append", metavar=_metavar(setting), help=help_text)
    elif setting.kind.choices:
        parser.add_argument(setting.flag, dest=setting.key, choices=setting.kind.choices, help=help_text)
    else:
        parser.add_argument(setting.flag, dest=setting.key, metavar=_metavar(setting), help=help_text)


def _metavar(setting: Setting) -> str:
    return "DIR" if setting.key in _DIRECTORIES else _METAVARS[setting.kind.name]


def _help(setting: Setting) -> str:
    default = f" [{setting.default_text}]" if setting.default_text else ""
    return f"{setting.doc.rstrip('.')}{default}".replace("%", "%%")


def given_flags(args: argparse.Namespace) -> dict[str, object]:
    """The settings among the parsed arguments, for the loader."""
    return {key: getattr(args, key) for key in BY_KEY}
