"""The grammar of `braid`: help for everything, documented statuses, and a start that pays for nothing it does not use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq import __version__
from braidmq.base.config import OTHER_VARIABLES, SETTINGS
from braidmq.base.config_settings import CLIENT_PREFIX
from braidmq.base.errors import BraidError
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.parser import build_parser, parse
from braidmq.cli.tree import command_tree
from braidmq.client.settings import KINDS, variable

NODES = list(command_tree(build_parser()).walk())
SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("node", NODES, ids=lambda node: " ".join(node.path))
def test_every_command_and_option_has_help(node: object) -> None:
    from braidmq.cli.tree import Node

    assert isinstance(node, Node)
    assert node.description
    assert node.help or node.path == ("braid",)
    for option in (*node.options, *node.arguments):
        assert option.help, f"{' '.join(node.path)} {option.flags or option.metavar} has no help"
        assert not option.metavar or option.choices or option.metavar.isupper() or "/" in option.metavar, option


@pytest.mark.parametrize("node", NODES, ids=lambda node: " ".join(node.path))
def test_help_is_printed_with_status_0(node: object, capsys: pytest.CaptureFixture[str]) -> None:
    from braidmq.cli.tree import Node

    assert isinstance(node, Node)
    assert main([*node.path[1:], "--help"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith("usage: " + " ".join(node.path))


def test_every_setting_has_a_flag_on_serve_and_config_show() -> None:
    for path in (("braid", "serve"), ("braid", "config", "show")):
        node = next(node for node in NODES if node.path == path)
        flags = {flag for option in node.options for flag in option.flags}
        assert {setting.flag for setting in SETTINGS} <= flags


def test_every_read_takes_output_json_and_every_destructive_verb_a_dry_run() -> None:
    by_path = {" ".join(node.path[1:]): {flag for option in node.options for flag in option.flags} for node in NODES}
    connecting = [path for path, flags in by_path.items() if "--server" in flags]
    reads = ("topic ls", "topic info", "consume", "config show", "log dump", "log verify", "version", "audit")
    verbs = ("ls", "show", "get", "lag", "check", "diff")
    for path in (*reads, *(path for path in connecting if path.split(" ")[-1] in verbs)):
        assert {"-o", "--output"} <= by_path[path], path
    verbs = ("rm", "purge", "retry", "cancel", "abort", "seek")
    for path in ("log rebuild-index", *(path for path in connecting if path.split(" ")[-1] in verbs)):
        assert {"--dry-run"} <= by_path[path], path
        assert path == "log rebuild-index" or {"-y", "--yes"} <= by_path[path], path


def test_every_command_that_connects_can_log_in_and_none_takes_a_password_as_a_word() -> None:
    for node in NODES:
        flags = {flag for option in node.options for flag in option.flags}
        if "--server" in flags:
            assert {"--user", "--password-file"} <= flags, node.path
        assert not {"--password", "--new-password"} & flags, node.path


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["topic"], ["topic", "rm"], ["serve", "--durabil", "os"], ["consume"], ["serve", "--durability", "maybe"]],
)
def test_a_wrong_command_line_is_status_2_and_says_how(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == Exit.USAGE
    assert "usage: braid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["t", "--key", "k", "x", "y"], ["x", "y"]),
        (["t", "a", "--key", "k", "b"], ["a", "b"]),
        (["--key", "k", "t", "a"], ["a"]),
        (["t", "--key", "k", "--", "-a", "--b"], ["-a", "--b"]),
        (["t", "--", "-a"], ["-a"]),
        (["t", "a", "--key", "k", "-"], ["a", "-"]),
        (["t", "--key", "k"], []),
    ],
)
def test_options_may_stand_between_messages(words: list[str], values: list[str]) -> None:
    args = parse(["produce", *words])
    assert (args.topic, args.key, args.values) == ("t", "k" if "--key" in words else None, values)


@pytest.mark.parametrize(
    "words", [["produce", "t", "--key", "k", "x", "--nonsense"], ["topic", "info", "a", "b"], ["version", "x"]]
)
def test_words_nobody_takes_are_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.USAGE
    assert "unrecognized arguments" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"braid {__version__}\n"


@pytest.mark.parametrize(
    ("fault", "status", "lines"),
    [
        (
            BraidError("TOPIC_NOT_FOUND", topic="a\x1b[2J"),
            Exit.NOT_FOUND,
            ["error: TOPIC_NOT_FOUND: topic not found: a\\x1b[2J", "hint: "],
        ),
        (BraidError("TOPIC_LIMIT", limit=1), Exit.FAILED, ["error: TOPIC_LIMIT: ", "hint: "]),
        (FileNotFoundError(2, "No such file or directory", "/x"), Exit.NOT_FOUND, ["error: ENOENT: No such file or directory: /x"]),
        (PermissionError(13, "Permission denied", "/x"), Exit.FAILED, ["error: EACCES: "]),
        (KeyboardInterrupt(), Exit.INTERRUPTED, []),
    ],
)
def test_a_fault_is_lines_and_a_status(
    fault: BaseException, status: Exit, lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_args: object) -> int:
        raise fault

    monkeypatch.setattr("braidmq.cli.version.run", fail)
    assert main(["version"]) == status
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == len(lines)
    assert all(got.startswith(wanted) for got, wanted in zip(printed, lines, strict=True))


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("braidmq.cli.version.run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["version"])


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from braidmq.cli.main import main; status = main(['--help']);"
        "heavy = {'numpy', 'asyncio', 'ssl', 'socket', 'json', 'uvloop', 'braidmq.hot', 'braidmq.client', 'braidmq.server'};"
        "sys.exit(status or str(sorted(heavy & set(sys.modules))) if heavy & set(sys.modules) else status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    program = "import sys; from braidmq.cli.main import main; sys.exit(main(['completion', 'bash']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == Exit.PIPE_CLOSED


def test_every_variable_the_code_reads_is_known() -> None:
    known = (
        {setting.env for setting in SETTINGS} | set(OTHER_VARIABLES) | {variable(name) for name in KINDS} | {"BRAID_CLIENT_CONFIG"}
    )
    for path in SOURCE.rglob("*.py"):
        found = set(re.findall(r"\bBRAID_[A-Z][A-Z_]*[A-Z]\b", path.read_text()))
        assert found <= known | {CLIENT_PREFIX.rstrip("_")}, path
