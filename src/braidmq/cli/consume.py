"""`braid consume`: print records.

Without `--follow` it prints what is there when it starts and ends; with it, it waits for more until Ctrl-C or `--count`. With
`--group` it begins at the group's committed offsets and commits what it has printed, after printing it: a crash in between
prints a record again, it never skips one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import add_server_options, open_client
from braidmq.cli.exits import Exit
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.parser import Subparsers
from braidmq.cli.via import add_via_option, refuse

if TYPE_CHECKING:
    from braidmq.cli.decoding import SchemaReader
    from braidmq.client.models import PartitionInfo, Record, TopicPartition
    from braidmq.client.sync import Client, Consumer

FORMATS: Final = ("text", "json", "raw")
POLL_RECORDS: Final = 500
POLL_SECONDS: Final = 1.0
COMMIT_SECONDS: Final = 1.0
"""How often a group's progress is stored while records are being printed."""

_EPILOG = """examples:
  braid consume orders                             all records, then end
  braid consume orders --follow                    new records as they come
  braid consume orders --from 100 --partition 0 --count 10
  braid consume orders --from @2026-01-31T08:00:00Z -o json
  braid consume orders --schema orders -o json     with each value as its schema reads it
  braid consume orders --group billing --follow    go on where the group stopped
  braid consume 'sensors/+/temp' --via blipmq      what is published from now on
  braid consume logs --via fq --program 'prefix:"web."'"""


def register(commands: Subparsers) -> None:
    about = "Print the records of a topic."
    parser = commands.add_parser("consume", help=about, description=about, epilog=_EPILOG)
    parser.add_argument("topic", metavar="TOPIC", help="topic to read")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="WHERE",
        help="earliest, latest, an offset, or @TIME as ISO 8601 or milliseconds since the epoch "
        "[the group's offset; else earliest; with --follow latest]",
    )
    parser.add_argument("--partition", type=int, action="append", metavar="N", help="read only this partition")
    parser.add_argument("--group", metavar="GROUP", help="begin at this group's committed offsets, and commit what was printed")
    parser.add_argument("--count", type=int, metavar="N", help="end after so many records")
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more records at the end")
    parser.add_argument("--format", choices=FORMATS, help="form of a record [text]")
    parser.add_argument("-o", "--output", choices=("text", "json"), help="the same as --format, under the name other commands use")
    parser.add_argument("--show-key", action="store_true", help="print the key before the value (text)")
    parser.add_argument("--show-offset", action="store_true", help="print partition:offset before the value (text)")
    parser.add_argument("--schema", metavar="SCHEMA", help="show values as this schema reads them, and say which do not fit")
    parser.add_argument("--program", metavar="PROGRAM", help="route program that chooses messages (--via fq) [prefix:]")
    add_via_option(parser)
    add_server_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from braidmq.cli import via
    from braidmq.cli.record_format import formatter
    from braidmq.cli.starting_point import parse_start

    if args.format and args.output and args.format != args.output:
        raise BraidError("INVALID_ARGUMENT", reason=f"--format {args.format} and -o {args.output} contradict each other")
    if args.count is not None and args.count < 0:
        raise BraidError("INVALID_ARGUMENT", reason="--count is negative")
    if args.via != "flymq":
        refuse(args, start=None, partition=None, schema=None, **({} if args.via == "fq" else {"program": None}))
        via.consume(args, formatter(args.format or args.output or "text", args.show_key, args.show_offset))
        return Exit.OK
    refuse(args, program=None)
    if args.schema is not None and args.format == "raw":
        raise BraidError("INVALID_ARGUMENT", reason="--format raw shows values as they are, --schema as a schema reads them")
    point = parse_start(args.start, group=args.group is not None, follow=args.follow)
    with open_client(args) as client:
        reader = None if args.schema is None else _reader(client, args.schema)
        parts = _partitions(client, args.topic, args.partition)
        if point.kind == "offset" and all(point.value > part.newest for part in parts):
            part = parts[0]
            raise BraidError(
                "OFFSET_OUT_OF_RANGE",
                offset=point.value, topic=args.topic, partition=part.partition, oldest=part.oldest, newest=part.newest,
            )  # fmt: skip
        consumer = client.consumer(
            {args.topic: [part.partition for part in parts]},
            group=args.group or "",
            start=point.kind if point.kind in ("committed", "earliest") else "latest",
            auto_commit=False,
        )
        consumer.start()
        if point.kind in ("offset", "time"):
            for part in parts:
                consumer.seek(args.topic, part.partition, point.offset_in(client, args.topic, part))
        ends = None if args.follow else {part.partition: part.newest for part in parts}
        write = formatter(args.format or args.output or "text", args.show_key, args.show_offset, reader)
        printer = _Printer(consumer, args.topic, ends, args.count, write)
        try:
            printer.run()
        finally:
            printer.commit()
    return Exit.OK


def _reader(client: Client, schema: str) -> SchemaReader:
    from braidmq.cli.decoding import SchemaReader

    return SchemaReader(client, schema)


def _partitions(client: Client, topic: str, chosen: Sequence[int] | None) -> list[PartitionInfo]:
    parts = client.metadata(topic).partitions
    if chosen is None:
        return list(parts)
    for number in chosen:
        if not 0 <= number < len(parts):
            raise BraidError("PARTITION_NOT_FOUND", partition=number)
    return [parts[number] for number in dict.fromkeys(chosen)]


class _Printer:
    """Prints what a consumer reads until it has printed enough, and knows what it has printed."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        ends: dict[int, int] | None,
        count: int | None,
        write: Callable[[Record], bytes],
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._ends = ends
        self._left = count
        self._write = write
        self._printed: dict[TopicPartition, int] = {}
        self._committed_at = time.monotonic()

    def run(self) -> None:
        with Interrupts() as interrupts:
            while self._left != 0 and not self._at_end():
                interrupts.waiting = True
                records = self._consumer.poll(POLL_RECORDS if self._left is None else min(self._left, POLL_RECORDS), POLL_SECONDS)
                interrupts.waiting = False
                self._print(records)
                if time.monotonic() - self._committed_at >= COMMIT_SECONDS:
                    self.commit()
                interrupts.check()

    def _at_end(self) -> bool:
        ends = self._ends
        return ends is not None and all(self._consumer.position(self._topic, part) >= end for part, end in ends.items())

    def _print(self, records: Sequence[Record]) -> None:
        from braidmq.client.models import TopicPartition

        if self._ends is not None:
            # What was written after the command began is the next run's business: else a busy topic would have no end.
            records = [record for record in records if record.offset < self._ends[record.partition]]
        if not records:
            return
        sys.stdout.buffer.write(b"".join(map(self._write, records)))
        sys.stdout.buffer.flush()
        if self._left is not None:
            self._left -= len(records)
        for record in records:
            self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1

    def commit(self) -> None:
        """Store how far records were printed, in the consumer's group if it has one."""
        self._committed_at = time.monotonic()
        if self._consumer.group and self._printed:
            self._consumer.commit(self._printed)
            self._printed = {}
