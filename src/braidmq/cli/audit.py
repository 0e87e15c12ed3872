"""`braid audit`: who did what, newest first, or everything as one document."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final, Literal

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.parser import Subparsers, add_output_option

if TYPE_CHECKING:
    from braidmq.wire import flymq

_FIELDS: Final = ("id", "timestamp", "type", "user", "client_ip", "resource", "action", "result", "node_id")
_LOOK_SECONDS: Final = 0.5

_EPILOG = """examples:
  braid audit --type auth.failure --since 2026-01-31T08:00:00Z
  braid audit --result denied --by alice -o json
  braid audit --follow --result denied
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
    parser.add_argument("-f", "--follow", action="store_true", help="query: oldest first, then new events until Ctrl-C")
    parser.add_argument("--format", choices=("json", "csv"), default="json", help="export: form of the document [json]")
    add_output_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import note, print_json, print_table

    if args.follow and (args.action == "export" or args.until is not None or args.skip):
        raise BraidError("INVALID_ARGUMENT", reason="--follow has no place beside export, --until and --skip")
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
    if args.follow:
        return _follow(args, start)
    with open_client(args) as client:
        page = client.audit.query(
            start=start, end=end, types=args.type, user=args.by, resource=args.resource, result=args.result,
            search=args.search, limit=args.max, skip=args.skip,
        )  # fmt: skip
    if args.output == "json":
        print_json({"total": page.total, "has_more": page.has_more, "events": [_document(event) for event in page.events]})
        return Exit.OK
    rows = [_row(event) for event in page.events]
    print_table(("TIME", "TYPE", "USER", "FROM", "RESOURCE", "ACTION", "RESULT"), rows)
    if page.has_more:
        note(f"{len(rows)} of {page.total:,} events; --max and --skip show more")
    return Exit.OK


def _document(event: flymq.AuditEvent) -> dict[str, object]:
    return {**{name: getattr(event, name) for name in _FIELDS}, "details": dict(event.details)}


def _row(event: flymq.AuditEvent) -> tuple[str, ...]:
    from braidmq.cli.times import show_time

    place = (event.resource, event.action, event.result)
    return (show_time(event.timestamp), event.type, event.user or "-", event.client_ip or "-", *place)


def _follow(args: argparse.Namespace, start: int) -> int:
    """A line an event. Questions overlap by a second, because times of the trail are asked for in seconds; ids tell what is new."""
    import json

    seen: dict[str, int] = {}
    known = {"types": args.type, "user": args.by, "resource": args.resource, "result": args.result, "search": args.search}
    with open_client(args) as client, Interrupts() as interrupts:
        page = client.audit.query(start=start, limit=args.max, **known)
        events = list(page.events)
        while True:
            fresh = [event for event in reversed(events) if event.id not in seen]
            for event in fresh:
                seen[event.id] = event.timestamp
                print(json.dumps(_document(event), ensure_ascii=False) if args.output == "json" else _line(event), flush=True)
            start = max([start, *(event.timestamp // 1000 for event in fresh)])
            seen = {name: timestamp for name, timestamp in seen.items() if timestamp // 1000 >= start}
            interrupts.waiting = True
            interrupts.check()
            time.sleep(_LOOK_SECONDS)
            interrupts.waiting = False
            page = client.audit.query(start=start, **known)
            events = list(page.events)
            while page.has_more:
                page = client.audit.query(start=start, skip=len(events), **known)
                events += page.events


def _line(event: flymq.AuditEvent) -> str:
    from braidmq.cli.output import printable

    return "  ".join(printable(cell) for cell in _row(event))


def _seconds(text: str | None, option: str) -> int:
    from braidmq.cli.starting_point import parse_time

    if text is None:
        return 0
    try:
        return parse_time(text) // 1000
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"{option}: {fault}") from None
