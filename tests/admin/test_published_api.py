"""FlyMQ's published admin API, row by row: each path is there, asks for the right that it says, and answers what it says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from embedded_broker import EmbeddedBroker
from web_client import Answer, WebClient, basic

TABLE = Path(__file__).with_name("published_api.txt")


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    who: str
    body: str
    status: int
    fields: str


def rows() -> list[Row]:
    lines = [line for line in TABLE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [Row(method, path, who, body, int(status), fields.strip()) for method, path, who, body, status, fields in cells]


def missing(fields: str, document: Any) -> list[str]:
    """Of some fields those that a document lacks. Lists have to hold something, so that the fields of items are seen."""
    found: list[str] = []
    for name, inner, optional in re.findall(r"(\w*)(\[(?:[^\[\]]|\[[^\]]*\])*\])?(\??)", fields):
        if not name and not inner:
            continue
        part = document.get(name) if name and isinstance(document, dict) else document
        if part is None:
            found += [] if optional else [name]
        elif inner:
            found += [f"{name}[]"] if not part else [each for item in part[:3] for each in missing(inner[1:-1], item)]
    return found


def test_the_reader_of_the_table_notices() -> None:
    assert missing("a b?", {"a": 1}) == [] and missing("a b", {"a": 1}) == ["b"]
    assert missing("[a]", [{"a": 1}]) == [] and missing("[a]", []) == ["[]"] and missing("[a]", [{}]) == ["a"]
    assert missing("a[b c[d]] e", {"a": [{"b": 1, "c": [{"d": 0}]}], "e": False}) == []
    assert missing("a[b c[d]] e", {"a": [{"b": 1, "c": [{}]}], "e": False}) == ["d"]


@pytest.fixture(scope="module")
def prepared(guarded: EmbeddedBroker) -> dict[str, str]:
    """What the rows speak of; returns what is put in for `$NAMES`."""
    broker = guarded.server.broker

    async def fill() -> str:
        topic = await broker.create_topic("published", 2, {})
        await broker.append(topic, 0, b"k", b"v")
        await broker.commit_offset("published", "readers", 0, 0)
        for number in range(2):
            await broker.dead_letters.dead_letter("published", b"k", b"%d" % number, "manual", "said so")
        return (await broker.dead_letters.letters("published"))[0].id

    return {"$LETTER": quote(guarded.run(fill), safe=""), "$NODE": guarded.server.config.node_id}


def ask(client: WebClient, row: Row, given: dict[str, str]) -> Answer:
    path, body = row.path, row.body
    for name, value in given.items():
        path, body = path.replace(name, value), body.replace(name, value)
    return client.request(row.method, path, json.loads(body) if body else None)


def test_every_row_of_the_published_api(guarded: EmbeddedBroker, prepared: dict[str, str]) -> None:
    """In the order of the table, because some rows make what others look at."""
    assert guarded.service is not None
    address = guarded.service.addresses["admin"]
    people = {
        "admin": WebClient(address, basic("admin", "adminpass1")),
        "read": WebClient(address, basic("reader", "readerpass1")),
        "any": WebClient(address, basic("guest", "guestpass1")),
        "none": WebClient(address),
    }
    for row in rows():
        where = f"{row.method} {row.path}"
        if row.who != "none":
            refused = ask(people["none"], row, prepared)
            assert (refused.status, refused.json["error"]) == (401, "Authentication required"), where
            assert refused.headers["www-authenticate"].startswith('Basic realm="FlyMQ Admin API"'), where
        if row.who == "admin":
            refused = ask(people["read"], row, prepared)
            assert (refused.status, refused.json["error"]) == (403, "Insufficient permissions"), where
        answer = ask(people[row.who], row, prepared)
        assert answer.status == row.status, (where, answer)
        kind = answer.headers.get("content-type", "")
        if "/" in row.fields:
            assert kind.startswith(row.fields), where
        elif row.fields:
            assert kind == "application/json" and missing(row.fields, answer.json) == [], (where, answer.json)


def test_what_is_wrong_is_said_as_published(admin: WebClient) -> None:
    wrong = WebClient(admin.address, basic("admin", "wrong")).get("/api/v1/topics")
    assert (wrong.status, wrong.json["error"]) == (401, "Invalid credentials")
    for method, path, status in (
        ("GET", "/api/v1/topics/not-there", 404),
        ("POST", "/api/v1/topics", 415),
        ("PUT", "/api/v1/topics", 405),
        ("GET", "/api/v1/nothing", 404),
    ):
        answer = admin.request(method, path, *([b"{}"] if method != "GET" else []), Content_Type="text/x")
        assert answer.status == status and answer.json["error"], (method, path, answer)
