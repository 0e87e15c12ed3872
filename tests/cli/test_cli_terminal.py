"""What a person at a terminal sees: a question before removal, a progress line, colour."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from running_broker import RunningBroker

from braidmq.client.sync import connect


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


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_errors_are_coloured_only_where_that_is_wanted(env: dict[str, str], coloured: bool) -> None:
    status, shown = at_terminal(["config", "check", "/nonexistent/braid.toml"], env=env)
    assert status == 2
    assert (b"\x1b[31merror\x1b[0m: CONFIG_UNREADABLE" in shown) is coloured
    assert (b"\x1b[" in shown) is coloured
