"""`braid dev`: everything at once, to look at and to develop against.

A broker with all its ports, sample traffic by the three protocols, and a pipeline on Spark that works on it. Broker and pipeline
are programs of their own, just as anybody would start them (`braid serve`, `braid pipeline run`), so what is seen here is what
users get. Without Java or PySpark everything but the pipeline runs, and it says what is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.parser import Subparsers
from braidmq.cli.setting_flags import add_setting_flags, given_flags

if TYPE_CHECKING:
    from braidmq.cli.dev_figures import Watcher
    from braidmq.cli.dev_processes import Child
    from braidmq.cli.dev_traffic import Sender

_EPILOG = """examples:
  braid dev
  braid dev --data-dir ./data --no-pipeline
  braid dev --listen flymq://127.0.0.1:0 --listen blipmq://127.0.0.1:0 --listen fq://127.0.0.1:0

Takes every setting of `braid serve`. The pipeline, its table and all logs are in the folder demo of the data directory.
Ctrl-C and SIGTERM stop everything cleanly with exit status 0."""

START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_POLL_S: Final = 0.02
_PROTOCOLS: Final = ("flymq", "blipmq", "fq")


def register(commands: Subparsers) -> None:
    about = "Run a broker with sample traffic by all protocols, a pipeline and the console."
    parser = commands.add_parser("dev", help=about, description=about, epilog=_EPILOG)
    parser.add_argument("--pipeline", action=argparse.BooleanOptionalAction, default=True, help="whether the sample pipeline runs")
    parser.add_argument("--traffic", action=argparse.BooleanOptionalAction, default=True, help="whether sample orders are sent")
    add_setting_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from braidmq.base.config import load_config

    config = load_config(given_flags(args), os.environ, args.config)
    missing = set(_PROTOCOLS) - {listen.scheme for listen in config.listen}
    if missing:
        reason = f"`braid dev` speaks all protocols, and `--listen` lacks {', '.join(sorted(missing))}"
        raise BraidError("INVALID_ARGUMENT", reason=reason)
    folder = Path(config.data_dir, "demo")
    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    with _signals_set(ended), ExitStack() as stack:
        broker, ready = _start_broker(stack, args, folder, config.ready_file)
        if _is_ready(broker, ready, ended):
            _work(stack, args, folder, broker, json.loads(ready.read_text()), ended)
    return 0


@contextmanager
def _signals_set(ended: threading.Event) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the broker


def _start_broker(stack: ExitStack, args: argparse.Namespace, folder: Path, ready_file: str | None) -> tuple[Child, Path]:
    import tempfile

    from braidmq.cli.dev_processes import Child

    ready = Path(ready_file or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="braid-dev-")), "ready.json"))
    ready.unlink(missing_ok=True)
    broker = Child(["serve", *_serve_words(args), "--ready-file", str(ready)], folder / "broker.log")
    stack.callback(_stop_broker, broker)
    return broker, ready


def _is_ready(broker: Child, ready: Path, ended: threading.Event) -> bool:
    """Wait for its ready file; False when Ctrl-C comes first."""
    deadline_s = time.monotonic() + START_S_MAX
    while not ready.exists():
        if broker.status is not None:
            raise BraidError("CHILD_ENDED", what="the broker", status=broker.status, words=broker.last_words)
        if time.monotonic() > deadline_s:
            raise BraidError("TIMED_OUT", what="starting the broker", seconds=START_S_MAX)
        if ended.wait(_POLL_S):
            return False
    return True


def _stop_broker(broker: Child) -> None:
    status = broker.stop(_STOP_S_MAX)
    if status:
        from braidmq.cli.output import warn

        warn(f"the broker ended with status {status}; {broker.log} says why")


def _serve_words(args: argparse.Namespace) -> list[str]:
    """The settings that were given, as `braid serve` takes them; the ready file is ours."""
    from braidmq.base.config_settings import SETTINGS

    words = ["--config", args.config] if args.config else []
    for setting in SETTINGS:
        value = getattr(args, setting.key)
        if value is None or setting.key == "ready_file":
            continue
        if isinstance(value, bool):
            words.append(setting.flag if value else setting.flag.replace("--", "--no-", 1))
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [setting.flag, str(each)]
    return words


# --- what works on it


def _work(
    stack: ExitStack, args: argparse.Namespace, folder: Path, broker: Child, addresses: dict[str, str], ended: threading.Event
) -> None:
    from braidmq.cli.dev_figures import Watcher
    from braidmq.cli.dev_pipeline import GROUP, RESULTS, TABLE
    from braidmq.cli.dev_traffic import SENDERS, prepare
    from braidmq.client import sync

    prepare(addresses["flymq"])
    pipeline = _start_pipeline(stack, folder, addresses["flymq"]) if args.pipeline else None
    print(_banner(folder, addresses, pipeline is not None), flush=True)
    senders = [kind(addresses[kind.protocol], ended) for kind in SENDERS] if args.traffic else []
    for sender in senders:
        sender.start()
        stack.callback(sender.join, _STOP_S_MAX)
    stack.callback(ended.set)
    client = stack.enter_context(sync.connect(addresses["flymq"]))
    watcher = Watcher(client, GROUP, RESULTS, folder / TABLE, pipeline is not None)
    _watch(watcher, senders, broker, pipeline, ended)


def _start_pipeline(stack: ExitStack, folder: Path, server: str) -> Child | None:
    """The sample pipeline in a process of its own; None where this machine cannot run it, which is said."""
    from braidmq.cli.dev_pipeline import run_words, write_pipeline
    from braidmq.cli.dev_processes import Child
    from braidmq.cli.output import note, warn
    from braidmq.spark.java import use_java

    environ = dict(os.environ)
    try:
        if importlib.util.find_spec("pyspark") is None:
            raise BraidError("SPARK_UNAVAILABLE", package="pyspark")
        use_java(environ)
    except BraidError as fault:
        warn(f"everything runs but the pipeline: {fault.text}")
        note(fault.hint)
        return None
    pipeline = Child(run_words(write_pipeline(folder), server), folder / "pipeline.log", environ)
    stack.callback(pipeline.stop, _STOP_S_MAX)
    return pipeline


def _watch(watcher: Watcher, senders: Sequence[Sender], broker: Child, pipeline: Child | None, ended: threading.Event) -> None:
    """Show figures until somebody ends it, or the broker does."""
    from braidmq.cli.dev_figures import Display

    display = Display()
    while not ended.is_set():
        try:
            display.show(watcher, watcher.look(), senders, _state_of(pipeline))
        except BraidError as fault:
            if not fault.retriable:
                raise
        if broker.status is not None and not ended.is_set():
            raise BraidError("CHILD_ENDED", what="the broker", status=broker.status, words=broker.last_words)
        ended.wait(display.pause_s)


def _state_of(pipeline: Child | None) -> str:
    if pipeline is None:
        return "is not running"
    if pipeline.status is None:
        return "runs"
    return f"ended with status {pipeline.status}, see {pipeline.log}"


def _banner(folder: Path, addresses: dict[str, str], with_pipeline: bool) -> str:
    """What runs, where, and what to try next."""
    from braidmq import __version__
    from braidmq.cli.dev_pipeline import RESULTS, TABLE
    from braidmq.cli.dev_traffic import TOPICS
    from braidmq.cli.terminal import paint

    def label(text: str) -> str:
        return paint(f"{text:<12}", "dim", sys.stdout)

    plain = addresses["flymq"]
    server = "" if plain in ("127.0.0.1:9092", "0.0.0.0:9092") else f" --server {plain}"
    parts = "broker, sample traffic, pipeline" if with_pipeline else "broker, sample traffic"
    lines = [f"{paint('BraidMQ ' + __version__, 'bold', sys.stdout)}  {parts}"]
    lines += [f"  {label('listening')}{name} {address}" for name, address in addresses.items()]
    if "admin" in addresses:
        lines.append(f"  {label('console')}http://{addresses['admin']}/")
    lines.append(f"  {label('data')}{folder.parent}")
    lines.append(f"  {label('logs')}{folder / 'broker.log'}" + (f", {folder / 'pipeline.log'}" if with_pipeline else ""))
    lines += ["try next:", f"  braid consume {TOPICS['flymq']} --follow{server}"]
    if with_pipeline:
        lines += [
            f"  braid consume {RESULTS} --follow{server}",
            f"  braid dlq ls {TOPICS['blipmq']}{server}",
            f"  {label('pipeline')}{folder / 'pipeline.yaml'}, table {folder / TABLE}",
        ]
    return "\n".join([*lines, "Ctrl-C stops all of it."])
