"""Which node of a cluster leads which partition, as far as this client was told.

A broker that runs alone leads everything, and nothing here is ever asked of it: the table stays empty, and whoever looks into it
finds that any server will do. What fills it are the nodes of a cluster:

    METADATA names a leader by a number that is not 0    so it is a cluster, and CLUSTER_MAP says who leads what
    NOT_LEADER names the leader's address                which is right until it is said otherwise, or comes from a replica
    a node does not answer                               what it led is led by nobody known, and CLUSTER_MAP is asked again

CLUSTER_MAP is CLUSTER_METADATA in the dialect of this client. It is asked on a connection of its own: those that are there may be
to a node that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.addresses import Address, parse_address
from braidmq.client.faults import leader_address, server_error
from braidmq.client.replicas import Replicas
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, ErrorReply

from .connection import encode
from .dialer import Dialer
from .pool import MOMENT_S

ASK_AGAIN_SECONDS: Final = 0.25
"""So long an answer counts as new, however many ask."""
ANSWER_SECONDS: Final = 2.0
"""A node that takes longer to say who leads what is passed over for another."""


class Leaders:
    def __init__(self, dialer: Dialer) -> None:
        self.version = 0
        """Grows whenever something else is known. It stays 0 with a broker that runs alone."""
        self._dialer = dialer
        self._addresses: dict[tuple[str, int], Address] = {}
        self._replicas = Replicas()
        self._mutex = backend.Mutex()
        self._asking = backend.Lock()
        self._asked_s: dict[str, float] = {}

    @property
    def clustered(self) -> bool:
        """Whether there is more than one node to talk to."""
        return self.version > 0

    def of(self, topic: str, partition: int) -> Address | None:
        """Where a partition's leader is; None where that is not known, and any server may be asked."""
        return self._addresses.get((topic, partition))

    def reader(self, topic: str, partition: int, settings: ClientSettings) -> Address | None:
        """Where to read a partition; None where that is not known, and any server may be asked."""
        with self._mutex:
            chosen = self._replicas.choose(topic, partition, settings.rack) if settings.read_from == "nearest" else None
            return chosen or self._addresses.get((topic, partition))

    def set_aside(self, address: Address, topic: str = "", partition: int = -1) -> None:
        """Let nobody read a partition from this node's replica for a while; or nothing at all."""
        with self._mutex:
            self._replicas.set_aside(address, topic, partition)

    # --- being told

    def told(self, topic: str, partition: int, fault: BraidError) -> Address | None:
        """A node says that it does not lead a partition. Returns who does, if it says that too."""
        address = self.address(leader_address(fault))
        with self._mutex:
            if address is None:
                known = self._addresses.pop((topic, partition), None)
                self.version += known is not None or self.version == 0
            elif self._addresses.get((topic, partition)) != address:
                self._addresses[topic, partition] = address
                self.version += 1
        if address is not None:
            self._dialer.learn([address])
        return address

    def forget(self, address: Address) -> None:
        """A node does not answer: whoever leads what it led is to be found out."""
        with self._mutex:
            lost = [key for key, known in self._addresses.items() if known == address]
            for key in lost:
                del self._addresses[key]
            self.version += bool(lost)

    def address(self, text: str) -> Address | None:
        """An address as a node names it."""
        if not text:
            return None
        try:
            found = parse_address(text)
        except ValueError as fault:
            log.warning("a node names an address that makes no sense: %s", fault)
            return None
        return Address(found.host, found.port, self._dialer.speaks_tls)

    # --- asking

    async def learn(self, answer: flymq.TopicMetadata, timeout_s: float) -> None:
        """A topic's METADATA came: where its leader has a number, the topic is a cluster's."""
        if any(part.leader for part in answer.partitions):
            await self.refresh([answer.topic], timeout_s)

    async def refresh(
        self, topics: Iterable[str], timeout_s: float, stop: backend.Signal | None = None, age_s: float = ASK_AGAIN_SECONDS
    ) -> None:
        """Ask who leads the partitions of these topics, unless that was done within `age_s`. What cannot be found out now stays
        unknown."""
        wanted = list(topics)
        async with self._asking:
            now_s = time.monotonic()
            due = [topic for topic in wanted if now_s - self._asked_s.get(topic, -age_s) >= age_s]
            if not due:
                return
            try:
                await self._ask(due, now_s + timeout_s, stop)
            except BraidError as fault:
                log.info("nobody says who leads %s: %s", ", ".join(due), fault)
            self._asked_s.update(dict.fromkeys(due, time.monotonic()))

    async def _ask(self, topics: list[str], deadline_s: float, stop: backend.Signal | None) -> None:
        requests = [encode(flymq.ClusterMap(topic, readers=True)) for topic in topics]
        while True:
            connection = await self._dialer.dial(max(MOMENT_S, deadline_s - time.monotonic()), stop)
            try:
                frames = await connection.call([encode(flymq.ClusterStatus()), *requests], ANSWER_SECONDS)
                break
            except BraidError as fault:
                # A node that hangs takes connections and says nothing; another one knows as much.
                self._dialer.avoid(connection.server)
                if fault.code not in ("CONNECTION_LOST", "TIMED_OUT") or time.monotonic() >= deadline_s:
                    raise
            finally:
                await connection.close()
        self._take_nodes(frames[0])
        for topic, frame in zip(topics, frames[1:], strict=True):
            self._take_topic(topic, frame)

    def _take_nodes(self, frame: flymq.Frame) -> None:
        answer = flymq.decode_response(flymq.Op.CLUSTER_STATUS, frame.op, frame.payload, Dialect.DOCUMENTED)
        if isinstance(answer, flymq.ClusterState):
            found = [self.address(node.client_address) for node in answer.nodes if node.status != "dead"]
            self._dialer.learn(address for address in found if address is not None)

    def _take_topic(self, topic: str, frame: flymq.Frame) -> None:
        answer = flymq.decode_response(flymq.Op.CLUSTER_MAP, frame.op, frame.payload, Dialect.DOCUMENTED)
        if isinstance(answer, ErrorReply):
            log.info("the leaders of %s are not told: %s", topic, server_error(answer.text))
            return
        assert isinstance(answer, flymq.ClusterTopics)
        readers = [(reader.node, self.address(reader.client_address), reader.rack) for reader in answer.readers]
        with self._mutex:
            self._replicas.know_readers((node, address, rack) for node, address, rack in readers if address is not None)
        for described in answer.topics:
            for part in described.partitions:
                address = self.address(part.leader_address) if part.leader else None
                key = (described.topic, part.partition)
                with self._mutex:
                    self._replicas.know_in_sync(*key, part.in_sync)
                    if address is None:
                        self.version += self._addresses.pop(key, None) is not None
                    elif self._addresses.get(key) != address:
                        self._addresses[key] = address
                        self.version += 1
