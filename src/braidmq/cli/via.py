"""`braid produce --via` and `braid consume --via`: the same commands through the other protocols of the broker.

    blipmq   a message is acknowledged when it is durable; a TOPIC to read may hold + and #; --group is a client id that
             the broker keeps messages for
    fq       the key is the route; nobody acknowledges a message, so the command waits until the broker has read it;
             --group is a queue that keeps its messages on disk, and --program chooses among them

Both push: reading begins with what comes now, or where a group stopped, and goes on until Ctrl-C or `--count`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.errors import BraidError
from braidmq.cli.connection import duration_option
from braidmq.cli.interrupt import Interrupts
from braidmq.cli.passwords import ask_password, read_password
from braidmq.cli.senders import Sender

if TYPE_CHECKING:
    from braidmq.cli.messages import Message
    from braidmq.client._sync.blipmq import BlipMQClient
    from braidmq.client._sync.blipmq_messages import Publication, ReceivedMessage
    from braidmq.client._sync.fq import FqClient
    from braidmq.client.models import Record

PROTOCOLS: Final = ("flymq", "blipmq", "fq")
_ADDRESSES: Final = {"blipmq": "127.0.0.1:7878", "fq": "127.0.0.1:8765"}
_UNACKED_MAX: Final = 10_000
_POLL_SECONDS: Final = 1.0


def add_via_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--via", choices=PROTOCOLS, default="flymq", help="protocol to speak; --server is then an address of its port [flymq]"
    )


def refuse(args: argparse.Namespace, **names: Any) -> None:
    """Refuse options that the chosen protocol has no place for; `names` are options and what they are without being given."""
    for name, absent in names.items():
        if getattr(args, name) != absent:
            option = "--from" if name == "start" else "--" + name.replace("_", "-")
            raise BraidError("INVALID_ARGUMENT", reason=f"{option} has no place in {args.via}")


# --- connecting


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tls_ca_file": args.tls_ca_file, "tls_cert_file": args.tls_cert_file, "tls_key_file": args.tls_key_file,
    }  # fmt: skip
    if args.timeout is not None:
        settings["timeout_s"] = duration_option(args.timeout, "--timeout")
    return settings


def _address(args: argparse.Namespace) -> str:
    return ",".join(args.server) if args.server else _ADDRESSES[args.via]


def _credentials(args: argparse.Namespace) -> tuple[str, str]:
    user = args.user or os.environ.get("BRAID_USERNAME", "")
    if not user:
        return "", ""
    if args.password_file is not None:
        return user, read_password(args.password_file)
    return user, os.environ.get("BRAID_PASSWORD") or ask_password(f"password of {user}: ") or ""


def open_blipmq(args: argparse.Namespace, client_id: str = "") -> BlipMQClient:
    from braidmq.client.blipmq import sync

    user, password = _credentials(args)
    return sync.connect(_address(args), api_key=f"{user}:{password}" if user else "", client_id=client_id, **_settings(args))


def open_fq(args: argparse.Namespace, queue: str = "") -> FqClient:
    from braidmq.client.fq import sync

    user, password = _credentials(args)
    kind = "disk:public,drop,permanent" if queue else "mem:private,drop,transient"
    return sync.connect(
        _address(args), user=user or "braid", password=password, queue=queue, queue_type=kind, **_settings(args)
    )


# --- producing


class BlipMQSender(Sender):
    """Messages with QoS 1, many on their way at a time."""

    def __init__(
        self, client: BlipMQClient, topic: str, headers: dict[str, bytes], ttl_ms: int, total: int | None
    ) -> None:
        super().__init__(topic, None, total)
        self._client = client
        self._metadata = {
            name if name.startswith("x-") else f"x-{name}": value.decode("utf-8", "replace") for name, value in headers.items()
        }
        self._ttl_ms = ttl_ms
        self._waiting: deque[Publication] = deque()

    def send(self, message: Message) -> None:
        if message.key is not None:
            raise BraidError("INVALID_ARGUMENT", reason="a BlipMQ message has no key")
        self._waiting.append(
            self._client.send(self._topic, message.value, qos=1, ttl_ms=self._ttl_ms, metadata=self._metadata or None)
        )
        self.sent += 1
        if len(self._waiting) >= _UNACKED_MAX:
            self._settle_first()

    def _settle_first(self) -> None:
        try:
            self._waiting.popleft().result()
            self.acked += 1
        except BraidError as fault:
            self.fault = self.fault or fault
        self._progress.update(self.acked)

    def finish(self) -> None:
        while self._waiting:
            self._settle_first()
        super().finish()


class FqSender(Sender):
    """Messages that nobody acknowledges: they count once the broker has read them. Whether it kept them it has no way to say."""

    outcome = "read by the broker, which does not say whether it kept them,"

    def __init__(self, client: FqClient, exchange: str, total: int | None) -> None:
        super().__init__(exchange, None, total)
        self._client = client

    def send(self, message: Message) -> None:
        self._client.publish(self._topic, message.key or b"", message.value)
        self.sent += 1
        self._progress.update(self.sent)

    def finish(self) -> None:
        try:
            self._client.flush(confirm=True)
            self.acked = self.sent
        except BraidError as fault:
            self.fault = self.fault or fault
        super().finish()


# --- consuming


def consume(args: argparse.Namespace, write: Callable[[Record], bytes]) -> None:
    """Print what comes until enough was printed, or Ctrl-C."""
    poll = _consume_blipmq if args.via == "blipmq" else _consume_fq
    poll(args, write)


def _consume_blipmq(args: argparse.Namespace, write: Callable[[Record], bytes]) -> None:
    from braidmq.client.models import Record
    from braidmq.log.attrs import encode_headers

    with open_blipmq(args, args.group or "") as client:
        client.subscribe(args.topic, qos=1)

        received: list[ReceivedMessage] = []

        def some(most: int) -> list[bytes]:
            received[:] = client.poll(most, _POLL_SECONDS)
            return [write(as_record(message)) for message in received]

        def printed() -> None:
            # Only now: a crash before this prints a message again, it never skips one.
            for message in received:
                message.ack()

        def as_record(message: ReceivedMessage) -> Record:
            headers = {name: value.encode() for name, value in message.metadata.items() if name.startswith("x-")}
            time_ms = _milliseconds(message.timestamp)
            return Record(message.topic, 0, message.sequence, time_ms, None, message.payload, encode_headers(headers))

        _print(args, some, printed)


def _consume_fq(args: argparse.Namespace, write: Callable[[Record], bytes]) -> None:
    from braidmq.client.models import NO_TIMESTAMP, Record

    with open_fq(args, args.group or "") as client:
        client.bind(args.topic, args.program or "prefix:")

        def some(most: int) -> list[bytes]:
            return [
                write(Record(m.exchange.decode(errors="replace"), 0, 0, NO_TIMESTAMP, m.route or None, m.payload))
                for m in client.poll(most, _POLL_SECONDS)
            ]

        _print(args, some, lambda: None)


def _milliseconds(time: int) -> int:
    """A time in whichever unit the broker writes; the units are so far apart that its size tells."""
    for most, unit_per_s in ((10**11, 1), (10**14, 1000), (10**17, 10**6)):
        if time < most:
            return time * 1000 // unit_per_s
    return time // 10**6


def _print(args: argparse.Namespace, some: Callable[[int], Sequence[bytes]], printed: Callable[[], None]) -> None:
    """Print what `some` brings, and call `printed` each time it is out."""
    left: int | None = args.count
    with Interrupts() as interrupts:
        while left is None or left > 0:
            interrupts.waiting = True
            lines = some(500 if left is None else min(left, 500))
            interrupts.waiting = False
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
            printed()
            if left is not None:
                left -= len(lines)
            interrupts.check()
