"""The network between nodes: TCP, optionally behind TLS, on the cluster port.

A node calls over connections that it opened and answers on those that others opened, so two that call each other have two. A
connection is opened by the first call and stays; calls do not wait for each other, and answers come in any order. When it
breaks, every call under way fails with NODE_UNREACHABLE at once, and whoever watches is told. The next call opens another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from braidmq.base import limits
from braidmq.base.config_listen import split_address
from braidmq.base.disk import Buffer
from braidmq.base.errors import ERRORS, BraidError
from braidmq.cluster.hello import Greeting, Identity, Peer
from braidmq.cluster.link import Kind, Link
from braidmq.cluster.transport import AddressBook, ClusterOp, Handler

BEAT_S: Final = 1.0
SILENT_BEATS_MAX: Final = 3
_NUMBERS: Final = 1 << 32

logger = logging.getLogger("braidmq.cluster")


class _Dialled:
    """A connection that we opened, and the calls that wait for answers on it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.peer: Peer | None = None
        """Who is at the other end, once it has proved it."""
        self._last = 0
        self.waiting: dict[int, asyncio.Future[memoryview]] = {}
        link.on_frame = self._on_frame

    def ask(self, op: int, parts: Sequence[Buffer]) -> tuple[int, asyncio.Future[memoryview]]:
        self._last = self._last % (_NUMBERS - 1) + 1
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.link.send(op, Kind.CALL, self._last, parts)
        self.waiting[self._last] = answer
        return self._last, answer

    def _on_frame(self, _op: int, flags: int, number: int, payload: memoryview) -> None:
        answer = self.waiting.pop(number, None)
        if answer is None or answer.done():
            # Whoever asked has given up meanwhile.
            return
        if flags & Kind.FAULT:
            answer.set_exception(decode_fault(payload))
        elif flags & Kind.ANSWER:
            answer.set_result(payload)
        else:
            self.link.abort("it calls on a connection that is for answers")

    def fail(self, node: str, why: str) -> None:
        waiting, self.waiting = self.waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(BraidError("NODE_UNREACHABLE", node=node, reason=why))


