"""`braid dlq`: dead letters of a topic, and sending them back."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.confirm import add_removal_options, confirmed
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_group, add_output_option, add_verb

if TYPE_CHECKING:
    from braidmq.client.sync import Client

SHOWN_CHARACTERS: Final = 60
LISTED_MAX: Final = 1000
"""So many are counted before something happens to all of them."""


def register(commands: Subparsers) -> None:
    group = add_group(commands, "dlq", "Dead letters: records of a topic that could not be used.")

    ls = add_verb(group, "ls", "List the dead letters of a topic, the oldest first.", run_ls)
    ls.add_argument("topic", metavar="TOPIC", help="topic that the records came from")
    ls.add_argument("--max", type=int, default=100, metavar="N", help="at most so many [100]")
    add_output_option(ls)
    add_server_options(ls)

    show = add_verb(group, "show", "Show a dead letter with its story.", run_show)
    show.add_argument("topic", metavar="TOPIC", help="topic that the record came from")
    show.add_argument("id", metavar="ID", help="id of the dead letter, as `braid dlq ls` shows it")
    add_output_option(show)
    add_server_options(show)

    retry = add_verb(
        group, "retry", "Send dead letters back to their topic, each once.", run_retry,
        "Name some, say what they match, or ask for all. Asks first when run on a terminal.",
    )  # fmt: skip
    retry.add_argument("topic", metavar="TOPIC", help="topic that the records came from")
    retry.add_argument("ids", metavar="ID", nargs="*", help="id of a dead letter")
    retry.add_argument("--matching", default="", metavar="FILTER", help="those whose reason, error, key or value it matches")
    retry.add_argument("--all", action="store_true", help="all of them")
    retry.add_argument("--max", type=int, default=0, metavar="N", help="with --matching or --all: at most so many")
    add_removal_options(retry, "sent back")
    add_server_options(retry)
    retry.set_defaults(rest="ids")

    discard = add_verb(group, "discard", "Delete some dead letters for good.", run_discard, "Asks first when run on a terminal.")
    discard.add_argument("topic", metavar="TOPIC", help="topic that the records came from")
    discard.add_argument("ids", metavar="ID", nargs="+", help="id of a dead letter")
    add_removal_options(discard, "deleted")
    add_server_options(discard)
    discard.set_defaults(rest="ids")

    purge = add_verb(group, "purge", "Delete all dead letters of a topic.", run_purge, "Asks first when run on a terminal.")
    purge.add_argument("topic", metavar="TOPIC", help="topic that the records came from")
    add_removal_options(purge, "deleted")
    add_server_options(purge)


def run_ls(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, print_table
    from braidmq.cli.record_format import put_bytes

    with open_client(args) as client:
        found = client.dlq.ls(args.topic, args.max)
    if args.output == "json":
        documents = []
        for letter in found:
            document: dict[str, object] = {"id": letter.id, "error": letter.error, "attempts": letter.retries}
            put_bytes(document, "value", letter.data)
            documents.append(document)
        print_json(documents)
    else:
        rows = [(each.id, each.retries, _short(each.error), _short(each.data.decode("utf-8", "replace"))) for each in found]
        print_table(("ID", "ATTEMPTS", "ERROR", "VALUE"), rows)
    return Exit.OK


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def run_show(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json, printable
    from braidmq.cli.record_format import put_bytes
    from braidmq.cli.times import show_time

    with open_client(args) as client:
        record, story = client.dlq.show(args.topic, args.id)
    document: dict[str, object] = {"id": args.id}
    if story is not None:
        document |= {
            "topic": story.topic, "partition": story.partition, "offset": story.offset, "reason": story.reason,
            "error": story.error, "attempts": story.attempts, "first_failure": show_time(story.first_failure_ms),
            "last_failure": show_time(story.last_failure_ms),
        }  # fmt: skip
    put_bytes(document, "key", record.key)
    put_bytes(document, "value", record.value)
    for header, content in record.headers.items():
        put_bytes(document, f"header {header}", content)
    if args.output == "json":
        print_json(document)
    else:
        for name, value in document.items():
            print(f"{name + ':':<15} {printable(str(value))}")
    return Exit.OK


def run_retry(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    if sum((bool(args.ids), bool(args.matching), args.all)) != 1:
        raise BraidError("INVALID_ARGUMENT", reason="name dead letters by their ids, or give one of --matching and --all")
    if args.ids and args.max:
        raise BraidError("INVALID_ARGUMENT", reason="--max goes with --matching or --all")
    what = f"{len(args.ids)} dead letters" if args.ids else "all dead letters" if args.all else "matching dead letters"
    with open_client(args) as client:
        if args.dry_run:
            for letter in args.ids:
                client.dlq.find(args.topic, letter)
            note(f"would send {what} back to {printable(args.topic)}, which has {_counted(client, args.topic)}")
            return Exit.OK
        if not confirmed(args, f"send {what} back to {printable(args.topic)}"):
            return Exit.FAILED
        count = client.dlq.retry(args.topic, *args.ids, matching=args.matching, everything=args.all, max_count=args.max)
    note(f"{count} dead letters sent back to {printable(args.topic)}")
    return Exit.OK


def _counted(client: Client, topic: str) -> str:
    count = len(client.dlq.ls(topic, LISTED_MAX))
    return str(count) if count < LISTED_MAX else f"{count} or more"


def run_discard(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    what = f"{len(args.ids)} dead letters of {printable(args.topic)}"
    with open_client(args) as client:
        for letter in args.ids:
            client.dlq.find(args.topic, letter)
        if not args.dry_run:
            if not confirmed(args, f"delete {what}"):
                return Exit.FAILED
            client.dlq.discard(args.topic, *args.ids)
    note(f"{'would delete' if args.dry_run else 'deleted'} {what}")
    return Exit.OK


def run_purge(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, printable

    with open_client(args) as client:
        shown = f"{_counted(client, args.topic)} dead letters"
        if not args.dry_run:
            if not confirmed(args, f"delete {shown} of {printable(args.topic)}"):
                return Exit.FAILED
            client.dlq.purge(args.topic)
    note(f"{'would delete' if args.dry_run else 'deleted'} {shown} of {printable(args.topic)}")
    return Exit.OK
