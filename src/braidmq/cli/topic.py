"""`braid topic`: list, create, inspect and remove topics.

Removing checks every name before it removes any, so a typing mistake in the third name does not cost the first two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option

if TYPE_CHECKING:
    from braidmq.client.models import TopicInfo

PARTITIONS_DEFAULT = 3


def register(commands: Subparsers) -> None:
    group = add_group(commands, "topic", "List, create, inspect and remove topics.")

    about = "List the topics with their partitions and records."
    ls = group.add_parser("ls", help=about, description=about)
    ls.add_argument("-q", "--quiet", action="store_true", help="print only the names, one a line")
    add_output_option(ls)
    add_server_options(ls)
    ls.set_defaults(run=run_ls)

    about = "Create topics."
    create = group.add_parser("create", help=about, description=f"{about} A topic that exists stays as it is.")
    create.add_argument("topics", metavar="TOPIC", nargs="+", help="name of a topic to create")
    create.add_argument(
        "--partitions", type=int, default=PARTITIONS_DEFAULT, metavar="N", help=f"partitions of each topic [{PARTITIONS_DEFAULT}]"
    )
    add_server_options(create)
    create.set_defaults(run=run_create, rest="topics")

    about = "Show the partitions of a topic with their oldest and next offsets."
    info = group.add_parser("info", help=about, description=about)
    info.add_argument("topic", metavar="TOPIC", help="name of the topic")
    add_output_option(info)
    add_server_options(info)
    info.set_defaults(run=run_info)

    about = "Remove topics with all their records."
    rm = group.add_parser("rm", help=about, description=f"{about} Asks first when run on a terminal.")
    rm.add_argument("topics", metavar="TOPIC", nargs="+", help="name of a topic to remove")
    add_removal_options(rm)
    rm.add_argument("--if-exists", action="store_true", help="skip topics that do not exist")
    add_server_options(rm)
    rm.set_defaults(run=run_rm, rest="topics")


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table, printable

    with open_client(args) as client:
        names = client.list_topics()
        if args.quiet and args.output == "text":
            for name in names:
                print(printable(name))
            return Exit.OK
        found = [info for name in names if (info := _existing(client.metadata, name)) is not None]
    if args.output == "json":
        print_json([{"topic": info.topic, "partitions": len(info.partitions), "records": info.records} for info in found])
    else:
        print_table(("TOPIC", "PARTITIONS", "RECORDS"), [(info.topic, len(info.partitions), info.records) for info in found])
    return Exit.OK


def run_create(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        existing = set(client.list_topics())
        for name in args.topics:
            client.create_topic(name, args.partitions)
            note(f"{printable(name)} {'exists already; it stays as it is' if name in existing else 'created'}")
    return Exit.OK


def run_info(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table, printable

    with open_client(args) as client:
        info = client.metadata(args.topic)
    rows = [(part.partition, part.oldest, part.newest, part.newest - part.oldest) for part in info.partitions]
    if args.output == "json":
        fields = ("partition", "oldest", "newest", "records")
        print_json(
            {"topic": info.topic, "records": info.records, "partitions": [dict(zip(fields, row, strict=True)) for row in rows]}
        )
    else:
        print(f"{printable(info.topic)}: {len(rows)} partitions, {info.records:,} records")
        print_table(("PARTITION", "OLDEST", "NEXT", "RECORDS"), rows)
    return Exit.OK


def run_rm(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        found = []
        for name in dict.fromkeys(args.topics):
            info = _existing(client.metadata, name)
            if info is not None:
                found.append(info)
            elif not args.if_exists:
                raise BraidError("TOPIC_NOT_FOUND", topic=name)
        names = ", ".join(printable(info.topic) for info in found)
        question = f"remove {names} with {sum(info.records for info in found):,} records"
        if not args.dry_run and found and not confirmed(args, question):
            return Exit.FAILED
        for info in found:
            if not args.dry_run:
                client.delete_topic(info.topic)
            verb = "would remove" if args.dry_run else "removed"
            note(f"{verb} {printable(info.topic)}: {len(info.partitions)} partitions, {info.records:,} records")
    return Exit.OK


def _existing(metadata: Callable[[str], TopicInfo], name: str) -> TopicInfo | None:
    """What the broker says about a topic that may have gone in the meantime."""
    try:
        return metadata(name)
    except BraidError as fault:
        if fault.code != "TOPIC_NOT_FOUND":
            raise
        return None
