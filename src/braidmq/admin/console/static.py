"""Scripts, styles and pictures of the console, served from the package.

Their addresses carry a part of their hash, so that browsers may keep them for ever and still get a new one after an upgrade. They
are read once. Nothing is taken from anywhere else: a console has to work where there is no internet.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from braidmq.admin.console.view import Console

_MEDIA: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class StaticFile:
    data: bytes
    media: str
    mark: str
    """Changes whenever the content does."""


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file by its path below `static`."""
    found: dict[str, StaticFile] = {}
    root = resources.files(__package__) / "static"
    _collect(root, "", found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, StaticFile]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{prefix}{entry.name}/", found)
            continue
        media = _MEDIA.get("." + entry.name.rpartition(".")[2])
        if media is not None:
            data = entry.read_bytes()
            found[prefix + entry.name] = StaticFile(data, media, hashlib.sha256(data).hexdigest()[:12])


def static_url(name: str) -> str:
    """Where a page finds a file."""
    return f"/console/static/{static_files()[name].mark}/{name}"


def static_route(console: Console) -> Route:
    async def serve(request: Request) -> Response:
        name = request.path_params["name"]
        file = static_files().get(name)
        if file is None or file.mark != request.path_params["mark"]:
            return console.site.failure(request, BraidError("NO_SUCH_PATH", path=request.url.path))
        return Response(file.data, media_type=file.media, headers={"Cache-Control": _FOR_EVER})

    return Route("/console/static/{mark}/{name:path}", serve)
