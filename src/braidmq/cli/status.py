"""`braid status`: how a broker is, on one screen, with an exit status that tells a script.

Rates are measured here: the broker is asked twice, `--interval` apart.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from braidmq.cli.connection import add_server_options, duration_option, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers, add_output_option

if TYPE_CHECKING:
    from braidmq.cli.status_view import Rates

_ROWS: Final = 8
"""Topics and groups shown; `-o json` has all."""


def register(commands: Subparsers) -> None:
    about = "Show how a broker is, on one screen."
    more = "Needs the admin permission. Status 0 when it is healthy, 1 when it is not, 3 when there is none."
    parser = commands.add_parser("status", help=about, description=f"{about} {more}")
    parser.add_argument(
        "--interval", default="1s", metavar="DURATION", help="time over which rates are measured; 0s measures none [1s]"
    )
    parser.add_argument("--strict", action="store_true", help="status 1 for a broker that is degraded, too")
    add_output_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.output import print_json
    from braidmq.cli.status_view import findings, health_of, rates_between

    interval_s = duration_option(args.interval, "--interval")
    with open_client(args) as client:
        before = client.upkeep.document("status")
        if interval_s > 0:
            time.sleep(interval_s)
        status = client.upkeep.document("status") if interval_s > 0 else before
    rates = rates_between(before, status)
    found = findings(status)
    health = health_of(found)
    if args.output == "json":
        measured = {"seconds": rates.seconds, "records_per_s": round(rates.records, 1), "bytes_per_s": round(rates.bytes, 1)}
        listed = [{"level": finding.level, "text": finding.text, "advice": finding.advice} for finding in found]
        print_json({"health": health, "findings": listed, "rates": measured, **status})
    else:
        print_status(status, rates, health)
        for finding in found:
            _print_finding(finding.level, finding.text, finding.advice)
    return Exit.FAILED if health == "unhealthy" or (args.strict and health != "healthy") else Exit.OK


def print_status(status: dict[str, Any], rates: Rates, health: str) -> None:
    from braidmq.cli.output import print_table, printable
    from braidmq.cli.status_view import counted, lag_text, shown_ms, shown_seconds, sized
    from braidmq.cli.terminal import paint

    colour = {"healthy": "green", "degraded": "yellow", "unhealthy": "red"}[health]
    uptime = shown_seconds(status["uptime_s"])
    print(f"BraidMQ {status['version']} ({status['node']})  {paint(health, colour, sys.stdout)}  up {uptime}  pid {status['pid']}")
    print(f"  data        {printable(status['data_dir'])}, {sized(status['free_bytes'])} free, durability {status['durability']}")
    print(f"  listening   {', '.join(f'{name} {address}' for name, address in status['listen'].items())}")
    connected = ", ".join(f"{number} {name}" for name, number in status["connections"].items()) or "none"
    print(f"  connected   {connected}; {status['connections_max']:,} at most")
    topics = status["topics"]
    totals = (sum(row["partitions"] for row in topics), sum(row["records"] for row in topics), sum(row["bytes"] for row in topics))
    print(f"  holds       {len(topics):,} topics, {totals[0]:,} partitions, {totals[1]:,} records, {sized(totals[2])}")
    if rates.seconds:
        print(f"  writes      {counted(rates.records)} records/s, {sized(rates.bytes)}/s over {rates.seconds:.1f}s")
    missing = ", ".join(status.get("queues_missing", ()))
    without = f", without those of {missing}" if missing else ""
    print(f"  waiting     {status['delayed']:,} delayed, {len(status['queues']):,} fq queues{without}")
    if status["pipelines"]:
        print(f"  pipelines   {', '.join(printable(row['pipeline']) + ' ' + row['state'] for row in status['pipelines'])}")
    recovery = status["recovery"]
    print(f"  last start  {'clean' if recovery['clean'] else 'after a crash'}, {recovery['bytes_truncated']:,} bytes cut off")
    if topics:
        shown = sorted(topics, key=lambda row: (-rates.topics.get(row["topic"], (0.0, 0.0))[0], -row["bytes"], row["topic"]))
        print()
        print_table(
            ("TOPIC", "PARTITIONS", "RECORDS", "SIZE", "RECORDS/S"),
            [
                (row["topic"], row["partitions"], row["records"], sized(row["bytes"]),
                 counted(rates.topics.get(row["topic"], (0.0, 0.0))[0]))
                for row in shown[:_ROWS]
            ],
        )  # fmt: skip
        _more(len(shown))
    if status["groups"]:
        groups = sorted(status["groups"], key=lambda row: (-row["lag"], row["group"]))
        print()
        rows = [
            (row["group"], row["topic"], row["state"], row["members"], lag_text(row) if row.get("unknown") else row["lag"],
             shown_ms(row["lag_ms"]))
            for row in groups[:_ROWS]
        ]  # fmt: skip
        print_table(("GROUP", "TOPIC", "STATE", "MEMBERS", "LAG", "BEHIND"), rows)
        _more(len(groups))


def _more(count: int) -> None:
    if count > _ROWS:
        print(f"  and {count - _ROWS:,} more")


def _print_finding(level: str, text: str, advice: str) -> None:
    from braidmq.cli.output import printable
    from braidmq.cli.terminal import paint

    colour = {"unhealthy": "red", "degraded": "yellow", "note": "cyan"}[level]
    print(f"{paint(level, colour, sys.stdout)}: {printable(text)}")
    print(f"  {advice}")
