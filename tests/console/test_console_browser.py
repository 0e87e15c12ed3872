"""The console in a real browser: every page opens without a fault, every action works, by mouse, by keyboard and on a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from console_samples import ADMIN
from embedded_broker import EmbeddedBroker
from page_list import PAGES
from playwright.sync_api import Page, expect
from watched_page import watch

from braidmq.client.sync import connect

PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


def topic_of(console: EmbeddedBroker, name: str, *values: bytes) -> str:
    """A topic of a test's own."""
    console.create(name)
    broker = console.server.broker

    async def fill() -> None:
        for value in values:
            await broker.append(broker.topic(name), 0, b"key", value)

    console.run(fill)
    return name


# --- every page


def test_every_page_opens_without_a_fault(page: Page, artefacts: Path) -> None:
    for name, path in PAGES.items():
        page.goto(path)
        expect(page.locator("h1").first).to_be_visible()
        page.screenshot(path=artefacts / f"{name}-light.png", full_page=True)


def test_every_page_fits_a_phone_and_is_dark_where_that_is_liked(phone: Page, artefacts: Path) -> None:
    faults = watch(phone)
    for name, path in PAGES.items():
        phone.goto(path)
        expect(phone.locator("h1").first).to_be_visible()
        wide, screen = phone.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        phone.screenshot(path=artefacts / f"{name}-phone-dark.png")
        assert wide <= screen, f"{name} is {wide} wide on a screen of {screen}"
    assert faults == []
    assert phone.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 26)"
    phone.locator("summary", has_text="Menu").click()
    phone.get_by_role("link", name="Settings").click()
    expect(phone.locator("h1")).to_have_text("Settings")


def test_the_theme_is_switched_and_remembered(page: Page) -> None:
    page.goto("/console/topics")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Switch between dark and light").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.goto("/console/groups")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_plots_follow_what_goes_on(page: Page, artefacts: Path) -> None:
    page.goto("/console")
    expect(page.locator("#plots[data-points]")).to_be_visible()
    expect(page.locator("#plots")).to_have_attribute("data-points", re.compile(r"[2-9]|\d\d"))
    assert page.locator("#plots canvas").count() == 6
    page.goto("/console/topics/orders/groups/billing")
    expect(page.locator("[data-plot=lag][data-points]")).to_be_visible()
    page.screenshot(path=artefacts / "group-light.png", full_page=True)


# --- by keyboard


def test_everything_is_reached_by_keyboard(page: Page) -> None:
    page.goto("/console/topics")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("people")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"search=people"))
    page.keyboard.press("Tab")
    expect(page.locator("#list a", has_text="people")).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus has to be seen"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("people")


# --- messages


def test_a_payload_with_markup_stays_text(page: Page, console: EmbeddedBroker) -> None:
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    name = topic_of(console, "evil<b>topic", evil.encode())
    page.goto("/console/topics/evil%3Cb%3Etopic/messages")
    expect(page.locator("#messages tbody tr")).to_contain_text("<script>document.title='owned'")
    page.locator("#messages tbody a").first.click()
    expect(page.locator("#raw")).to_have_text(evil)
    page.goto("/console/topics/evil%3Cb%3Etopic/messages")
    page.get_by_role("button", name="Follow live").click()
    expect(page.get_by_role("button", name="Stop following")).to_be_visible()
    console.run(lambda: console.server.broker.append(console.server.broker.topic(name), 0, b"<i>k</i>", evil.encode()))
    expect(page.locator("#messages tbody tr.fresh")).to_contain_text("<script>document.title='owned'")
    assert page.title() != "owned" and page.locator("#messages img, #messages i").count() == 0


def test_producing_and_copying(page: Page, console: EmbeddedBroker) -> None:
    topic_of(console, "typed")
    page.goto("/console/topics/typed")
    page.get_by_role("link", name="Produce").click()
    page.locator("[name=key]").fill("k1")
    page.locator("[name=value]").fill('{"a": 1}')
    page.locator("[name=headers]").fill("source: console")
    page.get_by_role("button", name="Produce").click()
    expect(page.locator(".notice.good")).to_contain_text("Stored in typed, partition 0, offset 0")
    expect(page.locator("#decoded")).to_contain_text('"a": 1')
    expect(page.locator("dl.facts")).to_contain_text("source")
    page.get_by_role("link", name="Copy as new").click()
    expect(page.locator("[name=value]")).to_have_value('{"a": 1}')
    expect(page.locator("[name=headers]")).to_have_value(re.compile("source: console"))
    page.locator("[name=value]").fill('{"a": 2}')
    page.get_by_role("button", name="Produce").click()
    expect(page.locator(".notice.good")).to_contain_text("offset 1")
    with connect(console.address, username=ADMIN[0], password=ADMIN[1]) as client:
        assert client.consume("typed", 0, 1).value == b'{"a": 2}'


