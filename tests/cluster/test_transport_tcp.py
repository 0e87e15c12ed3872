"""Nodes that call each other over real sockets: many calls at a time, large ones, errors, strangers, and connections that break."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from authority import Authority

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.cluster.cluster_tls import cluster_contexts
from braidmq.cluster.hello import Greeting, Identity
from braidmq.cluster.link import Kind
from braidmq.cluster.transport import AddressBook, ClusterOp
from braidmq.cluster.transport_tcp import TcpTransport, decode_fault, encode_fault
from braidmq.wire.flymq.frames import encode_header

PATIENCE_S = 30.0
TOKEN = "a token that nobody guesses"


@asynccontextmanager
async def nodes(*names: str, cluster: str = "c1", token: str = TOKEN, **settings: object) -> AsyncIterator[list[TcpTransport]]:
    """Nodes that know where the others are."""
    made = [TcpTransport(Identity(name, cluster, token), AddressBook(), **settings) for name in names]  # type: ignore[arg-type]
    try:
        for node in made:
            node.me.address = await node.listen("127.0.0.1", 0)
        for node in made:
            for other in made:
                node.book.learn(other.node, other.me.address)
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        for node in made:
            await node.close()


async def echo(node: str, payload: memoryview) -> Sequence[Buffer]:
    return [node.encode(), b":", payload]


def run(test: Callable[[], Awaitable[None]], *, fast: bool = False) -> None:
    async def main() -> None:
        await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if fast else None) as runner:
        runner.run(main())


@pytest.mark.parametrize("fast", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_many_calls_at_a_time_small_and_large(fast: bool, encrypted: bool, tmp_path: Path) -> None:
    settings: dict[str, object] = {}
    if encrypted:
        authority = Authority(tmp_path, "nodes")
        certificate, key = authority.issue("node")
        server, client = cluster_contexts(str(certificate), str(key), str(authority.file))
        settings = {"server_tls": server, "client_tls": client}

    async def test() -> None:
        async with nodes("a", "b", **settings) as (a, b):
            b.serve(ClusterOp.NODE_STATUS, echo)
            rng = random.Random(3)
            sizes = [0, 1, 4080, 4096, 65_523, 65_524, 65_525, 65_536, 200_000, 8 << 20]
            sizes += [rng.randrange(70_000) for _ in range(300)]
            payloads = [rng.randbytes(size) for size in sizes]

            async def call(payload: bytes) -> None:
                parts = [payload[: len(payload) // 2], memoryview(payload)[len(payload) // 2 :]]
                assert await a.call("b", ClusterOp.NODE_STATUS, parts, PATIENCE_S) == b"a:" + payload

            await asyncio.gather(*map(call, payloads))
            assert a.connected("b") and not b.connected("a"), "a call opens a connection of its own"

    run(test, fast=fast)


def test_an_answer_does_not_wait_for_one_before_it() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            held = asyncio.Event()

            async def hold(node: str, payload: memoryview) -> Sequence[Buffer]:
                await held.wait()
                return [b"at last"]

            b.serve(ClusterOp.REPLICA_FETCH, hold)
            b.serve(ClusterOp.NODE_STATUS, echo)
            slow = asyncio.create_task(a.call("b", ClusterOp.REPLICA_FETCH, (), PATIENCE_S))
            assert await a.call("b", ClusterOp.NODE_STATUS, [b"x"], PATIENCE_S) == b"a:x"
            assert not slow.done()
            held.set()
            assert await slow == b"at last"

    run(test)


def test_errors_come_back_as_they_were_raised() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):

            async def refuse(node: str, payload: memoryview) -> Sequence[Buffer]:
                if payload == b"bug":
                    raise RuntimeError("a bug")
                if payload == b"huge":
                    return [bytes(limits.FRAME_PAYLOAD_BYTES_MAX)]
                raise BraidError("AUTH_THROTTLED", seconds=2.5)

            b.serve(ClusterOp.NODE_STATUS, refuse)
            with pytest.raises(BraidError) as raised:
                await a.call("b", ClusterOp.NODE_STATUS, (), PATIENCE_S)
            assert (raised.value.code, raised.value.fields) == ("AUTH_THROTTLED", {"seconds": 2.5})
            with pytest.raises(BraidError, match="INTERNAL"):
                await a.call("b", ClusterOp.NODE_STATUS, [b"bug"], PATIENCE_S)
            with pytest.raises(BraidError, match="FRAME_TOO_LARGE"):
                await a.call("b", ClusterOp.NODE_STATUS, [b"huge"], PATIENCE_S)
            with pytest.raises(BraidError, match="FRAME_TOO_LARGE"):
                await a.call("b", ClusterOp.NODE_STATUS, [bytes(limits.FRAME_PAYLOAD_BYTES_MAX)], PATIENCE_S)
            with pytest.raises(BraidError, match="UNKNOWN_OPCODE"):
                await a.call("b", ClusterOp.GOSSIP, (), PATIENCE_S)

    run(test)


def test_errors_of_another_version_are_still_told() -> None:
    assert decode_fault(memoryview(b'{"code": "NEVER_HEARD_OF", "fields": {}, "text": "why"}')).text == "why"
    for nonsense in (b"", b"[]", b'{"code": 1}', b'{"code": "INTERNAL", "fields": {}}', b"\xff", b"[" * 100_000):
        assert decode_fault(memoryview(nonsense)).code == "UNEXPECTED_REPLY"
    fault = decode_fault(memoryview(encode_fault(BraidError("CORRUPT_LOG", path="p", position=1, offset=2, reason=b"bytes"))))
    assert fault.code == "CORRUPT_LOG" and "bytes" in fault.text


def test_a_node_calls_itself_without_a_connection() -> None:
    async def test() -> None:
        async with nodes("a") as (a,):
            a.serve(ClusterOp.NODE_STATUS, echo)
            assert await a.call("a", ClusterOp.NODE_STATUS, [b"x", b"y"], PATIENCE_S) == b"a:xy"
            assert not a.connected("a")

    run(test)


def test_whoever_does_not_answer_is_unreachable() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            never = asyncio.Event()

            async def hang(node: str, payload: memoryview) -> Sequence[Buffer]:
                await never.wait()
                return ()

            b.serve(ClusterOp.NODE_STATUS, hang)
            with pytest.raises(BraidError, match=r"NODE_UNREACHABLE.*no answer within"):
                await a.call("b", ClusterOp.NODE_STATUS, (), 0.05)
            with pytest.raises(BraidError, match=r"NODE_UNREACHABLE.*not known"):
                await a.call("c", ClusterOp.NODE_STATUS, (), PATIENCE_S)
            held = socket.socket()
            held.bind(("127.0.0.1", 0))
            a.book.learn("c", f"127.0.0.1:{held.getsockname()[1]}")
            with pytest.raises(BraidError, match="NODE_UNREACHABLE"):
                await a.call("c", ClusterOp.NODE_STATUS, (), PATIENCE_S)
            held.close()

    run(test)


def test_calls_under_way_fail_at_once_when_a_node_goes_and_work_again_when_it_comes() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            arrived = asyncio.Event()
            heard: list[tuple[str, bool]] = []
            a.watch(lambda node, here: heard.append((node, here)))

            async def hang(node: str, payload: memoryview) -> Sequence[Buffer]:
                arrived.set()
                await asyncio.Event().wait()
                return ()

            b.serve(ClusterOp.NODE_STATUS, hang)
            calls = [asyncio.create_task(a.call("b", ClusterOp.NODE_STATUS, (), PATIENCE_S)) for _ in range(5)]
            await arrived.wait()
            port = int(b.me.address.rpartition(":")[2])
            await b.close()
            for call in calls:
                with pytest.raises(BraidError, match="NODE_UNREACHABLE"):
                    await call
            assert heard == [("b", True), ("b", False)] and not a.connected("b")
            again = TcpTransport(Identity("b", "c1", TOKEN), AddressBook())
            again.serve(ClusterOp.NODE_STATUS, echo)
            await again.listen("127.0.0.1", port)
            assert await a.call("b", ClusterOp.NODE_STATUS, [b"x"], PATIENCE_S) == b"a:x"
            assert heard[2:] == [("b", True)]
            await again.close()

    run(test)


STOPPED_NODE = """
import asyncio, sys
from braidmq.cluster.hello import Identity
from braidmq.cluster.transport import AddressBook
from braidmq.cluster.transport_tcp import TcpTransport

