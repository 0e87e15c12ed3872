"""Links to other fq brokers: this one is a client there, and takes what it bound into its own log.

Links are one way; two brokers that list each other are linked both ways. Nothing goes round in circles: every broker puts its own
name in front of a message's hops, does not take a message that names it already, and does not send one to a broker that it names.
Rows with the same place, user, password and queue share one pair of connections. A link that breaks is made again, for ever, with
pauses that grow to a second; what the other broker's queue held meanwhile comes then.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from typing import Final

from braidmq.base.config_links import Upstream
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.server.fq_intake import Incoming, Intake
from braidmq.wire.fq.auth import Auth, queue_field
from braidmq.wire.fq.commands import (
    FLAG_PEER,
    FLAGS_PERMANENT,
    REFUSED,
    AuthAccepted,
    Bind,
    Bound,
    Command,
    ErrorReply,
    Heartbeat,
    HeartbeatRequest,
    ReplyReader,
    encode_command,
)
from braidmq.wire.fq.messages import NO_SENDER, Message, MessageReader, encode_tail
from braidmq.wire.fq.modes import Mode, encode_opening

_READ_BYTES: Final = 256 * 1024
_CONNECT_SECONDS_MAX: Final = 10.0
_BEAT_MS: Final = 3000
_MISSED_BEATS_MAX: Final = 3
"""A process that dies closes its connections. Silence is for a host or a network that is gone, which is worth some patience: a
broker on a busy machine may well say nothing for a few seconds."""
_PAUSE_S_MIN: Final = 0.016
_PAUSE_S_MAX: Final = 1.0

logger = logging.getLogger("braidmq.fq")


class _LinkBroken(Exception):
    """The other side is gone, or said something that it should not."""


class UpstreamLink:
    """One pair of connections to another broker, with everything that is bound over it."""

    def __init__(
        self, broker: Broker, rows: Sequence[Upstream], node: bytes, lane: int, payload_max: int, tls: ssl.SSLContext | None
    ) -> None:
        self._rows = rows
        self._to = rows[0]
        self._node = node
        self._payload_max = payload_max
        self._tls = tls
        # The broker's own links may write anywhere: whoever configured them decided so.
        self._intake = Intake(broker, None, str(rows[0].host), lane)
        self._queue = rows[0].queue.encode() or f"q-{uuid.uuid4()}".encode()
        self._writers: list[asyncio.StreamWriter] = []
        self._said = ""
        """Why it went down last; nothing since it was up."""

    def __str__(self) -> str:
        return f"{self._to.host}:{self._to.port}"

    async def run(self) -> None:
        """Keep the link up until it is cancelled."""
        pause = _PAUSE_S_MIN
        while True:
            since = asyncio.get_running_loop().time()
            try:
                await self._connect()
            except (OSError, TimeoutError, BraidError, _LinkBroken) as fault:
                self._say(str(fault) or type(fault).__name__)
            finally:
                self._close()
            if asyncio.get_running_loop().time() - since > _PAUSE_S_MAX:
                pause = _PAUSE_S_MIN
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    def _say(self, fault: str) -> None:
        """A link that is down for days says why once, not every second."""
        if fault != self._said:
            self._said = fault
            logger.warning("link to %s: %s", self, fault)

    def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # Not `wait_for`, which forgets that it was cancelled when the connection is refused at the same moment (Python 3.11): the
        # broker would wait for ever for the end of a link that goes on.
        async with asyncio.timeout(_CONNECT_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(self._to.host, self._to.port, ssl=self._tls, limit=_READ_BYTES)
        self._writers.append(writer)
        return reader, writer

    async def _connect(self) -> None:
        """Connect, bind, and take messages until something breaks."""
        to = self._to
        commands, writer = await self._open()
        auth = Auth(to.user.encode(), queue_field(self._queue, to.queue_type), to.password.encode())
        writer.write(encode_opening(Mode.COMMAND) + encode_command(auth))
        replies = ReplyReader()
        key = b""
        while not key:
            for reply in replies.receive(await _some(commands, _CONNECT_SECONDS_MAX)):
                if isinstance(reply, ErrorReply):
                    raise _LinkBroken(f"refused: {reply.text.decode('utf-8', 'backslashreplace').strip()}")
                if isinstance(reply, AuthAccepted):
                    key = reply.key
        data, data_writer = await self._open()
        data_writer.write(encode_opening(Mode.PEER, key, self._node))
        binds = [
            Bind(FLAG_PEER | (FLAGS_PERMANENT if row.permanent else 0), row.exchange.encode(), row.program.encode() or b"prefix:")
            for row in self._rows
        ]
        first: list[Command] = [Heartbeat(), HeartbeatRequest(_BEAT_MS), *binds]
        writer.write(b"".join(map(encode_command, first)))
        logger.info("linked to %s", self)
        self._said = ""
        tasks = [
            asyncio.ensure_future(self._keep_up(commands, writer, replies)),
            asyncio.ensure_future(self._take(data)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replies: ReplyReader) -> None:
        """Answer heartbeats, and notice when none come."""
        rows = list(self._rows)
        while True:
            for reply in replies.receive(await _heard(reader)):
                match reply:
                    case Heartbeat():
                        writer.write(encode_command(Heartbeat()))
                    case Bound():
                        row = rows.pop(0)
                        if reply.route_id == REFUSED:
                            logger.error("link to %s: the bind of %s with `%s` is refused", self, row.exchange, row.program)
                    case ErrorReply():
                        raise _LinkBroken(reply.text.decode("utf-8", "backslashreplace").strip())

    async def _take(self, reader: asyncio.StreamReader) -> None:
        messages = MessageReader(True, self._payload_max)
        while True:
            for message in messages.receive(await _some(reader, None)):
                if self._node not in message.hops:
                    await self._take_in(message)

    async def _take_in(self, message: Message) -> None:
        topic = self._intake.find(message.exchange)
        while isinstance(topic, Coroutine):
            await topic
            topic = self._intake.find(message.exchange)
        if topic is None:
            self._intake.refused(message.exchange)
            return
        tail = encode_tail(message.sender or NO_SENDER, (self._node, *message.hops))
        incoming = Incoming(message.exchange, message.route, message.message_id, message.payload, tail)
        checking = self._intake.offer(incoming, topic)
        if checking is not None:
            await checking


async def _some(reader: asyncio.StreamReader, timeout_s: float | None) -> bytes:
    async with asyncio.timeout(timeout_s):
        data = await reader.read(_READ_BYTES)
    if not data:
        raise _LinkBroken("closed by the other side")
    return data


async def _heard(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; an error after some heartbeats that did not come.

    It waits for one after the other: if it was this broker that was held up, that counts for one, and what came is read then.
    """
    reading = asyncio.ensure_future(_some(reader, None))
    try:
        for _ in range(_MISSED_BEATS_MAX):
            await asyncio.wait([reading], timeout=_BEAT_MS / 1000)
            if reading.done():
                return await reading
    finally:
        reading.cancel()
    raise _LinkBroken(f"silent for {_MISSED_BEATS_MAX * _BEAT_MS / 1000:g} s")


class Upstreams:
    """All links of a broker."""

    def __init__(
        self, broker: Broker, rows: Iterable[Upstream], node: bytes, lane: int, payload_max: int, ca_file: str | None
    ) -> None:
        pairs: dict[object, list[Upstream]] = {}
        for row in rows:
            same = (row.host, row.port, row.tls, row.user, row.password, row.queue, row.queue_type)
            pairs.setdefault(same, []).append(row)
        self._links = [
            UpstreamLink(
                broker, rows, node, lane + number, payload_max,
                ssl.create_default_context(cafile=ca_file) if rows[0].tls else None,
            )
            for number, rows in enumerate(pairs.values())
        ]  # fmt: skip
        self._tasks = [asyncio.get_running_loop().create_task(link.run()) for link in self._links]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
