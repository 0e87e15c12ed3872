"""A whole broker: the engine, its listeners, its ready file and its end.

`serve` is what `braid serve` runs: it stays until SIGTERM or SIGINT and returns the exit status. `BrokerServer` is the same
without signals, for tests and for programs that embed a broker.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from braidmq import hot
from braidmq.base import limits
from braidmq.base.clock import Clock, SystemClock
from braidmq.base.config_settings import Config
from braidmq.base.disk import Disk
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import load_keys
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.broker.features import SecuritySettings
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.security.accounts import admin_password
from braidmq.security.quotas import Rates
from braidmq.server import deliveries
from braidmq.server.flymq_listener import FlyMQListener
from braidmq.server.listener import ConnectionCount, Listener
from braidmq.server.logs import set_up_logging
from braidmq.server.operations.transactions import note_abort
from braidmq.server.status import Documents
from braidmq.server.tls import server_context
from braidmq.server.tracing import open_tracing

if TYPE_CHECKING:
    from braidmq.server.clustering import Clustering

logger = logging.getLogger("braidmq.server")

State = Literal["starting", "ready", "stopping"]


class Companion(Protocol):
    """What runs beside a broker as long as it does, such as its HTTP servers. It is there before recovery begins."""

    def start(self) -> Mapping[str, str]:
        """Begin; returns names and addresses for the ready file."""
        ...

    async def stop(self) -> None:
        """End, when the broker has ended."""
        ...


class BrokerServer:
    def __init__(
        self, config: Config, *, disk: Disk | None = None, clock: Clock | None = None, environ: Mapping[str, str] = os.environ,
        clustering: Callable[[], Awaitable[Clustering | None]] | None = None,
        engine: Callable[[BrokerSettings], BrokerSettings] = lambda settings: settings,
    ) -> None:
        """`environ` holds the encryption keys, unless a key file does; settings are in `config` already. `clustering` stands in for
        the cluster that `config` names, and `engine` may change what no configuration has.
        """
        self.config = config
        self._disk = disk or RealDisk()
        self._environ = environ
        self.clock = clock or SystemClock()
        self.broker: Broker
        self._engine = engine
        self._open_clustering = clustering or self._configured_clustering
        self.clustering: Clustering | None = None
        """The cluster that this broker belongs to; None for one that runs alone."""
        self.state: State = "starting"
        """`starting` while the log is recovered; only a `ready` broker may be asked anything."""
        self.started_s = self.clock.monotonic()
        """When it began, by the clock's `monotonic`."""
        self.listeners: list[Listener[Any]] = []
        self.addresses: dict[str, str] = {}
        """Scheme to address of each listener; a second one of a scheme is `scheme-2`, and so on."""

    async def start(self) -> None:
        """Recover the log, then listen."""
        config = self.config
        _raise_open_files()
        tls = server_context(config)
        clustering = self.clustering = await self._open_clustering()
        machines = None if clustering is None else clustering.machines
        settings = self._engine(broker_settings(config, self._disk, self._environ))
        self.broker = Broker(settings, self._disk, self.clock, machines=machines)
        if config.tracing_enabled:
            self.broker.commit.tracing = open_tracing(self.clock)
        self.broker.transactions.on_abort = partial(note_abort, self.broker)
        await self._start_broker()
        Documents(self).register()
        deliveries.register(self)
        count = ConnectionCount(config.max_connections)
        try:
            for listen in config.listen:
                context = tls if listen.tls else None
                listener = listener_of(listen.protocol)(self.broker, listen, count, config, context)
                if clustering is not None and isinstance(listener, FlyMQListener):
                    listener.forwarding = clustering.forwarding
                address = await listener.start()
                self.listeners.append(listener)
                self.addresses[_name_for(listen.scheme, self.addresses)] = address
            if clustering is not None:
                await clustering.announce(**self._announced())
        except OSError as fault:
            await self.stop()
            reason = f"{listen}: {fault.strerror}"
            raise BraidError("CONFIG_INVALID_VALUE", key="listen", origin="configuration", reason=reason) from fault
        except BraidError:
            await self.stop()
            raise
        self.state = "ready"

    async def _configured_clustering(self) -> Clustering | None:
        if self.config.cluster_listen is None:
            return None
        # A broker that runs alone need not load any of it.
        from braidmq.server.clustering import open_clustering

        return await open_clustering(self.config, self._disk, self.clock, self._environ)

    async def _start_broker(self) -> None:
        clustering = self.clustering
        if clustering is None:
            await self.broker.start()
            return
        clustering.join(self.broker)
        await self.broker.recover()
        try:
            await clustering.start()
        except BaseException:
            await clustering.stop()
            await self.broker.stop()
            raise

    def _announced(self) -> dict[str, str]:
        """Where clients find this node."""
        from braidmq.cluster.opening import dialable

        client = self.addresses.get("flymq") or self.addresses.get("flymqs", "")
        return {"client": self.config.client_advertise or (dialable(client) if client else "")}

    async def run(self, stop: asyncio.Event, came: Callable[[], None], goes: Callable[[], None]) -> None:
        """Start, tell `came`, and serve until `stop` is set; then tell `goes`, and stop. Raises NODE_OUTDATED when a node of a
        cluster has to begin anew: with another server, for hardly anything that this one knows holds any longer."""
        await self.start()
        reasons = [asyncio.ensure_future(stop.wait())]
        if self.clustering is not None:
            reasons.append(asyncio.ensure_future(self.clustering.node.outdated.wait()))
        try:
            came()
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()
            goes()
            await self.stop()
        if not stop.is_set():
            raise BraidError("NODE_OUTDATED")

    @property
    def waits_for(self) -> str:
        """What of its cluster a broker lacks that starts; empty where it is busy with itself."""
        return "" if self.clustering is None else self.clustering.waits_for

    async def stop(self) -> None:
        """Finish running requests, close the connections, make everything durable."""
        self.state = "stopping"
        if self.clustering is not None:
            await self.clustering.leave()
        for listener in self.listeners:
            listener.stop_accepting()
        self.broker.end_polls()
        # Whoever waits for a share of a group would wait for members that do not come any more.
        self.broker.coordinator.members.close()
        await asyncio.gather(*(listener.stopped(limits.STOP_SECONDS_MAX / 2) for listener in self.listeners))
        if self.clustering is not None:
            await self.broker.push.leave()
            await self.clustering.stop()
        await self.broker.stop()


