"""A broker in a thread of the test's own process, for faults that only a given disk can bring about."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from braidmq.admin.service import WebService
from braidmq.base.config import Config, Listen
from braidmq.base.config_listen import HttpListen
from braidmq.base.disk import Disk
from braidmq.server.app import BrokerServer

T = TypeVar("T")
_PATIENCE_S = 60.0


class EmbeddedBroker:
    """`with EmbeddedBroker(disk) as broker:` serves on `broker.address` until the block ends.

    It runs on asyncio's own event loop, where `braid serve` takes uvloop, so both are tested.
    """

    def __init__(self, disk: Disk, data_dir: str = "/data", *, web: bool = False, **settings: object) -> None:
        """With `web` its HTTP ports are open, each at a free port."""
        defaults: dict[str, object] = {
            "listen": (Listen("flymq", "127.0.0.1", 0),),
            **{f"{name}_listen": HttpListen("http", "127.0.0.1", 0) for name in ("admin", "metrics", "health")},
        }
        self._config = Config(data_dir=data_dir, **{**defaults, **settings})  # type: ignore[arg-type]
        self._web = web
        self.service: WebService | None = None
        self._disk = disk
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="embedded-broker")
        self.server: BrokerServer

    @property
    def address(self) -> str:
        return self.server.addresses["flymq"]

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function on the broker's loop."""

        async def running() -> T:
            return await function()

        return asyncio.run_coroutine_threadsafe(running(), self._loop).result(_PATIENCE_S)

    def create(self, topic: str, partitions: int = 1, **properties: str) -> str:
        """Create a topic with properties, past the wire."""
        self.run(lambda: self.server.broker.create_topic(topic, partitions, properties))
        return topic

    def __enter__(self) -> EmbeddedBroker:
        self._thread.start()
        try:
            self.run(self._start)
        except BaseException:
            self._end()
            raise
        return self

    async def _start(self) -> None:
        self.server = BrokerServer(self._config, disk=self._disk)
        if self._web:
            self.service = WebService(self.server)
            self.service.start()
        await self.server.start()

    def stop(self) -> None:
        self.run(self.server.stop)
        if self.service is not None:
            self.run(self.service.stop)

    def url(self, port: str, path: str) -> str:
        """Where one of the HTTP ports has `path`."""
        assert self.service is not None
        return f"http://{self.service.addresses[port]}{path}"

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
