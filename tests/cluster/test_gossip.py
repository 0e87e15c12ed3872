"""Gossip: the living survive a lossy network, the dead are noticed, networks that were cut heal, and strangers are not heard."""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from collections.abc import Awaitable, Callable

import pytest

from braidmq.base import limits
from braidmq.cluster.membership.gossip_codec import KINDS, Packet, Rumour, Status, decode, encode, room_for
from braidmq.cluster.membership.gossip_udp import Gossip
from braidmq.cluster.membership.swim import Swim, SwimSettings

KEY = b"a token that nobody guesses"


class Network:
    """Nodes in one room: packets take time, and some never come."""

    def __init__(self, count: int, seed: int, loss: float = 0.0) -> None:
        self.rng = random.Random(seed)
        self.loss = loss
        self.now = 0.0
        self.nodes: dict[str, Swim] = {}
        self.stopped: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.deaths: list[tuple[float, str, str]] = []
        self._on_the_way: list[tuple[float, int, str, str, bytes]] = []
        self._sent = 0
        for number in range(count):
            self.add(f"n{number}")

    def add(self, name: str, incarnation: int = 0) -> Swim:
        def changed(node: str, status: Status) -> None:
            if status is Status.DEAD:
                self.deaths.append((self.now, name, node))

        swim = Swim(
            name, f"{name}:1", random.Random(f"{name} {self.rng.random()}"), cluster="c", key=KEY, changed=changed,
            incarnation=incarnation,
        )  # fmt: skip
        swim.start(self.now)
        if self.nodes:
            swim.join("n0:1")
        self.nodes[name] = swim
        return swim

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            self._send()
            times = [swim.next_wake for name, swim in self.nodes.items() if name not in self.stopped]
            if self._on_the_way:
                times.append(self._on_the_way[0][0])
            following = min(times)
            if following > end:
                self.now = end
                return
            self.now = max(self.now, following)
            while self._on_the_way and self._on_the_way[0][0] <= self.now:
                _, _, sender, receiver, data = heapq.heappop(self._on_the_way)
                if receiver not in self.stopped and (sender, receiver) not in self.cut and receiver in self.nodes:
                    self.nodes[receiver].receive(self.now, f"{sender}:1", data)
            for name, swim in self.nodes.items():
                if name not in self.stopped:
                    swim.tick(self.now)

    def _send(self) -> None:
        for name, swim in self.nodes.items():
            packets, swim.outgoing = swim.outgoing, []
            for address, data in packets:
                assert len(data) < 1400
                if name not in self.stopped and self.rng.random() >= self.loss:
                    self._sent += 1
                    when = self.now + self.rng.uniform(0.001, 0.02)
                    heapq.heappush(self._on_the_way, (when, self._sent, name, address.partition(":")[0], data))

    def views(self) -> list[list[str]]:
        return [swim.alive() for name, swim in self.nodes.items() if name not in self.stopped]


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_third_of_all_packets_lost_kills_nobody(seed: int) -> None:
    network = Network(12, seed)
    network.run(20)
    assert all(view == sorted(network.nodes) for view in network.views())
    network.loss = 0.3
    network.run(120)
    assert network.deaths == []
    network.loss = 0.0
    network.run(30)
    assert all(view == sorted(network.nodes) for view in network.views())


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize("count", [3, 8])
def test_the_dead_are_noticed_by_all_and_may_come_back(count: int, loss: float) -> None:
    network = Network(count, 3, loss)
    network.run(30)
    network.stopped.add("n2")
    network.run(90)
    assert {node for _, _, node in network.deaths} == {"n2"}
    living = sorted(set(network.nodes) - {"n2"})
    assert all(view == living for view in network.views())
    # It was only stopped, and contradicts as soon as it hears what is said.
    network.stopped.clear()
    network.run(60)
    assert all(view == sorted(network.nodes) for view in network.views())


def test_a_node_that_was_started_again_is_taken_for_the_new_one() -> None:
    network = Network(3, 5)
    network.run(10)
    del network.nodes["n1"]
    network.run(60)
    assert network.nodes["n0"].status_of("n1") is Status.DEAD
    network.add("n1", incarnation=1 << 20)
    network.run(10)
    assert network.nodes["n2"].alive() == ["n0", "n1", "n2"]


