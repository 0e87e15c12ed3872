"""What a person at a terminal sees: a question before removal, a progress line, colour."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from running_broker import RunningBroker

from braidmq.cli import group
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect

CLEAR = b"\x1b[H\x1b[2J"


def at_terminal(arguments: list[str], answer: bytes = b"", env: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Run `braid` on a terminal of its own; its status and everything the terminal showed."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_", "NO_COLOR"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "braidmq", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"} | (env or {}), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, answer)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        # Linux reports the end of a terminal nobody holds open as an error.
        shown += b""
    finally:
        os.close(ours)
    return process.wait(60), shown


def test_removal_asks_first(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("precious", 1)
        client.produce("precious", b"x")
        command = ["topic", "rm", "precious", "--server", broker.address]
        status, shown = at_terminal(command, b"n\n")
        assert status == 1 and b"remove precious with 1 records? [y/N]" in shown and b"nothing changed" in shown
        assert client.list_topics() == ["precious"]
        status, _ = at_terminal(command, b"y\n")
        assert status == 0 and client.list_topics() == []


def test_produce_shows_progress_and_cleans_it_up(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("slow", 1)
    values = [str(number) for number in range(60)]
    status, shown = at_terminal(["produce", "slow", *values, "--rate", "150", "--server", broker.address])
    assert status == 0
    assert b"%" in shown and b"messages  " in shown
    assert b"\x1b[K60 messages acknowledged" in shown


class Screen:
    """`braid` on a terminal of its own, while it runs."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_", "NO_COLOR"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "braidmq", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.shown = b""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        os.close(self._ours)

    def status(self) -> int:
        """Read on until the command ends; what nobody reads would hold it up."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            select.select([self._ours], [], [], 0.1)
            self.read()
        self.read()
        return self.process.wait(30)

    def read(self) -> bytes:
        """Everything that is there to be read."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:
                # The end of a terminal that nobody holds open.
                break
            if not chunk:
                break
            self.shown += chunk
        return self.shown

    @property
    def pictures(self) -> list[list[list[bytes]]]:
        """Every picture that was drawn whole, as the words of its lines."""
        drawn = self.shown.split(CLEAR)[1:]
        return [[line.split() for line in picture.splitlines()] for picture in drawn[:-1]]

    def wait_for(self, row: list[bytes]) -> None:
        """Read on until the last picture has this row at its end, but for what stands behind it."""
        deadline = time.monotonic() + 30
        while not (self.pictures and self.pictures[-1][-1][: len(row)] == row):
            assert time.monotonic() < deadline, self.shown
            select.select([self._ours], [], [], 1)
            self.read()


def test_a_watched_lag_is_drawn_anew(broker: RunningBroker) -> None:
    with connect(broker.address) as client:
        client.create_topic("t", 1)
        for _ in range(3):
            client.produce("t", b"x")
        client.commit("t", "readers", 0, 1)
        with Screen("group", "lag", "readers", "--watch", "20ms", "--server", broker.address) as screen:
            screen.wait_for([b"t", b"0", b"1", b"3", b"2"])
            client.commit("t", "readers", 0, 3)
            screen.wait_for([b"t", b"0", b"3", b"3", b"0"])
            client.produce("t", b"x")
            screen.wait_for([b"t", b"0", b"3", b"4", b"1"])
            assert all(len(picture) == 2 for picture in screen.pictures), "one table at a time, each in place of the last"
            assert all(b"TOPIC" in picture[0][0] and picture[0][1] == b"PARTITION" for picture in screen.pictures)
            seen = [picture[1][4] for picture in screen.pictures]
            assert [lag for lag, before in zip(seen, [b"", *seen], strict=False) if lag != before] == [b"2", b"0", b"1"]
            screen.process.send_signal(signal.SIGINT)
            assert screen.status() == Exit.INTERRUPTED
        with Screen("group", "lag", "readers", "--server", broker.address) as screen:
            assert screen.status() == 0
            assert b"TOPIC" in screen.shown and CLEAR not in screen.shown, "what is shown once leaves the screen as it is"


def test_one_interrupt_ends_a_watch_whenever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a picture is drawn: it is finished first."""
    drawn: list[int] = []

    def draw(*_: object, **__: object) -> None:
        drawn.append(1)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(group, "_show_lag", draw)
    monkeypatch.setenv("BRAID_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(group, "open_client", lambda _: contextlib.nullcontext())
    assert main(["group", "lag", "readers", "--watch", "20ms"]) == Exit.INTERRUPTED and drawn == [1]


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_errors_are_coloured_only_where_that_is_wanted(env: dict[str, str], coloured: bool) -> None:
    status, shown = at_terminal(["config", "check", "/nonexistent/braid.toml"], env=env)
    assert status == 2
    assert (b"\x1b[31merror\x1b[0m: CONFIG_UNREADABLE" in shown) is coloured
    assert (b"\x1b[" in shown) is coloured
