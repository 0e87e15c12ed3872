"""`braid ctx`, `doctor`, `debug bundle` and `help`."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import tarfile
from pathlib import Path

import pytest

import braidmq.testing
from braidmq.cli import doctor
from braidmq.cli.contexts import contexts_path
from braidmq.cli.debug import masked
from braidmq.cli.exits import Exit
from braidmq.cli.help import SHEETS, sheet
from braidmq.cli.main import main
from braidmq.cli.parser import parse
from braidmq.testing.thread_broker import ThreadBroker

Captured = pytest.CaptureFixture[str]
FREE = [
    "--listen", "flymq://127.0.0.1:0", "--admin-listen", "http://127.0.0.1:0", "--metrics-listen", "http://127.0.0.1:0",
    "--health-listen", "http://127.0.0.1:0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(capsys: Captured, *words: str, status: Exit = Exit.OK) -> str:
    ended = main(list(words))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out + err


# --- contexts


def test_a_context_says_where_and_as_whom(braid: ThreadBroker, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    braid.create("here")
    run(capsys, "ctx", "add", "one", "--server", braid.address)
    run(capsys, "ctx", "add", "nowhere", "--server", "127.0.0.1:1")
    assert "here" in run(capsys, "topic", "ls"), "the first one is in use"
    assert [row["name"] for row in json.loads(run(capsys, "ctx", "ls", "-o", "json")) if row["current"]] == ["one"]
    run(capsys, "topic", "ls", "--ctx", "nowhere", "--timeout", "300ms", status=Exit.UNREACHABLE)
    run(capsys, "ctx", "use", "nowhere")
    run(capsys, "topic", "ls", "--timeout", "300ms", status=Exit.UNREACHABLE)
    assert "here" in run(capsys, "topic", "ls", "--server", braid.address), "a flag wins"
    monkeypatch.setenv("BRAID_SERVERS", braid.address)
    assert "here" in run(capsys, "topic", "ls"), "a variable wins over the one in use"
    run(capsys, "topic", "ls", "--ctx", "nowhere", "--timeout", "300ms", status=Exit.UNREACHABLE)
    monkeypatch.setenv("BRAID_CTX", "one")
    assert "here" in run(capsys, "topic", "ls")
    run(capsys, "ctx", "use")
    run(capsys, "ctx", "rm", "nowhere")
    assert "no context" in run(capsys, "topic", "ls", "--ctx", "nowhere", status=Exit.USAGE)


def test_passwords_come_from_where_the_context_says(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("right-Horse7\n")
    secret.chmod(0o600)
    monkeypatch.setenv("BRAID_AUTH_ADMIN_PASSWORD", "right-Horse7")
    monkeypatch.setenv("THE_PASSWORD", "right-Horse7")
    with braidmq.testing.broker(auth_enabled=True) as braid:
        monkeypatch.delenv("BRAID_AUTH_ADMIN_PASSWORD")
        ways = (
            ["--password-file", str(secret)],
            ["--password-file", str(secret), "--store-password"],
            ["--password-env", "THE_PASSWORD"],
            ["--password-command", f"cat {secret}"],
        )
        for way in ways:
            run(capsys, "ctx", "add", "c", "--server", braid.address, "--user", "admin", *way)
            run(capsys, "user", "ls", "--ctx", "c")
        run(capsys, "ctx", "add", "c", "--server", braid.address, "--user", "admin", "--password-command", "exit 3")
        assert "status 3" in run(capsys, "user", "ls", "--ctx", "c", status=Exit.USAGE)
        run(capsys, "ctx", "add", "c", "--server", braid.address, "--user", "admin", "--password-env", "NOT_THERE")
        assert "NOT_THERE" in run(capsys, "user", "ls", "--ctx", "c", status=Exit.USAGE)


def test_a_stored_password_is_for_nobody_else(tmp_path: Path, capsys: Captured) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hidden-Horse7\n")
    secret.chmod(0o600)
    run(capsys, "ctx", "add", "c", "--user", "u", "--password-file", str(secret), "--store-password")
    path = Path(contexts_path())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    shown = run(capsys, "ctx", "show", "c") + run(capsys, "ctx", "ls", "-o", "json")
    assert "hidden-Horse7" not in shown and "(stored)" in shown
    path.chmod(0o644)
    assert "chmod 600" in run(capsys, "ctx", "ls", status=Exit.USAGE)
    path.write_text("{")
    path.chmod(0o600)
    assert "CONFIG_UNREADABLE" in run(capsys, "ctx", "ls", status=Exit.USAGE)


def test_a_password_has_one_source_and_a_user(tmp_path: Path, capsys: Captured) -> None:
    run(capsys, "ctx", "add", "c", "--password-env", "X", status=Exit.USAGE)
    run(capsys, "ctx", "add", "c", "--user", "u", "--password-env", "X", "--password-command", "y", status=Exit.USAGE)
    run(capsys, "ctx", "show", status=Exit.USAGE)


# --- doctor


def test_a_fit_machine(tmp_path: Path, capsys: Captured) -> None:
    words = ["doctor", "--data-dir", str(tmp_path / "data"), *FREE, "-o", "json"]
    checks = {check["name"]: check for check in json.loads(run(capsys, *words))}
    assert {"version", "hot path", "config", "data", "disk space", "fsync", "port", "open files", "clock", "java"} <= set(checks)
    assert not [check for check in checks.values() if check["state"] == "fail"]
    assert not (tmp_path / "data").exists(), "nothing was made"


def test_a_taken_port_a_bad_directory_and_a_bad_setting(tmp_path: Path, capsys: Captured) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "file").write_text("x")
        words = ["doctor", "--data-dir", str(tmp_path / "file"), *FREE, "--listen", f"flymq://127.0.0.1:{port}"]
        shown = run(capsys, *words, status=Exit.FAILED)
    assert re.search(r"fail +port", shown) and "braid status" in shown and re.search(r"fail +data", shown)
    (tmp_path / "bad.toml").write_text("durabilty = 'os'\n")
    assert "fail" in run(capsys, "doctor", "--config", str(tmp_path / "bad.toml"), status=Exit.FAILED)


def test_an_open_door_and_a_wrong_clock_are_noticed(tmp_path: Path, capsys: Captured) -> None:
    words = ["doctor", "--data-dir", str(tmp_path), *FREE, "--listen", "flymq://0.0.0.0:0", "--admin-listen", "http://0.0.0.0:0"]
    shown = run(capsys, *words)
    assert "nobody has to log in" in shown and "administrators' passwords" in shown
    assert doctor.check_clock(wall=lambda: 1000.0).state == "warn"
    assert doctor.check_clock().state == "ok"


# --- debug bundle


def test_a_bundle_has_no_secrets_and_no_records(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "ab" * 32
    monkeypatch.setenv("BRAID_AUTH_ADMIN_PASSWORD", "Pass-word-7")
    monkeypatch.setenv("BRAID_ENCRYPTION_KEYS", key)
    log = tmp_path / "broker.log"
    log.write_text(
        "starting\nlogin password=Pass-word-7 from 10.0.0.1\nAuthorization: Pass-word-7\n"
        f'{{"api_key": "Pass-word-7"}} fq://me:Pass-word-7@host:8765/x\nkey {key}\n'
    )
    with braidmq.testing.broker(auth_enabled=True, encryption_enabled=True) as braid:
        client = braid.client(username="admin", password="Pass-word-7")
        client.produce("orders", b"a payload that nobody may see")
        monkeypatch.setenv("BRAID_USERNAME", "admin")
        monkeypatch.setenv("BRAID_PASSWORD", "Pass-word-7")
        file = tmp_path / "bundle.tar.gz"
        run(capsys, "debug", "bundle", str(file), "--server", braid.address, "--log-file", str(log))
        run(capsys, "debug", "bundle", str(file), status=Exit.USAGE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        parts = {member.name.removeprefix("braid-debug/"): archive.extractfile(member) for member in archive.getmembers()}
        texts = {name: part.read() for name, part in parts.items() if part is not None}
    documents = {"status.json", "connections.json", "recovery.json", "configuration.json"}
    assert set(texts) == documents | {"versions.json", "doctor.json", "log-1.txt"}
    whole = b"".join(texts.values())
    for secret in (b"Pass-word-7", key.encode(), b"nobody may see"):
        assert secret not in whole
    assert b"starting" in texts["log-1.txt"] and b"orders" in texts["status.json"]
    assert "BRAID_ENCRYPTION_KEYS" in json.loads(texts["versions.json"])["variables"]


def test_a_bundle_is_made_without_a_broker_too(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "b.tar.gz"
    run(capsys, "debug", "bundle", str(file), "--server", "127.0.0.1:1", "--timeout", "300ms")
    with tarfile.open(file) as archive:
        assert "braid-debug/broker-unreachable.txt" in archive.getnames()


@pytest.mark.parametrize("text", ["no secret here", "passwords are hashed", "offset 12345", "a" * 63])
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


# --- cheat sheets


def commands(name: str) -> list[list[str]]:
    lines = [line.strip() for line in sheet(name).splitlines() if line.startswith("  braid ")]
    return [shlex.split(re.split(r"\s{2,}", line)[0])[1:] for line in lines]


@pytest.mark.parametrize("words", [words for name in SHEETS for words in commands(name)], ids=" ".join)
def test_every_command_of_a_sheet_parses(words: list[str]) -> None:
    assert parse(words).run


def test_sheets_are_listed_and_printed(capsys: Captured) -> None:
    listed = run(capsys, "help")
    assert all(f"braid help {name}" in listed for name in SHEETS)
    assert "braid group lag" in run(capsys, "help", "groups")
    assert "there is no sheet" in run(capsys, "help", "nonsense", status=Exit.USAGE)
    folder = Path(__file__).resolve().parents[2] / "src/braidmq/cli/sheets"
    assert {path.stem for path in folder.iterdir()} == set(SHEETS)
    assert all(len(line) <= 120 for name in SHEETS for line in sheet(name).splitlines())
