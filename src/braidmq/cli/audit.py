"""`braid audit`: who did what, newest first, or everything as one document."""

from __future__ import annotations

import argparse
import sys
from typing import Literal

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option

_EPILOG = """examples:
  braid audit --type auth.failure --since 2026-01-31T08:00:00Z
  braid audit --result denied --by alice -o json
  braid audit export --format csv > trail.csv"""


def register(commands: Subparsers) -> None:
    about = "Show the audit trail, or export it."
    parser = commands.add_parser("audit", help=about, description=about, epilog=_EPILOG)
    parser.add_argument(
        "action", choices=("query", "export"), nargs="?", default="query", help="show events, or write all of them [query]"
    )
    parser.add_argument("--since", metavar="TIME", help="not before this, as ISO 8601 or milliseconds since the epoch")
    parser.add_argument("--until", metavar="TIME", help="not after this")
    parser.add_argument("--type", action="append", default=[], metavar="TYPE", help="type of event, as auth.failure")
    parser.add_argument("--by", default="", metavar="NAME", help="events of this user")
    parser.add_argument("--resource", default="", metavar="TEXT", help="events whose resource contains this")
    parser.add_argument("--result", default="", choices=("success", "failure", "denied"), help="events that ended like this")
    parser.add_argument("--search", default="", metavar="TEXT", help="events that contain this")
    parser.add_argument("--max", type=int, default=100, metavar="N", help="query: at most so many [100]")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="query: leave out so many of the newest")
    parser.add_argument("--format", choices=("json", "csv"), default="json", help="export: form of the document [json]")
    add_output_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table
    from braidmq.cli.times import show_time

    start, end = _seconds(args.since, "--since"), _seconds(args.until, "--until")
    if args.action == "export":
        form: Literal["json", "csv"] = args.format
        with open_client(args) as client:
            document = client.audit.export(
                form, start=start, end=end, types=args.type, user=args.by, resource=args.resource, result=args.result,
                search=args.search,
            )  # fmt: skip
        sys.stdout.buffer.write(document)
        return Exit.OK
    with open_client(args) as client:
        page = client.audit.query(
            start=start, end=end, types=args.type, user=args.by, resource=args.resource, result=args.result,
            search=args.search, limit=args.max, skip=args.skip,
        )  # fmt: skip
    if args.output == "json":
        names = ("id", "timestamp", "type", "user", "client_ip", "resource", "action", "result", "node_id")
        events = [{**{name: getattr(event, name) for name in names}, "details": dict(event.details)} for event in page.events]
        print_json({"total": page.total, "has_more": page.has_more, "events": events})
        return Exit.OK
    rows = [
        (show_time(each.timestamp), each.type, each.user or "-", each.client_ip or "-", each.resource, each.action, each.result)
        for each in page.events
    ]
    print_table(("TIME", "TYPE", "USER", "FROM", "RESOURCE", "ACTION", "RESULT"), rows)
    if page.has_more:
        note(f"{len(rows)} of {page.total:,} events; --max and --skip show more")
    return Exit.OK


def _seconds(text: str | None, option: str) -> int:
    from braidmq.cli.starting_point import parse_time

    if text is None:
        return 0
    try:
        return parse_time(text) // 1000
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"{option}: {fault}") from None
