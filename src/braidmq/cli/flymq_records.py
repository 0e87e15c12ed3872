"""`flymq-cli` and records: produce, consume, subscribe, delayed, with a time to live, in a transaction, dead letters.

Reading is by partition and offset, as the published tool does it: partition 0 unless another is named.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from braidmq.base.errors import BraidError
from braidmq.cli.connection import open_client
from braidmq.cli.exits import Exit

if TYPE_CHECKING:
    from braidmq.cli.decoding import SchemaReader
    from braidmq.cli.flymq_cli import Grammar
    from braidmq.client.models import Record
    from braidmq.client.sync import Client

Start = Literal["earliest", "latest", "committed"]
_ENCODERS: Final[dict[str, Callable[[str], bytes]]] = {
    "string": str.encode,
    "json": lambda text: json.dumps(json.loads(text), separators=(",", ":")).encode(),
    "hex": bytes.fromhex,
    "base64": lambda text: base64.b64decode(text, validate=True),
}
_DECODERS: Final[dict[str, Callable[[bytes], str]]] = {
    "string": lambda value: value.decode("utf-8", "backslashreplace"),
    "json": lambda value: json.dumps(json.loads(value), indent=2, ensure_ascii=False),
    "hex": bytes.hex,
    "base64": lambda value: base64.b64encode(value).decode(),
}


def register(grammar: Grammar) -> None:
    produce = grammar.add("produce|pub", "Store a message.", perform=run_produce)
    _topic_and_message(produce)
    produce.add_argument("-k", "--key", metavar="KEY", help="key of the message")
    produce.add_argument("-p", "--partition", type=int, metavar="N", help="partition to store it in")
    produce.add_argument("-e", "--encoder", choices=tuple(_ENCODERS), default="string", help="how it is written here [string]")
    produce.add_argument("-s", "--schema", metavar="SCHEMA", help="schema that it has to fit")

    consume = grammar.add("consume|sub", "Read messages from an offset on.", perform=run_consume)
    consume.add_argument("topic", metavar="TOPIC", help="name of the topic")
    consume.add_argument("-o", "--offset", type=int, default=0, metavar="OFFSET", help="offset to begin at [0]")
    consume.add_argument("-n", "--count", type=int, default=10, metavar="N", help="messages to read at most [10]")
    _reading_options(consume)

    subscribe = grammar.add("subscribe", "Read messages as they come, as a group.", perform=run_subscribe)
    subscribe.add_argument("topic", metavar="TOPIC", help="name of the topic")
    subscribe.add_argument("-g", "--group", default="default", metavar="GROUP", help="name of the group [default]")
    subscribe.add_argument("-f", "--from", dest="start", choices=get_args(Start), help="where to begin [committed]")
    subscribe.add_argument("--from-beginning", action="store_true", help="begin at the oldest message")
    subscribe.add_argument("--from-latest", action="store_true", help="begin behind the newest message")
    subscribe.add_argument("-l", "--show-lag", action="store_true", help="say how many messages are left behind each one")
    subscribe.add_argument("--no-timestamp", action="store_true", help="leave out when it was written")
    subscribe.add_argument("-n", "--count", type=int, metavar="N", help="end after so many messages")
    _reading_options(subscribe)

    for name, option, about in (("produce-delayed", "delay_ms", "comes later"), ("produce-ttl", "ttl_ms", "goes after a time")):
        timed = grammar.add(name, f"Store a message that {about}.", perform=run_timed)
        timed.set_defaults(option=option)
        timed.add_argument("topic", metavar="TOPIC", help="name of the topic")
        timed.add_argument("ms", metavar="MS", type=int, help="milliseconds")
        timed.add_argument("message", metavar="MESSAGE", help="the message")

    txn = grammar.add("txn", "Store several messages, all or none.", perform=run_txn)
    txn.add_argument("topic", metavar="TOPIC", help="name of the topic")
    txn.add_argument("messages", metavar="MESSAGE", nargs="+", help="the messages")

    dlq = grammar.group("dlq", "Dead letters.")
    found = dlq.add("list", "List dead letters.", lambda a: ["dlq", "ls", a.topic, "--max", str(a.count)])
    found.add_argument("topic", metavar="TOPIC", help="topic that they came from")
    found.add_argument("-n", "--count", type=int, default=10, metavar="N", help="how many at most [10]")
    for name in ("replay", "re-inject"):
        again = dlq.add(name, "Send a dead letter back.", lambda a: ["dlq", "retry", a.topic, a.id, "--yes"])
        again.add_argument("topic", metavar="TOPIC", help="topic that it came from")
        again.add_argument("id", metavar="ID", help="id of the dead letter")
    purge = dlq.add("purge", "Delete all dead letters of a topic.", lambda a: ["dlq", "purge", a.topic, "--yes"])
    purge.add_argument("topic", metavar="TOPIC", help="topic that they came from")
    stats = dlq.add("stats", "Count the dead letters of a topic.", perform=run_stats)
    stats.add_argument("topic", metavar="TOPIC", help="topic that they came from")


def _topic_and_message(parser: Any) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument("message", metavar="MESSAGE", help="the message")


def _reading_options(parser: Any) -> None:
    parser.add_argument("-p", "--partition", type=int, default=0, metavar="N", help="partition to read [0]")
    parser.add_argument("-k", "--show-key", action="store_true", help="show keys")
    parser.add_argument("-F", "--filter", metavar="TEXT", help="only messages with this text, expression or $.path")
    parser.add_argument("-d", "--decoder", choices=tuple(_DECODERS), default="string", help="how to show messages [string]")
    parser.add_argument("-s", "--schema", metavar="SCHEMA", help="show what this schema reads, and say which messages do not fit")
    parser.add_argument("-q", "--quiet", action="store_true", help="print messages only")
    parser.add_argument("-r", "--raw", action="store_true", help="print the bytes of messages, nothing else")
    parser.add_argument("--no-offset", action="store_true", help="leave out offsets")


def _client(args: argparse.Namespace) -> Client:
    from braidmq.cli.flymq_cli import connection

    return open_client(connection(args))


def run_produce(args: argparse.Namespace) -> int:
    try:
        value = _ENCODERS[args.encoder](args.message)
    except ValueError as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"the message is no {args.encoder}: {fault}") from None
    key = args.key.encode() if args.key is not None else None
    with _client(args) as client:
        done = client.produce(args.topic, value, key=key, partition=args.partition, schema=args.schema)
    print(f"Message produced to {args.topic}, partition {done.partition}, offset {done.offset}")
    return Exit.OK


def run_timed(args: argparse.Namespace) -> int:
    with _client(args) as client:
        done = client.produce(args.topic, args.message.encode(), **{args.option: args.ms})
    what = f"id {done.delayed_id}" if done.delayed_id else f"partition {done.partition}, offset {done.offset}"
    print(f"Message produced to {args.topic}, {what}")
    return Exit.OK


def run_txn(args: argparse.Namespace) -> int:
    with _client(args) as client, client.transaction() as transaction:
        for message in args.messages:
            transaction.produce(args.topic, message.encode())
    print(f"Transaction committed: {len(args.messages)} messages")
    return Exit.OK


def run_consume(args: argparse.Namespace) -> int:
    from braidmq.broker.record_filter import compile_filter

    matches = compile_filter(args.filter) if args.filter else None
    left, offset = args.count, args.offset
    with _client(args) as client:
        reader = _reader(args, client)
        while left > 0:
            found = client.fetch(args.topic, args.partition, offset)
            for record in found.records:
                if left > 0 and (matches is None or matches(record.key, record.value)):
                    show(args, record, reader=reader)
                    left -= 1
            if found.next_offset <= offset:
                break
            offset = found.next_offset
    return Exit.OK


def run_subscribe(args: argparse.Namespace) -> int:
    from braidmq.broker.record_filter import compile_filter
    from braidmq.cli.interrupt import Interrupts

    matches = compile_filter(args.filter) if args.filter else None
    start: Start = "earliest" if args.from_beginning else "latest" if args.from_latest else args.start or "committed"
    left = args.count
    with _client(args) as client, Interrupts() as interrupts:
        reader = _reader(args, client)
        consumer = client.consumer({args.topic: [args.partition]}, group=args.group, start=start, auto_commit=False)
        consumer.start()
        try:
            while left is None or left > 0:
                interrupts.waiting = True
                records = consumer.poll(max_records=1 if left is not None else None, timeout_s=0.5)
                interrupts.waiting = False
                for record in records:
                    if matches is None or matches(record.key, record.value):
                        show(args, record, _lag(client, record) if args.show_lag else "", reader)
                        left = None if left is None else left - 1
                if records:
                    consumer.commit()
        except KeyboardInterrupt:
            return Exit.OK
    return Exit.OK


def run_stats(args: argparse.Namespace) -> int:
    with _client(args) as client:
        letters = client.dlq.ls(args.topic, 1_000_000)
    print(f"{args.topic}: {len(letters)} dead letters")
    return Exit.OK


def _lag(client: Client, record: Record) -> str:
    """How many messages of its partition come after it."""
    return f"lag {client.metadata(record.topic).partitions[record.partition].newest - record.offset - 1}"


def _reader(args: argparse.Namespace, client: Client) -> SchemaReader | None:
    from braidmq.cli.decoding import SchemaReader

    return SchemaReader(client, args.schema) if args.schema else None


def _decoded(decoder: str, value: bytes) -> str:
    try:
        return _DECODERS[decoder](value)
    except ValueError:
        return _DECODERS["string"](value)


def show(args: argparse.Namespace, record: Record, more: str = "", reader: SchemaReader | None = None) -> None:
    """One message. With a schema it is what that reads, unless the bytes themselves were asked for; what does not fit is said."""
    reading = reader.read(record) if reader is not None else None
    if args.raw:
        sys.stdout.buffer.write(record.value)
        sys.stdout.buffer.flush()
        return
    if reading is not None and reading.read_as:
        text = json.dumps(reading.document, indent=2 if args.decoder == "json" else None, ensure_ascii=False)
    else:
        text = _decoded(args.decoder, record.value)
    head = [] if args.quiet or args.no_offset else [f"[{record.offset}]"]
    if not args.quiet and not getattr(args, "no_timestamp", True):
        head.append(str(record.timestamp))
    if args.show_key and record.key is not None:
        head.append(record.key.decode("utf-8", "backslashreplace") + ":")
    print(" ".join([*head, *([more] if more else []), text]), flush=True)
