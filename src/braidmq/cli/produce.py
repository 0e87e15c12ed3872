"""`braid produce`: send messages and say how many the broker has acknowledged.

Messages go through the client's producer: batched, in order for each partition, retried without duplicates. The command ends
at the first message the broker refuses; what was acknowledged before is counted, and the status is not 0. Ctrl-C waits for what was
sent already and counts it as well.

With `--schema` or `--delay` each message is a request of its own and waits for its answer, and is never sent twice.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, duration_option, open_client
from braidmq.cli.exits import Exit, exit_for
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.parser import Subparsers, add_output_option
from braidmq.cli.terminal import Progress

if TYPE_CHECKING:
    from braidmq.cli.messages import Message
    from braidmq.client.models import RecordMetadata
    from braidmq.client.sync import Client, Delivery, Producer

UNCONFIRMED_MAX: Final = 10_000
"""Deliveries kept before the oldest is waited for; the producer's own buffer bounds the bytes."""
INTERRUPTED_FLUSH_SECONDS: Final = 5.0
"""How long Ctrl-C waits for messages that are on their way."""

_EPILOG = """examples:
  braid produce orders 'one message' 'another'
  seq 1000 | braid produce orders
  braid produce orders --key-separator : --file pairs.txt
  braid produce images --whole-file a.png --whole-file b.png --header kind=png
  yes tick | braid produce load --rate 1000/s
  braid produce reminders 'call back' --delay 30m"""


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
    if sum(what is not None for what in (args.schema, args.delay)) + bool(args.header or args.ttl is not None) > 1:
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
    with open_client(args) as client:
        timeout_s = None if args.timeout is None else duration_option(args.timeout, "--timeout")
        total = messages.total_of(args.values, args.whole_file)
        sender: _Sender
        if args.schema is None and delay_ms is None:
            producer = client.producer(delivery_timeout_s=timeout_s)
            sender = _BatchSender(producer, args.topic, args.partition, headers, ttl_ms, total)
        else:
            sender = _SingleSender(client, args.topic, args.partition, args.schema, delay_ms, total)
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


class _Sender(ABC):
    """Sends messages and counts their outcomes, in the order in which they were sent."""

    def __init__(self, topic: str, partition: int | None, total: int | None) -> None:
        self.sent = 0
        self.acked = 0
        self.last: RecordMetadata | None = None
        self.fault: BraidError | OSError | None = None
        self.interrupted = False
        self.delayed_ids: list[str] = []
        self._topic = topic
        self._partition = partition
        self._progress = Progress("messages", total)

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send one message, or take note of why it could not be sent."""

    def finish(self) -> None:
        """Wait for everything that was sent."""
        self._progress.close()


class _SingleSender(_Sender):
    """One request a message."""

    def __init__(
        self, client: Client, topic: str, partition: int | None, schema: str | None, delay_ms: int | None, total: int | None
    ) -> None:
        super().__init__(topic, partition, total)
        self._client = client
        self._schema = schema
        self._delay_ms = delay_ms

    def send(self, message: Message) -> None:
        self.sent += 1
        try:
            self.last = self._client.produce(
                self._topic, message.value, key=message.key, partition=self._partition, schema=self._schema,
                delay_ms=self._delay_ms,
            )  # fmt: skip
        except BraidError as fault:
            self.fault = fault
            return
        self.acked += 1
        if self.last.delayed_id:
            self.delayed_ids.append(self.last.delayed_id)
        self._progress.update(self.acked)


class _BatchSender(_Sender):
    """Batches, through a producer."""

    def __init__(
        self, producer: Producer, topic: str, partition: int | None, headers: dict[str, bytes], ttl_ms: int, total: int | None
    ) -> None:
        super().__init__(topic, partition, total)
        self._producer = producer
        self._headers = headers or None
        self._ttl_ms = ttl_ms
        self._waiting: deque[Delivery] = deque()

    def send(self, message: Message) -> None:
        delivery = self._producer.send(
            self._topic, message.value, key=message.key, partition=self._partition, headers=self._headers,
            ttl_ms=self._ttl_ms,
        )  # fmt: skip
        self.sent += 1
        self._waiting.append(delivery)
        if len(self._waiting) >= UNCONFIRMED_MAX:
            self._waiting[0].wait()
        self._collect()
        self._progress.update(self.acked)

    def _collect(self) -> None:
        """Count the outcomes that are known."""
        waiting = self._waiting
        while waiting and waiting[0].done():
            try:
                self.last = waiting.popleft().result()
                self.acked += 1
            except BraidError as fault:
                self.fault = self.fault or fault

    def finish(self) -> None:
        try:
            self._producer.flush(INTERRUPTED_FLUSH_SECONDS if self.interrupted else None)
        except BraidError as fault:
            self.fault = self.fault or fault
        self._collect()
        super().finish()


def _report(args: argparse.Namespace, sender: _Sender, seconds: float) -> None:
    from braidmq.cli.output import note, print_json, printable

    if args.output == "json":
        fault = None if sender.fault is None else str(sender.fault)
        last = None if sender.last is None else {"partition": sender.last.partition, "offset": sender.last.offset}
        document = {"topic": args.topic, "sent": sender.sent, "acked": sender.acked, "seconds": round(seconds, 6)}
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
        note(f"{sender.acked:,}{of} messages acknowledged in {seconds:.2f} s ({sender.acked / max(seconds, 1e-9):,.0f}/s)")
