"""Real etcds for tests: each on free loopback ports, with its data in a temporary directory."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from braidmq.cluster.etcd_process import EtcdMember, EtcdTls, find_etcd

needs_etcd = pytest.mark.skipif(find_etcd() is None, reason="etcd is not installed; `make setup-cluster` installs it")


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody listens at. They are taken together, so that they differ."""
    sockets = []
    for _ in range(count):
        held = socket.socket()
        held.bind(("127.0.0.1", 0))
        sockets.append(held)
    addresses = [f"127.0.0.1:{held.getsockname()[1]}" for held in sockets]
    for held in sockets:
        held.close()
    return addresses


def member(directory: Path, name: str = "one", tls: EtcdTls | None = None) -> EtcdMember:
    client, peer = free_addresses(2)
    return EtcdMember(name, str(directory / f"etcd-{name}"), client, peer, tls)
