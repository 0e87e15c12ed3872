"""The examples on the pages about running and testing a broker run, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import code_blocks, page

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.parser import build_parser, parse
from braidmq.cli.tree import command_tree
from braidmq.testing.thread_broker import ThreadBroker

PAGES = ("docs/quickstart.md", "docs/operations.md", "docs/backup.md")
ENDLESS = ("serve",)
"""Commands that go on until somebody ends them: they are parsed only."""


def commands(path: str) -> list[list[str]]:
    lines = [line for block in code_blocks(page(path), "") for line in block.splitlines() if line.startswith("braid ")]
    return [shlex.split(line)[1:] for line in lines]


@pytest.fixture(autouse=True)
def settings(braid: ThreadBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", braid.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", PAGES)
def test_the_commands_of_a_page_work_one_after_the_other(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(path)
    assert len(found) > 3
    for words in found:
        assert parse(words).run
        if words[0] not in ENDLESS:
            status = main(words)
            out, err = capsys.readouterr()
            # On a machine where a broker runs already, `braid doctor` says so.
            assert status == Exit.OK or words[0] == "doctor", f"braid {shlex.join(words)}: {out}{err}"


def test_the_program_of_the_quick_start_runs(braid: ThreadBroker) -> None:
    (source,) = code_blocks(page("docs/quickstart.md"), "python")
    done = subprocess.run(
        [sys.executable, "-c", source.replace("127.0.0.1:9092", braid.address)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "1 records\n"


def test_commands_in_tables_are_commands_that_there_are() -> None:
    """Words in capitals stand for what the reader fills in."""
    known = {" ".join(node.path[1:]) for node in command_tree(build_parser()).walk()}
    found = 0
    for path in (*PAGES, "docs/testing.md", "docs/concepts.md"):
        for text in re.findall(r"`braid ([^`]+)`", page(path)):
            words = shlex.split(text)
            first = " ".join(words[:2]) if len(words) > 1 and words[1].islower() and not words[1].startswith("-") else words[0]
            assert first in known, f"{path}: braid {text}"
            found += 1
    assert found > 20


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = code_blocks(page("docs/testing.md"), "python")
    assert len(blocks) == 4
    (tmp_path / "test_examples.py").write_text("\n\n".join(blocks))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "braidmq.testing.plugin", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
