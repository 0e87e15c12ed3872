"""The verbs of `braid pipeline` that work on a definition: init, check, plan, run and replay."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.client.sync import Client
    from braidmq.spark.pipeline.context import Context
    from braidmq.spark.pipeline.reading import Reading
    from braidmq.spark.pipeline.running import Progress

_EXAMPLE: Final = """\
# A pipeline: `braid pipeline check`, `plan` and `run` take this file. All keys: docs/pipelines.md.
name: {name}
source:
  topics: [{topic}]
  # schema: {topic}            # decode values by this schema of the registry into the column `data`
  starting: earliest
steps:
  # - validate: {{}}            # what does not fit the schema becomes a dead letter
  - sql: >
      SELECT topic, partition, offset, timestamp, cast(key AS string) AS key, cast(value AS string) AS value
      FROM input
sinks:
  - table: {{path: lake/{name}, partition_by: [day]}}
trigger: {{every: 10 seconds}}
"""


def register(group: Subparsers) -> None:
    init = add_verb(group, "init", "Write a definition to begin with.", run_init)
    init.add_argument("name", metavar="NAME", help="name of the pipeline; the file is NAME.yaml")
    init.add_argument("--topic", default="orders", metavar="TOPIC", help="topic that it reads [orders]")
    init.add_argument("--force", action="store_true", help="overwrite a file that exists")

    check = add_verb(
        group, "check", "Find every error of a definition, with its line, without starting Spark.", run_check,
        "Asks the broker too, whether what is named there exists, unless --offline is given.",
    )  # fmt: skip
    _add_file(check)
    check.add_argument("--offline", action="store_true", help="do not ask the broker")
    add_output_option(check)
    add_server_options(check)

    plan = add_verb(group, "plan", "Show what a pipeline will do: its graph, and the columns after each step.", run_plan)
    _add_file(plan)
    add_output_option(plan)
    add_spark_options(plan)
    add_server_options(plan)

    run = add_verb(
        group, "run", "Run a pipeline, and show how far it is.", run_run,
        "It goes on until it is stopped, by Ctrl-C or by `braid pipeline stop`, unless --once is given.",
    )  # fmt: skip
    _add_file(run)
    run.add_argument("--once", action="store_true", help="take what is there, then end")
    run.add_argument(
        "--backfill",
        action="store_true",
        help="process what was written before the pipeline began, between --from and --to, then end",
    )
    _add_range(run)
    run.add_argument("--replace", action="store_true", help="take over from a run that is under way")
    add_fresh_option(run)
    run.add_argument("--no-broker", action="store_true", help="tell no broker of the run; for tables and files")
    add_spark_options(run)
    add_server_options(run)

    replay = add_verb(
        group, "replay", "Process records once more, or dead letters after a fix, without duplicates in the sinks.", run_replay,
        "Say which: --offsets, --from and --to, or --letters. Rules for each kind of sink: docs/pipelines.md.",
    )  # fmt: skip
    _add_file(replay)
    add_replay_options(replay)
    add_spark_options(replay)
    add_server_options(replay)


def add_fresh_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fresh", action="store_true", help="begin anew where an earlier run's checkpoint is gone")


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="definition: YAML, or Python with a variable `pipeline`")


def _add_range(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="since", metavar="TIME", help="records written from this time on, as 2025-01-31T12:00:00Z")
    parser.add_argument("--to", dest="until", metavar="TIME", help="and before this time [now]")


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """What to process once more."""
    parser.add_argument(
        "--offsets",
        action="append",
        default=[],
        metavar="TOPIC:PARTITION:FIRST-END",
        help="offsets to read again, END not included",
    )
    _add_range(parser)
    parser.add_argument("--letters", action="store_true", help="send the pipeline's dead letters back, and process them")
    parser.add_argument("--skip", action="append", default=[], metavar="SINK", help="leave a sink alone, as topic:orders.clean")


def _check_replay(args: argparse.Namespace) -> None:
    if sum((bool(args.offsets), bool(args.since), args.letters)) != 1 or (args.until and not args.since):
        raise BraidError("INVALID_ARGUMENT", reason="say what to replay: --offsets, --from with or without --to, or --letters")


def replay_wish(args: argparse.Namespace) -> dict[str, Any]:
    """What the options ask for, as the broker keeps it."""
    from braidmq.base.spans import read_span

    _check_replay(args)
    wish = {
        "offsets": [read_span(text) for text in args.offsets], "since_ms": _time(args.since),
        "until_ms": _time(args.until), "letters": args.letters, "skip": args.skip,
    }  # fmt: skip
    return {name: value for name, value in wish.items() if value}


def add_spark_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("spark")
    group.add_argument("--master", metavar="URL", help="local[N], spark://..., yarn or k8s://... [local[*]]")
    group.add_argument("--remote", metavar="URL", help="Spark Connect server, as sc://host:15002")
    group.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")


# --- what they share


def _read(args: argparse.Namespace) -> Reading:
    from braidmq.spark.pipeline.checking import check_definition
    from braidmq.spark.pipeline.reading import read_file

    reading = read_file(args.file, os.environ)
    check_definition(reading)
    return reading


def _sound(args: argparse.Namespace) -> Reading:
    """A definition without problems; otherwise they are printed, and PIPELINE_INVALID is raised."""
    reading = _read(args)
    if reading.problems:
        _print_problems(reading)
        raise BraidError("PIPELINE_INVALID", problems=f"{args.file} has {len(reading.problems)}")
    return reading


def _print_problems(reading: Reading) -> None:
    from braidmq.cli.output import printable

    for problem in reading.problems:
        print(printable(str(problem)))


def _client(args: argparse.Namespace, reading: Reading) -> Client:
    """A client of the broker that the command line names, else of the one that the definition names."""
    if args.server is None and reading.pipeline is not None and reading.pipeline.servers is not None:
        args.server = reading.pipeline.servers.split(",")
    return open_client(args)


def _context(reading: Reading, client: Client | None) -> Context:
    from braidmq.spark.pipeline.context import context_of

    return context_of(reading, client.settings if client is not None else None)


def _session(args: argparse.Namespace, reading: Reading) -> Any:
    pipeline = reading.require()
    return spark_session(args, f"braid pipeline {pipeline.name}", pipeline.spark)


def spark_session(args: argparse.Namespace, name: str, settings: Mapping[str, str]) -> Any:
    """The session that the command line asks for; its settings win over `settings`."""
    from braidmq.spark import session

    config = dict(settings)
    for each in args.conf:
        key, equals, value = each.partition("=")
        if not equals:
            raise BraidError("INVALID_ARGUMENT", reason=f"--conf {each!r} is not KEY=VALUE")
        config[key] = value
    return session(name, master=args.master, remote=args.remote, config=config)


# --- the verbs


def run_init(args: argparse.Namespace) -> int:
    from pathlib import Path

    from braidmq.base.naming import PIPELINE_NAME
    from braidmq.cli.output import note

    if not PIPELINE_NAME.fullmatch(args.name):
        raise BraidError("INVALID_ARGUMENT", reason=f"{args.name!r} is not a name for a pipeline")
    path = Path(f"{args.name}.yaml")
    if path.exists() and not args.force:
        raise BraidError("INVALID_ARGUMENT", reason=f"{path} exists; --force overwrites it")
    path.write_text(_EXAMPLE.format(name=args.name, topic=args.topic))
    note(f"wrote {path}; next: braid pipeline check {path}")
    return Exit.OK


def run_check(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json
    from braidmq.spark.pipeline.checking import check_broker

    reading = _read(args)
    if reading.pipeline is not None and not args.offline:
        with _client(args, reading) as client:
            check_broker(reading, client)
    if args.output == "json":
        print_json(
            [
                {"file": each.file, "line": each.place.line if each.place else None,
                 "column": each.place.column if each.place else None, "where": each.where, "text": each.text}
                for each in reading.problems
            ]
        )  # fmt: skip
    else:
        _print_problems(reading)
    if reading.problems:
        note(f"{len(reading.problems)} problems")
        return Exit.FAILED
    note(f"{args.file} is sound")
    return Exit.OK


def run_plan(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable
    from braidmq.spark.pipeline.planning import plan, plan_lines

    reading = _sound(args)
    with _client(args, reading) as client:
        context = _context(reading, client)
        stages = plan(_session(args, reading), context)
    if args.output == "json":
        print_json(
            [
                {"stage": each.name, "about": each.about, "columns": dict(each.columns), "dead_letters": each.letters_to}
                for each in stages
            ]
        )
    else:
        for line in plan_lines(context, stages):
            print(printable(line))
    return Exit.OK


def run_run(args: argparse.Namespace) -> int:
    reading = _sound(args)
    if args.backfill and args.once:
        raise BraidError("INVALID_ARGUMENT", reason="--once and --backfill exclude each other")
    if (args.since or args.until) and not args.backfill:
        raise BraidError("INVALID_ARGUMENT", reason="--from and --to go with --backfill")
    if args.no_broker:
        return run_definition(args, reading, None)
    with _client(args, reading) as client:
        return _backfill(args, reading, client) if args.backfill else run_definition(args, reading, client)


def run_definition(args: argparse.Namespace, reading: Reading, client: Client | None) -> int:
    from braidmq.cli.output import note
    from braidmq.spark.pipeline.running import Run

    screen = _Screen()
    context = _context(reading, client)
    run = Run(
        _session(args, reading), context, reading, once=args.once, client=client, replace=args.replace, fresh=args.fresh,
        show=screen.show,
    )  # fmt: skip
    previous = {number: signal.signal(number, lambda *_: run.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        outcome = run.go()
    finally:
        screen.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
    progress = run.progress
    late = f", {progress.late} too late" if progress.late else ""
    note(f"{outcome}: {progress.rows} rows, {sum(progress.rejected.values())} rejected{late}")
    return Exit.OK


def _backfill(args: argparse.Namespace, reading: Reading, client: Client) -> int:
    from braidmq.spark.pipeline.backfilling import backfill

    return _replayed(
        backfill(_session(args, reading), _context(reading, client), client, reading, _time(args.since), _time(args.until))
    )


def _time(text: str | None) -> int | None:
    from braidmq.cli.starting_point import parse_time

    return None if text is None else parse_time(text)


def run_replay(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note
    from braidmq.spark.pipeline import replaying

    _check_replay(args)
    reading = _sound(args)
    spans = [replaying.parse_span(text) for text in args.offsets]
    with _client(args, reading) as client:
        context = _context(reading, client)
        if args.letters:
            count = replaying.send_letters_back(client, context)
            note(f"{count} dead letters sent back")
            known = {each.name: each.state for each in client.pipeline.ls()}
            if not count or known.get(context.pipeline.name) in ("running", "paused"):
                return Exit.OK
            args.once, args.replace, args.fresh = True, False, False
            return run_definition(args, reading, client)
        since = _time(args.since)
        if since is not None:
            spans = replaying.spans_of_time(client, context, since, _time(args.until))
        return _replayed(replaying.replay(_session(args, reading), context, client, spans, skip=args.skip))


def _replayed(done: Any) -> int:
    from braidmq.cli.output import note

    rejected = sum(done.result.rejected.values())
    note(f"{done.records} records processed, {rejected} rejected" if done.records else "there is nothing in that range")
    return Exit.OK


class _Screen:
    """How far a run is: one line that rewrites itself on a terminal, a line every ten seconds elsewhere."""

    _EVERY: Final = 10

    def __init__(self) -> None:
        from braidmq.cli.terminal import is_terminal

        self._terminal = is_terminal(sys.stderr)
        self._count = 0
        self._last = ""

    def show(self, progress: Progress) -> None:
        rejected = sum(progress.rejected.values())
        lag = "-" if progress.lag is None else str(progress.lag)
        line = (
            f"{progress.state}  batch {max(progress.batch, 0)}  {progress.rows:,} rows  {progress.rate:,.0f} rows/s  lag {lag}  "
            f"rejected {rejected}{f'  late {progress.late}' if progress.late else ''}"
        )
        if self._terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif self._count % self._EVERY == 0 and line != self._last:
            print(line, file=sys.stderr, flush=True)
            self._last = line
        self._count += 1

    def close(self) -> None:
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