async def main():
    node = TcpTransport(Identity("b", "c1", sys.argv[1]), AddressBook(), beat_s=0.1)
    async def answer(peer, payload):
        return [b"here"]
    node.serve(0xEA, answer)
    print(await node.listen("127.0.0.1", 0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_node_that_is_stopped_is_noticed_without_a_call() -> None:
    async def test() -> None:
        async with nodes("a", beat_s=0.1) as (a,):
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPPED_NODE, TOKEN, stdout=asyncio.subprocess.PIPE)
            try:
                assert other.stdout is not None
                assert await a.meet((await other.stdout.readline()).decode().strip(), PATIENCE_S) == "b"
                assert await a.call("b", ClusterOp.NODE_STATUS, (), PATIENCE_S) == b"here"
                gone = asyncio.Event()
                a.watch(lambda node, here: None if here else gone.set())
                os.kill(other.pid, signal.SIGSTOP)
                await gone.wait()
                assert not a.connected("b")
            finally:
                other.kill()
                await other.wait()

    run(test)


def test_a_name_with_several_addresses_that_all_refuse_is_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def two(host: str, port: int, *arguments: Any, **named: Any) -> list[Any]:
        names = ("127.0.0.1", "127.0.0.2") if host == "several.test" else (host,)
        return [row for name in names for row in resolve(name, port, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", two)

    async def test() -> None:
        # Bound and not listening: nobody else gets the port, and who dials it is refused.
        with socket.socket() as held:
            held.bind(("0.0.0.0", 0))
            async with nodes("a") as (a,):
                a.book.learn("b", f"several.test:{held.getsockname()[1]}")
                with pytest.raises(BraidError) as refusal:
                    await a.call("b", ClusterOp.NODE_STATUS, [], PATIENCE_S)
                assert refusal.value.code == "NODE_UNREACHABLE" and refusal.value.fields["refused"] is True

    run(test)


def test_strangers_are_refused() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            b.serve(ClusterOp.NODE_STATUS, echo)
            for identity, reason in (
                (Identity("x", "c1", "another token, as long"), "tokens differ"),
                (Identity("x", "c2", TOKEN), "belongs to cluster"),
                (Identity("b", "c1", TOKEN), "same node_id"),
            ):
                stranger = TcpTransport(identity, AddressBook())
                with pytest.raises(BraidError, match=f"CLUSTER_REFUSED.*{reason}"):
                    await stranger.meet(b.me.address, PATIENCE_S)
                stranger.book.learn("b", b.me.address)
                with pytest.raises(BraidError):
                    await stranger.call("b", ClusterOp.NODE_STATUS, (), PATIENCE_S)
                await stranger.close()
            newcomer = TcpTransport(Identity("n", "", TOKEN, address="127.0.0.1:1"), AddressBook())
            assert await newcomer.meet(b.me.address, PATIENCE_S) == "b", "who belongs to no cluster yet may come"
            assert await newcomer.call("b", ClusterOp.NODE_STATUS, [b"x"], PATIENCE_S) == b"n:x"
            assert b.book.address_of("n") == "127.0.0.1:1"
            await newcomer.close()
            a.book.learn("c", b.me.address)
            with pytest.raises(BraidError, match=r"NODE_UNREACHABLE.*is that of b now"):
                await a.call("c", ClusterOp.NODE_STATUS, (), PATIENCE_S)

    run(test)


def test_the_token_is_never_said_and_a_proof_is_good_for_one_connection() -> None:
    caller, answerer = Greeting(Identity("a", "c", TOKEN)), Greeting(Identity("b", "c", TOKEN))
    opening = caller.open()
    peer, answer = answerer.answer(opening)
    _, proof = caller.accept(answer)
    answerer.verify(proof, peer)
    assert not any(TOKEN.encode() in said for said in (opening, answer, proof))
    replayed = Greeting(Identity("b", "c", TOKEN))
    peer, second = replayed.answer(opening)
    with pytest.raises(BraidError, match="tokens differ"):
        replayed.verify(proof, peer)
    with pytest.raises(BraidError, match="tokens differ"):
        Greeting(Identity("a", "c", TOKEN)).accept(answer)
    assert answer != second


def test_without_a_certificate_of_the_cluster_nobody_comes_in(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "nodes"), Authority(tmp_path, "others")
    certificate, key = authority.issue("node")
    server, client = cluster_contexts(str(certificate), str(key), str(authority.file))
    strange_certificate, strange_key = other.issue("stranger")
    _, strange = cluster_contexts(str(strange_certificate), str(strange_key), str(authority.file))

    async def test() -> None:
        async with nodes("b", server_tls=server, client_tls=client) as (b,):
            for tls in (strange, None):
                stranger = TcpTransport(Identity("x", "c1", TOKEN), AddressBook(), client_tls=tls)
                with pytest.raises(BraidError, match="NODE_UNREACHABLE"):
                    await stranger.meet(b.me.address, PATIENCE_S)
                await stranger.close()

    run(test)
    with pytest.raises(BraidError, match="CONFIG_INVALID_VALUE"):
        cluster_contexts(str(certificate), str(key), str(tmp_path / "missing"))


def raw_frame(op: int, payload: bytes, flags: int = Kind.CALL, number: int = 1) -> bytes:
    return encode_header(op, len(payload) + 4, flags) + number.to_bytes(4) + payload


async def closed_after(address: str, data: bytes) -> None:
    """Whoever says this is not listened to any longer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    try:
        while await reader.read(65536):
            continue
    except ConnectionResetError:
        return
    finally:
        writer.transport.abort()


def test_nonsense_closes_its_own_connection_and_no_other() -> None:
    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            b.serve(ClusterOp.NODE_STATUS, echo)
            assert await a.call("b", ClusterOp.NODE_STATUS, [b"x"], PATIENCE_S) == b"a:x"
            greeting = Greeting(Identity("x", "c1", TOKEN)).open()
            nonsense = [
                b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
                raw_frame(ClusterOp.NODE_STATUS, b"x"),
                raw_frame(ClusterOp.HELLO, b""),
                raw_frame(ClusterOp.HELLO, b"[]"),
                raw_frame(ClusterOp.HELLO, b"[" * limits.CLUSTER_HELLO_BYTES_MAX),
                raw_frame(ClusterOp.HELLO, b'{"node": "", "cluster": "", "generation": 0, "address": "", "nonce": ""}'),
                raw_frame(ClusterOp.HELLO, b" " * (limits.CLUSTER_HELLO_BYTES_MAX + 1)),
                raw_frame(ClusterOp.HELLO, greeting) + raw_frame(ClusterOp.HELLO, b'{"proof": 1}'),
                raw_frame(ClusterOp.HELLO, greeting) + raw_frame(ClusterOp.NODE_STATUS, b"x"),
                encode_header(ClusterOp.HELLO, 3) + b"abc",
                encode_header(ClusterOp.HELLO, limits.FRAME_PAYLOAD_BYTES_MAX),
            ]
            rng = random.Random(11)
            nonsense += [bytes([0xAF, 1, 0xE0, 1]) + rng.randbytes(rng.randrange(8, 64)) for _ in range(20)]
            cut = [data for data in nonsense if len(data) >= 12]
            async with asyncio.timeout(limits.CLUSTER_HELLO_SECONDS_MAX * 2):
                await asyncio.gather(*(closed_after(b.me.address, data) for data in cut))
            assert await a.call("b", ClusterOp.NODE_STATUS, [b"x"], PATIENCE_S) == b"a:x"

    run(test)


def test_those_who_say_nothing_are_few_and_leave_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_GREETINGS_MAX", 3)
    monkeypatch.setattr(limits, "CLUSTER_HELLO_SECONDS_MAX", 0.5)

    async def test() -> None:
        async with nodes("b", beat_s=30.0) as (b,):
            await asyncio.gather(*(closed_after(b.me.address, b"") for _ in range(2 * limits.CLUSTER_GREETINGS_MAX)))

    run(test)


def test_a_node_that_asks_too_much_at_a_time_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLUSTER_CALLS_MAX", 4)

    async def test() -> None:
        async with nodes("a", "b") as (a, b):
            running = most = 0
            go_on = asyncio.Event()

            async def count(node: str, payload: memoryview) -> Sequence[Buffer]:
                nonlocal running, most
                running += 1
                most = max(most, running)
                if running == limits.CLUSTER_CALLS_MAX:
                    go_on.set()
                await go_on.wait()
                await asyncio.sleep(0)
                running -= 1
                return [payload]

            b.serve(ClusterOp.NODE_STATUS, count)
            payload = bytes(60_000)
            answers = await asyncio.gather(*(a.call("b", ClusterOp.NODE_STATUS, [payload], PATIENCE_S) for _ in range(40)))
            assert all(answer == payload for answer in answers)
            # Frames that were in the same piece as the last one are answered, too.
            assert most <= 2 * limits.CLUSTER_CALLS_MAX

    run(test)
