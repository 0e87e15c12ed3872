"""The HTTP servers of a broker: a thread, its event loop, and up to three ports.

The ports are bound before recovery begins, so that a taken one ends the start and a probe is answered from the first moment on.
What serves them (Starlette, uvicorn and all that they import) is loaded by the first connection to any of them: a broker that
nobody asks pays one sleeping thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.config_listen import HttpListen
from braidmq.base.errors import BraidError
from braidmq.server.app import BrokerServer
from braidmq.server.tls import server_context

if TYPE_CHECKING:
    from braidmq.admin.web_server import WebServer

_STOP_SECONDS: Final = 5.0
_SWITCH_SECONDS: Final = 0.001
"""How long the HTTP thread may keep the interpreter while the broker's loop has something to do. Python's own 5 ms would be
felt."""

logger = logging.getLogger("braidmq.admin")


class WebService:
    """`start` and `stop` are called on the broker's loop."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._listeners = server.config.web_listeners
        self._sockets: dict[str, socket.socket] = {}
        self._loop: asyncio.AbstractEventLoop
        """That of the thread; there once it is started."""
        self._thread = threading.Thread(target=self._run, name="braid-http", daemon=True)
        self._tls: ssl.SSLContext | None = None
        self._stopping = asyncio.Event()
        self._arrivals: list[asyncio.Event] = []
        """What each port waits for that nobody came to yet."""
        self._serving: WebServer | None = None
        self.addresses: dict[str, str] = {}

    def start(self) -> Mapping[str, str]:
        """Listen; the addresses by name. A port that cannot be had is CONFIG_INVALID_VALUE."""
        if any(listen.tls for listen in self._listeners.values()):
            self._tls = server_context(self._server.config)
        try:
            for name, listen in self._listeners.items():
                bound = self._sockets[name] = _bound(name, listen)
                host, port = bound.getsockname()[:2]
                self.addresses[name] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        except BraidError:
            self._close_sockets()
            raise
        if self._sockets:
            self._broker_loop = asyncio.get_running_loop()
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        return self.addresses

    async def stop(self) -> None:
        if self._thread.ident is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            await asyncio.to_thread(self._thread.join, _STOP_SECONDS)
            if self._thread.is_alive():
                logger.warning("the HTTP servers did not end in %g s", _STOP_SECONDS)
        self._close_sockets()

    def _close_sockets(self) -> None:
        for bound in self._sockets.values():
            bound.close()

    # --- in the thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("the HTTP servers ended")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        ports = [asyncio.create_task(self._serve_port(name), name=name) for name in self._sockets]
        for port in ports:
            port.add_done_callback(_log_failure)
        await self._stopping.wait()
        for somebody in self._arrivals:
            somebody.set()
        if self._serving is not None:
            self._serving.end()
        await asyncio.gather(*ports, return_exceptions=True)

    async def _serve_port(self, name: str) -> None:
        await self._somebody_comes(self._sockets[name])
        if self._stopping.is_set():
            return
        if self._serving is None:
            from braidmq.admin.web_server import WebServer

            sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
            self._serving = WebServer(self._server, self._broker_loop)
        tls = self._tls if self._listeners[name].tls else None
        await self._serving.serve(name, self._sockets[name], tls)

    async def _somebody_comes(self, bound: socket.socket) -> None:
        came = asyncio.Event()
        self._arrivals.append(came)
        self._loop.add_reader(bound, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(bound)


def _log_failure(port: asyncio.Task[None]) -> None:
    if not port.cancelled() and port.exception() is not None:
        logger.error("the %s port is not served any more", port.get_name(), exc_info=port.exception())


def _bound(name: str, listen: HttpListen) -> socket.socket:
    """A listening socket. Whoever comes before anybody serves it waits in the system's queue."""
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(limits.LISTEN_BACKLOG)
            bound.setblocking(False)
        except OSError:
            bound.close()
            raise
    except OSError as fault:
        reason = f"{listen}: {fault.strerror}"
        raise BraidError("CONFIG_INVALID_VALUE", key=f"{name}_listen", origin="configuration", reason=reason) from fault
    return bound
