"""Passwords typed at a terminal: asked for when they are needed, never shown, and the terminal is as it was afterwards."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.client import sync

PASSWORD = "correct horse"
PATIENCE_S = 60.0
# A terminal becomes that of a session when its first process opens it, as a login shell does: prompts go to `/dev/tty`.
_AT_ITS_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); from braidmq.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ("--durability", "os", "--auth-enabled")
    broker = RunningBroker(tmp_path_factory.mktemp("typed") / "data", flags, {"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})
    broker.start()
    try:
        yield broker.address
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def _echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def at_terminal(server: str, arguments: Sequence[str], *typed: tuple[str, str]) -> tuple[int, str]:
    """Run `braid` on a terminal and type each answer when its prompt is there; its status and what the terminal showed."""
    ours, theirs = pty.openpty()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", _AT_ITS_TERMINAL, *arguments, "--server", server],
        stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"NO_COLOR": "1"}, start_new_session=True,
    )  # fmt: skip
    shown = ""
    deadline = time.monotonic() + PATIENCE_S
    answers = list(typed)
    try:
        assert _echoes(theirs)
        seen = 0
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, f"it still waits, after {shown!r}"
            if select.select([ours], [], [], 0.02)[0]:
                shown += os.read(ours, 65536).decode()
            if answers and answers[0][0] in shown[seen:]:
                assert not _echoes(theirs), "what is typed now would be seen"
                seen = len(shown)
                os.write(ours, answers.pop(0)[1].encode())
        assert _echoes(theirs), "the terminal stays as it was"
    finally:
        if process.poll() is None:
            process.kill()
        status = process.wait()
        os.close(ours)
        os.close(theirs)
    assert not answers, f"never asked for: {answers}, but {shown!r}"
    return status, shown


def login(user: str, password: str) -> tuple[str, str]:
    return f"password of {user}: ", password + "\n"


def test_a_password_is_asked_for_and_not_shown(server: str) -> None:
    status, shown = at_terminal(server, ["user", "show", "--user", "admin"], login("admin", PASSWORD))
    assert status == Exit.OK and "admin" in shown and PASSWORD not in shown
    status, shown = at_terminal(server, ["user", "show", "--user", "admin"], login("admin", "a guess"))
    assert status == Exit.DENIED and "INVALID_CREDENTIALS" in shown and "a guess" not in shown


def test_leaving_at_the_prompt_leaves_the_terminal_as_it_was(server: str) -> None:
    status, _ = at_terminal(server, ["user", "show", "--user", "admin"], ("password of admin: ", "half a pass\x03"))
    assert status == Exit.INTERRUPTED


def test_a_new_password_is_typed_twice(server: str) -> None:
    add = ["user", "add", "typed", "--role", "guest", "--user", "admin"]
    new = ("new password of typed: ", "first secret\n")
    status, shown = at_terminal(server, add, new, ("again: ", "frist secret\n"))
    assert status == Exit.USAGE and "the two passwords differ" in shown
    status, shown = at_terminal(server, add, new, ("again: ", "first secret\n"), login("admin", PASSWORD))
    assert status == Exit.OK and "added typed" in shown
    assert not any(secret in shown for secret in ("secret", PASSWORD))
    status, shown = at_terminal(
        server, ["user", "passwd", "--user", "typed"], login("typed", "first secret"),
        ("new password of typed: ", "zweites Wörtchen\n"), ("again: ", "zweites Wörtchen\n"),
    )  # fmt: skip
    assert status == Exit.OK and "changed the password of typed" in shown
    with sync.connect(server, username="typed", password="zweites Wörtchen") as client:
        assert client.whoami().user == "typed"
