"""Completion scripts, run by the shells they are for."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.parser import build_parser
from braidmq.cli.tree import command_tree


def script_for(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == Exit.OK
    return capsys.readouterr().out


def bash_offers(script: str, *words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    line = " ".join(f"'{word}'" for word in words)
    program = f'{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _braid; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if line]


def test_bash_completes_commands_options_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for("bash", capsys)
    assert bash_offers(script, "braid", "con") == ["consume", "config"]
    assert {"ls", "create", "info", "rm", "--help"} <= set(bash_offers(script, "braid", "topic", ""))
    assert bash_offers(script, "braid", "serve", "--dur") == ["--durability"]
    assert bash_offers(script, "braid", "serve", "--data-dir", "/x", "--durability", "") == ["none", "os", "fsync", "quorum"]
    assert bash_offers(script, "braid", "completion", "z") == ["zsh"]
    assert bash_offers(script, "braid", "log", "dump", "") == [], "files are left to the shell"


def test_bash_knows_every_option_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for("bash", capsys).replace("braid topic ls --quiet", "true")
    for node in command_tree(build_parser()).walk():
        offered = set(bash_offers(script, *node.path, "-"))
        assert offered == {flag for option in node.options for flag in option.flags}, node.path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_for(shell, capsys)
    for node in command_tree(build_parser()).walk():
        assert node.path[-1] in script
        for option in node.options:
            long = [flag.removeprefix("--") for flag in option.flags if flag.startswith("--")]
            assert all(name in script for name in long)
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([path, "-n"], input=script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