def test_records_are_found_by_filter_offset_and_time(page: Page) -> None:
    page.goto("/console/topics/orders/messages")
    page.get_by_label("Begin at").select_option("earliest")
    page.get_by_label("Filter").fill("order 77")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#messages tbody tr")).to_have_count(1)
    expect(page.locator("#messages tbody")).to_contain_text("order 77")
    page.goto("/console/topics/orders/messages?partition=0&start=offset&from=5")
    expect(page.locator("#messages tbody a").first).to_have_text("0 / 5")
    page.goto("/console/topics/orders/messages?start=timestamp&from=2100-01-01")
    expect(page.locator("main")).to_contain_text("There is no record here")
    page.goto("/console/topics/orders/messages?partition=0&start=earliest&limit=20")
    page.get_by_role("link", name="Go on").click()
    expect(page.locator("#messages tbody a").first).to_have_text("0 / 20")


# --- topics, groups, letters, schemas


def test_a_topic_from_its_making_to_its_end(page: Page) -> None:
    page.goto("/console/topics")
    page.locator("#new-topic summary").click()
    page.get_by_label("Name").fill("made-here")
    page.get_by_label("Partitions").fill("2")
    page.get_by_role("button", name="Create topic").click()
    expect(page.locator(".notice.good")).to_have_text("Created topic made-here.")
    page.get_by_label("retention_age_ms").fill("60000")
    page.get_by_role("button", name="Save settings").click()
    expect(page.locator(".notice.good")).to_have_text("Settings saved.")
    expect(page.locator(".figures")).to_contain_text("1 min")
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete topic").click()
    expect(page.locator(".notice.good")).to_have_text("Deleted topic made-here.")


def test_what_goes_wrong_is_said_beside_the_form(strange_page: Page, cookies: dict[str, str], console: EmbeddedBroker) -> None:
    name, _, value = cookies[ADMIN[0]].partition("=")
    strange_page.context.add_cookies([{"name": name, "value": value, "url": console.url("admin", "")}])
    strange_page.goto("/console/topics/people")
    strange_page.get_by_label("ttl_ms").fill("soon")
    strange_page.get_by_role("button", name="Save settings").click()
    expect(strange_page.locator("#notice .bad")).to_contain_text("INVALID_ARGUMENT")
    expect(strange_page.get_by_label("ttl_ms")).to_have_value("soon")


def test_a_group_is_moved_after_a_look_at_what_changes(page: Page, console: EmbeddedBroker, artefacts: Path) -> None:
    name = topic_of(console, "moved", *(b"%d" % number for number in range(10)))
    console.run(lambda: console.server.broker.commit_offset(name, "movers", 0, 8))
    page.goto("/console/topics/moved/groups/movers")
    page.locator("#reset [name=mode]").select_option("offset")
    page.locator("#reset [name=at]").fill("3")
    page.get_by_role("button", name="Show what would change").click()
    expect(page.locator("#plan")).to_contain_text("5 records are read again")
    page.screenshot(path=artefacts / "group-reset.png", full_page=True)
    assert console.server.broker.coordinator.committed(name, "movers", 0) == 8, "a look changes nothing"
    page.get_by_role("button", name="Move the group").click()
    expect(page.locator(".notice.good")).to_have_text("Moved 1 partition.")
    assert console.server.broker.coordinator.committed(name, "movers", 0) == 3
    page.locator("summary", has_text="Delete").click()
    page.get_by_role("button", name="Delete group").click()
    expect(page.locator(".notice.good")).to_contain_text("Deleted group movers")


def test_dead_letters_are_mended_and_sent_back(page: Page, console: EmbeddedBroker, artefacts: Path) -> None:
    broker = console.server.broker

    async def fill() -> None:
        topic = await broker.create_topic("mended", 1, {"schema": "orders", "schema_rule": "dead-letter"})
        for number in range(3):
            await broker.admission.produce(topic, 0, b"k", b'{"total": %d}' % number)

    console.run(fill)
    page.goto("/console/dead-letters")
    page.get_by_role("link", name="mended", exact=True).click()
    expect(page.locator(".card header")).to_contain_text("missing required field: id")
    expect(page.locator("tbody tr")).to_have_count(3)
    page.locator("tbody a").first.click()
    page.locator("textarea[name=value]").fill('{"id": 7, "total": 0}')
    page.screenshot(path=artefacts / "letter.png", full_page=True)
    page.get_by_role("button", name="Retry with this value").click()
    expect(page.locator(".notice.good")).to_have_text("Sent back to mended.")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("tbody summary", has_text="Discard").first.click()
    page.screenshot(path=artefacts / "letters-discard.png", full_page=True)
    page.get_by_role("button", name="Discard letter").first.click()
    expect(page.locator(".notice.good")).to_have_text("The letter is gone.")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto("/console/topics/mended/messages/0/0")
    expect(page.locator("#decoded")).to_contain_text('"id": 7')
    page.goto("/console/dead-letters/mended")
    page.locator("summary", has_text="Purge").click()
    page.get_by_role("button", name="Purge", exact=True).click()
    expect(page.locator(".notice.good")).to_contain_text("Let the dead letters of mended go")


