"""`braid produce`: send messages and say how many the broker has acknowledged.

Messages go through the client's producer: batched, in order for each partition, retried without duplicates. The command ends
at the first message the broker refuses; what was acknowledged before is counted, and the status is not 0. Ctrl-C waits for what was
sent already and counts it as well.

`--via` sends them by another protocol of the broker (`via.py`). With `--schema` or `--delay` each message is a request of its own
and waits for its answer, and is never sent twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, duration_option, open_client
from braidmq.cli.exits import Exit, exit_for
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.parser import Subparsers, add_output_option
from braidmq.cli.senders import BatchSender, Sender, SingleSender
from braidmq.cli.via import BlipMQSender, FqSender, add_via_option, open_blipmq, open_fq, refuse

_EPILOG = """examples:
  braid produce orders 'one message' 'another'
  seq 1000 | braid produce orders
  braid produce orders --key-separator : --file pairs.txt
  braid produce images --whole-file a.png --whole-file b.png --header kind=png
  yes tick | braid produce load --rate 1000/s
  braid produce reminders 'call back' --delay 30m
  braid produce sensors/1/temp 21.5 --via blipmq
  braid produce logs 'GET /' --key web.access --via fq"""


def register(commands: Subparsers) -> None:
    about = "Send messages from arguments, lines of standard input, or files."
    parser = commands.add_parser("produce", help=about, description=about, epilog=_EPILOG)
    parser.add_argument("topic", metavar="TOPIC", help="topic to send to")
    parser.add_argument(
        "values", metavar="VALUE", nargs="*", help="a message; without any, and without files, lines of standard input"
    )
    parser.add_argument(
        "--file", action="append", default=[], metavar="FILE", help="send each line of a file (- is standard input)"
    )
    parser.add_argument("--whole-file", action="append", default=[], metavar="FILE", help="send a file as one message")
    parser.add_argument("--key", metavar="KEY", help="key of every message")
    parser.add_argument("--key-separator", metavar="SEP", help="each message is KEY SEP VALUE")
    parser.add_argument("--partition", type=int, metavar="N", help="partition to write to [by key, else in turn]")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="header of every message")
    parser.add_argument("--schema", metavar="SCHEMA", help="refuse messages that do not fit this schema")
    parser.add_argument("--delay", metavar="DURATION", help="deliver each message so much later, as 500ms or 10m")
    parser.add_argument("--ttl", metavar="DURATION", help="have each message vanish after this time")
    parser.add_argument("--rate", metavar="N/s", help="messages a second at most, as 1000, 1000/s or 60/m")
    add_via_option(parser)
    add_output_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run, rest="values")


def run(args: argparse.Namespace) -> int:
    from braidmq.cli import messages
    from braidmq.cli.output import print_fault
    from braidmq.cli.pace import Pace

    if args.key is not None and args.key_separator is not None:
        raise BraidError("INVALID_ARGUMENT", reason="--key and --key-separator exclude each other")
    if args.key_separator == "":
        raise BraidError("INVALID_ARGUMENT", reason="--key-separator is empty")
    with_extras = bool(args.header or args.ttl is not None)
    if args.via == "flymq" and sum(what is not None for what in (args.schema, args.delay)) + with_extras > 1:
        raise BraidError("INVALID_ARGUMENT", reason="--schema, --delay, and --ttl or --header exclude each other")
    delay_ms = None if args.delay is None else round(duration_option(args.delay, "--delay") * 1000)
    ttl_ms = 0 if args.ttl is None else round(duration_option(args.ttl, "--ttl") * 1000)
    if sum(map(bool, (args.values, args.file, args.whole_file))) > 1:
        raise BraidError(
            "INVALID_ARGUMENT", reason="take messages from arguments, --file or --whole-file, not from several of them"
        )
    headers = messages.parse_headers(args.header)
    pace = None if args.rate is None else Pace(messages.parse_rate(args.rate))
    key = None if args.key is None else os.fsencode(args.key)
    separator = None if args.key_separator is None else os.fsencode(args.key_separator)
    source = messages.with_keys(_values(args), key, separator)

    started = time.monotonic()
    with ExitStack() as connections:
        total = messages.total_of(args.values, args.whole_file)
        sender = _sender(args, connections, headers, delay_ms, ttl_ms, total)
        try:
            with Interrupts() as interrupts:
                interrupts.waiting = True
                for message in source:
                    if pace is not None:
                        pace.wait()
                    interrupts.waiting = False
                    sender.send(message)
                    if sender.fault is not None:
                        break
                    interrupts.waiting = True
                    interrupts.check()
        except (BraidError, OSError) as fault:
            sender.fault = sender.fault or fault
        except KeyboardInterrupt:
            sender.interrupted = True
        sender.finish()
    _report(args, sender, time.monotonic() - started)
    if sender.fault is not None:
        print_fault(sender.fault)
        return exit_for(sender.fault)
    return Exit.INTERRUPTED if sender.interrupted else Exit.OK


def _sender(
    args: argparse.Namespace, connections: ExitStack, headers: dict[str, bytes], delay_ms: int | None, ttl_ms: int,
    total: int | None,
) -> Sender:  # fmt: skip
    """Connect, as the arguments say; `connections` closes what was opened."""
    if args.via == "blipmq":
        refuse(args, key=None, key_separator=None, partition=None, schema=None, delay=None)
        return BlipMQSender(connections.enter_context(open_blipmq(args)), args.topic, headers, ttl_ms, total)
    if args.via == "fq":
        refuse(args, partition=None, schema=None, delay=None, ttl=None, header=[])
        return FqSender(connections.enter_context(open_fq(args)), args.topic, total)
    client = connections.enter_context(open_client(args))
    if args.schema is None and delay_ms is None:
        timeout_s = None if args.timeout is None else duration_option(args.timeout, "--timeout")
        return BatchSender(client.producer(delivery_timeout_s=timeout_s), args.topic, args.partition, headers, ttl_ms, total)
    return SingleSender(client, args.topic, args.partition, args.schema, delay_ms, total)


def _values(args: argparse.Namespace) -> Iterator[bytes]:
    """The messages without their keys, from whichever place the arguments name."""
    from braidmq.cli import messages
    from braidmq.cli.output import note
    from braidmq.cli.terminal import is_terminal

    if args.values:
        return messages.from_arguments(args.values)
    if args.whole_file:
        return messages.from_whole_files(args.whole_file)
    if args.file:
        return messages.from_line_files(args.file)
    if is_terminal(sys.stdin):
        note("reading messages from the terminal, one a line; Ctrl-D ends")
    return messages.from_lines(sys.stdin.buffer)


def _report(args: argparse.Namespace, sender: Sender, seconds: float) -> None:
    from braidmq.cli.output import note, print_json, printable

    if args.output == "json":
        fault = None if sender.fault is None else str(sender.fault)
        last = None if sender.last is None else {"partition": sender.last.partition, "offset": sender.last.offset}
        acked = None if args.via == "fq" else sender.acked
        document = {"topic": args.topic, "sent": sender.sent, "acked": acked, "seconds": round(seconds, 6)}
        ids = {"delayed": sender.delayed_ids} if args.delay is not None else {}
        print_json({**document, "last": last, "error": fault, **ids})
    elif args.delay is not None:
        for name in sender.delayed_ids:
            print(printable(name))
        note(f"{sender.acked:,} messages will be delivered in {args.delay}; `braid delayed cancel` takes these ids")
    elif sender.sent == 1 and sender.last is not None:
        note(f"acknowledged: {printable(args.topic)}/{sender.last.partition} offset {sender.last.offset}")
    else:
        of = "" if sender.acked == sender.sent else f" of {sender.sent:,}"
        things = "message" if sender.acked == sender.sent == 1 else "messages"
        note(f"{sender.acked:,}{of} {things} {sender.outcome} in {seconds:.2f} s ({sender.acked / max(seconds, 1e-9):,.0f}/s)")
