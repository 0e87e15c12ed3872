"""What compiling and running a pipeline needs besides its definition. It can be pickled: on Connect it travels to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base.naming import PIPELINE_GROUP_START
from braidmq.client.settings import ClientSettings
from braidmq.client.sync import Client, connect
from braidmq.spark.pipeline.definition import Pipeline, Source
from braidmq.spark.pipeline.reading import Reading

_SETTINGS: Final = {
    "user": "username", "password": "password", "tlsCaFile": "tls_ca_file", "tlsCertFile": "tls_cert_file",
    "tlsKeyFile": "tls_key_file", "tlsServerName": "tls_server_name", "encryptionKey": "encryption_key",
}  # fmt: skip
"""Options of the data source, and the settings of a client that they are."""


@dataclass(frozen=True)
class Context:
    pipeline: Pipeline
    folder: str
    """Where names of files in the definition begin."""
    servers: str
    connection: Mapping[str, str] = field(default_factory=dict)
    """Further options of the data source: user, TLS and the like."""

    @property
    def source(self) -> Source:
        assert isinstance(self.pipeline.source, Source)
        return self.pipeline.source

    @property
    def group(self) -> str:
        return self.source.group or PIPELINE_GROUP_START + self.pipeline.name

    def path(self, name: str) -> str:
        """A path of the definition: beside it, unless it begins somewhere else."""
        from pathlib import Path

        return name if "://" in name or name.startswith("/") else str(Path(self.folder) / name)

    def options(self, servers: str | None = None) -> dict[str, str]:
        """What the data source `braid` needs to reach the broker, or another one. That is not told our password; what we encrypt it
        gets encrypted.
        """
        if servers is None:
            return {"servers": self.servers, **self.connection}
        return {"servers": servers, **{name: self.connection[name] for name in ("encryptionKey",) if name in self.connection}}

    def client(self) -> Client:
        """A client of the pipeline's broker, to be used in a `with` block."""
        found: dict[str, Any] = {_SETTINGS[key]: value for key, value in self.connection.items() if key != "tls"}
        if self.connection.get("tls") == "true":
            found["tls"] = True
        return connect(self.servers, **found)


def context_of(reading: Reading, settings: ClientSettings | None) -> Context:
    """The context of a definition that was read; `settings` are those of the client that reaches the broker."""
    pipeline = reading.require()
    if settings is None:
        return Context(pipeline, str(reading.folder), pipeline.servers or "")
    connection = source_options(settings)
    return Context(pipeline, str(reading.folder), connection.pop("servers"), connection)


def source_options(settings: ClientSettings) -> dict[str, str]:
    """What the data source `braid` needs to reach the same broker in the same way as a client."""
    servers = ",".join(f"{each.host}:{each.port}" for each in settings.servers)
    connection = {option: str(value) for option, name in _SETTINGS.items() if (value := getattr(settings, name)) is not None}
    if settings.tls or any(each.tls for each in settings.servers):
        connection["tls"] = "true"
    return {"servers": servers, **connection}