def test_a_cut_network_heals() -> None:
    network = Network(6, 7)
    network.run(10)
    left, right = ["n0", "n1", "n2"], ["n3", "n4", "n5"]
    network.cut = {pair for a in left for b in right for pair in ((a, b), (b, a))}
    network.run(120)
    assert network.nodes["n0"].alive() == left and network.nodes["n5"].alive() == right
    network.cut.clear()
    network.run(120)
    assert all(view == sorted(network.nodes) for view in network.views())


def test_a_node_reached_by_others_alone_is_alive() -> None:
    network = Network(5, 9)
    network.run(10)
    network.cut = {("n0", "n1"), ("n1", "n0")}
    network.run(100)
    assert network.deaths == [], "others ping for one that cannot"


def test_who_leaves_says_so() -> None:
    network = Network(4, 11)
    network.run(10)
    network.nodes["n3"].leave()
    network.run(0.5)
    network.stopped.add("n3")
    network.run(3)
    assert {network.nodes[name].status_of("n3") for name in ("n0", "n1", "n2")} == {Status.LEFT}
    assert network.deaths == []
    assert network.nodes["n0"].outgoing == [] and network.nodes["n3"].outgoing == []


def test_what_a_node_says_of_itself_reaches_all() -> None:
    network = Network(8, 13)
    network.run(10)
    network.nodes["n5"].tell("load 3")
    network.run(10)
    assert {swim.members()["n5"].about for swim in network.nodes.values()} == {"load 3"}


def test_one_witness_stays_one_however_often_it_is_repeated() -> None:
    swim = Swim("me", "me:1", random.Random(1), key=KEY, settings=SwimSettings(period_s=1.0))

    def hear(sender: str, *rumours: Rumour) -> None:
        swim.receive(0.0, f"{sender}:1", encode(Packet("rumours", sender, "me", 0, "", rumours), "", KEY))

    for name in ("x", "a", "b", "c", "d"):
        hear("a", Rumour(name, f"{name}:1", Status.ALIVE, 0, name, ""))
    for teller in ("a", "b", "c", "d"):
        hear(teller, Rumour("x", "x:1", Status.SUSPECT, 0, "a", ""))
    swim.tick(20.0)
    assert swim.status_of("x") is Status.SUSPECT, "four tell what one saw"
    for witness in ("b", "c", "d"):
        hear("a", Rumour("x", "x:1", Status.SUSPECT, 0, witness, ""))
    swim.tick(20.0)
    assert swim.status_of("x") is Status.DEAD, "four saw it"


def test_a_node_contradicts_what_is_said_of_it() -> None:
    swim = Swim("me", "me:1", random.Random(1), key=KEY)
    for status, incarnation in ((Status.SUSPECT, 0), (Status.DEAD, 5), (Status.SUSPECT, 2)):
        said = Rumour("me", "me:1", status, incarnation, "a", "")
        swim.receive(0.0, "a:1", encode(Packet("rumours", "a", "me", 0, "", (said,)), "", KEY))
    assert swim.members()["me"].incarnation == 6 and swim.members()["me"].status is Status.ALIVE


def test_strangers_and_nonsense_are_not_heard() -> None:
    swim = Swim("me", "me:1", random.Random(1), cluster="c", key=KEY)
    rumour = Rumour("x", "x:1", Status.ALIVE, 0, "x", "")
    good = encode(Packet("sync", "x", "", 0, "", (rumour,)), "c", KEY)

    def signed(document: object) -> bytes:
        import hashlib
        import hmac

        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return hmac.digest(KEY, body, hashlib.sha256)[:16] + body

    base = json.loads(good[16:])
    nonsense = [
        b"", good[:20], good[:-1], good + b"x", bytes(len(good)),
        encode(Packet("sync", "x", "", 0, "", (rumour,)), "c", b"another key"),
        encode(Packet("sync", "x", "", 0, "", (rumour,)), "other cluster", KEY),
        signed(b"[" * 8000), signed([]), signed({}), signed(b"\xff"),
        signed({**base, "k": "boo"}), signed({**base, "f": ""}), signed({**base, "n": "1"}), signed({**base, "u": 3}),
        *(signed({**base, "u": [row]}) for row in (
            [], 3, ["x"], ["", "x:1", 0, 0, "x", ""], ["x", "x", 0, 0, "x", ""], ["x", "x:99999", 0, 0, "x", ""],
            ["x", "x:1", 4, 0, "x", ""], ["x", "x:1", 0, -1, "x", ""], ["x", "x:1", 0, 0, "x", "y" * 256],
            ["x\n", "x:1", 0, 0, "x", ""],
        )),
        signed({**base, "x": "y" * limits.GOSSIP_PACKET_BYTES_MAX}),
    ]  # fmt: skip
    for data in nonsense:
        assert decode(data, "c", KEY) is None
        swim.receive(0.0, "x:1", data)
    assert swim.refused == len(nonsense) and swim.members().keys() == {"me"} and swim.outgoing == []
    rng = random.Random(17)
    for _ in range(500):
        swim.receive(0.0, "x:1", signed(rng.randbytes(rng.randrange(200))))
        mutated = bytearray(good)
        mutated[rng.randrange(len(mutated))] ^= 1 << rng.randrange(8)
        swim.receive(0.0, "x:1", signed(bytes(mutated[16:])))
    swim.receive(0.0, "x:1", good)
    assert "x" in swim.members() and swim.outgoing


