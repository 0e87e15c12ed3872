"""An etcd that the broker runs itself: found, checked, started, watched, started again when it dies, and ended with the broker.

It dies with the broker, however that dies: a node is there as a whole or not at all, and the next start finds its ports and its
directory free. What it writes goes to the broker's log. Its data lies below the broker's data directory and survives kill -9,
as etcd syncs before it answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import sys
from collections import deque
from dataclasses import dataclass
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_client import EtcdClient
from braidmq.cluster.quorum_session import ended

HEARTBEAT_MS: Final = 50
ELECTION_MS: Final = 300
"""A leader that died is replaced in 0.3 to 0.4 s. The defaults are for networks around the world, and take three times as long."""
_CHANGES_KEPT: Final = 10_000
_INSTALL: Final = "sudo apt install etcd-server"
_VERSION_SECONDS_MAX: Final = 20.0
_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 5.0
_RESTART_PAUSE_S: Final = 0.2
_RESTART_PAUSE_S_MAX: Final = 5.0
_LAST_WORDS: Final = 20
_LINE_BYTES_MAX: Final = 1 << 20

# It runs before etcd, in its process: the kernel is told to end it when the broker dies, unless the broker died already.
_DIE_WITH_PARENT: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""

logger = logging.getLogger("braidmq.etcd")


def find_etcd() -> str | None:
    return shutil.which("etcd")


def usable_version(text: str) -> bool:
    """Whether data is safe with the version that `etcd --version` prints: 3.4 and 3.5 began with releases that corrupt it."""
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        return False
    major, minor, patch = map(int, found.groups())
    first = {4: 22, 5: 6}.get(minor, 0)
    return (major, minor) >= (3, 4) and (major > 3 or patch >= first)


async def checked_etcd() -> str:
    """The path of an etcd that may be used; raises ETCD_UNUSABLE with what to install."""
    path = find_etcd()
    if path is None:
        raise BraidError("ETCD_UNUSABLE", reason="the program etcd is not installed", command=_INSTALL)
    process = await asyncio.create_subprocess_exec(
        path, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(_VERSION_SECONDS_MAX):
            output, _ = await process.communicate()
    except BaseException as fault:
        # Nobody waits for it any more: it took too long, or this node is to stop.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
        if not isinstance(fault, TimeoutError):
            raise
        raise BraidError("ETCD_UNUSABLE", reason=f"{path} --version does not end", command=_INSTALL) from None
    text = output.decode(errors="replace")
    if not usable_version(text):
        version = text.strip().splitlines()[0][:80] if text.strip() else "it does not say its version"
        reason = f"{path} is too old: {version}; releases before 3.4.22 and 3.5.6 lose data"
        raise BraidError("ETCD_UNUSABLE", reason=reason, command=_INSTALL)
    return path


async def check_endpoints(client: EtcdClient) -> None:
    """Raises ETCD_UNUSABLE when one of the members that somebody else runs is too old; those that do not answer are not known."""
    for url, version in (await client.versions()).items():
        if not usable_version(f"etcd Version: {version}"):
            reason = f"the etcd at {url} is too old: {version[:80]}; releases before 3.4.22 and 3.5.6 lose data"
            raise BraidError("ETCD_UNUSABLE", reason=reason, command=_INSTALL)


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """PEM files with which members and brokers prove to each other that they belong to the cluster."""

    cert_file: str
    key_file: str
    ca_file: str


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One member: who it is, and where."""

    name: str
    data_dir: str
    client_address: str
    """host:port where brokers ask."""
    peer_address: str
    """host:port where the other members ask."""
    tls: EtcdTls | None = None

    @property
    def _scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def client_url(self) -> str:
        return f"{self._scheme}://{self.client_address}"

    @property
    def peer_url(self) -> str:
        return f"{self._scheme}://{self.peer_address}"

    def arguments(self, initial_cluster: str) -> list[str]:
        """`initial_cluster` names the members that are there already, with this one; empty for the first of all. It matters only
        as long as there is no data."""
        words = {
            "name": self.name,
            "data-dir": self.data_dir,
            "listen-client-urls": self.client_url,
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": initial_cluster or f"{self.name}={self.peer_url}",
            "initial-cluster-state": "existing" if initial_cluster else "new",
            "heartbeat-interval": str(HEARTBEAT_MS),
            "election-timeout": str(ELECTION_MS),
            # It would make every newcomer wait for five seconds. What keeps those who are there safe: newcomers are learners.
            "strict-reconfig-check": "false",
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": str(_CHANGES_KEPT),
            "logger": "zap",
            "log-level": "warn",
            "log-outputs": "stderr",
        }
        if self.tls is not None:
            for kind in ("", "peer-"):
                words[f"{kind}cert-file"] = self.tls.cert_file
                words[f"{kind}key-file"] = self.tls.key_file
                words[f"{kind}trusted-ca-file"] = self.tls.ca_file
                words[f"{kind}client-cert-auth"] = "true"
        return [f"--{name}={value}" for name, value in words.items()]


