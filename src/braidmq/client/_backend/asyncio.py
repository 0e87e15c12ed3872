"""The world of asyncio: everything happens on one event loop, so a signal needs no lock and a send never blocks."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Final, cast

from braidmq.client.models import RecordMetadata
from braidmq.client.outbox import PendingBatch

log: Final = logging.getLogger("braidmq.client")

RECEIVE_BYTES_FIRST: Final = 16 * 1024
RECEIVE_BYTES_MOST: Final = 1024 * 1024
"""A connection's receive buffer begins small and doubles whenever a read fills it."""
UNREAD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Received bytes nobody has taken, past which the socket is not read."""
CLOSE_SECONDS_MAX: Final = 1.0
"""How long a peer may take to agree to the end of a TLS session."""

Lock = asyncio.Lock
Mutex = threading.Lock
sleep = asyncio.sleep


async def checkpoint() -> None:
    """Give the loop one turn."""
    await asyncio.sleep(0)


class Signal:
    """An event with a time-out on its wait."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    def clear(self) -> None:
        self._set = False

    async def wait(self, timeout_s: float | None = None) -> bool:
        if self._set:
            return True
        if timeout_s is not None and timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _expire, waiter)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)


class Task:
    """Work that runs beside the caller."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; past the time-out the work is cancelled and the answer is False."""
        done, _ = await asyncio.wait([self._task], timeout=timeout_s)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task])
        return bool(done)


def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> Task:
    return Task(asyncio.get_running_loop().create_task(_guarded(work, name), name=name))


async def _guarded(work: Callable[[], Awaitable[None]], name: str) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s ended with an unexpected error", name)


class Delivery:
    """The outcome of one record: `await` it for its `RecordMetadata`, or for the error that kept it from being stored.

    It is two references into the record's batch; a batch of a thousand records is settled in one step.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        return self._batch.done

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            yield from self._settled().wait().__await__()
        return self._batch.outcome(self._index)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the outcome is known within the time; it does not raise what the outcome is."""
        return self._batch.done or await self._settled().wait(timeout_s)

    def _settled(self) -> Signal:
        signal = self._batch.settled(Signal)
        assert isinstance(signal, Signal)
        return signal


class Stream(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(RECEIVE_BYTES_FIRST))
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._paused_reading = False
        self._closed = False
        self._fault: Exception | None = None
        self._arrived = Signal()
        self._gone = Signal()
        self._writable = Signal()
        self._writable.set()

    @classmethod
    async def connect(cls, host: str, port: int, context: ssl.SSLContext | None, server_name: str, timeout_s: float) -> Stream:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, stream = await loop.create_connection(
                cls, host, port, ssl=context, server_hostname=server_name if context is not None else None
            )
        return stream

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._chunks.append(bytes(self._view[:nbytes]))
        self._unread_bytes += nbytes
        if nbytes == len(self._view) < RECEIVE_BYTES_MOST:
            self._view = memoryview(bytearray(2 * nbytes))
        if self._unread_bytes > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()
            self._paused_reading = True
        self._arrived.set()

    def eof_received(self) -> bool:
        self._closed = True
        self._arrived.set()
        return False

    def connection_lost(self, fault: Exception | None) -> None:
        self._closed = True
        self._fault = fault
        self._arrived.set()
        self._writable.set()
        self._gone.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- called by the client

    async def send(self, buffers: Sequence[bytes], timeout_s: float | None) -> None:
        """Hand over all of `buffers` at once, then wait until the transport wants more."""
        if self._transport is None or self._closed:
            raise self._fault or ConnectionResetError("the peer closed the connection")
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        if not self._writable.is_set() and not await self._writable.wait(timeout_s):
            raise TimeoutError

    async def drain(self, timeout_s: float | None) -> None:
        """Wait until the socket has taken all that was sent. From the first call on, `send` waits for that too."""
        if self._transport is not None and not self._closed:
            # Not 0: behind TLS that would pause an empty buffer, and nothing would ever resume it.
            self._transport.set_write_buffer_limits(1, 0)
            if not self._writable.is_set() and not await self._writable.wait(timeout_s):
                raise TimeoutError
        if self._closed:
            raise self._fault or ConnectionResetError("the peer closed the connection")

    async def receive(self, timeout_s: float | None) -> bytes:
        """Whatever has arrived, at least a byte; empty at the end of the stream."""
        while not self._chunks:
            if self._closed:
                if self._fault is not None:
                    raise self._fault
                return b""
            self._arrived.clear()
            if not await self._arrived.wait(timeout_s):
                raise TimeoutError
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread_bytes = 0
        if self._paused_reading and self._transport is not None:
            self._paused_reading = False
            self._transport.resume_reading()
        return data

    def finish(self) -> bool:
        """Tell the peer that nothing more is sent, while receiving goes on; False where the connection cannot say so."""
        if self._transport is None or self._closed or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def stale(self) -> bool:
        """Whether a connection without a request under way can no longer be used."""
        return self._closed or bool(self._chunks)

    def abort(self) -> None:
        """Break the connection at once; a waiting `receive` ends."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        self._arrived.set()
        self._writable.set()

    async def close(self) -> None:
        """Close, and wait until the socket is really gone: an event loop may end right after."""
        self._closed = True
        self._arrived.set()
        if self._transport is not None:
            self._transport.close()
            if not await self._gone.wait(CLOSE_SECONDS_MAX):
                self._transport.abort()
                await self._gone.wait()
