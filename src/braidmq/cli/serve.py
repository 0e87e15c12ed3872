"""`braid serve`: run a broker in the foreground until SIGTERM or Ctrl-C.

The banner is printed when the broker accepts connections, not before: whoever reads it, or waits for the ready file, can
connect.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from braidmq.cli.parser import Subparsers
from braidmq.cli.setting_flags import add_setting_flags, given_flags

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from braidmq.base.config import Config

_EPILOG = """examples:
  braid serve --data-dir ./data
  braid serve --data-dir ./data --listen flymq://127.0.0.1:0 --ready-file ready.json
  braid serve --config braid.toml --durability os

Flags win over BRAID_* variables, those over the file, the file over the defaults: `braid config show` prints the result.
SIGTERM and Ctrl-C stop the broker cleanly with exit status 0."""


def register(commands: Subparsers) -> None:
    about = "Run a broker in the foreground."
    parser = commands.add_parser("serve", help=about, description=about, epilog=_EPILOG)
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.base.config import load_config
    from braidmq.cli.output import warn

    config = load_config(given_flags(args), os.environ, args.config)
    for text in config.warnings:
        warn(text)

    import asyncio

    from braidmq.admin.service import WebService
    from braidmq.server.app import serve

    loop_factory, loop_name = _event_loop()

    def ready(addresses: dict[str, str]) -> None:
        print(banner(config, addresses, loop_name), flush=True)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(serve(config, on_ready=ready, companion=WebService))


def _event_loop() -> tuple[Callable[[], AbstractEventLoop] | None, str]:
    """uvloop where it is installed: half the time of asyncio's own loop a request."""
    try:
        import uvloop
    except ImportError:
        return None, "asyncio"
    return uvloop.new_event_loop, "uvloop"


def banner(config: Config, addresses: dict[str, str], loop_name: str) -> str:
    """What runs, where it listens, and three commands to try next."""
    from braidmq import __version__, hot
    from braidmq.cli.terminal import paint

    def label(text: str) -> str:
        return paint(f"{text:<12}", "dim", sys.stdout)

    lines = [
        f"{paint('BraidMQ ' + __version__, 'bold', sys.stdout)}  hot path {hot.IMPLEMENTATION}, {loop_name}",
        f"  {label('data')}{config.data_dir}",
        f"  {label('durability')}{config.durability}",
    ]
    lines += [f"  {label('listening')}{name} {address}" for name, address in addresses.items()]
    plain = next((address for name, address in addresses.items() if name.partition("-")[0] == "flymq"), None)
    server = "" if plain in (None, "127.0.0.1:9092", "0.0.0.0:9092") else f" --server {plain}"
    if plain is not None:
        lines += [
            "try next:",
            f"  braid topic create hello --partitions 3{server}",
            f"  braid produce hello 'a first message'{server}",
            f"  braid consume hello --from earliest{server}",
        ]
    return "\n".join(lines)
