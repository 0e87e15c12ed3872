"""Which node of a cluster serves what is pushed and outlives its clients: a durable subscriber, a permanent queue.

Records are on several nodes, but whoever hands them out has to know what is pending, what is under way and who takes part: that
is one node at a time. Each such thing bears the name of its consumer group, and the offsets journal says who serves it
(`group_offsets.py`). A node takes a group that nobody serves, or whose server is away, by a command that names the term it found.
It is applied in the order of the journal: of two nodes that want the same group one gets it, and the other learns from the answer
who that is. The term goes with every position that is committed, in the same journal. So a server that was replaced and does not
know it yet may deliver something twice, and can never move the place at which its successor begins.

    nobody, or away   the node that a client comes to takes it; what outlives its clients is taken by some node in any case
    served elsewhere  its server is asked for it, and gives what nobody there needs: it is served where its client is
    in use elsewhere  the client is told which node that is
    replaced          the server lets go at once, and so do its clients

A broker alone serves everything, and nothing of this costs it anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from braidmq.base.errors import BraidError
from braidmq.broker.group_offsets import GroupOffsets, Server

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

_LOOK_S: Final = 1.0
"""How often a node looks for what nobody serves."""
_TURN_S: Final = 2.0
"""How much longer than the one before it each node lets such a thing lie: who comes first may have no port for it."""
_PATIENCE_S: Final = 20.0
_AGAIN_S: Final = 0.1

logger = logging.getLogger("braidmq.push")


class Owner(Protocol):
    """Those groups whose names begin alike."""

    def kept(self) -> Iterable[str]:
        """Groups that have to be served, whether they have clients or not."""

    async def begin(self, group: str, *, given: bool) -> None:
        """This node serves a group from now on: go on where it was. It was `given` if its last server is still there; otherwise
        what goes with a broker has gone with that one."""

    def end(self, group: str) -> None:
        """Another node does: let go of it, and of its clients."""

    def idle(self, group: str) -> bool:
        """Whether another node may have it: nobody here needs it, and nobody is about to."""

    async def flush(self, group: str) -> None:
        """Make durable how far it came."""


class Serving:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._owners: dict[str, Owner] = {}
        """By the beginning of the groups' names, up to the colon."""
        self._terms: dict[str, int] = {}
        """What this node serves."""
        self._given: set[str] = set()
        """What of it another node gave to this one."""
        self._begun: set[str] = set()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._lying: dict[str, float] = {}
        """Since when nobody serves what has to be served."""
        self._woken = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving = False

    @property
    def alone(self) -> bool:
        return self._broker.peers is None

    @property
    def _node(self) -> str:
        assert self._broker.peers is not None, "a broker alone need not ask"
        return self._broker.peers.node

    def own(self, beginning: str, owner: Owner) -> None:
        """Let `owner` have the groups that begin so. In a cluster it is told which of them to serve."""
        self._owners[beginning] = owner
        peers = self._broker.peers
        if peers is not None and self._looking is None:
            self._broker.groups.on_served = self._served
            peers.watchers.append(self._woken.set)
            self._looking = asyncio.create_task(self._look_after())
        self._woken.set()

    def disown(self, beginning: str) -> None:
        self._owners.pop(beginning, None)

    def _owner(self, group: str) -> Owner | None:
        return self._owners.get(group.partition(":")[0])

    # --- asking

    def term(self, group: str) -> int | None:
        """What the positions of a group have to bear; None where this node does not serve it."""
        return self._terms.get(group)

    # --- taking

    async def claim(self, group: str) -> str:
        """The node that serves a group: this one, if nobody does who is here. A broker alone has no name for it."""
        if self.alone:
            return ""
        clock = self._broker.clock
        deadline_s = clock.monotonic() + _PATIENCE_S
        async with self._lock(group):
            while True:
                try:
                    node = await self._claim(group)
                    if node:
                        return node
                    continue
                except BraidError as error:
                    # It may have happened all the same: the next look tells.
                    if self._leaving or clock.monotonic() >= deadline_s:
                        raise
                    logger.debug("%s is not taken yet: %s", group, error)
                await asyncio.sleep(_AGAIN_S)

    async def _claim(self, group: str) -> str:
        """One step on the way; empty when there is another."""
        server = self._broker.groups.server(group)
        if server.node == self._node and self._terms.get(group) == server.term:
            return self._node if await self._begin(group, server.term) else ""
        assert self._broker.peers is not None
        if server.node not in ("", self._node) and server.node in self._broker.peers.live():
            return server.node
        if self._leaving:
            raise BraidError("SHUTTING_DOWN")
        await self._submit(GroupOffsets.serve(group, self._node, server.term))
        return ""

    async def _begin(self, group: str, term: int) -> bool:
        """Go on with a group that this node has; False when it was taken away meanwhile."""
        if group in self._begun:
            return True
        owner = self._owner(group)
        assert owner is not None and self._broker.peers is not None
        # Its last server may have noted more than has come here yet.
        await self._broker.peers.look_at_journals()
        await owner.begin(group, given=group in self._given)
        if self._terms.get(group) != term:
            owner.end(group)
            return False
        self._begun.add(group)
        return True

    def _served(self, group: str, server: Server, given: bool) -> None:
        """The journal says who serves a group."""
        if self._owner(group) is None:
            return
        self._given.discard(group)
        if server.node == self._node and not self._leaving:
            self._terms[group] = server.term
            if given:
                self._given.add(group)
        elif self._terms.pop(group, None) is not None and group in self._begun:
            self._begun.discard(group)
            owner = self._owner(group)
            assert owner is not None
            owner.end(group)

    async def take(self, group: str) -> None:
        """Serve a group here; NOT_LEADER says which node has clients that need it there.

        A node that was killed a moment ago counts as here until somebody notices; until then it is asked again.
        """
        clock = self._broker.clock
        deadline_s = clock.monotonic() + _PATIENCE_S
        while not self.alone:
            node = await self.claim(group)
            if node == self._node:
                return
            peers = self._broker.peers
            assert peers is not None
            try:
                given = await peers.ask_for(node, group)
            except BraidError as error:
                if self._leaving or error.code != "NODE_UNREACHABLE" or clock.monotonic() >= deadline_s:
                    raise
                logger.debug("%s is not taken yet: %s", group, error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if not given and self._broker.groups.server(group).node == node:
                reason = f"{group} is in use at leader_id={node} leader_addr={peers.client_address(node)}"
                raise BraidError("NOT_LEADER", reason=reason)
            await peers.look_at_journals()

    # --- giving

    async def hand_over(self, group: str, node: str) -> bool:
        """Let another node serve a group that has no clients here; False when it has, or is not served here."""
        async with self._lock(group):
            owner, term = self._owner(group), self._terms.get(group)
            if owner is None or term is None or group not in self._begun or not owner.idle(group):
                return False
            await owner.flush(group)
            if not owner.idle(group):
                return False
            server: Server = await self._submit(GroupOffsets.give(group, node, term))
            return server.node == node

    def release(self, group: str) -> None:
        """A group is gone."""
        term = self._terms.pop(group, None)
        self._begun.discard(group)
        if term is not None:
            self._beside(self._submit(GroupOffsets.unserve(group, term)))

    async def leave(self) -> None:
        """This node goes: make durable how far everything came, and let others serve it."""
        self._leaving = True
        if self._looking is None:
            return
        self._looking.cancel()
        await asyncio.gather(self._looking, *self._tasks, return_exceptions=True)
        terms, self._terms = self._terms, {}
        self._begun.clear()
        outcomes = await asyncio.gather(
            *(self._submit(GroupOffsets.unserve(group, term)) for group, term in terms.items()), return_exceptions=True
        )
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failed:
            # Others take it when they see that this node is away.
            logger.info("%d of %d groups are not handed back: %s", len(failed), len(outcomes), failed[0])

    # --- what nobody serves

    async def _look_after(self) -> None:
        while True:
            self._woken.clear()
            for group in self._due():
                # One that cannot be taken now must not hold up the others.
                self._beside(self.claim(group))
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    def _due(self) -> list[str]:
        """What this node should take now."""
        peers, now_s = self._broker.peers, self._broker.clock.monotonic()
        assert peers is not None
        live = peers.live()
        due = []
        lying: dict[str, float] = {}
        for owner in self._owners.values():
            for group in owner.kept():
                server = self._broker.groups.server(group)
                if group in self._begun or (server.node != self._node and server.node in live):
                    continue
                since = lying[group] = self._lying.get(group, now_s)
                turn = 0 if server.node == self._node else _turn(group, self._node, live)
                if now_s - since >= turn * _TURN_S and not self._lock(group).locked():
                    due.append(group)
        self._lying = lying
        return due

    # --- commands

    def _lock(self, group: str) -> asyncio.Lock:
        lock = self._locks.get(group)
        if lock is None:
            lock = self._locks[group] = asyncio.Lock()
        return lock

    async def _submit(self, command: list[Any]) -> Any:
        return await self._broker.submit("offsets", command)

    def _beside(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            fault = task.exception()
            logger.log(
                logging.INFO if isinstance(fault, BraidError) else logging.ERROR, "who serves what did not change: %s", fault,
                exc_info=None if isinstance(fault, BraidError) else fault,
            )


def _turn(group: str, node: str, live: Iterable[str]) -> int:
    """When it is a node's turn to take a group: the same order on every node, and another one for every group."""
    order = sorted(live, key=lambda name: hashlib.sha256(f"{name} {group}".encode("utf-8", "surrogatepass")).digest())
    return order.index(node) if node in order else len(order)
