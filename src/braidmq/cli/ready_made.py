"""The ready-made pipelines below `braid pipeline`: archive, compact, mirror, profile and dlq-triage."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from braidmq.base.errors import BraidError
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.client.sync import Client



def register(group: Subparsers) -> None:
    archive = add_verb(
        group, "archive", "Keep a topic for ever, in a Delta table divided by day.", run_archive,
        "A pipeline like any other: --print shows its definition. `braidmq.spark.history` reads table and topic as one.",
    )  # fmt: skip
    _add_topic(archive)
    archive.add_argument("--table", metavar="DIR", help="path of the table [archive/TOPIC]")
    archive.add_argument("--compact-every", type=int, default=20, metavar="N", help="join small files after so many batches [20]")
    archive.add_argument("--checkpoint", metavar="DIR", help="folder for what Spark remembers [_checkpoint in the table]")
    _add_trigger(archive)

    compact = add_verb(group, "compact", "Keep the latest record of each key, in a Delta table, a topic, or both.", run_compact)
    _add_topic(compact)
    compact.add_argument("--table", metavar="DIR", help="path of the table")
    compact.add_argument("--to-topic", metavar="TOPIC", help="topic for the latest records")
    _add_checkpoint(compact)
    _add_trigger(compact)

    mirror = add_verb(group, "mirror", "Copy topics to another broker, each record once, into the same partitions.", run_mirror)
    mirror.add_argument("topics", metavar="TOPIC", nargs="+", help="topic to copy")
    mirror.add_argument("--to", required=True, metavar="ADDR", help="the other broker, as host:port")
    mirror.add_argument(
        "--to-option", action="append", default=[], metavar="KEY=VALUE", help="how to reach it: an option of the data source"
    )
    mirror.add_argument("--prefix", default="", metavar="TEXT", help="goes before the names of topics there")
    _add_checkpoint(mirror)
    _add_trigger(mirror)

    profile = add_verb(group, "profile", "Say what is in a topic: counts, sizes, rates, keys, fields, drift.", run_profile)
    _add_topic(profile)
    profile.add_argument("--schema", metavar="NAME", help="decode values by this schema of the registry [they are JSON]")
    profile.add_argument("--from", dest="since", metavar="TIME", help="records from this time on, as 2025-01-31T12:00:00Z [all]")
    profile.add_argument("--html", metavar="FILE", help="write a report with plots, in one file")
    profile.add_argument("--table", metavar="DIR", help="append the figures to this Delta table")
    add_output_option(profile)
    _add_spark(profile)

    triage = add_verb(
        group, "dlq-triage", "Group dead letters by their cause, with samples.", run_triage, "Needs neither Spark nor Java."
    )
    _add_topic(triage)
    triage.add_argument("--html", metavar="FILE", help="write a report with plots, in one file")
    add_output_option(triage)
    add_server_options(triage)


def _add_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of a topic")


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", metavar="DIR", help="folder for what Spark remembers [checkpoints]")


def _add_trigger(parser: argparse.ArgumentParser) -> None:
    from braidmq.cli.pipeline_run import add_fresh_option

    parser.add_argument("--print", dest="print_only", action="store_true", help="print the definition, and run nothing")
    parser.add_argument("--replace", action="store_true", help="take over from a run that is under way")
    add_fresh_option(parser)
    parser.add_argument("--once", action="store_true", help="take what is there, then end")
    parser.add_argument("--every", metavar="DURATION", help="at most one batch in this time, as `10 seconds`")
    parser.add_argument("--max-records", type=int, metavar="N", help="most records of a batch")
    parser.add_argument(
        "--max-bytes", metavar="SIZE", help="about how many stored bytes a batch reads [what is about 256MiB when it is read]"
    )
    _add_spark(parser)


def _add_spark(parser: argparse.ArgumentParser) -> None:
    from braidmq.cli.pipeline_run import add_spark_options

    add_spark_options(parser)
    add_server_options(parser)


# --- pipelines


def run_archive(args: argparse.Namespace) -> int:
    from braidmq.spark.products.archive import archive_definition

    text = archive_definition(
        args.topic, args.table, checkpoint=args.checkpoint, compact_every=args.compact_every, **_when_and_how_much(args)
    )
    return _run_pipeline(args, text, [args.topic], {})


def run_compact(args: argparse.Namespace) -> int:
    from braidmq.spark.products.compact import compact_definition

    text = compact_definition(
        args.topic, table=args.table, to_topic=args.to_topic, checkpoint=args.checkpoint, **_when_and_how_much(args)
    )
    return _run_pipeline(args, text, [args.topic], {})


def run_mirror(args: argparse.Namespace) -> int:
    from braidmq.spark.products.mirror import mirror_definition

    options: dict[str, str] = {}
    for each in args.to_option:
        key, equals, value = each.partition("=")
        if not equals:
            raise BraidError("INVALID_ARGUMENT", reason=f"--to-option {each!r} is not KEY=VALUE")
        options[key] = value
    text, variables = mirror_definition(
        args.topics, args.to, prefix=args.prefix, options=options, checkpoint=args.checkpoint, **_when_and_how_much(args)
    )
    return _run_pipeline(args, text, args.topics, variables)


def _when_and_how_much(args: argparse.Namespace) -> dict[str, Any]:
    return {"every": args.every, "max_records": args.max_records, "max_bytes": args.max_bytes}


def _run_pipeline(args: argparse.Namespace, text: str, topics: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a definition of ours like one of the user's; `variables` stand in it for what the broker must not see."""
    from braidmq.cli.pipeline_run import run_definition
    from braidmq.spark.pipeline.checking import check_definition
    from braidmq.spark.pipeline.reading import read_yaml

    if args.print_only:
        print(text, end="")
        return Exit.OK
    # The definition stands where the command is run: there tables and checkpoints are looked for.
    reading = read_yaml(text, os.path.join(os.getcwd(), "pipeline.yaml"), variables)
    check_definition(reading)
    reading.require()
    with open_client(args) as client:
        for topic in topics:
            client.metadata(topic)
        return run_definition(args, reading, client)


