"""`braid user`, `role`, `acl` and `audit`, and logging in, against a broker that wants it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.passwords import read_password
from braidmq.cli.times import show_age, show_time

Captured = pytest.CaptureFixture[str]
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    flags = ("--durability", "os", "--auth-enabled", "--no-auth-default-public")
    broker = RunningBroker(tmp_path_factory.mktemp("cli") / "data", flags, {"BRAID_AUTH_ADMIN_PASSWORD": PASSWORD})
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture
def anonymous(server: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", server.address)


@pytest.fixture
def admin(anonymous: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_USERNAME", "admin")
    monkeypatch.setenv("BRAID_PASSWORD", PASSWORD)


def secret(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


def printed(capsys: Captured, *arguments: str, status: Exit = Exit.OK) -> tuple[str, str]:
    ended = main(list(arguments))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out, err


def document(capsys: Captured, *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "-o", "json")[0])


@pytest.mark.usefixtures("anonymous")
def test_logging_in(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, err = printed(capsys, "topic", "ls", status=Exit.DENIED)
    assert err.startswith("error: AUTHENTICATION_REQUIRED: ")
    right = secret(tmp_path / "right", PASSWORD)
    assert document(capsys, "user", "show", "--user", "admin", "--password-file", right)["user"] == "admin"
    _, err = printed(capsys, "user", "show", "--user", "admin", "--password-file", secret(tmp_path / "open", PASSWORD, 0o644))
    assert "others may read" in err
    wrong = secret(tmp_path / "wrong", "guess")
    _, err = printed(capsys, "topic", "ls", "--user", "admin", "--password-file", wrong, status=Exit.DENIED)
    assert "INVALID_CREDENTIALS" in err
    monkeypatch.setenv("BRAID_PASSWORD", PASSWORD)
    assert document(capsys, "user", "show", "--user", "admin")["authenticated"] is True
    monkeypatch.delenv("BRAID_PASSWORD")
    printed(capsys, "topic", "ls", "--user", "admin", status=Exit.USAGE)
    printed(capsys, "topic", "ls", "--user", "admin", "--password-file", str(tmp_path / "none"), status=Exit.NOT_FOUND)


@pytest.mark.usefixtures("admin")
def test_users_and_roles(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = secret(tmp_path / "first", "first secret"), secret(tmp_path / "second", "second secret")
    _, err = printed(capsys, "user", "add", "alice", "--role", "producer", "--role", "dancer", "--new-password-file", first)
    assert "there is no role dancer" in err and "added alice" in err
    printed(capsys, "user", "add", "alice", "--new-password-file", first, status=Exit.FAILED)
    printed(capsys, "user", "add", "nobody", status=Exit.USAGE)
    row = next(row for row in document(capsys, "user", "ls") if row["user"] == "alice")
    assert (row["roles"], row["enabled"]) == (["producer", "dancer"], True)
    assert "alice" in printed(capsys, "user", "ls")[0]
    assert document(capsys, "user", "show", "alice")["permissions"] == ["write"]
    assert "alice" in printed(capsys, "user", "show", "alice")[0]
    assert printed(capsys, "user", "set", "alice", "--role", "consumer")[1] == "alice: enabled, roles consumer\n"
    assert printed(capsys, "user", "set", "alice", "--disable", "--role", "guest")[1] == "alice: disabled, roles guest\n"
    printed(capsys, "user", "set", "alice", "--enable")
    for wrong in ([], ["--enable", "--disable"]):
        printed(capsys, "user", "set", "alice", *wrong, status=Exit.USAGE)

    with monkeypatch.context() as alone:
        alone.setenv("BRAID_USERNAME", "alice")
        alone.setenv("BRAID_PASSWORD", "first secret")
        printed(capsys, "user", "ls", status=Exit.DENIED)
        printed(capsys, "user", "passwd", "--new-password-file", second)
        printed(capsys, "user", "show", status=Exit.DENIED)
        alone.setenv("BRAID_PASSWORD", "second secret")
        assert document(capsys, "user", "show")["user"] == "alice"
    printed(capsys, "user", "passwd", "alice", "--new-password-file", first)
    assert {"admin", "guest"} <= {row["role"] for row in document(capsys, "role", "ls")}
    assert "Full access" in printed(capsys, "role", "ls")[0]

    assert "would remove alice" in printed(capsys, "user", "rm", "alice", "--dry-run")[1]
    printed(capsys, "user", "rm", "alice", "never", "--yes", status=Exit.NOT_FOUND)
    assert printed(capsys, "user", "rm", "alice", "--yes")[1] == "removed alice\n", "a wrong name beside it cost nothing"
    printed(capsys, "user", "show", "alice", status=Exit.NOT_FOUND)


@pytest.mark.usefixtures("admin")
def test_acls(capsys: Captured) -> None:
    printed(capsys, "topic", "create", "guarded")
    assert document(capsys, "acl", "get", "guarded")["exists"] is False
    assert "administrators only" in printed(capsys, "acl", "set", "guarded")[1]
    printed(capsys, "acl", "set", "guarded", "--allow-user", "bob", "--allow-role", "consumer")
    assert document(capsys, "acl", "get", "guarded")["users"] == ["bob"]
    assert "bob" in printed(capsys, "acl", "get", "guarded")[0]
    found = document(capsys, "acl", "ls")
    assert found["default_public"] is False
    assert {"topic": "guarded", "public": False, "users": ["bob"], "roles": ["consumer"]} in found["acls"]
    assert "not public" in printed(capsys, "acl", "ls")[1]
    assert "would remove" in printed(capsys, "acl", "rm", "guarded", "--dry-run")[1]
    printed(capsys, "acl", "rm", "guarded", "--yes")
    printed(capsys, "acl", "rm", "guarded", "--yes", status=Exit.USAGE)


@pytest.mark.usefixtures("admin")
def test_audit(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["topic", "create", "watched"]) == Exit.OK
    capfdbinary.readouterr()
    assert main(["audit", "--type", "topic.create", "--resource", "watched", "-o", "json"]) == Exit.OK
    page = json.loads(capfdbinary.readouterr().out)
    assert [(event["user"], event["resource"]) for event in page["events"]] == [("admin", "watched")]
    assert main(["audit", "query", "--max", "1"]) == Exit.OK
    captured = capfdbinary.readouterr()
    assert len(captured.out.splitlines()) == 2 and b"--skip" in captured.err
    assert main(["audit", "export", "--format", "csv", "--by", "admin", "--since", "2020-01-01"]) == Exit.OK
    assert b"watched" in capfdbinary.readouterr().out
    assert main(["audit", "--since", "lately"]) == Exit.USAGE
    assert main(["audit", "--until", "2020-01-01", "-o", "json"]) == Exit.OK
    assert json.loads(capfdbinary.readouterr().out)["total"] == 0


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    assert read_password(secret(tmp_path / "a", "with  spaces \r\nsecond line")) == "with  spaces "


def test_times_as_people_read_them() -> None:
    assert show_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert [show_age(ms) for ms in (-1, 0, 999, 1500, 119_999, 120_000, 7_200_000, 200_000_000)] == [
        "-", "-", "999 ms", "1.5 s", "120.0 s", "2.0 m", "2.0 h", "2.3 d",
    ]  # fmt: skip
