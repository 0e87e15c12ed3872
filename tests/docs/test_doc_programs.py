"""Programs and commands in the documentation run: against a broker on free ports, they print what they are there to print."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from doc_pages import code_blocks, page
from running_broker import RunningBroker, StartBroker

PATIENCE_S = 60.0
PAGES = ("README.md", "docs/client.md", "docs/client-blipmq.md", "docs/client-fq.md")
PORTS = {"flymq": "127.0.0.1:9092", "blipmq": "127.0.0.1:7878", "fq": "127.0.0.1:8765"}

PRINTS = {
    "README.md": [
        r"\d 0 b'hello'",
        r"sensors/1/temp b'21.5'",
        r"b'logs' b'web.access' b'GET /'",
    ],
    "docs/client.md": [
        r"\d 0 b'42' b'...' {'trace': b'1'}",
        r"\d b'...'",
        None,
    ],
    "docs/client-blipmq.md": [
        r"orders/eu b'17 apples' 1",
        r"sensors/1/temp b'{\"degrees\": 21}'",
    ],
    "docs/client-fq.md": [
        r"b'logs' b'web.access' b'GET /' b'me'",
        r"all of them, 1000",
    ],
}
"""For each block of Python on a page a line that it prints; None for a piece that is no program."""

COMMANDS = [
    r"orders created",
    r"2 messages acknowledged",
    r"1,000 messages acknowledged",
    r"\d:\d+\s+second",
    r'"value": *"late"',
    r"orders",
    r"21\.5",
    r"acknowledged",
    r"GET /",
    r"1 message read by the broker",
]
"""For each `braid` of the README, in order, what it says."""


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    """A broker that nobody has used: examples share names."""
    return start_broker(*(flag for name in PORTS for flag in ("--listen", f"{name}://127.0.0.1:0")), "--durability", "os")


def here(text: str, broker: RunningBroker) -> str:
    """An example with the ports of this broker in place of the usual ones."""
    for name, usual in PORTS.items():
        text = text.replace(usual, broker.addresses[name])
    return text


def expect(command: list[str], pattern: str, stdin: str = "") -> None:
    """Run a program until it prints a line with `pattern`; one that would go on is interrupted then."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    with tempfile.TemporaryFile("w+") as source:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(
            command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, bufsize=1
        )
    giving_up = threading.Timer(PATIENCE_S, process.kill)
    giving_up.start()
    printed = ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            printed += line
            if re.search(pattern, line):
                return
        pytest.fail(f"{shlex.join(command)} did not say {pattern}:\n{printed}")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()
        giving_up.cancel()


# --- Python


def test_every_block_of_python_is_known() -> None:
    assert {path: len(code_blocks(page(path), "python")) for path in PAGES} == {path: len(PRINTS[path]) for path in PAGES}


@pytest.mark.parametrize(("path", "number"), [(path, number) for path in PAGES for number in range(len(PRINTS[path]))])
def test_a_program_prints_what_it_says(broker: RunningBroker, tmp_path: Path, path: str, number: int) -> None:
    source = here(code_blocks(page(path), "python")[number], broker)
    expected = PRINTS[path][number]
    if expected is None:
        compile(source, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        return
    assert not any(usual in source for usual in PORTS.values())
    program = tmp_path / "example.py"
    program.write_text(source)
    expect([sys.executable, "-u", str(program)], expected)


def test_a_program_that_prints_something_else_is_noticed() -> None:
    with pytest.raises(pytest.fail.Exception, match="did not say hello"):
        expect([sys.executable, "-c", "print('helo')"], "hello")


# --- commands


def commands_of_the_readme() -> list[str]:
    lines = [line for block in code_blocks(page("README.md"), "") for line in block.splitlines()]
    return [line for line in lines if re.search(r"(?:^|\| )braid ", line)]


def test_the_commands_of_the_readme_do_what_they_show(broker: RunningBroker) -> None:
    lines = commands_of_the_readme()
    assert len(lines) == len(COMMANDS), lines
    for number, (line, expected) in enumerate(zip(lines, COMMANDS, strict=True)):
        source, _, command = line.rpartition("| ")
        words = shlex.split(command)
        via = words[words.index("--via") + 1] if "--via" in words else "flymq"
        server = ["--server", broker.addresses[via]]
        run = [sys.executable, "-m", "braidmq", *words[1:], *server]
        if words[1] == "consume" and via != "flymq":
            _expect_while_producing(run, expected, [*shlex.split(lines[number + 1])[1:], *server])
        elif "--follow" in words:
            _expect_while_producing(run, expected, ["produce", words[2], "late", *server])
        else:
            assert source in ("", "seq 1 1000 ")
            expect(run, expected, "".join(f"{number}\n" for number in range(1, 1001)) if source else "")


def _expect_while_producing(command: list[str], pattern: str, produce: list[str]) -> None:
    """Run a command that waits for messages, and send some until it has one: when it begins to wait nobody can tell."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.2):
            subprocess.run([sys.executable, "-m", "braidmq", *produce], capture_output=True, timeout=PATIENCE_S, check=True)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        expect(command, pattern)
    finally:
        done.set()
        sender.join()
