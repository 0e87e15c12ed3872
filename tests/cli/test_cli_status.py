"""`braid status` and `braid top`: what a broker says about itself, for people, for programs and on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.status_view import Rates, counted, findings, health_of, latency_text, rates_between, shown_seconds, sized
from braidmq.cli.top import Choice, Look, view_lines
from braidmq.testing.thread_broker import ThreadBroker

Captured = pytest.CaptureFixture[str]
PATIENCE_S = 60.0


@pytest.fixture
def filled(braid: ThreadBroker, monkeypatch: pytest.MonkeyPatch) -> ThreadBroker:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", braid.address)
    braid.create("orders", 3)
    braid.produce("orders", [b"x"] * 10, key=b"k")
    braid.client().commit("orders", "billing", 0, 0)
    return braid


def run(capsys: Captured, *words: str, status: Exit = Exit.OK) -> str:
    ended = main(list(words))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out


def test_a_healthy_broker_fits_one_screen(filled: ThreadBroker, capsys: Captured) -> None:
    shown = run(capsys, "status", "--interval", "0s")
    assert "healthy" in shown and filled.address in shown and "orders" in shown and "billing" in shown
    assert "1 flymq" in shown or "flymq" in shown
    assert len(shown.splitlines()) < 30


def test_programs_get_everything(filled: ThreadBroker, capsys: Captured) -> None:
    status = json.loads(run(capsys, "status", "-o", "json", "--interval", "0.1s"))
    assert status["health"] == "healthy" and status["rates"]["seconds"] > 0
    (topic,) = [row for row in status["topics"] if row["topic"] == "orders"]
    assert (topic["partitions"], topic["records"], topic["written"]) == (3, 10, 10) and topic["bytes"] > 0
    (group,) = status["groups"]
    assert (group["group"], group["topic"], group["lag"]) == ("billing", "orders", 10)
    assert status["connections"]["flymq"] >= 1 and status["recovery"]["clean"]


def test_a_restarted_broker_knows_its_sizes_without_opening_anything(filled: ThreadBroker, capsys: Captured) -> None:
    before = json.loads(run(capsys, "status", "-o", "json", "--interval", "0s"))
    filled.restart()
    after = json.loads(run(capsys, "status", "-o", "json", "--interval", "0s"))
    assert after["topics"] == before["topics"]


def test_a_broker_with_a_failed_partition_is_unhealthy(filled: ThreadBroker, capsys: Captured) -> None:
    async def fail(server: Any) -> None:
        server.broker.log_of(server.broker.topic("orders"), 1).fail("the disk is gone")

    filled.run(fail)
    shown = run(capsys, "status", "--interval", "0s", status=Exit.FAILED)
    assert "unhealthy" in shown and "orders/1 is read-only" in shown


def test_without_a_broker_the_status_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert main(["status", "--server", "127.0.0.1:1", "--timeout", "500ms"]) == Exit.UNREACHABLE


def test_connections_are_listed_and_unknown_documents_are_not(filled: ThreadBroker) -> None:
    client = filled.client()
    connections = client.upkeep.document("connections")
    assert connections and {row["protocol"] for row in connections} == {"flymq"}
    assert client.upkeep.document("recovery")["clean"] is True
    assert client.upkeep.document("configuration")["durability"]["value"] == "os"
    with pytest.raises(BraidError, match="there is no document"):
        client.upkeep.document("nonsense")


# --- what the figures mean


def a_status(**changes: Any) -> dict[str, Any]:
    return {
        "version": "1", "node": "n", "uptime_s": 100.0, "hot_path": "compiled", "data_dir": "/d", "free_bytes": 1 << 40,
        "memory_bytes": 1 << 20, "connections": {"flymq": 2}, "connections_max": 100, "topics": [], "groups": [], "read_only": [],
        "queues": [], "delayed": 0, "pipelines": [], "latency": {"fq": {"in": [0] * 16, "out": [0] * 16}},
        "recovery": {"clean": True, "bytes_truncated": 0, "partitions_cut": 0, "unexplained": []},
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "health", "text"),
    [
        ({}, "healthy", ""),
        ({"read_only": [{"topic": "t", "partition": 0, "reason": "r"}]}, "unhealthy", "t/0 is read-only"),
        ({"free_bytes": 1000}, "degraded", "1000 B are left"),
        ({"connections": {"fq": 95}}, "degraded", "95 of 100 connections"),
        ({"groups": [{"group": "g", "topic": "t", "lag": 9, "lag_ms": 900_000, "members": 0}]}, "degraded", "15m 0s behind"),
        ({"queues": [{"queue": "q", "dropped": 3}]}, "healthy", "q dropped 3"),
        ({"hot_path": "pure"}, "healthy", "not compiled"),
        ({"recovery": {"clean": False, "bytes_truncated": 7, "partitions_cut": 1, "unexplained": ["x"]}}, "healthy", "cut 7 bytes"),
    ],
)
def test_findings(changes: dict[str, Any], health: str, text: str) -> None:
    found = findings(a_status(**changes))
    assert health_of(found) == health
    assert any(text in finding.text for finding in found) or not text


def test_rates_are_never_negative() -> None:
    def topic(written: int, size: int) -> list[dict[str, Any]]:
        return [{"topic": "t", "written": written, "bytes": size}]

    before, after = a_status(topics=topic(100, 5000)), a_status(topics=topic(300, 1000), uptime_s=102.0)
    rates = rates_between(before, after)
    assert rates.topics == {"t": (100.0, 0.0)} and rates.records == 100
    assert rates_between(after, before).seconds == 0, "the broker was restarted meanwhile"
    assert rates_between(None, after).records == 0


def test_latency_is_of_what_happened_in_between() -> None:
    def latency(fast: int, slow: int) -> dict[str, Any]:
        return {"fq": {"in": [fast] + [0] * 10 + [slow] + [0] * 4, "out": [7] + [0] * 15}}

    before, after = a_status(latency=latency(1000, 0)), a_status(latency=latency(1090, 10), uptime_s=101.0)
    rates = rates_between(before, after)
    assert rates.latency_s == {("fq", "in"): (0.0001, 0.5)}, "nothing was pushed meanwhile"
    assert latency_text(rates) == "fq in 0.1/500" and latency_text(Rates()) == "nothing happened"


def test_figures_for_people() -> None:
    assert [sized(size) for size in (0, 1023, 1024, 1 << 20, 3 << 40)] == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "3.0 TiB"]
    assert [counted(n) for n in (0, 0.5, 950, 12_300, 4_500_000, 2e9)] == ["0", "0.5", "950", "12.3k", "4.5M", "2.0G"]
    assert [shown_seconds(s) for s in (1.25, 61, 3700, 90_000)] == ["1.2s", "1m 1s", "1h 1m", "1d 1h"]


# --- top


@pytest.mark.parametrize("size", [(20, 6), (80, 24), (300, 100)])
@pytest.mark.parametrize("view", ["topics", "groups", "connections"])
def test_a_view_fits_its_window(size: tuple[int, int], view: str) -> None:
    topics = [{"topic": f"t{n}\x1b[2J", "partitions": 1, "records": n, "written": n, "bytes": n} for n in range(200)]
    groups = [
        {"group": f"g{n}", "topic": "t", "state": "empty", "members": 0, "lag": n, "lag_ms": n, "committed": 0} for n in range(200)
    ]
    connections = [
        {"address": f"a{n}", "protocol": "fq", "tls": True, "user": "", "silent_s": n, "unsent_bytes": n} for n in range(200)
    ]
    for sort in ("rate", "size", "lag", "name"):
        look = Look(a_status(topics=topics, groups=groups), Rates(), connections, 1.5)
        lines = view_lines(look, Choice(view, sort), size)
        assert len(lines) <= size[1] and all(len(line) <= size[0] for line in lines)
        assert not any("\x1b" in line for line in lines), "a name cannot drive the terminal"


def test_off_a_terminal_one_view_is_printed(filled: ThreadBroker, capsys: Captured) -> None:
    shown = run(capsys, "top", "--interval", "0.1s", "--view", "groups")
    assert "billing" in shown and "\x1b" not in shown


def test_on_a_terminal_it_lives_until_q(filled: ThreadBroker) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-m", "braidmq", "top", "--interval", "0.2s"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    try:
        seen = wait_for(ours, b"RECORDS/S")
        assert b"\x1b[?1049h" in seen and b"orders" in seen
        os.write(ours, b"g")
        assert b"billing" in wait_for(ours, b"BEHIND")
        os.write(ours, b"c")
        wait_for(ours, b"PROTOCOL")
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
        os.write(ours, b"t")
        wait_for_frame(ours, b"TOPIC", 40)
        os.write(ours, b"q")
        wait_for(ours, b"\x1b[?1049l")
        assert process.wait(PATIENCE_S) == 0
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
        os.close(theirs)


def wait_for(descriptor: int, what: bytes) -> bytes:
    """All that the terminal shows until `what` is among it."""
    seen, deadline = b"", time.monotonic() + PATIENCE_S
    while what not in seen:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{what!r} did not come, but {seen[-500:]!r}"
        seen += os.read(descriptor, 65536)
    return seen


def wait_for_frame(descriptor: int, what: bytes, width: int) -> None:
    """Read until a whole frame has `what` and no line that is wider than the window."""
    seen, deadline = b"", time.monotonic() + PATIENCE_S
    while True:
        for frame in seen.split(b"\x1b[H")[1:-1]:
            lines = re.sub(rb"\x1b\[\w|\r", b"", frame).split(b"\n")
            if what in frame and all(len(line) <= width for line in lines):
                return
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no frame of that width came, but {seen[-500:]!r}"
        seen += os.read(descriptor, 65536)
