"""`braid cp`: copy records, from a topic or a file to a topic or a file, on one broker or from one to another.

Keys, values and headers stay as they are; when a record was first written goes with it as a header, because the target's own
timestamp is that of the copy. Partitions stay where the target has as many as the source (`--map keep`), else keys decide.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option

if TYPE_CHECKING:
    from braidmq.cli.cp_ends import FileSource, Target, TopicSource, TopicTarget
    from braidmq.client.sync import Client

_EPILOG = """examples:
  braid cp orders orders-copy
  braid cp orders orders --to-server mq2.example.org:9092 --resume
  braid cp orders orders.jsonl --from @2026-01-31T08:00:00Z --filter '$.total'
  braid cp orders.jsonl orders-again --rate 1000
  braid cp orders - --dry-run

A name that ends in .jsonl, begins with ./ or / or is - is a file of JSON lines; `topic:NAME` and `file:PATH` say it outright."""


def register(commands: Subparsers) -> None:
    about = "Copy records between topics, brokers and files."
    parser = commands.add_parser("cp", help=about, description=about, epilog=_EPILOG)
    parser.add_argument("source", metavar="SRC", help="topic or file to read")
    parser.add_argument("target", metavar="DST", help="topic or file to write; a topic that is missing is created like the source")
    parser.add_argument("--from", dest="start", default="earliest", metavar="WHERE", help="an offset or @TIME [earliest]")
    parser.add_argument("--to", dest="stop", default="latest", metavar="WHERE", help="an offset or @TIME to end before [latest]")
    parser.add_argument("--partition", type=int, action="append", metavar="N", help="copy only this partition")
    parser.add_argument("--filter", metavar="TEXT", help="copy what has this text, matches this expression or has this $.path")
    parser.add_argument("--limit", type=int, metavar="N", help="end after so many records")
    parser.add_argument("--rate", metavar="RATE", help="at most so many records a second, as 1000 or 60/m")
    parser.add_argument(
        "--map", choices=("keep", "key"), help="partitions stay, or keys choose them [keep where both have as many, else key]"
    )
    parser.add_argument("--resume", action="store_true", help="go on after what the target has of an earlier copy")
    parser.add_argument("--plain", action="store_true", help="do not add headers that say where records come from")
    parser.add_argument("--dry-run", action="store_true", help="count what would be copied, and write nothing")
    parser.add_argument("--to-server", action="append", metavar="ADDR", help="broker of the target [the same]")
    parser.add_argument("--to-ctx", metavar="NAME", help="context of the target's broker")
    parser.add_argument("--to-user", metavar="NAME", help="user at the target's broker")
    parser.add_argument("--to-password-file", metavar="FILE", help="file with that user's password")
    add_output_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.broker.record_filter import compile_filter
    from braidmq.cli.messages import parse_rate
    from braidmq.cli.output import note, print_json
    from braidmq.cli.pace import Pace
    from braidmq.cli.terminal import Progress

    matches = compile_filter(args.filter) if args.filter is not None else None
    pace = Pace(parse_rate(args.rate)) if args.rate else None
    copied = size = 0
    with ExitStack() as stack:
        source, target = _ends(args, stack)
        if args.resume and target is not None:
            source.resume_after(target.last_copied(getattr(source, "topic", "")))
        progress = Progress("records", args.limit or source.total)
        try:
            for item in source.items():
                if args.limit is not None and copied >= args.limit:
                    break
                if matches is not None and not matches(item.key, item.value):
                    continue
                if target is not None:
                    if pace is not None:
                        pace.wait()
                    target.put(item)
                copied += 1
                size += item.size
                progress.update(copied)
            if target is not None:
                target.finish()
        finally:
            progress.close()
    if args.output == "json" and args.target != "-":
        print_json({"copied": copied, "bytes": size, "dry_run": args.dry_run})
    else:
        note(f"{'would copy' if args.dry_run else 'copied'} {copied:,} records, {size:,} bytes")
    return Exit.OK


def _ends(
    args: argparse.Namespace, stack: ExitStack
) -> tuple[TopicSource | FileSource, Target | None]:
    from braidmq.cli.cp_ends import FileSource, FileTarget, TopicSource
    from braidmq.cli.starting_point import parse_point

    start, stop = parse_point(args.start, "--from"), parse_point(args.stop, "--to")
    from_file, source_name = _meant(args.source)
    to_file, target_name = _meant(args.target)
    if from_file and (args.start != "earliest" or args.stop != "latest" or args.partition):
        raise BraidError("INVALID_ARGUMENT", reason="--from, --to and --partition choose from a topic, not from a file")
    near: Client | None = None if from_file else stack.enter_context(open_client(args))
    source: TopicSource | FileSource
    source = FileSource(source_name) if near is None else TopicSource(near, source_name, args.partition, start, stop)
    if args.dry_run:
        return source, None
    if to_file:
        target = FileTarget(target_name, args.resume)
        stack.callback(target.close)
        return source, target
    elsewhere = any((args.to_server, args.to_ctx, args.to_user))
    if not elsewhere and not from_file and source_name == target_name:
        raise BraidError("INVALID_ARGUMENT", reason="a topic cannot be copied onto itself")
    far = near if near is not None and not elsewhere else stack.enter_context(open_client(_far(args) if elsewhere else args))
    return source, _topic_target(args, far, target_name, source.partitions)


def _topic_target(args: argparse.Namespace, client: Client, topic: str, partitions: int) -> TopicTarget:
    """The topic to write, made where it is missing, and the rule by which partitions are chosen."""
    from braidmq.cli.cp_ends import TopicTarget

    if topic not in client.list_topics() and partitions:
        client.create_topic(topic, partitions)
    known = topic in client.list_topics()
    there = len(client.metadata(topic).partitions) if known else 0
    if args.map == "keep" and partitions > there > 0:
        raise BraidError("INVALID_ARGUMENT", reason=f"--map keep: {topic} has {there} partitions, the source {partitions}")
    if not known and (args.map == "keep" or args.resume):
        # Its partitions are those of the file, which nobody has counted.
        raise BraidError("TOPIC_NOT_FOUND", topic=topic)
    mapping = args.map or ("keep" if there == partitions or (not partitions and args.resume) else "key")
    return TopicTarget(client, topic, mapping, not args.plain)


def _far(args: argparse.Namespace) -> argparse.Namespace:
    """The connection of the target: what is not said of it is as for the source, but for who logs in."""
    far = argparse.Namespace(**vars(args))
    far.server, far.ctx = args.to_server, args.to_ctx
    far.user, far.password_file = args.to_user, args.to_password_file
    return far


def _meant(name: str) -> tuple[bool, str]:
    """Whether a name is that of a file, and the name."""
    kind, found, rest = name.partition(":")
    if found and kind in ("topic", "file"):
        return kind == "file", rest
    return name == "-" or name.endswith(".jsonl") or name.startswith(("./", "../", "/")), name