def test_a_schema_with_two_versions_shows_what_changed(page: Page) -> None:
    page.goto("/console/schemas")
    page.locator("#new-schema summary").click()
    page.get_by_label("Name").fill("drawn")
    page.get_by_label("Definition").fill('{"type": "object", "properties": {"a": {"type": "string"}}}')
    page.get_by_role("button", name="Register").click()
    expect(page.locator(".notice.good")).to_have_text("Registered version 1.")
    page.locator("#new-version summary").click()
    page.get_by_label("Definition").fill('{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}')
    page.get_by_role("button", name="Register").click()
    expect(page.locator(".notice.good")).to_have_text("Registered version 2.")
    expect(page.locator("#diff .added").first).to_be_visible()
    expect(page.locator("#diff")).to_contain_text('+    "b": {')
    for version in (2, 1):
        page.locator("summary", has_text=f"Delete version {version}").click()
        page.get_by_role("button", name="Delete version").click()
        expect(page.locator(".notice.good")).to_contain_text(f"Deleted version {version}")


def test_a_replay_is_asked_for_and_taken_back(page: Page, console: EmbeddedBroker, artefacts: Path) -> None:
    pipelines = console.server.broker.pipelines
    console.run(lambda: pipelines.put("replayed", "0:", "yaml", "name: replayed"))
    page.goto("/console/pipelines/replayed")
    page.locator("#ask-replay summary").click()
    page.get_by_label("Offsets, one").fill("orders:0:0-7\norders:1:2-5")
    page.get_by_role("button", name="Ask for a replay").click()
    expect(page.locator(".notice.good")).to_contain_text("Replay 1 is requested: no run is alive to take it")
    expect(page.locator("#live .notice.warn")).to_contain_text("no run is alive")
    expect(page.locator("#replays tbody tr")).to_contain_text("orders:0:0-7, orders:1:2-5")
    page.screenshot(path=artefacts / "pipeline-replay.png", full_page=True)
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#replays tbody tr")).to_contain_text("cancelled")
    for kind, since, text in (("time", "2026-01-31T12:00", "2026-01-31T12:00:00.000Z to now"), ("letters", "", "dead letters")):
        page.locator("#ask-replay summary").click()
        page.get_by_label("What").select_option(kind)
        page.get_by_label("From (UTC)").fill(since)
        page.get_by_role("button", name="Ask for a replay").click()
        expect(page.locator("#replays tbody tr").first).to_contain_text(text)

    async def work() -> None:
        run = await pipelines.start("replayed", "continuous", "here", replace=False)
        taken = await pipelines.take_replay("replayed", run.number)
        assert taken is not None
        await pipelines.end_replay("replayed", taken.number, "failed", "cannot replay: <b>a topic</b> is not taken back")

    console.run(work)
    expect(page.locator("#replays tbody tr", has_text="failed")).to_contain_text("<b>a topic</b> is not taken back")
    expect(page.locator("#replays tbody tr").first).to_contain_text("takes it when its batch has ended")
    expect(page.locator("#live .notice.warn")).to_have_count(0)


# --- who is there, and who may


def test_a_connection_is_closed(page: Page, console: EmbeddedBroker) -> None:
    with connect(console.address, username=ADMIN[0], password=ADMIN[1]) as client:
        client.list_topics()
        flymq = next(listener for listener in console.server.listeners if listener.protocol == "flymq")
        address = list(flymq.sessions)[-1].address
        page.goto("/console/connections")
        row = page.locator("tbody tr", has_text=address)
        row.locator("summary", has_text="Close").click()
        row.get_by_role("button", name="Close connection").click()
        expect(page.locator(".notice.good")).to_contain_text(f"Closed flymq-{address}")
        expect(page.locator("tbody tr", has_text=address)).to_have_count(0)


