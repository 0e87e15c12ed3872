"""A broker in a thread of the test's own process, and the few calls that most tests need.

The engine, the files and the sockets are the real ones. What differs from `braid serve`: the event loop is asyncio's own, because
its time can be moved; durability `os`, and nothing is synced, because a test directory need not survive the loss of
power; free ports. Whoever asks for durability `fsync` gets it, with all syncs.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from braidmq.base.config import Config, Listen
from braidmq.base.disk_real import RealDisk
from braidmq.client.models import Record, RecordMetadata
from braidmq.client.sync import Client, connect
from braidmq.server.app import BrokerServer
from braidmq.testing.movable_clock import MovableClock, MovableLoop
from braidmq.testing.unsynced_disk import UnsyncedDisk

T = TypeVar("T")
_PATIENCE_S: Final = 60.0
_TURNS: Final = 5
_PROTOCOLS: Final = ("flymq", "blipmq", "fq")


class ThreadBroker:
    """`braid` in a test."""

    def __init__(self, data_dir: str | Path | None = None, **settings: Any) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="braid-") if data_dir is None else None
        self.data_dir = Path(self._temporary.name, "data") if self._temporary is not None else Path(data_dir or "")
        self.clock = MovableClock()
        self.clock.on_advance = self._advance
        self.addresses: dict[str, str] = {}
        """Where it listens, as host:port, by protocol: `flymq`, `blipmq` and `fq`."""
        self._settings = settings
        self._loop: MovableLoop
        self._thread: threading.Thread
        self._server: BrokerServer | None = None
        self._client: Client | None = None
        self._clients: list[Client] = []

    # --- start and stop

    def __enter__(self) -> ThreadBroker:
        self._loop = MovableLoop(self.clock)
        self._thread = threading.Thread(target=self._loop.run_forever, name="braid-test-broker", daemon=True)
        self._thread.start()
        try:
            self.start()
        except BaseException:
            self._end_loop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self._end_loop()
            if self._temporary is not None:
                self._temporary.cleanup()

    def start(self) -> None:
        """Start it, on the ports that it had before."""
        self._run(self._start)

    async def _start(self) -> None:
        listen = tuple(Listen(name, *self._place(name)) for name in _PROTOCOLS)
        config = Config(**({"data_dir": str(self.data_dir), "listen": listen, "durability": "os"} | self._settings))
        disk = RealDisk() if config.durability == "fsync" else UnsyncedDisk()
        server = BrokerServer(config, disk=disk, clock=self.clock)
        await server.start()
        self._server = server
        self.addresses = dict(server.addresses)

    def _place(self, protocol: str) -> tuple[str, int]:
        host, _, port = self.addresses.get(protocol, "127.0.0.1:0").rpartition(":")
        return host, int(port)

    def stop(self) -> None:
        """Stop it as SIGTERM would; `start` brings it back with its data."""
        clients, self._clients, self._client = self._clients, [], None
        try:
            for client in clients:
                client.close()
        finally:
            if self._server is not None:
                server, self._server = self._server, None
                self._run(server.stop)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    # --- inside

    @property
    def server(self) -> BrokerServer:
        """The broker itself. Its methods belong to its own thread: `run` gets there."""
        assert self._server is not None, "the broker is stopped"
        return self._server

    def run(self, function: Callable[[BrokerServer], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the broker's own loop, with the broker."""
        return self._run(lambda: function(self.server))

    def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def running() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(running(), self._loop).result(_PATIENCE_S)

    def _advance(self, seconds: float) -> None:
        self._run(lambda: self._let_pass(seconds))

    async def _let_pass(self, seconds: float) -> None:
        self.clock.move(seconds)
        if self._server is None:
            return
        broker = self._server.broker
        # Timers that are due by the new time run first.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        broker.coordinator.members.tick()
        broker.transactions.abort_overdue()
        await broker.delayed.deliver_due()
        await broker.apply_retention()

    # --- talking to it

    @property
    def address(self) -> str:
        """Where it speaks FlyMQ, as host:port."""
        return self.addresses["flymq"]

    def client(self, **settings: Any) -> Client:
        """A blocking client of this broker, closed with it. Of the environment's settings it takes none."""
        client = connect(self.address, environ={}, **settings)
        self._clients.append(client)
        return client

    @property
    def _own(self) -> Client:
        if self._client is None:
            self._client = self.client()
        return self._client

    def create(self, topic: str, partitions: int = 1, **properties: str) -> str:
        """Create a topic; returns its name."""
        self._own.create_topic(topic, partitions, properties)
        return topic

    def produce(self, topic: str, values: Iterable[bytes | str], key: bytes | None = None) -> list[RecordMetadata]:
        """Store values, each acknowledged. A topic that is missing is created, with one partition, so that order is kept."""
        if topic not in self._own.list_topics():
            self.create(topic)
        encoded = (value.encode() if isinstance(value, str) else value for value in values)
        return [self._own.produce(topic, value, key=key) for value in encoded]

    def records(self, topic: str) -> list[Record]:
        """Every record that the topic holds now, partition by partition."""
        found: list[Record] = []
        for part in self._own.metadata(topic).partitions:
            offset = part.oldest
            while offset < part.newest:
                fetched = self._own.fetch(topic, part.partition, offset)
                found += fetched.records
                if fetched.next_offset == offset:
                    break
                offset = fetched.next_offset
        return found

    def values(self, topic: str) -> list[bytes]:
        return [record.value for record in self.records(topic)]
