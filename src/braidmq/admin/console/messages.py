"""Records of a topic: looking through them, one of them in full, following new ones, and adding one."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from braidmq.admin.api.messages import Message
from braidmq.admin.console.view import PageRoute, View
from braidmq.admin.console.words import in_path
from braidmq.admin.times import rfc3339
from braidmq.base.errors import BraidError
from braidmq.security.rules import Rule

_ROWS: Final = 50
_EXCERPT_BYTES: Final = 400
_BINARY_KINDS: Final = ("avro", "protobuf")
_HEX_EXCERPT_BYTES: Final = 48
_HEX_BYTES_MAX: Final = 4096
_EDITED_BYTES_MAX: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class MessageLine:
    """A record in the list."""

    message: Message
    time: str
    excerpt: str
    kind: str
    """What the excerpt was read as, where that is not plain text: `binary`, or the kind of its schema."""
    fault: str
    """Why the value does not fit the schema of the topic."""


async def browse(view: View) -> Response:
    name, asked = view.named("topic"), view.asked
    start = asked.get("start", "latest")
    where = asked.get("from", "").strip()
    query: dict[str, object] = {
        "partition": view.number("partition", -1), "limit": view.number("limit", _ROWS), "filter": asked.get("filter", ""),
        "cursor": asked.get("cursor", ""), "value_bytes": _EXCERPT_BYTES, "start": start, "decode": True,
    }  # fmt: skip
    if start == "offset":
        query["offset"] = where or "0"
    elif start == "timestamp":
        query["timestamp_ms"] = time_ms(where)
    page = await view.fetch("list_messages", {"topic": name}, query)
    lines = [_line(message) for message in page.messages]
    if start == "latest" and not query["cursor"]:
        lines.reverse()
    return await view.render(
        "messages.html", topic=name, page=page, lines=lines, start=start, where=where, partitions=len(page.newest_offsets),
        may_write=await view.may(Rule.WRITE_TOPIC, name),
    )  # fmt: skip


async def show_message(view: View) -> Response:
    name = view.named("topic")
    place = {"topic": name, "partition": view.named("partition"), "offset": view.named("offset")}
    detail = await view.fetch("get_message", place)
    raw = base64.b64decode(detail.data)
    return await view.render(
        "message.html", topic=name, detail=detail, message=detail.message, time=rfc3339(detail.message.timestamp_ms),
        hex_lines=_hex(raw[:_HEX_BYTES_MAX]), hex_cut=len(raw) > _HEX_BYTES_MAX, may_write=await view.may(Rule.WRITE_TOPIC, name),
    )  # fmt: skip


async def show_produce(view: View) -> Response:
    """An empty form, or one with what is to be copied."""
    name = view.named("topic")
    topic = await view.fetch("get_topic", {"topic": name})
    copied: Any = None
    if view.asked.get("offset"):
        place = {"topic": name, "partition": view.asked.get("partition", "0"), "offset": view.asked["offset"]}
        detail = await view.fetch("get_message", place)
        if detail.masked:
            raise BraidError("UNAUTHORIZED")
        if detail.message.size_bytes > _EDITED_BYTES_MAX:
            raise BraidError("INVALID_ARGUMENT", reason="a record this large is not copied in a browser; use the client")
        copied = detail.message
    return await view.render("produce.html", topic=topic, copied=copied, may_write=await view.may(Rule.WRITE_TOPIC, name))


async def produce(view: View) -> Response:
    name, form = view.named("topic"), await view.form()
    body: dict[str, object] = {
        "value": form.get("value", ""), "value_encoding": form.get("value_encoding", "text"),
        "headers": _headers(form.get("headers", "")),
        "partition": _whole(form.get("partition", ""), "partition", -1), "ttl_ms": _whole(form.get("ttl_ms", ""), "ttl_ms", 0),
    }  # fmt: skip
    if form.get("key"):
        body |= {"key": form["key"], "key_encoding": form.get("key_encoding", "text")}
    stored = await view.act("produce_message", {"topic": name}, body=body)
    base = f"/console/topics/{in_path(stored.topic)}/messages"
    where = f"{stored.topic}, partition {stored.partition}, offset {stored.offset}"
    note = "Stored in " if stored.topic == name else "It does not fit its schema, and is a dead letter now: "
    return view.go(f"{base}/{stored.partition}/{stored.offset}", f"{note}{where}.")


# --- reading what people write


def time_ms(text: str) -> int:
    """A time as people write it, in UTC where they do not say."""
    if not text:
        return 0
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BraidError("INVALID_ARGUMENT", reason=f"{text[:60]!r} is no time, as 2026-01-31T12:00") from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _headers(text: str) -> dict[str, str]:
    """One `name: value` a line."""
    found = {}
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise BraidError("INVALID_ARGUMENT", reason=f"{line[:60]!r} is no header, as name: value")
            found[name.strip()] = value.strip()
    return found


def _whole(text: str, name: str, default: int) -> int:
    try:
        return int(text) if text.strip() else default
    except ValueError:
        raise BraidError("INVALID_ARGUMENT", reason=f"`{name}` is not a whole number") from None


# --- showing


def _line(message: Message) -> MessageLine:
    kind, text = (message.decoded_as or "").partition(":")[0], message.value
    if kind in _BINARY_KINDS:
        # Bytes of these may look like text by accident.
        text = json.dumps(message.decoded, ensure_ascii=False)
    elif message.value_encoding == "base64":
        kind, text = "binary", base64.b64decode(message.value)[:_HEX_EXCERPT_BYTES].hex(" ")
    else:
        kind = ""
    fault = "; ".join(message.schema_errors or [])
    return MessageLine(message, rfc3339(message.timestamp_ms), " ".join(text[:_EXCERPT_BYTES].split()), kind, fault)


def _hex(raw: bytes) -> str:
    """Sixteen bytes a line, with their place and their characters."""
    lines = []
    for at in range(0, len(raw), 16):
        part = raw[at : at + 16]
        characters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {characters}")
    return "\n".join(lines)


PAGES: Final = (
    PageRoute("GET", "/console/topics/{topic}/messages", browse),
    PageRoute("GET", "/console/topics/{topic}/messages/{partition}/{offset}", show_message),
    PageRoute("GET", "/console/topics/{topic}/produce", show_produce),
    PageRoute("POST", "/console/topics/{topic}/produce", produce),
)
