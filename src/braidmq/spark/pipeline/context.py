"""What compiling and running a pipeline needs besides its definition. It can be pickled: on Connect it travels to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braidmq.client.sync import Client, connect
from braidmq.spark.pipeline.definition import Pipeline, Source


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
        return self.source.group or f"pipeline-{self.pipeline.name}"

    def path(self, name: str) -> str:
        """A path of the definition: beside it, unless it begins somewhere else."""
        from pathlib import Path

        return name if "://" in name or name.startswith("/") else str(Path(self.folder) / name)

    def options(self, servers: str | None = None) -> dict[str, str]:
        """What the data source `braid` needs to reach the broker."""
        return {"servers": servers or self.servers, **({} if servers else self.connection)}

    def client(self) -> Client:
        """A client of the pipeline's broker, to be used in a `with` block."""
        return connect(self.servers, **_client_arguments(self.connection))


def _client_arguments(connection: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "user": "username", "password": "password", "tlsCaFile": "tls_ca_file", "tlsCertFile": "tls_cert_file",
        "tlsKeyFile": "tls_key_file", "tlsServerName": "tls_server_name",
    }  # fmt: skip
    found: dict[str, Any] = {names[key]: value for key, value in connection.items() if key in names}
    return {**found, "tls": True} if connection.get("tls") == "true" else found
