"""Who belongs to the etcd that the brokers run themselves: how it begins with one, and others come and go.

A broker that comes asks a broker that is there, over the cluster's own connection; that one adds it. A new member begins as a
learner: it gets the data, and counts for no majority until it has it. So a newcomer that never starts cannot stop those who are
there. Five members are enough for any cluster; further brokers use those.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.etcd_client import EtcdClient, OutcomeUnknown, Refused
from braidmq.cluster.transport import ClusterOp, Transport

MEMBERS_MAX: Final = 5
_STALE_LEARNER_S: Final = 60.0
_PAUSE_S: Final = 0.1
_JOIN_SECONDS_MAX: Final = 120.0

logger = logging.getLogger("braidmq.etcd")


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a newcomer is told."""

    cluster_id: str
    initial_cluster: str
    """What to start an etcd with; empty when there are members enough."""
    endpoints: tuple[str, ...]
    """Client URLs of the members that are there."""


class EtcdMembers:
    """The members, as seen through the endpoints of a client."""

    def __init__(self, client: EtcdClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._learner_since: dict[str, float] = {}
        self._adding = asyncio.Lock()

    async def rows(self) -> list[dict[str, Any]]:
        answer = await self._ask("/v3/cluster/member/list", {})
        members = answer.get("members", [])
        return [row for row in members if isinstance(row, dict)]

    async def endpoints(self) -> tuple[str, ...]:
        """Client URLs of the members that have started, voters first."""
        rows = sorted(await self.rows(), key=lambda row: (bool(row.get("isLearner")), str(row.get("name"))))
        return tuple(url for row in rows for url in row.get("clientURLs", ()))

    async def add(self, name: str, peer_url: str) -> str:
        """Make room for a newcomer; returns what to start it with. Empty when there are members enough."""
        async with self._adding:
            rows = await self.rows()
            for row in rows:
                # Its directory is new, so it is not who it was: the old one could never answer again.
                if row.get("name") == name or peer_url in row.get("peerURLs", ()):
                    logger.warning("member %s of etcd comes back without its data and replaces the one before", name)
                    await self._remove(row["ID"])
                elif row.get("isLearner") and not row.get("name"):
                    await self._give_up_stale(row)
            rows = await self.rows()
            if len(rows) >= MEMBERS_MAX:
                return ""
            await self._add_learner(peer_url)
            self._learner_since[peer_url] = self._clock.monotonic()
            # Others may have come while it waited for its turn. One that has not said its name yet goes by its number.
            known = [(str(row.get("name") or row["ID"]), url) for row in await self.rows() for url in row.get("peerURLs", ())]
            return ",".join(f"{name if url == peer_url else other}={url}" for other, url in known)

    async def _add_learner(self, peer_url: str) -> None:
        for _ in range(round(_JOIN_SECONDS_MAX / _PAUSE_S)):
            try:
                await self._client.call("/v3/cluster/member/add", {"peerURLs": [peer_url], "isLearner": True}, repeatable=False)
                return
            except OutcomeUnknown as unknown:
                logger.info("whether %s was added is not known, looking: %s", peer_url, unknown)
                if any(peer_url in row.get("peerURLs", ()) for row in await self.rows()):
                    return
            except Refused as refused:
                # Another newcomer is still learning, or members have only just been started.
                logger.info("%s is not added yet: %s", peer_url, refused)
            await asyncio.sleep(_PAUSE_S)
        raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd takes no member {peer_url}")

    async def _give_up_stale(self, row: dict[str, Any]) -> None:
        peer_url = str(next(iter(row.get("peerURLs", ())), ""))
        since = self._learner_since.setdefault(peer_url, self._clock.monotonic())
        if self._clock.monotonic() - since > _STALE_LEARNER_S:
            logger.warning("%s was to become a member of etcd and never started", peer_url)
            await self._remove(row["ID"])
            del self._learner_since[peer_url]

    async def promote(self, name: str) -> None:
        """Let a learner count once it has the data. Waits for that; fine when it counts already."""
        deadline = self._clock.monotonic() + _JOIN_SECONDS_MAX
        while True:
            row = next((row for row in await self.rows() if row.get("name") == name), None)
            if row is not None and not row.get("isLearner"):
                return
            if row is not None:
                try:
                    await self._client.call("/v3/cluster/member/promote", {"ID": row["ID"]}, repeatable=False)
                except (Refused, OutcomeUnknown) as fault:
                    logger.debug("%s does not count yet: %s", name, fault)
            if self._clock.monotonic() > deadline:
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"member {name} of etcd does not get the data")
            await asyncio.sleep(_PAUSE_S)

    async def keep_address(self, name: str, peer_url: str) -> None:
        """Tell the members where this one is now: they would go on dialling where it was."""
        row = next((row for row in await self.rows() if row.get("name") == name), None)
        if row is None or peer_url in row.get("peerURLs", ()):
            return
        try:
            await self._client.call("/v3/cluster/member/update", {"ID": row["ID"], "peerURLs": [peer_url]}, repeatable=True)
        except Refused as refused:
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None
        logger.info("member %s of etcd is at %s now", name, peer_url)

    async def remove(self, name: str) -> bool:
        """Whether there was a member of this name."""
        row = next((row for row in await self.rows() if row.get("name") == name), None)
        if row is not None:
            await self._remove(row["ID"])
        return row is not None

    async def _remove(self, member: str) -> None:
        try:
            await self._client.call("/v3/cluster/member/remove", {"ID": member}, repeatable=True)
        except Refused as refused:
            if "member not found" not in str(refused):
                raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.call(path, body, repeatable=True)
        except Refused as refused:
            raise BraidError("QUORUM_UNAVAILABLE", reason=f"etcd refused: {refused}") from None


def serve_joining(transport: Transport, members: EtcdMembers, cluster_id: str) -> None:
    """Let other brokers come in through this one."""

    async def join(node: str, payload: memoryview) -> Sequence[Buffer]:
        peer_url = _parsed(payload).get("peer_url")
        if not isinstance(peer_url, str):
            raise BraidError("MALFORMED_PAYLOAD", reason="a newcomer says where its etcd is")
        initial = await members.add(node, peer_url) if peer_url else ""
        answer = {"cluster_id": cluster_id, "initial_cluster": initial, "endpoints": await members.endpoints()}
        return [json.dumps(answer).encode()]

    transport.serve(ClusterOp.JOIN, join)


async def ask_to_join(transport: Transport, node: str, peer_url: str) -> Invitation:
    """Ask `node` to let this one come in. An empty `peer_url` asks to use the members that are there."""
    asked = json.dumps({"peer_url": peer_url}).encode()
    answer = _parsed(await transport.call(node, ClusterOp.JOIN, [asked], _JOIN_SECONDS_MAX))
    match answer:
        case {"cluster_id": str(cluster_id), "initial_cluster": str(initial), "endpoints": [*endpoints]}:
            return Invitation(cluster_id, initial, tuple(map(str, endpoints)))
        case _:
            raise BraidError("UNEXPECTED_REPLY", reason=f"{str(answer)[:80]} to a newcomer")


def _parsed(payload: memoryview) -> dict[str, Any]:
    try:
        parsed = json.loads(bytes(payload))
    except ValueError:
        raise BraidError("MALFORMED_PAYLOAD", reason="it is not JSON") from None
    if not isinstance(parsed, dict):
        raise BraidError("MALFORMED_PAYLOAD", reason="it is not a JSON object")
    return parsed