def test_users_roles_and_acls(page: Page, strange_page: Page) -> None:
    page.goto("/console/users")
    page.locator("#new-role summary").click()
    page.locator("#new-role").get_by_label("Name").fill("looker")
    page.locator("#new-role").get_by_label("read").check()
    page.get_by_role("button", name="Create role").click()
    expect(page.locator(".notice.good")).to_have_text("Created role looker.")
    page.locator("#new-user summary").click()
    page.locator("#new-user").get_by_label("Name").fill("ann")
    page.locator("#new-user").get_by_label("Password").fill("annspassword1")
    page.locator("#new-user").get_by_label("Role").select_option("looker")
    page.get_by_role("button", name="Create user").click()
    expect(page.locator(".notice.good")).to_have_text("Created user ann.")
    strange_page.goto("/console/groups")
    strange_page.get_by_label("User").fill("ann")
    strange_page.get_by_label("Password").fill("annspassword1")
    strange_page.get_by_role("button", name="Log in").click()
    expect(strange_page.locator("h1")).to_have_text("Consumer groups")
    expect(strange_page.locator(".who")).to_contain_text("read-only")
    row = page.locator("tr", has_text="ann").first
    row.get_by_role("button", name="Disable").click()
    expect(page.locator("tr", has_text="ann").first).to_contain_text("disabled")
    strange_page.goto("/console/topics")
    expect(strange_page.get_by_role("button", name="Log in")).to_be_visible()
    row.locator("summary", has_text="Delete").click()
    row.get_by_role("button", name="Delete user").click()
    expect(page.locator(".notice.good")).to_have_text("Deleted user ann.")
    page.goto("/console/acls")
    page.locator("#new-acl summary").click()
    page.get_by_label("Topic or pattern").fill("acl-topic.*")
    page.get_by_label("Users, with commas").fill("reader")
    page.get_by_role("button", name="Save ACL").click()
    expect(page.locator("tbody tr", has_text="acl-topic.*")).to_contain_text("reader")
    row = page.locator("tbody tr", has_text="acl-topic.*")
    row.locator("summary").click()
    row.get_by_role("button", name="Delete ACL").click()
    expect(page.locator(".notice.good")).to_contain_text("Took the ACL of acl-topic.* away")
    page.goto("/console/audit?search=ann")
    expect(page.locator("tbody")).to_contain_text("user.create")


def test_what_waits_is_cancelled_and_aborted(page: Page, console: EmbeddedBroker) -> None:
    topic_of(console, "waits")
    broker = console.server.broker

    async def fill() -> str:
        await broker.delayed.produce("waits", b"k", b"v", 3_600_000)
        transaction = await broker.transactions.begin(object())
        return str(transaction.id)

    transaction = console.run(fill)
    page.goto("/console/delayed?topic=waits")
    page.locator("summary", has_text="Cancel").click()
    page.get_by_role("button", name="Cancel message").click()
    expect(page.locator(".notice.good")).to_contain_text("Cancelled delayed-")
    page.goto("/console/transactions")
    row = page.locator("tbody tr", has=page.get_by_text(transaction, exact=True))
    row.locator("summary", has_text="Abort").click()
    row.get_by_role("button", name="Abort transaction").click()
    expect(page.locator(".notice.good")).to_have_text(f"Aborted {transaction}.")


def test_a_reader_sees_no_buttons_and_masked_fields(reading_page: Page, artefacts: Path) -> None:
    reading_page.goto("/console/topics/people")
    expect(reading_page.locator("h1")).to_have_text("people")
    assert reading_page.locator("main button, main summary").count() == 0
    assert reading_page.get_by_role("link", name="Produce").count() == 0
    assert reading_page.get_by_role("link", name="Users").count() == 0
    reading_page.goto("/console/topics/people/messages/0/2")
    shown = json.loads(reading_page.locator("#decoded").inner_text())
    assert shown == {"id": 2, "email": "•••", "home": {"phone": "•••", "city": "Berlin"}}
    reading_page.screenshot(path=artefacts / "masked.png", full_page=True)
    reading_page.get_by_role("button", name="Log out").click()
    expect(reading_page.get_by_role("button", name="Log in")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG asks of text."""
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto("/console/topics/orders")
    poor = page.evaluate(
        """() => {
          const parts = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
          const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const ground = (element) => {
            for (let at = element; at; at = at.parentElement) {
              const found = getComputedStyle(at).backgroundColor;
              if (found !== "rgba(0, 0, 0, 0)" && found !== "transparent") return parts(found);
            }
            return [255, 255, 255];
          };
          return [...document.querySelectorAll("h1, h2, a, th, td, dt, dd, button, summary, .badge, label, .hint, .bottom")]
            .filter((element) => element.offsetParent && element.textContent.trim())
            .map((element) => {
              const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
              return [(a + 0.05) / (b + 0.05), element.textContent.trim().slice(0, 30)];
            })
            .filter(([ratio]) => ratio < 4.5);
        }"""
    )
    assert poor == []
