"""The world of threads: calls block, background work runs in daemon threads, every socket is used by its caller directly.

A connection may be sent to by one thread while another receives from it. With TLS that needs care, because one TLS
session must not be used by two threads at once: the session works on memory here, under a lock, and the lock is never
held while a socket is read.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from braidmq.client.models import RecordMetadata
from braidmq.client.outbox import PendingBatch

log: Final = logging.getLogger("braidmq.client")

RECEIVE_BYTES_FIRST: Final = 16 * 1024
RECEIVE_BYTES_MOST: Final = 1024 * 1024
"""A connection's receive buffer begins small and doubles whenever a read fills it."""
TLS_RECORD_BYTES: Final = 16 * 1024
"""Most plain bytes that one TLS record carries."""

Lock = threading.Lock
Mutex = threading.Lock
sleep = time.sleep


def checkpoint() -> None:
    """Threads take turns by themselves."""


class Signal:
    """An event with a time-out on its wait."""

    __slots__ = ("_event", "clear", "is_set", "set")

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        self.clear = self._event.clear
        self.is_set = self._event.is_set

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._event.wait(None if timeout_s is None else max(0.0, timeout_s))


class Task:
    """Work that runs beside the caller."""

    __slots__ = ("_thread",)

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False past the time-out. A thread joining itself has nothing to wait for."""
        if self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def spawn(work: Callable[[], None], name: str) -> Task:
    thread = threading.Thread(target=_guarded, args=(work, name), name=name, daemon=True)
    thread.start()
    return Task(thread)


def _guarded(work: Callable[[], None], name: str) -> None:
    try:
        work()
    except Exception:
        log.exception("%s ended with an unexpected error", name)


class Delivery:
    """The outcome of one record: `result` waits for its `RecordMetadata`, or raises what kept it from being stored.

    It is two references into the record's batch; a batch of a thousand records is settled in one step.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Raises `TimeoutError` when the outcome is not known in time."""
        if not self.wait(timeout_s):
            raise TimeoutError(f"no outcome within {timeout_s:g} s")
        return self._batch.outcome(self._index)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the outcome is known within the time; it does not raise what the outcome is."""
        return self._batch.done or self._settled().wait(timeout_s)

    def _settled(self) -> Signal:
        signal = self._batch.settled(Signal)
        assert isinstance(signal, Signal)
        return signal


class Stream:
    """One connection. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._aborted = False
        self._sending = threading.Lock()
        self._view = memoryview(bytearray(RECEIVE_BYTES_FIRST))

    @classmethod
    def connect(cls, host: str, port: int, context: ssl.SSLContext | None, server_name: str, timeout_s: float) -> Stream:
        deadline_s = time.monotonic() + timeout_s
        sock = socket.create_connection((host, port), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is None:
                return cls(sock)
            stream = TlsStream(sock, context, server_name)
            stream.handshake(deadline_s)
            return stream
        except BaseException:
            sock.close()
            raise

    def send(self, buffers: Sequence[bytes], timeout_s: float | None) -> None:
        """Send all of `buffers`. A send that did not end leaves the connection broken, since half a frame may be out."""
        with self._sending:
            try:
                for buffer in buffers if len(buffers) < 3 else (b"".join(buffers),):
                    self._send_all(buffer, timeout_s)
            except BaseException:
                self.abort()
                raise

    def _send_all(self, data: bytes, timeout_s: float | None) -> None:
        view = memoryview(data)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while view:
            try:
                sent = self._socket.send(view)
            except BlockingIOError:
                self._wait_writable(None if deadline_s is None else deadline_s - time.monotonic())
                continue
            view = view[sent:]

    def _wait_writable(self, timeout_s: float | None) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT)
        if not poller.poll(_milliseconds(timeout_s)):
            raise TimeoutError

    def drain(self, timeout_s: float | None) -> None:
        """`send` returns when the socket has taken everything, so there is nothing to wait for."""
        if self._aborted:
            raise ConnectionResetError("the connection was aborted")

    def receive(self, timeout_s: float | None) -> bytes:
        """Whatever has arrived, at least a byte; empty at the end of the stream."""
        if self._aborted:
            raise ConnectionResetError("the connection was aborted")
        view = self._view
        size = self._receive_into(view, timeout_s)
        data = bytes(view[:size])
        if size == len(view) < RECEIVE_BYTES_MOST:
            self._view = memoryview(bytearray(2 * size))
        return data

    def _receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        while True:
            if not self._readable.poll(_milliseconds(timeout_s)):
                raise TimeoutError
            try:
                return self._socket.recv_into(view)
            except BlockingIOError:
                continue

    def finish(self) -> bool:
        """Tell the peer that nothing more is sent, while receiving goes on; False where the connection cannot say so."""
        if self._aborted:
            return False
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as fault:
            log.debug("the connection was gone already: %s", fault)
            return False
        return True

    def stale(self) -> bool:
        """Whether a connection without a request under way can no longer be used: nothing may be there to read."""
        return self._aborted or bool(self._readable.poll(0))

    def abort(self) -> None:
        """Break the connection at once; a waiting `receive` ends. The descriptor stays until `close`."""
        if not self._aborted:
            self._aborted = True
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError as fault:
                log.debug("the connection was gone already: %s", fault)

    def close(self) -> None:
        self.abort()
        self._socket.close()


class TlsStream(Stream):
    """The same behind TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._guard = threading.Lock()

    def finish(self) -> bool:
        # Half of a TLS session cannot be closed.
        return False

    def handshake(self, deadline_s: float) -> None:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            try:
                self._session.do_handshake()
                finished = True
            except ssl.SSLWantReadError:
                finished = False
            except ssl.SSLError:
                # The alert tells the server why; the caller hears the reason itself.
                super()._send_all(self._outgoing.read(), left_s)
                raise
            super()._send_all(self._outgoing.read(), left_s)
            if finished:
                return
            self._take(left_s)

    def _send_all(self, data: bytes, timeout_s: float | None) -> None:
        view = memoryview(data)
        while view:
            with self._guard:
                written = self._session.write(view[: 64 * TLS_RECORD_BYTES])
                sealed = self._outgoing.read()
            super()._send_all(sealed, timeout_s)
            view = view[written:]

    def _receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        while True:
            with self._guard:
                size = self._read_session(view)
                answer = self._outgoing.read()
            if answer:
                # TLS itself has something to say, a new key for instance.
                with self._sending:
                    super()._send_all(answer, timeout_s)
            if size is not None:
                return size
            self._take(timeout_s)

    def _read_session(self, view: memoryview) -> int | None:
        """Decrypt what is there; None when more is needed."""
        size = 0
        while size < len(view):
            try:
                read = self._session.read(len(view) - size, view[size:])
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return size
            if not read:
                return size
            size += int(read)
        return size or None

    def _take(self, timeout_s: float | None) -> None:
        """Move bytes from the socket to the session."""
        sealed = bytearray(4 * TLS_RECORD_BYTES)
        size = super()._receive_into(memoryview(sealed), timeout_s)
        with self._guard:
            if size:
                self._incoming.write(memoryview(sealed)[:size])
            else:
                self._incoming.write_eof()

    def stale(self) -> bool:
        if self._aborted:
            return True
        try:
            if self._readable.poll(0):
                self._take(0.0)
            with self._guard:
                self._session.read(1)
        except ssl.SSLWantReadError:
            # Readable alone says nothing here: TLS 1.3 servers send session tickets after the handshake.
            return False
        except OSError:
            return True
        return True


def _milliseconds(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else max(0.0, timeout_s * 1000)
