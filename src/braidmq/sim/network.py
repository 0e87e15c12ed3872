"""A network that loses, repeats, delays and reorders messages, and that can be cut in one direction or both.

Every message goes its own way, so a later one often arrives before an earlier one. A node that is down refuses at once, as a
closed port does; behind a cut there is only silence. What was sent is copied when it is sent: what becomes of a buffer afterwards
is nobody's business on the other side.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.transport import Handler
from braidmq.sim.loop import Life

_NOTICED_S: Final = 0.3
"""How long it takes until somebody sees that nothing gets through."""

Trace = Callable[..., None]


@dataclass(slots=True)
class NetworkFaults:
    lost: float = 0.0
    """Share of the messages that never arrive."""
    repeated: float = 0.0
    slow: float = 0.0
    """Share of the messages that take long, and so arrive late and out of order."""
    delay_s: float = 0.0005
    slow_s: float = 0.3


class Network:
    def __init__(self, rng: random.Random, trace: Trace) -> None:
        self.faults = NetworkFaults()
        self.messages = 0
        self._rng = rng
        self._trace = trace
        self.slow_links: dict[tuple[str, str], float] = {}
        """By how much messages from one node to another are late, in seconds."""
        self._cuts: set[tuple[str, str]] = set()
        self._nodes: dict[str, SimTransport] = {}

    def attach(self, life: Life) -> SimTransport:
        """The network as a machine reaches it from now on."""
        transport = self._nodes[life.name] = SimTransport(self, life)
        for node in self._nodes.values():
            node.connection_changed(life.name, True)
        return transport

    def detach(self, name: str) -> None:
        if self._nodes.pop(name, None) is not None:
            for node in self._nodes.values():
                node.connection_changed(name, False)

    def node(self, name: str) -> SimTransport | None:
        return self._nodes.get(name)

    def cut(self, some: Collection[str], others: Collection[str], *, both_ways: bool = True) -> None:
        self._trace("cut", *some, "|" if both_ways else "->", *others)
        loop = asyncio.get_running_loop()
        for one in some:
            for other in others:
                self._cuts.add((one, other))
                if both_ways:
                    self._cuts.add((other, one))
                loop.call_later(_NOTICED_S, self._notice, one, other)

    def heal(self) -> None:
        self._trace("heal")
        self.slow_links.clear()
        cuts = sorted(self._cuts)
        self._cuts.clear()
        for one, other in cuts:
            self._notice(one, other)

    def _notice(self, one: str, other: str) -> None:
        """Both ends of a connection see whether it stands; nothing gets through one that is cut in one direction either."""
        for here, there in ((one, other), (other, one)):
            node = self._nodes.get(here)
            if node is not None and there in self._nodes:
                node.connection_changed(there, node.connected(there))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def send(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Let `arrive` happen some time later, perhaps twice, perhaps never."""
        rng, faults = self._rng, self.faults
        loop = asyncio.get_running_loop()
        self.messages += 1
        for _ in range(2 if rng.random() < faults.repeated else 1):
            if rng.random() < faults.lost:
                continue
            delay_s = faults.delay_s * (0.5 + rng.random()) + self.slow_links.get((source, target), 0.0)
            if rng.random() < faults.slow:
                delay_s += rng.expovariate(1 / faults.slow_s)
            loop.call_later(delay_s, self._arrive, source, target, arrive)

    def _arrive(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        if (source, target) not in self._cuts:
            arrive()


class SimTransport:
    """The network as one machine reaches it, for as long as it lives."""

    def __init__(self, network: Network, life: Life) -> None:
        self.node = life.name
        self._network = network
        self._life = life
        self._handlers: dict[int, Handler] = {}
        self._watchers: list[Callable[[str, bool], None]] = []

    def serve(self, op: int, handler: Handler) -> None:
        self._handlers[op] = handler

    def connected(self, node: str) -> bool:
        network = self._network
        return network.node(node) is not None and not network.is_cut(self.node, node) and not network.is_cut(node, self.node)

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self._watchers.append(callback)

    def connection_changed(self, node: str, up: bool) -> None:
        for watcher in self._watchers:
            asyncio.get_running_loop().call_soon(watcher, node, up, context=self._life.context)

    async def call(self, node: str, op: int, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        network = self._network
        payload = b"".join(parts)
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def settle(result: memoryview | BraidError) -> None:
            if answer.done() or self._life.dead:
                return
            if isinstance(result, BraidError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def arrive() -> None:
            target = network.node(node)
            if target is None:
                refused = BraidError("NODE_UNREACHABLE", node=node, reason="refused", refused=True)
                network.send(node, self.node, lambda: settle(refused))
            else:
                target._life.spawn(target._serve(self.node, op, payload, settle))

        network.send(self.node, node, arrive)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except TimeoutError:
            raise BraidError("NODE_UNREACHABLE", node=node, reason="no answer in time") from None

    async def _serve(self, source: str, op: int, payload: bytes, settle: Callable[[memoryview | BraidError], None]) -> None:
        handler = self._handlers.get(op)
        result: memoryview | BraidError
        try:
            if handler is None:
                raise BraidError("NOT_READY", state="starting")
            result = memoryview(b"".join(await handler(source, memoryview(payload))))
        except BraidError as error:
            result = BraidError(error.code, **error.fields)
        self._network.send(self.node, source, lambda: settle(result))
