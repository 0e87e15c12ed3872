"""The HTTP ports themselves: loaded when somebody comes, behind TLS, bounded, and off where nobody wants them."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from authority import Authority
from embedded_broker import EmbeddedBroker
from web_client import WebClient

from braidmq.base import limits
from braidmq.base.config_listen import HttpListen
from braidmq.base.disk_real import RealDisk


def test_nothing_is_loaded_before_somebody_comes() -> None:
    """Starting costs neither the time nor the memory of what serves HTTP."""
    program = "import sys, braidmq.cli.serve, braidmq.admin.service; print('starlette' in sys.modules, 'uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_more_connections_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.HTTP_CONNECTIONS_MAX == 512
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 3)
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True) as broker:
        assert broker.service is not None
        address = broker.service.addresses["admin"]
        host, _, port = address.rpartition(":")
        assert WebClient(address).get("/api/v1/health").status == 200
        held = [socket.create_connection((host, int(port)), timeout=30) for _ in range(3)]
        try:
            for each in held:
                each.sendall(b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n")
            statuses = {WebClient(address).get("/api/v1/health").status for _ in range(3)}
            assert 503 in statuses
        finally:
            for each in held:
                each.close()


def test_a_page_has_a_most(web: WebClient) -> None:
    assert web.get(f"/api/v1/topics?limit={limits.PAGE_ITEMS_MAX}").status == 200
    assert web.get(f"/api/v1/topics?limit={limits.PAGE_ITEMS_MAX + 1}").code == "INVALID_ARGUMENT"


def test_behind_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("localhost")
    listen = HttpListen("https", "127.0.0.1", 0)
    with EmbeddedBroker(
        RealDisk(), str(tmp_path / "data"), web=True, admin_listen=listen, tls_cert_file=str(certificate), tls_key_file=str(key),
    ) as broker:  # fmt: skip
        assert broker.service is not None
        port = broker.service.addresses["admin"].rpartition(":")[2]
        context = ssl.create_default_context(cafile=str(authority.file))
        request = urllib.request.Request(
            f"https://localhost:{port}/api/v1/session", json.dumps({"username": "x", "password": "y"}).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            assert answer.status == 201 and "Secure" in answer.headers["Set-Cookie"]


def test_what_is_switched_off_does_not_listen(tmp_path: Path) -> None:
    off = {f"{name}_enabled": False for name in ("admin", "metrics", "health")}
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True, **off) as broker:
        assert broker.service is not None and broker.service.addresses == {}