def test_there_are_limits_to_what_is_told_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GOSSIP_MEMBERS_MAX", 5)
    monkeypatch.setattr(limits, "GOSSIP_RELAYS_MAX", 3)
    swim = Swim("me", "me:1", random.Random(1), key=KEY)
    rumours = tuple(Rumour(f"x{number}", "x:1", Status.ALIVE, 0, "x", "about") for number in range(40))
    assert 1 < room_for(rumours) < 40 and limits.GOSSIP_RUMOURS_BYTES_MAX // 50 < 40
    long = Rumour("é" * 255, "x:1", Status.ALIVE, 0, "é" * 255, "é" * 255)
    assert room_for([long, long]) == 1
    assert decode(encode(Packet(KINDS[0], "é" * 255, "é" * 255, 1, "é" * 255, (long,)), "", KEY), "", KEY) is not None
    for rumour in rumours:
        swim.receive(0.0, "x:1", encode(Packet("rumours", "x", "me", 0, "", (rumour,)), "", KEY))
    assert len(swim.members()) == limits.GOSSIP_MEMBERS_MAX
    swim.outgoing.clear()
    for number in range(10):
        swim.receive(0.0, "x:1", encode(Packet("ask", "x0", "me", number, "x1", ()), "", KEY))
    assert len(swim.outgoing) == limits.GOSSIP_RELAYS_MAX


def test_the_long_gone_are_forgotten() -> None:
    network = Network(3, 15)
    network.run(10)
    network.stopped.add("n1")
    network.run(60)
    assert "n1" in network.nodes["n0"].members()
    network.now += SwimSettings().forget_s
    network.run(5)
    assert "n1" not in network.nodes["n0"].members()


# --- real packets


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(main())


def test_gossip_over_udp_finds_all_and_notices_who_goes() -> None:
    settings = SwimSettings(period_s=0.1, timeout_s=0.05)

    async def test() -> None:
        heard: asyncio.Queue[tuple[str, str, Status]] = asyncio.Queue()

        def opened(name: str) -> Awaitable[Gossip]:
            def make(address: str) -> Swim:
                port = address.rpartition(":")[2]
                # A name instead of an address is looked up.
                return Swim(
                    name, f"localhost:{port}", random.Random(name), cluster="c", key=KEY, settings=settings,
                    changed=lambda node, status: heard.put_nowait((name, node, status)),
                )  # fmt: skip

            return Gossip.open(make, "127.0.0.1", 0)

        nodes = [await opened(name) for name in ("a", "b", "c")]
        first = nodes[0].swim.members()["a"].address
        waiting = {(x, y, Status.ALIVE) for x in "abc" for y in "abc" if x != y}
        for node in nodes[1:]:
            node.join([first])
        asked_again = 0
        while waiting:
            try:
                async with asyncio.timeout(1):
                    waiting.discard(await heard.get())
            except TimeoutError:
                # The first packets went while names were looked up.
                asked_again += 1
                for node in nodes[1:]:
                    node.join([first])
        nodes[0].tell("news")
        await nodes[2].close()
        waiting = {("a", "c", Status.LEFT), ("b", "c", Status.LEFT)}
        while waiting:
            waiting.discard(await heard.get())
        assert nodes[0].is_dead("c") and not nodes[0].is_dead("b")
        for node in nodes[:2]:
            await node.close()

    run(test)
