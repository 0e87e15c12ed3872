"""Mosquitto: MQTT at QoS 0 and 1, for subscribers that are there and for one that is away.

Its persistence is a snapshot at intervals, not a log: an acknowledged message is in memory until the next one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import Server, answering, free_port, running

from peers.programs import find

HINT = "bench/install-peers or Debian mosquitto"


def find_mosquitto() -> Path:
    return find("mosquitto", HINT)


@contextmanager
def mosquitto(directory: Path) -> Iterator[Server]:
    """A server without limits on what it queues."""
    port = free_port()
    config = directory / "mosquitto.conf"
    lines = [
        f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence true", f"persistence_location {directory}/",
        "max_queued_messages 0", "max_inflight_messages 0", "set_tcp_nodelay true",
    ]  # fmt: skip
    if os.geteuid() == 0:
        lines.append("user root")  # it would otherwise become a user who may not write here
    config.write_text("\n".join(lines) + "\n")
    with running("Mosquitto", [find_mosquitto(), "-c", config], directory, lambda: answering(port)) as server:
        yield server
