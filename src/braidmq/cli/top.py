"""`braid top`: a broker live, on a terminal: rates, latency, topics, groups, connections.

Keys: t topics, g groups, c connections; r, s, l, n sort by rate, size, lag, name; space holds still; q quits. The view is laid out
anew each time it is drawn, so a window may be resized at any time. Off a terminal, or with `--once`, one view is printed and that
is all.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, duration_option, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.parser import Subparsers

if TYPE_CHECKING:
    from braidmq.cli.status_view import Rates
    from braidmq.client.sync import Client

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The other screen, no cursor."""
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_REST_OF_SCREEN: Final = "\x1b[J"
_VIEWS: Final = {"t": "topics", "g": "groups", "c": "connections"}
_SORTS: Final = {"r": "rate", "s": "size", "l": "lag", "n": "name"}
_HELP: Final = "t topics  g groups  c connections | sort: r rate  s size  l lag  n name | space hold  q quit"


@dataclass(slots=True)
class Choice:
    """What the person looks at."""

    view: str = "topics"
    sort: str = "rate"
    held: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What one look brought."""

    status: dict[str, Any]
    rates: Rates
    connections: list[dict[str, Any]]
    latency_ms: float


def register(commands: Subparsers) -> None:
    about = "Watch a broker live: rates, latency, topics, groups, connections."
    parser = commands.add_parser("top", help=about, description=f"{about} Needs the admin permission. {_HELP}")
    parser.add_argument("--interval", default="1s", metavar="DURATION", help="time between two looks [1s]")
    parser.add_argument("--once", action="store_true", help="print one view and end, as off a terminal")
    parser.add_argument("--view", choices=tuple(_VIEWS.values()), default="topics", help="what to show first [topics]")
    parser.add_argument("--sort", choices=tuple(_SORTS.values()), default="rate", help="how to sort at first [rate]")
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli.terminal import is_terminal

    interval_s = max(0.1, duration_option(args.interval, "--interval"))
    choice = Choice(args.view, args.sort)
    with open_client(args) as client:
        if args.once or not is_terminal(sys.stdout) or not is_terminal(sys.stdin):
            before = client.upkeep.document("status")
            time.sleep(interval_s)
            for line in view_lines(_look(client, before, choice), choice, (120, 60)):
                print(line.rstrip())
            return Exit.OK
        with _raw_terminal():
            _watch(client, choice, interval_s)
    return Exit.OK


def _watch(client: Client, choice: Choice, interval_s: float) -> None:
    """Look, draw, and listen for keys until one of them is q."""
    look: Look | None = None
    trouble = ["looking ..."]
    due_s = 0.0
    while True:
        now_s = time.monotonic()
        if now_s >= due_s and not choice.held:
            due_s = now_s + interval_s
            try:
                look = _look(client, look.status if look is not None else None, choice)
            except BraidError as fault:
                look, trouble = None, [f"no answer: {fault.code}", f"  {fault.hint}", "", "trying again; q quits"]
        # Laid out anew each time: the window may have another size by now.
        size = _size()
        _draw(view_lines(look, choice, size) if look is not None else [line[: size[0]] for line in trouble])
        wait_s = interval_s if choice.held else max(0.0, due_s - time.monotonic())
        for key in _keys(wait_s):
            if key in ("q", "\x03", "\x04"):
                return
            if key == " ":
                choice.held = not choice.held
            choice.view = _VIEWS.get(key, choice.view)
            choice.sort = _SORTS.get(key, choice.sort)
            if key in _VIEWS or key in _SORTS:
                due_s = 0.0


def _look(client: Client, before: dict[str, Any] | None, choice: Choice) -> Look:
    from braidmq.cli.status_view import rates_between

    asked_s = time.monotonic()
    status: dict[str, Any] = client.upkeep.document("status")
    latency_ms = (time.monotonic() - asked_s) * 1000
    connections = client.upkeep.document("connections") if choice.view == "connections" else []
    return Look(status, rates_between(before, status), connections, latency_ms)


# --- the view, as lines


def view_lines(look: Look, choice: Choice, size: tuple[int, int]) -> list[str]:
    """The whole screen for a terminal of `size`, none of its lines too long and none too many."""
    from braidmq.cli.output import printable
    from braidmq.cli.status_view import counted, findings, health_of, latency_text, shown_seconds, sized

    width, height = size
    status, rates = look.status, look.rates
    found = findings(status)
    connected = "  ".join(f"{name} {number}" for name, number in status["connections"].items()) or "none"
    total = sum(row["bytes"] for row in status["topics"])
    worst = max((row["lag"] for row in status["groups"]), default=0)
    lines = [
        f"BraidMQ {status['version']} {status['node']}  {health_of(found)}  up {shown_seconds(status['uptime_s'])}"
        f"  answer in {look.latency_ms:.1f} ms",
        f"writes {counted(rates.records)} records/s  {sized(rates.bytes)}/s   holds {sized(total)},"
        f" {sized(status['free_bytes'])} free   memory {sized(status['memory_bytes'])}",
        f"connections {connected}   topics {len(status['topics']):,}   groups {len(status['groups']):,}, worst lag {worst:,}"
        f"   delayed {status['delayed']:,}",
        f"latency p50/p99 in ms: {latency_text(rates)}",
    ]
    lines += [f"! {finding.text}" for finding in found if finding.level != "note"][:2]
    lines += ["", *_table(look, choice, max(0, height - len(lines) - 4))]
    lines = [printable(line)[:width] for line in lines[: max(1, height - 2)]]
    return [*lines, "", f"{_HELP}{'  (held)' if choice.held else ''}"[:width]]


def _table(look: Look, choice: Choice, room: int) -> list[str]:
    from braidmq.cli.status_view import counted, lag_text, shown_ms, sized

    status, rates = look.status, look.rates
    rows: list[tuple[str, ...]]
    if choice.view == "connections":
        by_connection = {"size": lambda row: -row["unsent_bytes"], "name": lambda row: row["user"]}
        shown = sorted(look.connections, key=by_connection.get(choice.sort, lambda row: row["silent_s"]))[:room]
        rows = [
            (row["address"], row["protocol"] + (" tls" if row["tls"] else ""), row["user"] or "-", f"{row['silent_s']:.0f}s",
             sized(row["unsent_bytes"]))
            for row in shown
        ]  # fmt: skip
        return _columns(("ADDRESS", "PROTOCOL", "USER", "SILENT", "UNSENT"), rows)
    if choice.view == "groups":
        def rate(row: dict[str, Any]) -> float:
            return rates.groups.get((row["topic"], row["group"]), 0.0)

        by_group = {"rate": lambda row: (-rate(row), row["group"]), "name": lambda row: (row["group"], row["topic"])}
        shown = sorted(status["groups"], key=by_group.get(choice.sort, lambda row: (-row["lag"], row["group"])))[:room]
        rows = [
            (row["group"], row["topic"], row["state"], str(row["members"]), lag_text(row), shown_ms(row["lag_ms"]),
             counted(rate(row)))
            for row in shown
        ]  # fmt: skip
        return _columns(("GROUP", "TOPIC", "STATE", "MEMBERS", "LAG", "BEHIND", "COMMITTED/S"), rows)

    lags: dict[str, int] = {}
    for row in status["groups"]:
        lags[row["topic"]] = max(lags.get(row["topic"], 0), row["lag"])

    def written(row: dict[str, Any]) -> tuple[float, float]:
        return rates.topics.get(row["topic"], (0.0, 0.0))

    by_topic = {
        "rate": lambda row: (-written(row)[0], -row["written"], row["topic"]),
        "size": lambda row: (-row["bytes"], row["topic"]),
        "lag": lambda row: (-lags.get(row["topic"], 0), row["topic"]),
        "name": lambda row: row["topic"],
    }
    shown = sorted(status["topics"], key=by_topic[choice.sort])[:room]
    rows = [
        (row["topic"], str(row["partitions"]), counted(written(row)[0]), f"{sized(written(row)[1])}", f"{row['records']:,}",
         sized(row["bytes"]), f"{lags.get(row['topic'], 0):,}")
        for row in shown
    ]  # fmt: skip
    return _columns(("TOPIC", "PARTS", "RECORDS/S", "BYTES/S", "RECORDS", "SIZE", "WORST LAG"), rows)


def _columns(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headings, *rows]]


# --- the terminal


def _size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return max(20, size.columns), max(6, size.lines)


def _draw(lines: list[str]) -> None:
    """Over what is there, line by line, so that nothing flickers. The last line has no newline: it would scroll."""
    text = "\r\n".join(line + _REST_OF_LINE for line in lines)
    sys.stdout.write(_HOME + text + _REST_OF_SCREEN)
    sys.stdout.flush()


def _keys(wait_s: float) -> Iterator[str]:
    """Keys that come within a time; returns with the first of them. A changed window ends the wait as well."""
    ready, _, _ = select.select([sys.stdin], [], [], min(wait_s, 0.5))
    if ready:
        typed = os.read(sys.stdin.fileno(), 64)
        # Nobody is at the terminal any more.
        yield from typed.decode("ascii", "ignore") if typed else "q"


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys one by one and unseen, on a screen of our own; everything as it was afterwards, whatever happens."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        sys.stdout.write(_ENTER)
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
