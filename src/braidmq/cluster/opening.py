"""From settings to a place in a cluster: the port for other nodes, the quorum, and who this node is.

A node that has been here before needs nobody: its etcd has its data, and what it knows of the cluster is in the file `cluster`
of the data directory. A new one goes in through a peer that is there, or through one that answers by mDNS. Where nobody is there
yet, the node without peers begins the cluster, or the one whose own address is the first of the list; the others wait for it.

That nobody is there is nothing one can see: a node with an empty disk that reaches nobody may be the replacement of one that was
lost, started before its network was up. So the first of the list begins only when most of the list are here, itself counted, and
none of them belongs to a cluster. Two beginnings cannot come from one list by chance.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq import __version__
from braidmq.base import limits
from braidmq.base.clock import Clock
from braidmq.base.config_listen import ANY_HOST, split_address
from braidmq.base.config_settings import Config
from braidmq.base.disk import Buffer, Disk
from braidmq.base.errors import BraidError
from braidmq.cluster.cluster_tls import client_context, cluster_contexts
from braidmq.cluster.etcd_client import EtcdClient
from braidmq.cluster.etcd_members import EtcdMembers, Invitation, ask_to_join, serve_joining
from braidmq.cluster.etcd_process import EtcdMember, EtcdProcess, EtcdTls, check_endpoints
from braidmq.cluster.hello import Identity
from braidmq.cluster.membership.gossip_codec import Status
from braidmq.cluster.membership.gossip_udp import Gossip
from braidmq.cluster.membership.mdns import Announcement, FoundNode, discover
from braidmq.cluster.membership.swim import Swim
from braidmq.cluster.quorum import Guard, MetaQuorum, Ok, Put
from braidmq.cluster.quorum_etcd import EtcdQuorum
from braidmq.cluster.quorum_local import LocalQuorum
from braidmq.cluster.quorum_session import ended
from braidmq.cluster.transport import AddressBook, ClusterOp, Handler
from braidmq.cluster.transport_tcp import TcpTransport

_CLUSTER_KEY: Final = "cluster"
"""Of the quorum: the id of the cluster."""
_MEET_SECONDS_MAX: Final = 3.0
_PEERS_PAUSE_S: Final = 0.2
_DISCOVER_S: Final = 2.0
"""How long a node without peers listens for a cluster before it begins one."""
_ENDPOINTS_S: Final = 15.0
_INTRODUCE_S: Final = 2.0
_QUORUM_SECONDS_MAX: Final = 120.0
TOKEN_VARIABLE: Final = "BRAID_JOIN_TOKEN"
PASSWORD_VARIABLE: Final = "BRAID_QUORUM_PASSWORD"

logger = logging.getLogger("braidmq.cluster")


@dataclass(slots=True)
class OpenedCluster:
    """What a node needs to be one."""

    cluster_id: str
    address: str
    """Where other nodes reach this one."""
    quorum: MetaQuorum
    transport: TcpTransport
    book: AddressBook
    members: EtcdMembers | None = None
    """Of the etcd that the nodes run themselves."""
    gossip: Gossip | None = None
    watchers: list[Callable[[str, Status], None]] = field(default_factory=list)
    """Told what gossip says of a node: a hint, never a decision."""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def leave_for_good(self, node: str) -> None:
        """The node does not come back: its etcd belongs no longer to those of the others."""
        if self.members is not None:
            await self.members.remove(node)

    async def close(self) -> None:
        await self._stack.aclose()


async def open_cluster(config: Config, disk: Disk, clock: Clock, environ: Mapping[str, str]) -> OpenedCluster:
    """Open the cluster's port and reach its quorum. Waits until a majority answers.

    Raises CONFIG_INVALID_VALUE, CLUSTER_REFUSED, ETCD_UNUSABLE, or QUORUM_UNAVAILABLE when nobody answers for two minutes.
    """
    async with AsyncExitStack() as stack:
        opened = await _Opening(config, disk, clock, environ, stack).run()
        opened._stack = stack.pop_all()
    return opened


class _Opening:
    def __init__(self, config: Config, disk: Disk, clock: Clock, environ: Mapping[str, str], stack: AsyncExitStack) -> None:
        assert config.cluster_listen is not None
        self._config = config
        self._disk = disk
        self._clock = clock
        self._environ = environ
        self._stack = stack
        self._file = f"{config.data_dir}/cluster"
        disk.make_directory(config.data_dir)
        self._known = self._read_file()
        self._book = AddressBook()
        self._found: list[str] = []
        """Addresses of nodes that answered in the local network, where no peers are named."""
        token = _secret(environ, TOKEN_VARIABLE, disk, config.join_token_file, "join_token_file")
        if token and len(token) < limits.CLUSTER_TOKEN_CHARACTERS_MIN:
            reason = f"a join token has {limits.CLUSTER_TOKEN_CHARACTERS_MIN} characters or more: `openssl rand -hex 32` makes one"
            raise BraidError("CONFIG_INVALID_VALUE", key="join_token_file", origin="configuration", reason=reason)
        self._me = Identity(config.node_id, self._cluster_id(), token)

    def _cluster_id(self) -> str:
        """What the file knows, or else the settings; they must not differ."""
        known, wanted = str(self._known.get("cluster_id", "")), self._config.cluster_id
        if known and wanted and known != wanted:
            reason = f"the data directory belongs to cluster {known}"
            raise BraidError("CONFIG_INVALID_VALUE", key="cluster_id", origin=_origin(self._config, "cluster_id"), reason=reason)
        return known or wanted

    async def run(self) -> OpenedCluster:
        config = self._config
        server_tls, client_tls = cluster_contexts(*config.cluster_tls) if config.cluster_tls is not None else (None, None)
        transport = TcpTransport(self._me, self._book, server_tls=server_tls, client_tls=client_tls)
        self._stack.push_async_callback(transport.close)
        host, port = split_address(config.cluster_listen or "")
        try:
            bound = await transport.listen(host, port)
        except OSError as fault:
            reason = f"{config.cluster_listen}: {fault.strerror or fault}"
            origin = _origin(config, "cluster_listen")
            raise BraidError("CONFIG_INVALID_VALUE", key="cluster_listen", origin=origin, reason=reason) from fault
        self._me.address = config.cluster_advertise or dialable(bound)
        if why := self._cannot_let_in():
            transport.serve(ClusterOp.JOIN, _refuses_for_now(why))
        if not self._me.token and not host.startswith("127."):
            logger.warning("there is no join token: whoever reaches %s can join the cluster", self._me.address)
        members = None
        quorum: MetaQuorum
        if config.quorum_driver == "local":
            local = LocalQuorum(self._disk, f"{config.data_dir}/quorum", self._clock)
            await local.open()
            self._stack.push_async_callback(local.close)
            quorum = local
        elif config.quorum_driver == "etcd":
            password = _secret(self._environ, PASSWORD_VARIABLE, self._disk, config.quorum_password_file, "quorum_password_file")
            tls = client_context(config.quorum_tls_ca_file, config.quorum_tls_cert_file, config.quorum_tls_key_file)
            client = EtcdClient(config.quorum_endpoints, self._clock, tls, config.quorum_user, password)
            await check_endpoints(client)
            quorum = self._over(client, config.quorum_prefix)
        else:
            quorum, members = await self._managed(transport, client_tls)
        cluster_id = await self._agree_on_id(quorum)
        self._me.cluster = cluster_id
        self._write_file(cluster_id=cluster_id)
        if members is not None:
            serve_joining(transport, members, cluster_id)
        opened = OpenedCluster(cluster_id, self._me.address, quorum, transport, self._book, members)
        if config.gossip:
            await self._gossip(opened, bound)
        if config.discovery:
            await self._announce(cluster_id)
        return opened

    # --- hints

    async def _gossip(self, opened: OpenedCluster, bound: str) -> None:
        """Hear from the others by UDP, at the port of the same number."""
        me, book = self._me, self._book

        def changed(node: str, status: Status) -> None:
            if status is Status.ALIVE and opened.gossip is not None and book.address_of(node) is None:
                book.learn(node, opened.gossip.swim.members()[node].address)
            for watcher in opened.watchers:
                watcher(node, status)

        def make(_: str) -> Swim:
            # A node that was started again must be newer than it was.
            return Swim(
                me.node, me.address, random.Random(secrets.randbits(64)), cluster=opened.cluster_id, key=me.token.encode(),
                incarnation=self._clock.now_ms(), changed=changed,
            )  # fmt: skip

        try:
            gossip = opened.gossip = await Gossip.open(make, *split_address(bound))
        except OSError as fault:
            logger.warning("there is no gossip, so losses of nodes are noticed later: UDP %s: %s", bound, fault.strerror or fault)
            return
        self._stack.push_async_callback(gossip.close)

        async def introduce() -> None:
            """Whoever is in the address book and was never heard of is told of this node."""
            while True:
                known = gossip.swim.members()
                gossip.join([str(book.address_of(node)) for node in book.nodes() if node not in known and node != me.node])
                await asyncio.sleep(_INTRODUCE_S)

        self._stack.push_async_callback(ended, asyncio.create_task(introduce()))

    async def _announce(self, cluster_id: str) -> None:
        config, address = self._config, self._me.address
        client = next((listen.address for listen in config.listen if listen.protocol == "flymq"), "")
        client = config.client_advertise or (dialable(client) if client else "")
        node = FoundNode(config.node_id, cluster_id, address, client, __version__)
        self._stack.push_async_callback((await Announcement.open(node, self._interfaces())).close)

    def _interfaces(self) -> list[str]:
        """Where mDNS is spoken: everywhere, unless this node is on loopback alone."""
        address = self._me.address
        return [split_address(address)[0]] if address.startswith("127.") else []

    def _over(self, client: EtcdClient, prefix: str) -> EtcdQuorum:
        quorum = EtcdQuorum(client, self._clock, prefix)
        self._stack.push_async_callback(quorum.close)
        return quorum

    async def _agree_on_id(self, quorum: MetaQuorum) -> str:
        """The id that the quorum keeps. It is written once, by whoever is first."""
        deadline = self._clock.monotonic() + _QUORUM_SECONDS_MAX
        while True:
            try:
                entry = (await quorum.read(_CLUSTER_KEY)).entries.get(_CLUSTER_KEY)
            except BraidError as fault:
                if self._clock.monotonic() > deadline:
                    raise
                logger.info("waiting for the quorum: %s", fault)
                continue
            if entry is not None:
                kept = entry.value.decode()
                if self._me.cluster and kept != self._me.cluster:
                    reason = f"it is that of cluster {kept}, not {self._me.cluster}"
                    raise BraidError("CLUSTER_REFUSED", node="the quorum", reason=reason)
                return kept
            made = self._me.cluster or secrets.token_hex(8)
            if isinstance(await quorum.txn([Guard(_CLUSTER_KEY, 0)], [Put(_CLUSTER_KEY, made.encode())]), Ok):
                return made

    # --- an etcd of our own

    async def _managed(self, transport: TcpTransport, tls: Any) -> tuple[EtcdQuorum, EtcdMembers]:
        config = self._config
        member = await self._member()
        process = EtcdProcess(member)
        remembered = [url for url in self._known.get("endpoints", ()) if isinstance(url, str)]
        client = EtcdClient([member.client_url, *remembered], self._clock, tls)
        quorum = self._over(client, "braidmq/")
        members = EtcdMembers(client, self._clock)
        runs = True
        if self._disk.exists(f"{member.data_dir}/member"):
            await process.start()
        elif self._known.get("etcd") is False:
            # There were members enough when it came; it asks those.
            runs = False
            client.use_endpoints(remembered)
        else:
            invitation = await self._invited(transport, member.peer_url)
            if invitation is None:
                logger.info("node %s begins a cluster", config.node_id)
                await process.start()
            else:
                self._me.cluster = invitation.cluster_id
                runs = bool(invitation.initial_cluster)
                client.use_endpoints([member.client_url, *invitation.endpoints] if runs else invitation.endpoints)
                if runs:
                    await process.start(invitation.initial_cluster)
                self._write_file(cluster_id=invitation.cluster_id, etcd=runs, endpoints=list(invitation.endpoints))
        if runs:
            self._stack.push_async_callback(process.stop)
        self._keep_endpoints(client, members, member, runs)
        if runs:
            # One that was stopped while it learned goes on learning now.
            await members.promote(member.name)
        return quorum, members

    async def _member(self) -> EtcdMember:
        config = self._config
        host, _ = split_address(self._me.address)
        clients = await self._etcd_address(config.etcd_client_listen, host, 2379)
        peers = await self._etcd_address(config.etcd_peer_listen, host, 2380)
        tls = EtcdTls(*config.cluster_tls) if config.cluster_tls is not None else None
        if tls is None and not clients.startswith("127."):
            logger.warning("whoever reaches %s or %s can change metadata: give the nodes TLS, or close these ports", clients, peers)
        return EtcdMember(config.node_id, f"{config.data_dir}/etcd", clients, peers, tls)

    async def _etcd_address(self, given: str | None, host: str, port: int) -> str:
        """Etcd listens at addresses only, never at names."""
        if given is not None:
            host, port = split_address(given)
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        except OSError as fault:
            reason = f"{host} has no address: {fault}"
            raise BraidError("CONFIG_INVALID_VALUE", key="etcd_client_listen", origin="configuration", reason=reason) from None
        address = found[0][4][0]
        return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"

    async def _invited(self, transport: TcpTransport, peer_url: str) -> Invitation | None:
        """What a peer that is there says to a newcomer; None when it is ours to begin. Waits for the one that has to."""
        peers = self._config.peers or await self._discovered()
        others = [peer for peer in peers if peer != self._me.address]
        majority = len({*others, self._me.address}) // 2 + 1
        told: dict[str, str] = {}
        warned = False
        while True:
            blank, elsewhere = {self._me.node}, False
            for peer in others:
                node = ""
                try:
                    node = await transport.meet(peer, _MEET_SECONDS_MAX)
                    return await ask_to_join(transport, node, peer_url)
                except BraidError as fault:
                    # It is not there, waits as we do, or cannot let anybody in yet.
                    if fault.code not in ("NODE_UNREACHABLE", "UNKNOWN_OPCODE", "QUORUM_UNAVAILABLE"):
                        raise
                    if fault.code == "UNKNOWN_OPCODE":
                        blank.add(node)
                        continue
                    elsewhere = elsewhere or fault.code == "QUORUM_UNAVAILABLE"
                    if str(fault) != told.get(peer):
                        told[peer] = str(fault)
                        logger.info("peer %s: %s", peer, fault)
            if self._begins and len(blank) >= majority and not elsewhere:
                return None
            if self._begins and not warned:
                warned = True
                logger.warning(
                    "node %s begins a cluster when %d of the %d in `peers` are here, or joins theirs when they have one",
                    self._me.node, majority, len(others) + 1,
                )  # fmt: skip
            await asyncio.sleep(_PEERS_PAUSE_S)

    @property
    def _begins(self) -> bool:
        """Whether it is this node that begins a cluster where there is none."""
        peers = self._config.peers or self._found
        return not peers or peers[0] == self._me.address

    def _cannot_let_in(self) -> str:
        """Why nobody may take this node for one that only waits for others, although it cannot let anybody in yet."""
        if self._known.get("cluster_id") or self._disk.exists(f"{self._config.data_dir}/etcd/member"):
            return f"{self._me.node} belongs to a cluster, and comes back to it"
        return f"{self._me.node} is to begin a cluster" if self._begins else ""

    async def _discovered(self) -> list[str]:
        """Where nodes are that answer in the local network. One is joined if it is of the cluster that the settings name, or, where
        they name none, if there is one cluster only and a secret to tell it from another's."""
        wanted = self._me.cluster
        if not self._config.discovery or not (wanted or self._me.token):
            return []
        found = [node for node in await discover(_DISCOVER_S, wanted, self._interfaces()) if node.node_id != self._me.node]
        if len(clusters := sorted({node.cluster_id for node in found})) > 1:
            reason = f"several clusters answer, {', '.join(clusters)}: name one of them"
            raise BraidError("CONFIG_INVALID_VALUE", key="cluster_id", origin="configuration", reason=reason)
        self._found = [node.cluster_addr for node in found]
        if found:
            logger.info("cluster %s answers at %s", clusters[0], ", ".join(self._found))
        return self._found

    def _keep_endpoints(self, client: EtcdClient, members: EtcdMembers, member: EtcdMember, runs: bool) -> None:
        """Know where the members are, now and after a restart."""

        async def look() -> None:
            while True:
                try:
                    if runs:
                        await members.keep_address(member.name, member.peer_url)
                    found = await members.endpoints()
                except BraidError as fault:
                    logger.debug("members of etcd are not known: %s", fault)
                    found = ()
                if found:
                    urls = [member.client_url, *(url for url in found if url != member.client_url)] if runs else list(found)
                    if urls != client.endpoints:
                        client.use_endpoints(urls)
                        self._write_file(endpoints=[url for url in found if url != member.client_url])
                await asyncio.sleep(_ENDPOINTS_S if len(found) > 1 else _PEERS_PAUSE_S * 5)

        self._stack.push_async_callback(ended, asyncio.create_task(look()))

    # --- what the node remembers

    def _read_file(self) -> dict[str, Any]:
        if not self._disk.exists(self._file):
            return {}
        try:
            document = json.loads(self._disk.read_file(self._file))
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise BraidError("DATA_DIR_INVALID", path=self._config.data_dir, reason=f"{self._file} is not what a node writes there")
        return document

    def _write_file(self, **known: Any) -> None:
        before = dict(self._known)
        self._known.update(known)
        if self._known != before:
            self._disk.replace_file(self._file, json.dumps(self._known).encode())


def _refuses_for_now(why: str) -> Handler:
    async def refuse(node: str, payload: memoryview) -> Sequence[Buffer]:
        raise BraidError("QUORUM_UNAVAILABLE", reason=why)

    return refuse


def dialable(address: str) -> str:
    """An address that others can dial, made from one that is bound."""
    host, port = split_address(address)
    return f"{os.uname().nodename}:{port}" if host in (ANY_HOST, "::") else address


def _secret(environ: Mapping[str, str], variable: str, disk: Disk, file: str | None, key: str) -> str:
    """A secret that no setting holds: from the environment, or from a file; empty where there is none."""
    if found := environ.get(variable):
        return found
    if file is None:
        return ""
    try:
        return disk.read_file(file).decode().strip()
    except (OSError, ValueError) as fault:
        raise BraidError("CONFIG_INVALID_VALUE", key=key, origin="configuration", reason=f"{file}: {fault}") from None


def _origin(config: Config, key: str) -> str:
    return str(config.origins.get(key, "configuration"))
