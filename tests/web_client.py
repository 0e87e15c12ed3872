"""Asks the HTTP ports of a broker, as a program does: one request a connection, nothing hidden."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        return str(self.json["title"])


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


class WebClient:
    """`client.get("/api/v1/topics")`, with the same headers each time."""

    def __init__(self, address: str, headers: dict[str, str] | None = None) -> None:
        self.address = address
        self.headers = headers or {}

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """`body` is sent as JSON, or as it is where it is bytes. Header names have `_` for `-`."""
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if data is not None and "Content-Type" not in sent:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self.address, timeout=_PATIENCE_S)
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.request("POST", path, body, **headers)

    def put(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.request("PUT", path, body, **headers)

    def patch(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.request("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.request("DELETE", path, **headers)