def listener_of(protocol: str) -> type[Listener[Any]]:
    """What listens for a protocol. Those that are not listened to need not be loaded."""
    match protocol:
        case "blipmq":
            from braidmq.server.blipmq_listener import BlipMQListener

            return BlipMQListener
        case "fq":
            from braidmq.server.fq_listener import FqListener

            return FqListener
    return FlyMQListener


def broker_settings(config: Config, disk: Disk, environ: Mapping[str, str]) -> BrokerSettings:
    """What the engine needs of the configuration."""
    return BrokerSettings(
        data_dir=config.data_dir,
        defaults=LogSettings(
            Level.parse(config.durability), config.segment_bytes, round(config.segment_age_s * 1000), config.retention_bytes,
            round(config.retention_age_s * 1000), round(config.ttl_s * 1000),
        ),
        default_partitions=config.default_partitions,
        auto_create_topics=config.auto_create_topics,
        topics_max=config.max_topics,
        checkpoint_interval_s=config.checkpoint_interval_s,
        retention_interval_s=config.retention_interval_s,
        transaction_timeout_s=config.transaction_timeout_s,
        stage_timeout_s=config.stage_timeout_s,
        delay_ms_max=round(config.delay_max_s * 1000),
        dlq_attempts_max=config.dlq_attempts,
        dlq_retry_ms=round(config.dlq_retry_s * 1000),
        schema_strict=config.schema_strict,
        security=SecuritySettings(
            node_id=config.node_id,
            auth_enabled=config.auth_enabled,
            allow_anonymous=config.auth_allow_anonymous,
            default_public=config.auth_default_public,
            admin_name=config.auth_admin_username,
            admin_password=lambda: admin_password(environ, disk, config.auth_admin_password_file),
            audit_enabled=config.audit_enabled,
            audit_retention_days=config.audit_retention_days,
            audit_retention_bytes=config.audit_retention_bytes,
            rates=Rates(config.quota_bytes_per_s, config.quota_requests_per_s),
        ),
        encryption_enabled=config.encryption_enabled,
        load_keys=lambda: load_keys(environ, config.encryption_key_file, disk),
    )


async def serve(
    config: Config,
    *,
    on_ready: Callable[[dict[str, str]], None] | None = None,
    companion: Callable[[BrokerServer], Companion] | None = None,
) -> int:
    """Run a broker, and what is to run beside it, until it is told to stop."""
    set_up_logging(config.log_level, config.log_format)
    if hot.IMPLEMENTATION != "compiled":
        logger.warning("no compiled hot path: running plain Python; install a C compiler and reinstall for full speed")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    async def live() -> None:
        server = BrokerServer(config)
        beside = None if companion is None else companion(server)
        try:
            addresses = {} if beside is None else beside.start()
            await server.run(stop, partial(_came, server, addresses, on_ready), partial(_goes, server))
        finally:
            if beside is not None:
                await beside.stop()

    await live_again(live)
    logger.info("stopped")
    return 0


async def live_again(live: Callable[[], Awaitable[None]]) -> None:
    """Run `live`, and run it again each time when a node of a cluster has to begin anew."""
    while True:
        try:
            await live()
            return
        except BraidError as error:
            if error.code != "NODE_OUTDATED":
                raise
            logger.warning("%s", error.text)
            # What the life before left is garbage now.
            gc.unfreeze()


def _came(server: BrokerServer, beside: Mapping[str, str], on_ready: Callable[[dict[str, str]], None] | None) -> None:
    """The broker serves."""
    addresses = {**server.addresses, **beside}
    # What exists now lives as long as the broker; the collector need not look at it again.
    gc.collect()
    gc.freeze()
    if server.config.ready_file is not None:
        _write_ready_file(server.config.ready_file, addresses)
    if on_ready is not None:
        on_ready(addresses)


def _goes(server: BrokerServer) -> None:
    """Nobody is served from here on, however the stop goes."""
    logger.info("stopping")
    if server.config.ready_file is not None:
        _remove(server.config.ready_file)


def _name_for(scheme: str, taken: dict[str, str]) -> str:
    number = 1
    while (name := scheme if number == 1 else f"{scheme}-{number}") in taken:
        number += 1
    return name


def _write_ready_file(path: str, addresses: dict[str, str]) -> None:
    """Whole or not at all: whoever waits for the file reads it the moment it is there."""
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(addresses, file)
    os.replace(temporary, path)


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def _raise_open_files() -> None:
    """Use as many descriptors as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
