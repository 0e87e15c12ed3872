"""`braid config` through the command line: every value with its origin, and files that are checked before use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from braidmq.base.config import SETTINGS
from braidmq.cli.exits import Exit
from braidmq.cli.main import main


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)


def test_show_prints_each_value_and_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "braid.toml"
    file.write_text('retention_age_s = "2d"\nsegment_bytes = "1MiB"\nidle_timeout_s = 9\n')
    monkeypatch.setenv("BRAID_SEGMENT_BYTES", "2MiB")
    monkeypatch.setenv("FLYMQ_ACKS", "none")
    assert main(["config", "show", "--config", str(file), "--idle-timeout", "1m", "--no-auto-create-topics"]) == Exit.OK
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert set(rows) == {"SETTING", *(setting.key for setting in SETTINGS)}
    assert rows["retention_age_s"][1:] == ["2d", "file", str(file)]
    assert rows["segment_bytes"][1:] == ["2MiB", "environment", "BRAID_SEGMENT_BYTES"]
    assert rows["durability"][1:] == ["none", "environment", "FLYMQ_ACKS"]
    assert rows["idle_timeout_s"][1:] == ["1m", "flag", "--idle-timeout"]
    assert rows["auto_create_topics"][1:] == ["false", "flag", "--auto-create-topics"]
    assert rows["retention_bytes"][1:] == ["1GB", "default"]


def test_show_as_json_keeps_types(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYMQ_AUTH_USER_FILE", "users.json")
    arguments = ["--listen", "flymq://127.0.0.1:0", "--listen", "flymq://[::1]:0?dialect=v126"]
    assert main(["config", "show", "-o", "json", *arguments]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    settings = document["settings"]
    assert set(settings) == {setting.key for setting in SETTINGS}
    assert settings["listen"] == {
        "value": ["flymq://127.0.0.1:0", "flymq://[::1]:0?dialect=v126"],
        "source": "flag",
        "name": "--listen",
    }
    assert settings["segment_bytes"] == {"value": 256 * 1024 * 1024, "source": "default", "name": ""}
    assert settings["auto_create_topics"]["value"] is True and settings["ready_file"]["value"] is None
    assert len(document["warnings"]) == 1 and "FLYMQ_AUTH_USER_FILE" in document["warnings"][0]


def test_warnings_go_to_standard_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYMQ_PEERS", "a:1")
    assert main(["config", "show"]) == Exit.OK
    assert capsys.readouterr().err.startswith("warning: FLYMQ_PEERS is ignored")


@pytest.mark.parametrize("command", [["config", "show"], ["serve"]])
def test_a_wrong_setting_stops_before_anything_starts(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--segment-bytes", "12"]) == Exit.USAGE
    err = capsys.readouterr().err
    assert err.startswith("error: CONFIG_INVALID_VALUE: setting `segment_bytes` from flag --segment-bytes: ")
    assert "hint: " in err


def test_an_unknown_variable_stops_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_DATADIR", "/x")
    assert main(["config", "show"]) == Exit.USAGE
    assert "did you mean `BRAID_DATA_DIR`?" in capsys.readouterr().err


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAID_NONSENSE", "the file is checked, not the environment")
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('durability = "os"\nmax_topics = 5\n')
    bad.write_text('durabilty = "os"\n')
    assert main(["config", "check", str(good)]) == Exit.OK
    assert capsys.readouterr().out == f"{good}: 2 settings, all valid\n"
    assert main(["config", "check", str(bad)]) == Exit.USAGE
    assert "did you mean `durability`?" in capsys.readouterr().err
    assert main(["config", "check", str(tmp_path / "missing.toml")]) == Exit.USAGE
