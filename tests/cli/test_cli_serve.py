"""`braid serve` before and after it runs: the banner, what stops it from starting, and commands over TLS."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from running_broker import NO_WEB, StartBroker

from braidmq import __version__, hot
from braidmq.base.config import Config, load_config
from braidmq.cli.exits import Exit
from braidmq.cli.main import main
from braidmq.cli.serve import banner


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("BRAID_", "FLYMQ_")):
            monkeypatch.delenv(name)


def test_the_banner_says_what_runs_and_what_to_try() -> None:
    lines = banner(Config(data_dir="/d", durability="os"), {"flymq": "127.0.0.1:9092"}, "uvloop").splitlines()
    assert lines[0] == f"BraidMQ {__version__}  hot path {hot.IMPLEMENTATION}, uvloop"
    assert [line.split() for line in lines[1:4]] == [["data", "/d"], ["durability", "os"], ["listening", "flymq", "127.0.0.1:9092"]]
    tries = lines[lines.index("try next:") + 1 :]
    assert len(tries) == 3 and all(line.startswith("  braid ") and "--server" not in line for line in tries)


def test_the_banner_names_the_server_where_it_is_not_the_default() -> None:
    text = banner(Config(), {"flymqs": "127.0.0.1:1", "flymq": "[::1]:7000"}, "asyncio")
    assert text.count("--server [::1]:7000") == 3
    assert "listening   flymqs 127.0.0.1:1" in text
    assert "try next" not in banner(Config(), {"flymqs": "127.0.0.1:1"}, "asyncio"), (
        "a TLS client needs files the banner does not know"
    )


def test_a_running_broker_shows_its_banner_and_its_settings(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--log-format", "json", env={"FLYMQ_PEERS": "a:1"})
    assert f"listening   flymq {broker.address}" in broker.log
    assert "warning: FLYMQ_PEERS is ignored" in broker.log
    logged = [json.loads(line) for line in broker.log.splitlines() if line.startswith("{")]
    assert logged and all(line["logger"].startswith("braidmq") for line in logged)


def refused(*flags: str) -> tuple[int, str]:
    """Status and complaint of a broker that does not start. It runs in a process of its own, because it sets up logging."""
    command = [sys.executable, "-m", "braidmq", "serve", *NO_WEB, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_a_port_in_use_is_a_wrong_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"flymq://127.0.0.1:{taken.getsockname()[1]}"
        status, complaint = refused("--data-dir", str(tmp_path / "data"), "--listen", url)
    assert status == Exit.USAGE
    assert "error: CONFIG_INVALID_VALUE: setting `listen`" in complaint and url in complaint and "Traceback" not in complaint


def test_a_data_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, complaint = refused("--data-dir", str(tmp_path / "file"), "--listen", "flymq://127.0.0.1:0")
    assert status == Exit.FAILED
    assert "error: DATA_DIR_INVALID: " in complaint and "Traceback" not in complaint


# --- TLS


def make_certificate(directory: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(private)
    return str(cert_file), str(key_file)


def test_commands_over_tls(start_broker: StartBroker, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    cert, key = make_certificate(tmp_path)
    broker = start_broker("--listen", "flymqs://127.0.0.1:0", "--tls-cert-file", cert, "--tls-key-file", key)
    secure = ["--server", f"flymqs://{broker.addresses['flymqs']}", "--timeout", "5s"]
    assert main(["produce", "t", "secret", *secure, "--tls-ca-file", cert]) == Exit.OK
    capfdbinary.readouterr()
    assert main(["consume", "t", *secure, "--tls-ca-file", cert]) == Exit.OK
    assert capfdbinary.readouterr().out == b"secret\n"
    assert main(["topic", "ls", *secure[:2], "--timeout", "300ms"]) == Exit.UNREACHABLE, "an unknown authority is not trusted"
    assert b"error: UNREACHABLE: " in capfdbinary.readouterr().err


def test_flymq_tls_settings_give_a_tls_listener(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    environ = {
        "FLYMQ_TLS_ENABLED": "true",
        "FLYMQ_TLS_CERT_FILE": cert,
        "FLYMQ_TLS_KEY_FILE": key,
        "FLYMQ_BIND_ADDR": "127.0.0.1:0",
    }
    assert [str(listen) for listen in load_config({}, environ).listen] == ["flymqs://127.0.0.1:0"]
