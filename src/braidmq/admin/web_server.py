"""What serves the HTTP ports once somebody comes: uvicorn, and the app of each port."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from braidmq.admin.app import admin_app
from braidmq.admin.health import health_app
from braidmq.admin.metrics.app import metrics_app
from braidmq.admin.site import Site
from braidmq.base import limits
from braidmq.server.app import BrokerServer

_GRACE_SECONDS: Final = 2


class _Server(uvicorn.Server):
    """uvicorn's, told to end by an event instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        await self.ending.wait()


class WebServer:
    def __init__(self, server: BrokerServer, broker_loop: asyncio.AbstractEventLoop) -> None:
        self.site = Site(server, broker_loop)
        self._servers: list[_Server] = []

    async def serve(self, name: str, bound: socket.socket, tls: ssl.SSLContext | None) -> None:
        config = uvicorn.Config(
            self._app(name), http="h11", ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False,
            server_header=False, date_header=False, backlog=limits.LISTEN_BACKLOG,
            limit_concurrency=limits.HTTP_CONNECTIONS_MAX, timeout_graceful_shutdown=_GRACE_SECONDS,
        )  # fmt: skip
        config.load()
        config.ssl = tls
        server = _Server(config)
        self._servers.append(server)
        await server.serve(sockets=[bound])

    def _app(self, name: str) -> ASGIApp:
        apps = {"admin": admin_app, "health": health_app, "metrics": metrics_app}
        return apps[name](self.site)

    def end(self) -> None:
        """Let `serve` return, for every port."""
        self.site.stopping.set()
        for server in self._servers:
            server.ending.set()
