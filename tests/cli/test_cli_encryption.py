"""Encryption as operators meet it: `braid serve` with keys, without, with others, and `braid log` on what it left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running_broker import NO_WEB, StartBroker

from braidmq.base.key_ring import KeyRing, shown_key_id
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.client.sync import connect

OLD, NEW = "0f" * 32, "a1" * 32
OLD_ID = shown_key_id(KeyRing([OLD]).newest_id)
SECRET = b"PLAINTEXT-MARKER"
Output = pytest.CaptureFixture[str]


def leaks(data_dir: Path) -> list[Path]:
    return [path for path in data_dir.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def refusal(data_dir: Path, *flags: str, **env: str) -> str:
    """What `braid serve` says when it does not start."""
    command = [sys.executable, "-m", "braidmq", "serve", "--data-dir", str(data_dir), "--listen", "flymq://127.0.0.1:0", *NO_WEB]
    ended = subprocess.run([*command, *flags], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == Exit.FAILED, ended.stderr
    assert "Traceback" not in ended.stderr and OLD not in ended.stderr and NEW not in ended.stderr
    return ended.stderr


def test_a_broker_with_encryption(
    start_broker: StartBroker, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_env = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_"))}
    keys = tmp_path / "keys"
    keys.write_text(OLD + "\n")
    flags = ("--encryption-enabled", "--encryption-key-file", str(keys))
    broker = start_broker(*flags)
    topic = "topic-" + SECRET.decode()
    expected = [SECRET + b" %d" % number for number in range(200)]
    with connect(broker.address) as client:
        client.create_topic(topic, 1)
        for value in expected[:100]:
            client.produce(topic, value, key=SECRET)
        broker.kill()
    assert leaks(broker.data_dir) == []

    # Wrong keys and no keys, after a crash: nothing is taken for damage.
    before = {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()}
    assert f"key {OLD_ID}" in refusal(broker.data_dir, **plain_env)
    assert "ENCRYPTION_KEY_MISSING" in refusal(broker.data_dir, "--encryption-enabled", **plain_env)
    assert "ENCRYPTION_KEY_WRONG" in refusal(broker.data_dir, **plain_env, FLYMQ_ENCRYPTION_ENABLED="1", FLYMQ_ENCRYPTION_KEY=NEW)
    assert "INVALID_KEY" in refusal(broker.data_dir, **plain_env, BRAID_ENCRYPTION_KEYS=f"{OLD},{NEW[:-1]}")
    assert {path: path.read_bytes() for path in broker.data_dir.rglob("*") if path.is_file()} == before

    # A rotation: add a line, restart.
    with keys.open("a") as file:
        file.write(NEW + "\n")
    broker.start()
    with connect(broker.address) as client:
        for value in expected[100:]:
            client.produce(topic, value)
        with client.consumer(topic) as consumer:
            found = [record.value for _, record in zip(range(200), consumer, strict=False)]
    assert found == expected
    broker.stop()
    assert leaks(broker.data_dir) == []

    # Files can be checked without a key, and read with it.
    for name in ("BRAID_ENCRYPTION_KEY", "BRAID_ENCRYPTION_KEYS", "FLYMQ_ENCRYPTION_KEY"):
        monkeypatch.delenv(name, raising=False)
    data_dir = str(broker.data_dir)
    assert main(["log", "verify", data_dir]) == Exit.OK
    assert "topics/1/0" in capsys.readouterr().out
    assert main(["log", "dump", f"{data_dir}/{topic}"]) == Exit.FAILED
    assert "ENCRYPTION_KEY_MISSING" in capsys.readouterr().err
    assert main(["log", "dump", "--records", data_dir]) == Exit.OK
    shown = capsys.readouterr().out
    assert "encrypted" in shown and f"is encrypted with key {OLD_ID}" in shown and SECRET.decode() not in shown
    monkeypatch.setenv("BRAID_ENCRYPTION_KEY_FILE", str(keys))
    assert main(["log", "verify", data_dir]) == Exit.OK
    assert f"{topic}/0" in capsys.readouterr().out
    assert main(["log", "dump", "--records", f"{data_dir}/{topic}"]) == Exit.OK
    assert expected[150].decode() in capsys.readouterr().out
    assert main(["log", "rebuild-index", data_dir]) == Exit.OK

    # With everything under the new key the old one can go.
    assert main(["log", "rekey", data_dir, "--encryption-key-file", str(keys)]) == Exit.OK
    assert "topics/1/0" in capsys.readouterr().out
    keys.write_text(NEW + "\n")
    broker.start()
    with connect(broker.address) as client, client.consumer(topic) as consumer:
        assert [record.value for _, record in zip(range(200), consumer, strict=False)] == expected
    assert main(["log", "rekey", data_dir, "--encryption-key-file", str(keys)]) == Exit.FAILED
    assert "DATA_DIR_LOCKED" in capsys.readouterr().err
    broker.stop()
    assert "ENCRYPTION_KEY_WRONG" in refusal(broker.data_dir, **plain_env, BRAID_ENCRYPTION_KEY=OLD)
    assert main(["log", "rekey", str(tmp_path)]) == Exit.FAILED
    assert "nothing in it is encrypted" in capsys.readouterr().err
