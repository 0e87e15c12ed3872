"""`braid role` and `braid user quota`, and that the page about security shows what they do."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.role import PERMISSIONS
from braidmq.client import sync
from braidmq.security.roles import Permission
from braidmq.wire.flymq import Quota

Captured = pytest.CaptureFixture[str]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Nobody has to log in: who may do all this is none of the commands' business."""
    broker = RunningBroker(tmp_path_factory.mktemp("roles") / "data", ("--durability", "os", "--quota-bytes-per-s", "1GB"))
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


@pytest.fixture(autouse=True)
def environment(server: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("BRAID_SERVERS", server.address)


def printed(capsys: Captured, *arguments: str, status: Exit = Exit.OK) -> tuple[str, str]:
    ended = main(list(arguments))
    out, err = capsys.readouterr()
    assert ended == status, err
    return out, err


def document(capsys: Captured, *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "-o", "json")[0])


def test_the_permissions_that_are_offered_are_all() -> None:
    assert list(PERMISSIONS) == [str(permission) for permission in Permission]


def test_roles_are_added_changed_and_removed(server: RunningBroker, capsys: Captured) -> None:
    _, err = printed(capsys, "role", "add", "team", "--permission", "write", "--permission", "read", "--description", "a team")
    assert err == "added team, which permits write, read\n"
    assert printed(capsys, "role", "add", "bare")[1] == "added bare, which permits nothing by itself\n"
    rows = {row["role"]: (row["permissions"], row["description"]) for row in document(capsys, "role", "ls")}
    assert rows["team"] == (["read", "write"], "a team") and rows["bare"] == ([], "")
    assert "a team" in printed(capsys, "role", "ls")[0]
    assert "ROLE_EXISTS" in printed(capsys, "role", "add", "team", status=Exit.FAILED)[1]
    assert printed(capsys, "role", "set", "team", "--permission", "admin")[1] == "changed team\n"
    printed(capsys, "role", "set", "bare", "--description", "later")
    rows = {row["role"]: (row["permissions"], row["description"]) for row in document(capsys, "role", "ls")}
    assert rows["team"] == (["admin"], "a team") and rows["bare"] == ([], "later"), "what is not given stays"
    printed(capsys, "role", "set", "team", "--no-permissions")
    for wrong in ([], ["--permission", "read", "--no-permissions"]):
        printed(capsys, "role", "set", "team", *wrong, status=Exit.USAGE)
    printed(capsys, "role", "set", "nobody", "--description", "x", status=Exit.NOT_FOUND)
    assert "ROLE_BUILT_IN" in printed(capsys, "role", "set", "guest", "--permission", "admin", status=Exit.FAILED)[1]
    with sync.connect(server.address) as admin:
        admin.user.add("ann", "anns secret", ["team"])
        assert 'in use by user "ann"' in printed(capsys, "role", "rm", "team", "--yes", status=Exit.FAILED)[1]
        admin.user.rm("ann")
    assert "would remove team" in printed(capsys, "role", "rm", "team", "bare", "--dry-run")[1]
    printed(capsys, "role", "rm", "team", "nobody", "--yes", status=Exit.NOT_FOUND)
    assert printed(capsys, "role", "rm", "team", "bare", "--yes")[1] == "removed team\nremoved bare\n"
    assert "ROLE_BUILT_IN" in printed(capsys, "role", "rm", "guest", "--yes", status=Exit.FAILED)[1]


def test_quotas_are_shown_and_set(server: RunningBroker, capsys: Captured) -> None:
    with sync.connect(server.address) as admin:
        admin.user.add("busy", "a secret")
        default = {"bytes_per_s": 1_000_000_000, "requests_per_s": 0}
        own: dict[str, object] = {"user": "busy", "bytes_per_s": None, "requests_per_s": None}
        assert document(capsys, "user", "quota", "busy") == {"default": default, "quotas": [own]}
        own["bytes_per_s"] = 10_000_000
        assert document(capsys, "user", "quota", "busy", "--bytes-per-s", "10MB")["quotas"] == [own]
        own["requests_per_s"] = 0
        assert document(capsys, "user", "quota", "busy", "--requests-per-s", "0")["quotas"] == [own], "what is not given stays"
        assert document(capsys, "user", "quota") == {"default": default, "quotas": [own]}
        shown = printed(capsys, "user", "quota", "busy", "--bytes-per-s", "default")[0].splitlines()
        assert shown[1].split("  ")[0] == "busy" and "1,000,000,000 (default)" in shown[1] and shown[1].endswith("any")
        assert admin.user.quotas("busy").quotas[0].requests_per_s == 0
        for wrong in (["--bytes-per-s", "much"], ["--requests-per-s", "-1"], ["--requests-per-s", "1.5"]):
            printed(capsys, "user", "quota", "busy", *wrong, status=Exit.USAGE)
        printed(capsys, "user", "quota", "--bytes-per-s", "1", status=Exit.USAGE)
        printed(capsys, "user", "quota", "nobody", status=Exit.NOT_FOUND)
        admin.user.rm("busy")
        assert admin.user.quotas().quotas == ()


def _examples() -> list[list[str]]:
    """The lines of the page that ask for roles, users, ACLs and quotas."""
    blocks = re.findall(r"^```\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if re.match(r"braid (role|user|acl) ", line)]
    return [shlex.split(line)[1:] for line in lines]


def test_the_examples_of_the_page_do_what_it_says(server: RunningBroker, capsys: Captured, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    secret.chmod(0o600)
    examples = _examples()
    assert len(examples) == 9
    with sync.connect(server.address) as admin:
        admin.user.add("importer", "a secret")
        for arguments in examples:
            typed = ["--new-password-file", str(secret)] if arguments[:2] == ["user", "add"] else []
            printed(capsys, *arguments, *typed)
        assert admin.user.quotas().quotas == (Quota("importer", None, 0),)
        roles = {role.name: role.permissions for role in admin.role.ls()}
        assert (roles["auditor"], roles["billing-team"], admin.user.show("ann").roles) == (("read", "admin"), (), ("billing-team",))
        assert admin.acl.get("billing/#").roles == ("billing-team",)
