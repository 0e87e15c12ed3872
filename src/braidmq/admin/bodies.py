"""Bodies of requests: read within the limit, whatever they claim to be."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from braidmq.base import limits
from braidmq.base.errors import BraidError


def media_of(request: Request) -> str:
    """What a body is by its own words, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request) -> Any:
    """The document that a request carries, within the limit. What is no JSON by its own words is refused: forms of other sites
    are."""
    media = media_of(request)
    if media != "application/json":
        raise BraidError("MEDIA_TYPE", given=media[:100] or "of no type", expected="application/json")
    data = await read_limited(request)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as fault:
        raise BraidError("INVALID_ARGUMENT", reason=f"the body is no JSON: {fault}") from None


async def read_limited(request: Request) -> bytes:
    """The body of a request; FRAME_TOO_LARGE as soon as it is too long."""
    limit = limits.HTTP_BODY_BYTES_MAX
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > limit:
            raise BraidError("FRAME_TOO_LARGE", size=len(found), limit=limit)
    return bytes(found)