# --- reports


def run_profile(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.pipeline_run import spark_session
    from braidmq.cli.starting_point import parse_time
    from braidmq.spark.pipeline.context import source_options
    from braidmq.spark.products.page import cell
    from braidmq.spark.products.profile import profile, write_table

    with open_client(args) as client:
        client.metadata(args.topic)
        options = source_options(client.settings)
    since = None if args.since is None else parse_time(args.since)
    found = profile(spark_session(args, f"braid profile {args.topic}", {}), args.topic, options, schema=args.schema, since_ms=since)
    if args.table:
        write_table(found, args.table)
    if args.output == "json":
        print_json([{"section": row[0], "name": row[1], "metric": row[2], "value": row[3]} for row in found.rows()])
    else:
        print_table(("SECTION", "NAME", "METRIC", "VALUE"), [(*row[:3], cell(row[3])) for row in found.rows()])
        for drift in found.drifts:
            print(f"drift: {drift.path} {drift.what}")
    _write_page(args.html, found)
    return Exit.OK


def run_triage(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.spark.products.triage import triage

    with open_client(args) as client:
        _require(client, args.topic)
        found = triage(client, args.topic)
    if args.output == "json":
        print_json(found.documents())
    else:
        print_table(("LETTERS", "REASON", "ERROR", "FIRST", "LAST", "SAMPLE"), found.rows())
    _write_page(args.html, found)
    return Exit.OK


def _require(client: Client, topic: str) -> None:
    client.metadata(topic.removesuffix(DEAD_LETTER_ENDING))


def _write_page(path: str | None, found: Any) -> None:
    from braidmq.cli.output import note

    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(found.html())
        note(f"wrote {path}")
