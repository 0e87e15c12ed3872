"""`braid pipeline`: pipelines on Spark. Here those verbs that ask the broker; those that need Spark are in `pipeline_run.py`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from braidmq.cli import pipeline_run, ready_made
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.wire import flymq


def register(commands: Subparsers) -> None:
    group = add_group(commands, "pipeline", "Pipelines on Spark: declare, check, run, watch, steer and replay them.")
    pipeline_run.register(group)
    ready_made.register(group)

    ls = add_verb(group, "ls", "List the pipelines that the broker knows.", run_ls)
    add_output_option(ls)
    add_server_options(ls)

    show = add_verb(group, "show", "Show a pipeline: its state, its last runs, how far it is, and its definition.", run_show)
    _add_name(show)
    add_output_option(show)
    add_server_options(show)

    logs = add_verb(group, "logs", "Show recent events and errors of a pipeline's runs.", run_logs)
    _add_name(logs)
    logs.add_argument("--max", type=int, default=50, metavar="N", help="at most so many, the latest [50]")
    logs.add_argument("--run", dest="number", type=int, metavar="N", help="of this run only")
    add_output_option(logs)
    add_server_options(logs)

    for verb, about, done in (
        ("pause", "Have a running pipeline pause after its batch; it stays paused until it is resumed.", "pauses after its batch"),
        ("resume", "Have a paused pipeline go on where it was.", "goes on"),
        ("stop", "Have a running pipeline end after its batch.", "ends after its batch"),
    ):
        parser = add_verb(group, verb, about, run_steer)
        parser.set_defaults(steer=verb, done=done)
        _add_name(parser)
        add_server_options(parser)

    ask = add_verb(
        group, "ask-replay", "Ask the run of a pipeline to process records, or its dead letters, once more.", run_ask_replay,
        "The run takes it between two batches. Say what: --offsets, --from and --to, or --letters. `braid pipeline show` tells "
        "what became of it; --cancel takes one back that no run has taken. Rules for each kind of sink: docs/pipelines.md.",
    )  # fmt: skip
    _add_name(ask)
    pipeline_run.add_replay_options(ask)
    ask.add_argument("--cancel", type=int, metavar="N", help="take back replay N")
    add_output_option(ask)
    add_server_options(ask)

    rm = add_verb(
        group, "rm", "Have the broker forget a pipeline that does not run.", run_rm,
        "Checkpoint, consumer group, and what it wrote stay; retention no longer waits for it. Asks first when run on a terminal.",
    )  # fmt: skip
    _add_name(rm)
    add_removal_options(rm)
    add_server_options(rm)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of a pipeline")


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.times import show_time

    with open_client(args) as client:
        found = client.pipeline.ls()
    if args.output == "json":
        print_json([_summary(each) for each in found])
        return Exit.OK
    rows = []
    for each in found:
        progress = _progress(each.progress)
        rejected = sum(progress.get("rejected", {}).values())
        rows.append(
            (each.name, each.state, each.mode or "-", progress.get("rows", 0), progress.get("rate", 0.0), _lag(progress), rejected,
             show_time(each.started_ms), each.owner or "-")
        )  # fmt: skip
    print_table(("PIPELINE", "STATE", "MODE", "ROWS", "ROWS/S", "LAG", "REJECTED", "STARTED", "OWNER"), rows)
    return Exit.OK


def _summary(each: flymq.PipelineSummary) -> dict[str, Any]:
    return {
        "name": each.name, "owner": each.owner, "state": each.state, "desired": each.desired, "mode": each.mode,
        "changed_ms": each.changed_ms, "started_ms": each.started_ms, "progress": _progress(each.progress),
    }  # fmt: skip


def _progress(report: bytes) -> dict[str, Any]:
    import json

    found = json.loads(report) if report else {}
    return found if isinstance(found, dict) else {}


def _lag(progress: dict[str, Any]) -> str:
    lag = progress.get("lag")
    return "-" if lag is None else str(lag)


def run_show(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table, printable
    from braidmq.cli.times import show_age, show_time

    with open_client(args) as client:
        found = client.pipeline.show(args.name)
        replays = client.pipeline.replays(args.name)
    reports = [_progress(each.progress) for each in found.reports]
    if args.output == "json":
        runs = [
            {"run": r.number, "mode": r.mode, "where": r.where, "started_ms": r.started_ms, "ended_ms": r.ended_ms,
             "outcome": r.outcome, "reason": r.reason, "progress": _progress(r.progress)}
            for r in found.runs
        ]  # fmt: skip
        print_json(
            {"name": found.name, "owner": found.owner, "state": found.state, "desired": found.desired, "format": found.format,
             "definition": found.definition.decode("utf-8", "replace"), "changed_ms": found.changed_ms, "runs": runs,
             "replays": [_replay(each) for each in replays],
             "reports": [{"time_ms": each.time_ms, **report} for each, report in zip(found.reports, reports, strict=True)]}
        )  # fmt: skip
        return Exit.OK
    last = reports[-1] if reports else next((_progress(r.progress) for r in reversed(found.runs) if r.progress), {})
    document = {
        "name": found.name, "owner": found.owner or "-", "state": found.state, "changed": show_time(found.changed_ms),
        "rows": last.get("rows", 0), "rows/s": last.get("rate", 0), "lag": _lag(last),
        "rejected": ", ".join(f"{reason} {count}" for reason, count in last.get("rejected", {}).items()) or "0",
        "late": last.get("late", 0),
        "written": ", ".join(f"{sink} {count}" for sink, count in last.get("written", {}).items()) or "-",
    }  # fmt: skip
    for name, value in document.items():
        print(f"{name + ':':<10} {printable(str(value))}")
    print()
    rows = [
        (r.number, r.mode, show_time(r.started_ms), show_age(r.ended_ms - r.started_ms) if r.ended_ms else "-",
         r.outcome or "under way", printable(r.reason or r.where))
        for r in found.runs[-10:]
    ]  # fmt: skip
    print_table(("RUN", "MODE", "STARTED", "TOOK", "OUTCOME", "ABOUT"), rows)
    print()
    if replays:
        asked = [(each.number, each.state, show_time(each.asked_ms), each.result or each.outlook) for each in replays[-10:]]
        print_table(("REPLAY", "STATE", "ASKED", "ABOUT"), asked)
        print()
    for line in found.definition.decode("utf-8", "replace").splitlines():
        print(printable(line))
    return Exit.OK


def run_logs(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable
    from braidmq.cli.times import show_time

    with open_client(args) as client:
        events = client.pipeline.show(args.name).events
    shown = [each for each in events if args.number is None or each.run == args.number][-max(args.max, 0) :]
    if args.output == "json":
        print_json([{"time_ms": each.time_ms, "run": each.run, "level": each.level, "text": each.text} for each in shown])
        return Exit.OK
    for each in shown:
        print(f"{show_time(each.time_ms)}  run {each.run}  {each.level:<7}  {printable(each.text)}")
    return Exit.OK


def run_steer(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        {"pause": client.pipeline.pause, "resume": client.pipeline.resume, "stop": client.pipeline.stop}[args.steer](args.name)
    note(f"{printable(args.name)} {args.done}")
    return Exit.OK


def run_ask_replay(args: argparse.Namespace) -> int:
    from braidmq.base.errors import BraidError
    from braidmq.cli.output import note, print_json, printable

    if args.cancel is not None:
        if args.offsets or args.since or args.until or args.letters or args.skip:
            raise BraidError("INVALID_ARGUMENT", reason="--cancel asks for nothing else")
        with open_client(args) as client:
            client.pipeline.cancel_replay(args.name, args.cancel)
        note(f"cancelled replay {args.cancel}")
        return Exit.OK
    wish = pipeline_run.replay_wish(args)
    with open_client(args) as client:
        found = client.pipeline.ask_replay(args.name, wish)
    if args.output == "json":
        print_json(_replay(found))
    else:
        note(f"replay {found.number} of {printable(args.name)} is requested: {found.outlook}")
    return Exit.OK


def _replay(each: flymq.ReplayEntry) -> dict[str, Any]:
    import json

    return {
        "replay": each.number, "state": each.state, "by": each.by, "wish": json.loads(each.wish), "asked_ms": each.asked_ms,
        "run": each.run, "started_ms": each.started_ms, "ended_ms": each.ended_ms, "result": each.result, "outlook": each.outlook,
    }  # fmt: skip


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        client.pipeline.show(args.name)
        if not args.dry_run:
            if not confirmed(args, f"forget the pipeline {printable(args.name)}"):
                return Exit.FAILED
            client.pipeline.rm(args.name)
    note(f"{'would forget' if args.dry_run else 'forgot'} {printable(args.name)}")
    return Exit.OK
