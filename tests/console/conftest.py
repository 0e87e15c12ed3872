"""What the tests of the console share: one broker with users and something on every page, and one browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_samples import ADMIN, READER, sample_broker
from embedded_broker import EmbeddedBroker
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from watched_page import watch
from web_client import WebClient

PATIENCE_MS = 30_000
ARTEFACTS = Path(__file__).resolve().parent.parent.parent / "artefacts" / "console"
CHROMIUM = os.environ.get("BRAID_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Others use it too: what a test changes has to be its own."""
    with sample_broker(tmp_path_factory.mktemp("console")) as broker:
        yield broker


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module, because Playwright keeps an event loop running in this thread, where no other broker could end meanwhile."""
    if not CHROMIUM:
        pytest.skip("there is no Chromium: `apt install chromium`, or name one in BRAID_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def log_in(client: WebClient, name: str, password: str) -> str:
    """The cookie of a login."""
    answer = client.post("/api/v1/session", {"username": name, "password": password})
    assert answer.status == 201, answer
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def cookies(console: EmbeddedBroker) -> dict[str, str]:
    """Cookies of those who are logged in, by name."""
    assert console.service is not None
    client = WebClient(console.service.addresses["admin"])
    return {name: log_in(client, name, password) for name, password in (ADMIN, READER)}


def _context(browser: Browser, console: EmbeddedBroker, cookie: str, **options: object) -> BrowserContext:
    context = browser.new_context(base_url=console.url("admin", ""), **options)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    if cookie:
        name, _, value = cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": console.url("admin", "")}])
    return context


@pytest.fixture
def page(browser: Browser, console: EmbeddedBroker, cookies: dict[str, str]) -> Iterator[Page]:
    """A page of an administrator, which has to end without a fault."""
    context = _context(browser, console, cookies[ADMIN[0]])
    page = context.new_page()
    faults = watch(page)
    yield page
    context.close()
    assert not faults, faults


@pytest.fixture
def reading_page(browser: Browser, console: EmbeddedBroker, cookies: dict[str, str]) -> Iterator[Page]:
    """A page of somebody who may only read."""
    context = _context(browser, console, cookies[READER[0]])
    yield context.new_page()
    context.close()


@pytest.fixture
def strange_page(browser: Browser, console: EmbeddedBroker) -> Iterator[Page]:
    """A page of somebody who has not logged in."""
    context = _context(browser, console, "")
    yield context.new_page()
    context.close()


@pytest.fixture
def phone(browser: Browser, console: EmbeddedBroker, cookies: dict[str, str]) -> Iterator[Page]:
    context = _context(
        browser, console, cookies[ADMIN[0]], viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark"
    )
    yield context.new_page()
    context.close()


@pytest.fixture
def admin(console: EmbeddedBroker, cookies: dict[str, str]) -> WebClient:
    assert console.service is not None
    return WebClient(console.service.addresses["admin"], {"Cookie": cookies[ADMIN[0]]})


@pytest.fixture
def reader(console: EmbeddedBroker, cookies: dict[str, str]) -> WebClient:
    assert console.service is not None
    return WebClient(console.service.addresses["admin"], {"Cookie": cookies[READER[0]]})


@pytest.fixture
def stranger(console: EmbeddedBroker) -> WebClient:
    assert console.service is not None
    return WebClient(console.service.addresses["admin"])


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Where pictures go, for people to look at."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS
