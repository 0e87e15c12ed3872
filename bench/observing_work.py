"""What it costs to be observed: `python bench/observing_work.py WORK`, one line of JSON.

    counting   the share of PRODUCE's processor time that goes into counting, and into the question whether anybody traces
    scrape     a scrape with 1,000 topics: processor time of the process, and time that whoever asks waits
    topics     the first page of the console's list of 10,000 topics: the same

Shares are measured within one process: the broker's own code takes turns with the same code without the lines in question, in
rounds of some milliseconds, and processor time of the broker's thread is compared pair by pair. A busy machine is as busy for one
as for the other.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from braidmq.admin.service import WebService
from braidmq.base.config import Config, Listen
from braidmq.base.config_listen import HttpListen
from braidmq.base.disk_real import RealDisk
from braidmq.log.commit import GroupCommit
from braidmq.server.app import BrokerServer
from braidmq.server.session import Session
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect

ROUNDS: Final = 80
REQUESTS: Final = 2000
"""In a round, at most."""
WINDOWS: Final = {"single": 1, "window": 100}
"""Requests in a write: where there is one, nothing is shared, and counting costs most."""
METHODS: Final = (
    (GroupCommit, ("join", "flush", "_flush", "_synced")),
    (Session, ("send_run", "_run_done", "buffer_updated", "write")),
)
COUNTED: Final = frozenset(("records", "written_bytes", "received_bytes", "sent_bytes"))
SCRAPES: Final = 10
PATIENCE_S: Final = 300.0

Variant = dict[tuple[type, str], Any]


# --- the same code, without


class WithoutCounting(ast.NodeTransformer):
    """No clock is read, nothing is observed, nothing is added up."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "monotonic":
            return ast.copy_location(ast.Constant(0.0), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "observe":
            return ast.copy_location(ast.Pass(), node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if isinstance(node.target, ast.Attribute) and node.target.attr in COUNTED:
            return ast.copy_location(ast.Pass(), node)
        return node


class WithoutTracing(ast.NodeTransformer):
    """Whether anybody traces is no question: nobody does."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        asked = ast.unparse(node.left)
        if asked.endswith("tracing") or asked == "traced":
            return ast.copy_location(ast.Constant(isinstance(node.ops[0], ast.Is)), node)
        return node


def variant(strip: ast.NodeTransformer | None) -> Variant:
    """The methods as they are, or as `strip` leaves them. Both are compiled here, so that they differ in nothing else."""
    made: Variant = {}
    for owner, names in METHODS:
        for name in names:
            method = getattr(owner, name)
            tree: ast.AST = ast.parse(textwrap.dedent(inspect.getsource(method)))
            if strip is not None:
                before = ast.dump(tree)
                tree = ast.fix_missing_locations(strip.visit(tree))
                made_less = ast.dump(tree) != before
                print(f"{type(strip).__name__} {owner.__name__}.{name}: {'less' if made_less else 'the same'}", file=sys.stderr)
            space = dict(vars(sys.modules[owner.__module__]))
            exec(compile(tree, inspect.getfile(owner), "exec"), space)  # type: ignore[arg-type]
            made[owner, name] = types.FunctionType(space[name].__code__, method.__globals__, name, method.__defaults__)
    return made


def put_in_place(methods: Variant) -> None:
    for (owner, name), function in methods.items():
        setattr(owner, name, function)


# --- a broker in this process


class Broker:
    """A broker in a thread, with a figure of the processor time that its loop took."""

    def __init__(self, directory: str, *, web: bool, durability: str = "os") -> None:
        here = {f"{name}_listen": HttpListen("http", "127.0.0.1", 0) for name in ("admin", "metrics", "health")}
        listen = (Listen("flymq", "127.0.0.1", 0),)
        self._config = Config(data_dir=directory, listen=listen, durability=durability, **here)  # type: ignore[arg-type]
        self._web = web
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.server: BrokerServer
        self.service: WebService

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function, or run a coroutine function, on the broker's loop."""

        async def running() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(running(), self._loop).result(PATIENCE_S)

    def cpu_s(self) -> float:
        return float(self.run(time.thread_time))

    async def _start(self) -> None:
        self.server = BrokerServer(self._config, disk=RealDisk())
        if self._web:
            self.service = WebService(self.server)
            self.service.start()
        await self.server.start()

    def __enter__(self) -> Broker:
        self._thread.start()
        self.run(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.server.stop)
        if self._web:
            self.run(self.service.stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextmanager
def broker(*, web: bool = False) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory() as directory, Broker(f"{directory}/data", web=web) as running:
        yield running


# --- counting


def ask_in_turn(address: str, window: int, line: Connection) -> None:
    """In a process of its own: on each word, so many writes one after the other."""
    host, _, port = address.rpartition(":")
    request = flymq.encode_request(flymq.Produce("bench", b"", b"v" * 100, 0), Dialect.DOCUMENTED)
    with socket.create_connection((host, int(port))) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while line.recv():
            for _ in range(writes(window)):
                peer.sendall(request * window)
                answers = b""
                while len(answers) < flymq.HEADER_BYTES or len(answers) < window * _frame_bytes(answers):
                    answers += peer.recv(1 << 16)
                if answers[2] != flymq.Op.PRODUCE:
                    raise SystemExit(f"the broker answered {answers[:100]!r}")
            line.send(True)


def writes(window: int) -> int:
    """How many writes a round has, each sent when the answers to the one before are there."""
    return min(400, max(40, REQUESTS // window))


def _frame_bytes(answers: bytes) -> int:
    """All answers are as long as the first."""
    return flymq.HEADER_BYTES + int(flymq.read_header(answers)[2])


def counting() -> dict[str, float]:
    as_is, variants = variant(None), {"counting": variant(WithoutCounting()), "tracing_off": variant(WithoutTracing())}
    found: dict[str, float] = {}
    for name, window in WINDOWS.items():
        found |= {f"{name}_{what}": figure for what, figure in shares_of(as_is, variants, window).items()}
    return found


def shares_of(as_is: Variant, variants: dict[str, Variant], window: int) -> dict[str, float]:
    shares: dict[str, list[float]] = {name: [] for name in variants}
    costs: list[float] = []
    with broker() as running:
        running.run(lambda: running.server.broker.create_topic("bench", 1))
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        client = spawn.Process(target=ask_in_turn, args=(running.server.addresses["flymq"], window, theirs))
        client.start()

        def a_round(methods: Variant) -> float:
            running.run(lambda: put_in_place(methods))
            before = running.cpu_s()
            ours.send(True)
            ours.recv()
            return (running.cpu_s() - before) / writes(window) / window

        for _ in range(10):
            a_round(as_is)
        for number in range(ROUNDS):
            for name, stripped in variants.items():
                # Whoever comes second finds the caches warm: they take turns in that, too.
                if number % 2:
                    less, all_of_it = a_round(stripped), a_round(as_is)
                else:
                    all_of_it, less = a_round(as_is), a_round(stripped)
                shares[name].append(1 - less / all_of_it)
                costs.append(all_of_it)
        put_in_place(as_is)
        ours.send(False)
        client.join()
    return {"cpu_us": statistics.median(costs) * 1e6} | {
        f"{name}_share": statistics.median(of_rounds) for name, of_rounds in shares.items()
    }


# --- looking at many topics


async def create(running: Broker, topics: int) -> None:
    made = running.server.broker
    for first in range(0, topics, 500):
        await asyncio.gather(*(made.create_topic(f"topic-{number:05}", 1) for number in range(first, first + 500)))


def asked(address: str, path: str, times: int) -> dict[str, float]:
    """Processor time of the whole process, and time, for each of some requests: their medians."""
    cpu_s, wall_s = [], []
    for _ in range(times):
        connection = HTTPConnection(address, timeout=60)
        began_cpu_s, began_s = time.process_time(), time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        size = len(answer.read())
        wall_s.append(time.perf_counter() - began_s)
        cpu_s.append(time.process_time() - began_cpu_s)
        connection.close()
        if answer.status != 200 or not size:
            raise SystemExit(f"{path} was answered {answer.status}")
    return {"cpu_ms": statistics.median(cpu_s) * 1000, "wall_ms": statistics.median(wall_s) * 1000}


def scrape() -> dict[str, float]:
    with broker(web=True) as running:
        running.run(lambda: create(running, 1000))
        return asked(running.service.addresses["metrics"], "/metrics", SCRAPES)


def topics() -> dict[str, float]:
    with broker(web=True) as running:
        running.run(lambda: create(running, 10_000))
        return asked(running.service.addresses["admin"], "/console/topics", SCRAPES)


WORKS: Final[dict[str, Callable[[], dict[str, float]]]] = {"counting": counting, "scrape": scrape, "topics": topics}


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to be observed.")
    parser.add_argument("work", choices=sorted(WORKS))
    print(json.dumps(WORKS[parser.parse_args().work]()))


if __name__ == "__main__":
    main()
