"""The console with what nobody had in mind: nothing at all, names without an end, and a disk that failed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from embedded_broker import EmbeddedBroker
from page_list import PAGES
from playwright.sync_api import Browser, Page, expect
from watched_page import watch

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError

PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)
EMPTY = (
    "overview", "topics", "groups", "schemas", "dead-letters", "delayed", "transactions", "subscriptions", "queues", "connections",
    "pipelines", "users", "acls", "audit", "recovery", "settings",
)  # fmt: skip
LONG = "a-long-name-" + "x" * 900
GROUP = "group-" + "g" * 600
WIDTHS = (1280, 390)


@pytest.fixture(scope="session")
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture(scope="session")
def plain(disk: FaultyDisk) -> Iterator[EmbeddedBroker]:
    """A broker without users and, at first, without anything. It outlives the browser, whose event loop would be in its way."""
    with EmbeddedBroker(disk, web=True) as broker:
        yield broker


@pytest.fixture
def plain_page(browser: Browser, plain: EmbeddedBroker) -> Iterator[Page]:
    context = browser.new_context(base_url=plain.url("admin", ""))
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def overhanging(page: Page, paths: dict[str, str]) -> list[str]:
    """Pages that are wider than the screen they are looked at on."""
    found = []
    for name, path in paths.items():
        page.goto(path)
        wide, screen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        if wide > screen:
            found.append(f"{name}: {wide} on {screen}")
    return found


def test_an_empty_broker_has_whole_pages(plain_page: Page, artefacts: Path) -> None:
    faults = watch(plain_page)
    for name in EMPTY:
        plain_page.goto(PAGES[name])
        expect(plain_page.locator("h1").first).to_be_visible()
        plain_page.screenshot(path=artefacts / f"empty-{name}.png")
    assert faults == []


def test_names_and_payloads_without_an_end_stay_on_their_page(plain_page: Page, plain: EmbeddedBroker, artefacts: Path) -> None:
    broker = plain.server.broker

    async def fill() -> str:
        topic = await broker.create_topic(LONG, 2, {})
        await broker.append(topic, 0, b"k" * 500, b"<script>document.title='owned'</script>" * 200)
        await broker.append(topic, 1, b"\xff" * 200, bytes(range(256)) * 20)
        await broker.commit_offset(LONG, GROUP, 0, 0)
        await broker.dead_letters.dead_letter(LONG, b"k" * 300, b"\x00\xff" * 500, "manual", "error " + "e" * 900)
        await broker.schemas.register("s" * 200, "json", b'{"type": "object", "description": "%s"}' % (b"d" * 3000))
        await broker.pipelines.put("p" * 100, "0:", "yaml", f"name: p\nsource: {{topics: ['{LONG}']}}\nsinks: [console]\n")
        await broker.pipelines.ask_replay("p" * 100, "", f'{{"offsets": [["{LONG}", 0, 0, 5]]}}')
        return (await broker.dead_letters.letters(LONG))[0].id

    letter = quote(plain.run(fill), safe="")
    topic, letters = f"/console/topics/{LONG}", f"/console/dead-letters/{LONG}"
    pages = {
        "overview": "/console", "topics": "/console/topics", "topic": topic, "messages": f"{topic}/messages",
        "message": f"{topic}/messages/0/0", "binary": f"{topic}/messages/1/0", "produce": f"{topic}/produce",
        "groups": "/console/groups", "group": f"{topic}/groups/{GROUP}", "inbox": "/console/dead-letters", "letters": letters,
        "letter": f"{letters}/{letter}", "schemas": "/console/schemas", "schema": f"/console/schemas/{'s' * 200}",
        "pipelines": "/console/pipelines", "pipeline": f"/console/pipelines/{'p' * 100}", "audit": "/console/audit",
    }  # fmt: skip
    for width in WIDTHS:
        plain_page.set_viewport_size({"width": width, "height": 800})
        assert overhanging(plain_page, pages) == []
    plain_page.goto(letters)
    plain_page.screenshot(path=artefacts / "long-letters-phone.png")
    assert plain_page.title() != "owned"


def test_a_partition_whose_disk_failed_is_seen_at_once(
    plain_page: Page, plain: EmbeddedBroker, disk: FaultyDisk, artefacts: Path
) -> None:
    broker = plain.server.broker
    plain.create("failing")
    path = f"/data/topics/{broker.topic('failing').id}/0/00000000000000000000.log"

    async def fail() -> str:
        disk.fail("sync", path=path, code=errno.EIO)
        with pytest.raises(BraidError) as caught:
            await broker.append(broker.topic("failing"), 0, b"", b"lost")
        return caught.value.code

    assert plain.run(fail) == "STORAGE_FAILED"
    plain_page.set_viewport_size({"width": 1280, "height": 800})
    plain_page.goto("/console")
    expect(plain_page.get_by_role("alert")).to_contain_text("1 partition is read-only")
    plain_page.screenshot(path=artefacts / "read-only.png")
    plain_page.get_by_role("link", name="Which, and why").click()
    expect(plain_page.locator("main")).to_contain_text("failing / 0")
    plain_page.goto("/console/topics/failing/produce")
    plain_page.locator("[name=value]").fill("again")
    plain_page.get_by_role("button", name="Produce").click()
    expect(plain_page.locator("#notice")).to_contain_text("STORAGE_FAILED")
    expect(plain_page.locator("[name=value]")).to_have_value("again")
