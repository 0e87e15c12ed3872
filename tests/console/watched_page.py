"""Notices what goes wrong in a browser page and nobody would see: errors in its console, requests that fail, scripts that throw."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page, Request, Response

_LEFT = "net::ERR_ABORTED"
"""A request that ended because its page did: live streams end like this, and what was under way."""


def watch(page: Page) -> list[str]:
    """A list that grows with each fault."""
    faults: list[str] = []

    def told(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            faults.append(f"console: {message.text} at {page.url}")

    def failed(request: Request) -> None:
        if request.failure != _LEFT:
            faults.append(f"failed: {request.method} {request.url}: {request.failure}")

    def answered(response: Response) -> None:
        if response.status >= 400:
            faults.append(f"answered {response.status}: {response.request.method} {response.url}")

    page.on("console", told)
    page.on("requestfailed", failed)
    page.on("response", answered)
    page.on("pageerror", lambda error: faults.append(f"thrown: {error}"))
    return faults