class EtcdProcess:
    def __init__(self, member: EtcdMember) -> None:
        self.member = member
        self._path = ""
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_words: deque[str] = deque(maxlen=_LAST_WORDS)
        self.starts = 0
        """How often it was started."""

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, initial_cluster: str = "") -> None:
        """Start it, and wait until it takes connections. Raises ETCD_UNUSABLE or CHILD_ENDED."""
        self._path = await checked_etcd()
        await self._spawn(initial_cluster)
        self._supervisor = asyncio.create_task(self._supervise(initial_cluster))
        try:
            await self._until_reachable()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            await ended(supervisor)
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX):
                # It may wait for us to read what it has to say.
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()

    # --- keeping it up

    async def _spawn(self, initial_cluster: str) -> None:
        launcher = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
        self._process = await asyncio.create_subprocess_exec(
            *launcher, self._path, *self.member.arguments(initial_cluster),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX, start_new_session=True,
        )  # fmt: skip
        self.starts += 1

    async def _supervise(self, initial_cluster: str) -> None:
        pause_s = _RESTART_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            process = self._process
            assert process is not None and process.stderr is not None
            started_at = loop.time()
            await self._pass_on(process.stderr)
            status = await process.wait()
            if loop.time() - started_at > _RESTART_PAUSE_S_MAX:
                pause_s = _RESTART_PAUSE_S
            logger.error("etcd ended with status %d and is started again in %.1f s", status, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_PAUSE_S_MAX)
            await self._spawn(initial_cluster)

    async def _pass_on(self, stderr: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stderr.readline()
            except ValueError:
                # A line longer than any reason to write one; what follows it is read all the same.
                continue
            if not line:
                return
            text = line.decode(errors="replace").strip()
            level = logging.INFO
            with contextlib.suppress(ValueError):
                entry = json.loads(text)
                if isinstance(entry, dict) and "msg" in entry:
                    level = logging.WARNING if entry.get("level") in ("error", "panic", "fatal") else logging.INFO
                    text = f"{entry['msg']}{': ' + str(entry['error']) if 'error' in entry else ''}"
            self._last_words.append(text)
            logger.log(level, "%s", text)

    async def _until_reachable(self) -> None:
        host, _, port = self.member.client_address.rpartition(":")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_SECONDS_MAX
        while True:
            try:
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:
                # Started again and again it may still come: a port may be free in a moment.
                if loop.time() > deadline:
                    status = self._process.returncode if self._process is not None else None
                    words = " / ".join(list(self._last_words)[-3:]) or "it said nothing"
                    raise BraidError("CHILD_ENDED", what="etcd", status=status, words=words) from None
                await asyncio.sleep(_RESTART_PAUSE_S / 4)
            else:
                writer.transport.abort()
                return
