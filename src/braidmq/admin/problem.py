"""Errors of the admin API: problem details (RFC 9457) from the one error table.

`error` repeats the text for programs that were written for FlyMQ's API, which look there and, where somebody has to log in, for
these words.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import JSONResponse, Response

from braidmq.base.errors import BraidError

MEDIA: Final = "application/problem+json"
REALM: Final = 'Basic realm="FlyMQ Admin API", charset="UTF-8"'
_FLYMQ_WORDS: Final = {
    "AUTHENTICATION_REQUIRED": "Authentication required",
    "INVALID_CREDENTIALS": "Invalid credentials",
    "UNAUTHORIZED": "Insufficient permissions",
}


def problem(error: BraidError, request_id: str) -> dict[str, Any]:
    return {
        "type": f"urn:braidmq:error:{error.code}",
        "title": error.code,
        "status": error.spec.http,
        "detail": error.text,
        "hint": error.hint,
        "retriable": error.retriable,
        "request_id": request_id,
        "error": _FLYMQ_WORDS.get(error.code, error.text),
    }


def problem_response(
    error: BraidError, request_id: str, *, ask_login: bool = True, headers: dict[str, str] | None = None
) -> Response:
    """`ask_login` lets browsers ask for name and password; our own pages have a form for that."""
    headers = dict(headers or {})
    if error.spec.http == 401 and ask_login:
        headers["WWW-Authenticate"] = REALM
    if error.code == "AUTH_THROTTLED":
        headers["Retry-After"] = str(int(float(str(error.fields["seconds"]))) + 1)
    return JSONResponse(problem(error, request_id), error.spec.http, headers, media_type=MEDIA)
