"""JSON for answers, in pieces: Python's encoder lets no other thread run until a document is done, and the broker's loop is one."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from braidmq.admin.shapes import plain, plain_items
from braidmq.base.json_pieces import json_pieces


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    document = plain_items(value) if isinstance(value, (list, tuple)) else plain(value)
    text = "".join(json_pieces(document))
    return Response(text.encode("utf-8", "replace"), status, headers, media_type="application/json")