class TcpTransport:
    def __init__(
        self, me: Identity, book: AddressBook, *, server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None, beat_s: float = BEAT_S,
    ) -> None:
        self.me = me
        self.node = me.node
        self.book = book
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._beat_s = beat_s
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._handlers: dict[int, Handler] = {}
        self._watchers: list[Callable[[str, bool], None]] = []
        self._dialled: dict[str, _Dialled] = {}
        self._dialling: dict[str, asyncio.Task[_Dialled]] = {}
        self._by_link: dict[Link, _Dialled] = {}
        """All that we opened, those that are still greeting too."""
        self._accepted: dict[Link, _Accepted] = {}
        self._links: set[Link] = set()
        self._all_gone: asyncio.Future[None] | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._closed = False

    # --- start and stop

    async def listen(self, host: str, port: int) -> str:
        """Answer others there; returns the address."""
        self._server = await self._loop.create_server(
            lambda: Link(self._on_accepted, self._on_accepted_lost), host, port, ssl=self._server_tls, backlog=limits.LISTEN_BACKLOG
        )
        name = self._server.sockets[0].getsockname()
        return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    async def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        if self._beating is not None:
            self._beating.cancel()
        dialling = list(self._dialling.values())
        for task in dialling:
            task.cancel()
        await asyncio.gather(*dialling, return_exceptions=True)
        answering = [task for accepted in self._accepted.values() for task in accepted.tasks]
        for running in answering:
            running.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        for link in list(self._links):
            link.abort("this node stops")
        if self._links:
            self._all_gone = self._loop.create_future()
            await self._all_gone

    def _keep(self, link: Link) -> None:
        self._links.add(link)
        if self._beating is None:
            self._beating = self._loop.call_later(self._beat_s, self._beat)

    def _beat(self) -> None:
        for link in list(self._links):
            link.beat(SILENT_BEATS_MAX)
        self._beating = self._loop.call_later(self._beat_s, self._beat) if self._links and not self._closed else None

    # --- calling

    async def call(self, node: str, op: int, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        if node == self.node:
            return await self._call_self(op, parts, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                dialled = self._dialled.get(node) or await self._dial(node)
                await dialled.link.writable()
                if dialled.link.closed:
                    raise BraidError("NODE_UNREACHABLE", node=node, reason="the connection broke")
                number, answer = dialled.ask(op, parts)
                try:
                    return await answer
                finally:
                    dialled.waiting.pop(number, None)
        except TimeoutError:
            raise BraidError("NODE_UNREACHABLE", node=node, reason=f"no answer within {timeout_s:g} s") from None

    async def _call_self(self, op: int, parts: Sequence[Buffer], timeout_s: float) -> memoryview:
        try:
            async with asyncio.timeout(timeout_s):
                return memoryview(b"".join(await self._handler(op)(self.node, memoryview(b"".join(parts)))))
        except TimeoutError:
            raise BraidError("NODE_UNREACHABLE", node=self.node, reason=f"no answer within {timeout_s:g} s") from None

    def connected(self, node: str) -> bool:
        return node in self._dialled

    def watch(self, callback: Callable[[str, bool], None]) -> None:
        self._watchers.append(callback)

    def _tell(self, node: str, here: bool) -> None:
        for watcher in self._watchers:
            watcher(node, here)

    # --- connecting

    async def meet(self, address: str, timeout_s: float) -> str:
        """The name of the node at an address; from then on it can be called. Raises NODE_UNREACHABLE or CLUSTER_REFUSED."""
        try:
            async with asyncio.timeout(timeout_s):
                dialled = await self._connect(address, address)
        except TimeoutError:
            raise BraidError("NODE_UNREACHABLE", node=address, reason=f"no answer within {timeout_s:g} s") from None
        assert dialled.peer is not None
        node = dialled.peer.node
        self.book.learn(node, address)
        if node in self._dialled:
            dialled.link.close()
        else:
            self._enlist(node, dialled)
        return node

    async def _dial(self, node: str) -> _Dialled:
        """One connection for all who ask at the same time."""
        task = self._dialling.get(node)
        if task is None:
            task = self._dialling[node] = self._loop.create_task(self._dial_anew(node))
            task.add_done_callback(partial(self._dialling_ended, node))
        return await asyncio.shield(task)

    def _dialling_ended(self, node: str, task: asyncio.Task[_Dialled]) -> None:
        del self._dialling[node]
        # Whoever waited may be gone, and a failure that nobody hears of is no bug then.
        if not task.cancelled() and task.exception() is not None:
            logger.debug("%s is not connected: %s", node, task.exception())

    async def _dial_anew(self, node: str) -> _Dialled:
        address = self.book.address_of(node)
        if address is None or self._closed:
            raise BraidError("NODE_UNREACHABLE", node=node, reason="its address is not known")
        try:
            async with asyncio.timeout(limits.CLUSTER_HELLO_SECONDS_MAX):
                dialled = await self._connect(node, address)
        except TimeoutError:
            raise BraidError("NODE_UNREACHABLE", node=node, reason=f"nothing answers at {address}") from None
        assert dialled.peer is not None
        if dialled.peer.node != node:
            dialled.link.close()
            raise BraidError("NODE_UNREACHABLE", node=node, reason=f"{address} is that of {dialled.peer.node} now")
        self._enlist(node, dialled)
        return dialled

    async def _connect(self, node: str, address: str) -> _Dialled:
        host, port = split_address(address)
        link = await self._first_link(node, address, host, port)
        dialled = self._by_link[link] = _Dialled(link)
        try:
            if link.closed:
                raise BraidError("NODE_UNREACHABLE", node=node, reason="the connection was closed at once")
            greeting = Greeting(self.me)
            _, answer = dialled.ask(ClusterOp.HELLO, [greeting.open()])
            dialled.peer, proof = greeting.accept(bytes(await answer))
            _, answer = dialled.ask(ClusterOp.HELLO, [proof])
            await answer
        except BaseException:
            if link.closed:
                self._by_link.pop(link, None)
            link.close()
            raise
        link.payload_bytes_max = limits.FRAME_PAYLOAD_BYTES_MAX
        return dialled

    async def _first_link(self, node: str, address: str, host: str, port: int) -> Link:
        """Of a name with several addresses the first one that answers; it refuses if all of them do."""
        faults: list[OSError] = []
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as fault:
            found, faults = [], [fault]
        for place in dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found):
            try:
                _, link = await self._loop.create_connection(
                    lambda: Link(self._keep, self._on_dialled_lost), place, port, ssl=self._client_tls,
                    server_hostname=host if self._client_tls is not None else None,
                )
                return link
            except OSError as fault:
                faults.append(fault)
        reason = f"{address}: {'; '.join(dict.fromkeys(fault.strerror or str(fault) for fault in faults))}"
        refused = all(isinstance(fault, ConnectionRefusedError) for fault in faults)
        raise BraidError("NODE_UNREACHABLE", node=node, reason=reason, refused=refused)

    def _enlist(self, node: str, dialled: _Dialled) -> None:
        if dialled.link.closed:
            raise BraidError("NODE_UNREACHABLE", node=node, reason="the connection broke")
        self._dialled[node] = dialled
        self._tell(node, True)

    def _on_dialled_lost(self, link: Link, why: str) -> None:
        self._forget(link)
        dialled = self._by_link.pop(link, None)
        if dialled is None:
            return
        node = dialled.peer.node if dialled.peer is not None else link.peer_address
        dialled.fail(node, why)
        if self._dialled.get(node) is dialled:
            del self._dialled[node]
            self._tell(node, False)

    def _forget(self, link: Link) -> None:
        self._links.discard(link)
        if self._all_gone is not None and not self._links and not self._all_gone.done():
            self._all_gone.set_result(None)

    # --- answering

    def serve(self, op: int, handler: Handler) -> None:
        self._handlers[op] = handler

    def _handler(self, op: int) -> Handler:
        handler = self._handlers.get(op)
        if handler is None:
            raise BraidError("UNKNOWN_OPCODE", opcode=f"{op:02X}")
        return handler

    def _on_accepted(self, link: Link) -> None:
        greeting = sum(accepted.peer is None for accepted in self._accepted.values())
        if self._closed or greeting >= limits.CLUSTER_GREETINGS_MAX:
            link.abort("too many that did not say who they are")
            self._links.add(link)
            return
        self._keep(link)
        self._accepted[link] = _Accepted(self, link)

    def _on_accepted_lost(self, link: Link, why: str) -> None:
        self._forget(link)
        accepted = self._accepted.pop(link, None)
        if accepted is not None:
            accepted.ended()

    async def answer(self, link: Link, peer: Peer, op: int, number: int, payload: memoryview) -> None:
        try:
            parts = await self._handler(op)(peer.node, payload)
            await link.writable()
            link.send(op, Kind.CALL | Kind.ANSWER, number, parts)
        except BraidError as fault:
            link.send(op, Kind.CALL | Kind.FAULT, number, [encode_fault(fault)])
        except Exception as bug:
            logger.exception("a call %02X of %s failed", op, peer.node)
            link.send(op, Kind.CALL | Kind.FAULT, number, [encode_fault(BraidError("INTERNAL", reason=repr(bug)))])


class _Accepted:
    """A connection that another node opened: its greeting, then its calls."""

    def __init__(self, transport: TcpTransport, link: Link) -> None:
        self._transport = transport
        self._link = link
        self._greeting = Greeting(transport.me)
        self._claimed: Peer | None = None
        self.peer: Peer | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._full = False
        self._patience = asyncio.get_running_loop().call_later(
            limits.CLUSTER_HELLO_SECONDS_MAX, link.abort, "it did not say who it is"
        )
        link.on_frame = self._on_frame
        link.answers = True

    def _on_frame(self, op: int, flags: int, number: int, payload: memoryview) -> None:
        if self.peer is None:
            self._greet(op, number, bytes(payload))
            return
        if flags != Kind.CALL:
            self._link.abort("it answers what nobody asked")
            return
        task = asyncio.get_running_loop().create_task(self._transport.answer(self._link, self.peer, op, number, payload))
        self.tasks.add(task)
        task.add_done_callback(self._done)
        if len(self.tasks) >= limits.CLUSTER_CALLS_MAX and not self._full:
            self._full = True
            self._link.hold()

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._full and len(self.tasks) < limits.CLUSTER_CALLS_MAX:
            self._full = False
            self._link.release()

    def _greet(self, op: int, number: int, payload: bytes) -> None:
        try:
            if op != ClusterOp.HELLO:
                raise BraidError("CLUSTER_REFUSED", node=self._link.peer_address, reason="it did not say who it is")
            if self._claimed is None:
                self._claimed, answer = self._greeting.answer(payload)
            else:
                self._greeting.verify(payload, self._claimed)
                self.peer, answer = self._claimed, b"{}"
                self._link.payload_bytes_max = limits.FRAME_PAYLOAD_BYTES_MAX
                self._patience.cancel()
                if self.peer.address:
                    self._transport.book.learn(self.peer.node, self.peer.address)
            self._link.send(op, Kind.CALL | Kind.ANSWER, number, [answer])
        except BraidError as fault:
            logger.warning("%s is refused: %s", self._link.peer_address, fault)
            self._link.send(op, Kind.CALL | Kind.FAULT, number, [encode_fault(fault)])
            self._link.close()

    def ended(self) -> None:
        """The connection is gone. What is under way is finished, since it may count elsewhere."""
        self._patience.cancel()


# --- errors on the wire


def encode_fault(fault: BraidError) -> bytes:
    fields = {name: value if isinstance(value, int | float | str) else str(value) for name, value in fault.fields.items()}
    return json.dumps({"code": fault.code, "fields": fields, "text": fault.text[: limits.ERROR_TEXT_BYTES_MAX]}).encode()


def decode_fault(payload: memoryview) -> BraidError:
    """The error as the other side raised it; one that this version does not know becomes SERVER_ERROR with its text."""
    try:
        document = json.loads(bytes(payload))
        if document["code"] in ERRORS:
            return BraidError(document["code"], **document["fields"])
        return BraidError("SERVER_ERROR", message=str(document["text"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return BraidError("UNEXPECTED_REPLY", reason="an error that cannot be read")
