"""Health, as Kubernetes and load balancers ask for it.

`/live` says that the process runs and its loop answers; whoever fails it should be restarted. `/ready` says whether clients
should come: not during recovery, not while the broker stops, not with a partition that is read-only because its disk failed, and
not on a node whose cluster can do nothing, having lost its quorum or its coordinator. `/health` says all of it, and is 503 when
anything is wrong. The port is open before recovery begins. FlyMQ's names (`/health/live`, `/health/ready`) are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

import braidmq
from braidmq.admin.shapes import plain
from braidmq.admin.site import Site
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.pace import Pace

Status = Literal["healthy", "degraded", "unhealthy"]
_LOOP_SECONDS_MAX: Final = 5.0
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One thing that was looked at."""

    name: str
    status: Status
    latency_ms: float
    message: Annotated[str | None, "why, where it is not healthy"] = None


@dataclass(frozen=True, slots=True)
class Health:
    """How the broker is."""

    status: Status
    timestamp: str
    version: str
    checks: list[HealthCheck]


def health_app(site: Site) -> ASGIApp:
    def route(path: str, look: Callable[[Site], Awaitable[tuple[Health, bool]]]) -> Route:
        async def serve(request: Request) -> Response:
            found, fine = await look(site)
            return JSONResponse(plain(found), 200 if fine else 503, {"Cache-Control": "no-store"})

        return Route(path, serve)

    return Starlette(routes=[
        route("/live", _live), route("/health/live", _live), route("/livez", _live),
        route("/ready", _ready), route("/health/ready", _ready), route("/readyz", _ready),
        route("/health", _whole), route("/healthz", _whole),
    ])  # fmt: skip


async def _live(site: Site) -> tuple[Health, bool]:
    check = await check_loop(site)
    return _health(site, check.status, []), check.status == "healthy"


async def _ready(site: Site) -> tuple[Health, bool]:
    found = await look_at(site)
    return found, found.status == "healthy"


async def _whole(site: Site) -> tuple[Health, bool]:
    found = await look_at(site)
    return found, found.status == "healthy"


async def look_at(site: Site) -> Health:
    """Everything that is looked at."""
    checks = [await check_loop(site), _check_state(site)]
    if site.server.state == "ready":
        checks.append(await _check_partitions(site))
        if site.server.clustering is not None:
            checks.append(await _check_cluster(site))
    worst: Status = "healthy" if all(check.status == "healthy" for check in checks) else "unhealthy"
    return _health(site, worst, checks)


def _health(site: Site, status: Status, checks: list[HealthCheck]) -> Health:
    return Health(status, rfc3339(site.server.clock.now_ms()), braidmq.__version__, checks)


async def check_loop(site: Site) -> HealthCheck:
    """Whether the broker's loop turns. During recovery it does, too: the log is read beside it."""
    began = site.server.clock.monotonic()
    try:
        async with asyncio.timeout(_LOOP_SECONDS_MAX):
            await site.gate.turn()
    except TimeoutError:
        return HealthCheck("loop", "unhealthy", _since(site, began), f"the broker's loop did not turn for {_LOOP_SECONDS_MAX:g} s")
    return HealthCheck("loop", "healthy", _since(site, began))


def _check_state(site: Site) -> HealthCheck:
    state = site.server.state
    reasons = {"starting": site.server.waits_for or "the broker recovers its log", "stopping": "the broker stops"}
    return HealthCheck("state", "healthy" if state == "ready" else "unhealthy", 0.0, reasons.get(state))


async def _check_partitions(site: Site) -> HealthCheck:
    began = site.server.clock.monotonic()
    try:
        failed = await site.gate.ask(lambda: read_only_partitions(site.server.broker))
    except BraidError as fault:
        return HealthCheck("partitions", "unhealthy", _since(site, began), fault.text)
    if not failed:
        return HealthCheck("partitions", "healthy", _since(site, began))
    named = "; ".join(failed[:_NAMED_MAX]) + (f"; and {len(failed) - _NAMED_MAX} more" if len(failed) > _NAMED_MAX else "")
    return HealthCheck("partitions", "unhealthy", _since(site, began), f"read-only: {named}")


async def _check_cluster(site: Site) -> HealthCheck:
    began = site.server.clock.monotonic()
    clustering = site.server.clustering
    assert clustering is not None

    async def look() -> str:
        return clustering.node.trouble

    try:
        trouble = await site.gate.ask(look)
    except BraidError as fault:
        trouble = fault.text
    return HealthCheck("cluster", "unhealthy" if trouble else "healthy", _since(site, began), trouble or None)


async def read_only_partitions(broker: Broker) -> list[str]:
    """Partitions that take no more records since their disk failed, and why."""
    found = []
    pace = Pace()
    for log in list(broker.store.open_partitions()):
        await pace.step()
        failure: Any = log.failure
        if failure is not None:
            found.append(f"{log.topic}/{log.partition}: {failure.text if isinstance(failure, BraidError) else failure}")
    return found


def _since(site: Site, began: float) -> float:
    return round((site.server.clock.monotonic() - began) * 1000, 3)
