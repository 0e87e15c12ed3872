"""SWIM with what has been learned since: who is there, found out by few packets a node, however many nodes there are.

Every period a node pings another, in a random round. Without an answer it asks some others to ping for it; these answer in any
case, `nack` where they heard nothing, so that a node whose own packets are lost notices it. Who does not answer is suspected,
and is given up when nobody has contradicted for a time; a suspected node contradicts by an incarnation of its own above the one
that was suspected. News travel on pings and answers. Now and then two nodes tell each other all they know.

Two things keep a lossy network from killing the living. A node that hears little of what it should hear takes its own health
for bad and waits longer (Lifeguard). And the time of a suspicion is shortened only by those who failed to reach the node
themselves: each rumour names who saw it first hand, so one witness does not become many by being repeated.

No sockets, no clock: time is given, packets are taken from `outgoing`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from braidmq.base import limits
from braidmq.cluster.membership.gossip_codec import Packet, Rumour, Status, decode, encode, room_for

_HEALTH_WORST: Final = 8
_RETRANSMIT: Final = 6
"""How often a rumour is told, times the logarithm of the number of nodes."""
_SYNC_PERIODS: Final = 10
_GOSSIP_NODES: Final = 3
_NACK_SHARE: Final = 0.8
"""Of the time that somebody waits for an answer by us: after it we say that there is none."""


@dataclass(frozen=True, slots=True)
class SwimSettings:
    period_s: float = 1.0
    timeout_s: float = 0.3
    """How long an answer to a ping may take."""
    askers: int = 3
    """Nodes that are asked to ping for one."""
    suspicion: float = 4.0
    """Shortest suspicion, in periods times the logarithm of the number of nodes."""
    suspicion_longest: float = 6.0
    """How much longer it is while there is one witness alone."""
    forget_s: float = 3600.0
    """How long those who are gone are remembered. Until then they are told the news now and then, in case they are only cut off."""


@dataclass(slots=True)
class _Member:
    rumour: Rumour
    since: float


@dataclass(slots=True)
class _Suspicion:
    began: float
    shortest_s: float
    longest_s: float
    witnesses: set[str] = field(default_factory=set)
    asked_askers: int = 3

    def over_at(self) -> float:
        further = len(self.witnesses) - 1
        share = math.log(further + 1) / math.log(self.asked_askers + 1)
        return self.began + max(self.shortest_s, self.longest_s - (self.longest_s - self.shortest_s) * share)


@dataclass(slots=True)
class _Probe:
    target: str
    asked: int = 0
    nacks: int = 0


class Swim:
    def __init__(
        self, node: str, address: str, rng: random.Random, *, cluster: str = "", key: bytes = b"", incarnation: int = 0,
        about: str = "", settings: SwimSettings | None = None, changed: Callable[[str, Status], None] | None = None,
    ) -> None:
        self.node = node
        self._rng = rng
        self._cluster = cluster
        self._key = key
        self._settings = settings or SwimSettings()
        self._changed = changed or (lambda node, status: None)
        self._members = {node: _Member(Rumour(node, address, Status.ALIVE, incarnation, node, about), 0.0)}
        self._told: dict[str, int] = {}
        """How often the newest rumour of each node was told."""
        self._suspicions: dict[str, _Suspicion] = {}
        self._round: list[str] = []
        self._seeds: list[str] = []
        self._number = 0
        self._probes: dict[int, _Probe] = {}
        self._relays: dict[int, tuple[str, int]] = {}
        """Pings that we sent for others: who asked, and by which number."""
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_number = 0
        self._periods = 0
        self.health = 0
        """0 is good; each step makes this node wait longer for others."""
        self.outgoing: list[tuple[str, bytes]] = []
        """Packets to send, with their addresses; whoever sends them takes them out."""
        self.refused = 0
        """Packets that were not ours, or could not be read."""
        self._left = False

    # --- what is known

    def members(self) -> dict[str, Rumour]:
        """All that are known, this node too, those who are gone as long as they are remembered."""
        return {node: member.rumour for node, member in sorted(self._members.items())}

    def alive(self) -> list[str]:
        """Nodes that nobody has given up, this one too."""
        return [node for node, rumour in self.members().items() if rumour.status <= Status.SUSPECT]

    def status_of(self, node: str) -> Status | None:
        member = self._members.get(node)
        return None if member is None else member.rumour.status

    @property
    def next_wake(self) -> float:
        """When `tick` has something to do."""
        return self._timers[0][0] if self._timers and not self._left else math.inf

    # --- start and stop

    def start(self, now: float) -> None:
        self._later(now + self._settings.period_s * self._rng.random(), self._period)
        self._later(now + self._settings.period_s / 2, self._spread)

    def join(self, address: str) -> None:
        """Tell a node whose name is not known all that is known, and hear the same from it; again, as long as nobody is known."""
        if address not in self._seeds:
            self._seeds.append(address)
        self._send_all("sync", "", address)

    def leave(self) -> None:
        """Tell some others that this node goes; nothing more is sent after."""
        me = self._members[self.node]
        me.rumour = _with(me.rumour, status=Status.LEFT)
        self._told[self.node] = 0
        for node in self._others():
            self._send("rumours", node)
        self._left = True

    def tell(self, about: str) -> None:
        """Change what this node says of itself."""
        me = self._members[self.node]
        me.rumour = _with(me.rumour, about=about, incarnation=me.rumour.incarnation + 1)
        self._told[self.node] = 0

    # --- time

    def tick(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now and not self._left:
            heapq.heappop(self._timers)[2](now)

    def _later(self, when: float, action: Callable[[float], None]) -> None:
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, action))

    def _period(self, now: float) -> None:
        settings = self._settings
        length_s = settings.period_s * (1 + self.health)
        self._later(now + length_s, self._period)
        self._periods += 1
        if self._periods % _SYNC_PERIODS == 0:
            self._sync()
        self._forget(now)
        target = self._next_target()
        if target is None:
            for address in self._seeds:
                self._send_all("sync", "", address)
            return
        number = self._next_number()
        self._probes[number] = _Probe(target)
        self._send("ping", target, number)
        self._later(now + settings.timeout_s * (1 + self.health), lambda then: self._ask_others(number))
        self._later(now + length_s, lambda then: self._judge(then, number))

    def _ask_others(self, number: int) -> None:
        probe = self._probes.get(number)
        if probe is None:
            return
        others = [node for node in self._others() if node != probe.target]
        for node in self._rng.sample(others, min(self._settings.askers, len(others))):
            probe.asked += 1
            self._send("ask", node, number, probe.target)

    def _judge(self, now: float, number: int) -> None:
        probe = self._probes.pop(number, None)
        if probe is None:
            return
        # Those who were asked answer in any case: where they do not, it may be us whom nothing reaches.
        self._health_by(probe.asked - probe.nacks if probe.asked else 0)
        member = self._members.get(probe.target)
        if member is not None and member.rumour.status <= Status.SUSPECT:
            self._take(now, _with(member.rumour, status=Status.SUSPECT, by=self.node))

    def _spread(self, now: float) -> None:
        self._later(now + self._settings.period_s / 2, self._spread)
        others = self._others()
        for node in self._rng.sample(others, min(_GOSSIP_NODES, len(others))):
            if self._told:
                self._send("rumours", node)

    def _sync(self) -> None:
        # Those who are gone, too: a network that was cut heals by it.
        others = [node for node, rumour in self.members().items() if node != self.node and rumour.status < Status.LEFT]
        if others:
            node = self._rng.choice(others)
            self._send_all("sync", node, self._members[node].rumour.address)

    def _forget(self, now: float) -> None:
        for node, member in list(self._members.items()):
            if member.rumour.status >= Status.DEAD and now - member.since > self._settings.forget_s:
                del self._members[node]
                self._told.pop(node, None)

    def _health_by(self, change: int) -> None:
        self.health = min(_HEALTH_WORST, max(0, self.health + change))

    def _next_target(self) -> str | None:
        while True:
            while self._round:
                node = self._round.pop()
                if (status := self.status_of(node)) is not None and status <= Status.SUSPECT:
                    return node
            self._round = self._others()
            if not self._round:
                return None
            self._rng.shuffle(self._round)

    def _others(self) -> list[str]:
        return [node for node in self.alive() if node != self.node]

    # --- what comes in

    def receive(self, now: float, address: str, data: bytes) -> None:
        packet = decode(data, self._cluster, self._key)
        if packet is None or packet.sender == self.node or self._left:
            self.refused += 1
            return
        if packet.receiver not in ("", self.node):
            # The address was another node's before.
            return
        suspicion = self._suspicions.get(packet.sender)
        if suspicion is not None:
            # It speaks, so it is there, whatever was said: the suspicion begins anew.
            suspicion.began = now
            suspicion.witnesses = {self.node}
            self._watch(packet.sender, suspicion)
        for rumour in packet.rumours:
            if packet.kind in ("sync", "answer") and rumour.status is Status.DEAD:
                # Hearsay about the dead is checked: it may be the teller who was cut off.
                rumour = _with(rumour, status=Status.SUSPECT, by=packet.sender)
            self._take(now, rumour)
        match packet.kind:
            case "ping":
                self._answer("ack", packet, address)
            case "ask":
                self._ping_for(now, packet)
            case "ack":
                self._acknowledged(packet)
            case "nack":
                if (probe := self._probes.get(packet.number)) is not None:
                    probe.nacks += 1
            case "sync":
                self._send_all("answer", packet.sender, address)

    def _ping_for(self, now: float, packet: Packet) -> None:
        if self.status_of(packet.asked) is None or packet.asked == self.node:
            return
        if len(self._relays) >= limits.GOSSIP_RELAYS_MAX:
            return
        number = self._next_number()
        self._relays[number] = (packet.sender, packet.number)
        self._send("ping", packet.asked, number)

        def give_up(then: float) -> None:
            if self._relays.pop(number, None) is not None:
                self._send("nack", packet.sender, packet.number)

        self._later(now + self._settings.timeout_s * _NACK_SHARE, give_up)

    def _acknowledged(self, packet: Packet) -> None:
        relay = self._relays.pop(packet.number, None)
        if relay is not None:
            self._send("ack", relay[0], relay[1])
        elif self._probes.pop(packet.number, None) is not None:
            self._health_by(-1)

    # --- rumours

    def _take(self, now: float, rumour: Rumour) -> None:
        if rumour.node == self.node:
            self._contradict(rumour)
            return
        known = self._members.get(rumour.node)
        if known is None:
            if len(self._members) >= limits.GOSSIP_MEMBERS_MAX or rumour.status >= Status.DEAD:
                return
        elif (rumour.incarnation, rumour.status) <= (known.rumour.incarnation, known.rumour.status):
            if rumour.status is Status.SUSPECT and rumour.incarnation == known.rumour.incarnation:
                self._witness(now, rumour)
            return
        elif known.rumour.status >= Status.DEAD and rumour.incarnation == known.rumour.incarnation:
            return
        before = None if known is None else known.rumour.status
        self._members[rumour.node] = _Member(rumour, now)
        self._told[rumour.node] = 0
        self._suspicions.pop(rumour.node, None)
        if rumour.status is Status.SUSPECT:
            self._suspect(now, rumour)
        if before is not rumour.status:
            self._changed(rumour.node, rumour.status)

    def _contradict(self, rumour: Rumour) -> None:
        me = self._members[self.node]
        if rumour.status in (Status.SUSPECT, Status.DEAD) and rumour.incarnation >= me.rumour.incarnation:
            me.rumour = _with(me.rumour, incarnation=rumour.incarnation + 1)
            self._told[self.node] = 0
            self._health_by(1)

    def _suspect(self, now: float, rumour: Rumour) -> None:
        settings = self._settings
        shortest_s = settings.suspicion * max(1.0, math.log10(max(1, len(self.alive())))) * settings.period_s
        suspicion = _Suspicion(now, shortest_s, shortest_s * settings.suspicion_longest, {rumour.by}, settings.askers)
        self._suspicions[rumour.node] = suspicion
        self._watch(rumour.node, suspicion)

    def _witness(self, now: float, rumour: Rumour) -> None:
        """Somebody else failed to reach it, first hand."""
        suspicion = self._suspicions.get(rumour.node)
        if suspicion is None or rumour.by in suspicion.witnesses or len(suspicion.witnesses) > self._settings.askers:
            return
        suspicion.witnesses.add(rumour.by)
        self._members[rumour.node].rumour = rumour
        self._told[rumour.node] = 0
        self._watch(rumour.node, suspicion)

    def _watch(self, node: str, suspicion: _Suspicion) -> None:
        def expire(now: float) -> None:
            if self._suspicions.get(node) is suspicion and suspicion.over_at() <= now:
                self._take(now, _with(self._members[node].rumour, status=Status.DEAD))

        self._later(suspicion.over_at(), expire)

    # --- what goes out

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _answer(self, kind: str, packet: Packet, address: str) -> None:
        self._put(Packet(kind, self.node, packet.sender, packet.number, "", self._news(packet.sender)), address)

    def _send(self, kind: str, node: str, number: int = 0, asked: str = "") -> None:
        member = self._members.get(node)
        if member is not None:
            self._put(Packet(kind, self.node, node, number, asked, self._news(node)), member.rumour.address)

    def _news(self, receiver: str) -> tuple[Rumour, ...]:
        """What the receiver should hear: first that it is suspected, then what was told least."""
        often = _RETRANSMIT * math.ceil(math.log10(len(self._members) + 1))
        nodes = sorted(self._told, key=lambda node: (self._told[node], node))
        if self.status_of(receiver) in (Status.SUSPECT, Status.DEAD):
            nodes = [receiver, *(node for node in nodes if node != receiver)]
        rumours = [self._members[node].rumour for node in nodes]
        rumours = rumours[: room_for(rumours)]
        for rumour in rumours:
            if rumour.node in self._told:
                self._told[rumour.node] += 1
                if self._told[rumour.node] >= often:
                    del self._told[rumour.node]
        return tuple(rumours)

    def _send_all(self, kind: str, node: str, address: str) -> None:
        rumours = [member.rumour for _, member in sorted(self._members.items())]
        first = True
        while rumours:
            count = room_for(rumours)
            # Only the first asks for an answer, which is whole in any case.
            self._put(Packet(kind if first else "answer", self.node, node, 0, "", tuple(rumours[:count])), address)
            rumours = rumours[count:]
            first = False

    def _put(self, packet: Packet, address: str) -> None:
        self.outgoing.append((address, encode(packet, self._cluster, self._key)))


def _with(
    rumour: Rumour, *, status: Status | None = None, by: str | None = None, incarnation: int | None = None, about: str | None = None
) -> Rumour:
    return Rumour(
        rumour.node,
        rumour.address,
        rumour.status if status is None else status,
        rumour.incarnation if incarnation is None else incarnation,
        rumour.by if by is None else by,
        rumour.about if about is None else about,
    )
