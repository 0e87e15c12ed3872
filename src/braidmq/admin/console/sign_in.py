"""Logging in and out."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from braidmq.admin.console.view import PageRoute, View
from braidmq.base.errors import BraidError


async def show_login(view: View) -> Response:
    identity = await view.identity()
    if not identity.auth_enabled or identity.authenticated:
        return view.go(_back(view.asked.get("next", "")))
    return await view.render("login.html", error=None, username="", next=_back(view.asked.get("next", "")))


async def log_in(view: View) -> Response:
    form = await view.form()
    username, back = form.get("username", ""), _back(form.get("next", ""))
    try:
        _, call = await view.run("log_in", body={"username": username, "password": form.get("password", "")})
    except BraidError as error:
        if error.spec.http >= 500:
            raise
        return await view.render("login.html", error.spec.http, error=error, username=username, next=back)
    return view.keep_cookies(view.go(back), call)


async def log_out(view: View) -> Response:
    form = await view.form()
    _, call = await view.run("log_out", csrf_token=form.get("csrf", ""))
    return view.keep_cookies(view.go("/console/login"), call)


def _back(path: str) -> str:
    """Where somebody came from: a page of ours, and nothing that a browser may take for another server."""
    fine = path.startswith("/console") and "\\" not in path and not path.startswith("/console/login")
    return path if fine else "/console"


PAGES: Final = (
    PageRoute("GET", "/console/login", show_login),
    PageRoute("POST", "/console/login", log_in),
    PageRoute("POST", "/console/logout", log_out),
)
