"""Connections from drivers and executors to the broker.

A Python worker of Spark serves many tasks, one after the other, so a client is kept for each set of options and used again: a
micro-batch of 200 tasks does not connect 200 times. Whatever breaks is dialled anew by the client itself.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

from braidmq.client.settings import load_settings
from braidmq.client.sync import Client
from braidmq.spark.options import Options

RETRY_SECONDS_DEFAULT: Final = 60.0
_CLIENTS_MAX: Final = 16

_SETTINGS: Final = {
    "servers": "servers", "user": "username", "password": "password", "tls": "tls", "tlsCaFile": "tls_ca_file",
    "tlsCertFile": "tls_cert_file", "tlsKeyFile": "tls_key_file", "tlsServerName": "tls_server_name",
    "encryptionKey": "encryption_key",
}  # fmt: skip

_mutex: Final = threading.Lock()
_clients: dict[tuple[Any, ...], Client] = {}


def settings_of(options: Options) -> dict[str, object]:
    """The client settings that the options stand for."""
    given = {setting: options.get(option) for option, setting in _SETTINGS.items() if options.has(option)}
    return {**given, "timeout_s": options.get("timeout", RETRY_SECONDS_DEFAULT), "pool_size": 4}


def client_of(options: Options) -> Client:
    """The client of this process for these options. It stays open: whoever got it must not close it."""
    given = settings_of(options)
    # Sockets do not survive a fork, and workers are forked.
    key = (os.getpid(), *sorted(given.items(), key=lambda item: item[0]))
    with _mutex:
        client = _clients.get(key)
        if client is None:
            while len(_clients) >= _CLIENTS_MAX:
                _clients.pop(next(iter(_clients))).close()
            client = _clients[key] = Client(load_settings(given, {}))
        return client
