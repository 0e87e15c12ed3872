"""The page of the admin API: all of the document and nothing else, for everybody, and requests that can be tried from it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from embedded_broker import EmbeddedBroker
from html_checks import check_html
from playwright.sync_api import Page, expect
from watched_page import watch
from web_client import WebClient

from braidmq.admin.console.view import POLICY

PATIENCE_MS = 30_000
expect.set_options(timeout=PATIENCE_MS)


def test_anybody_may_read_it_at_both_addresses(stranger: WebClient) -> None:
    for path in ("/swagger/", "/api/v1/swagger/"):
        answer = stranger.get(path)
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
        assert answer.headers["content-security-policy"] == POLICY
        assert check_html(answer.body.decode()) == []
    assert stranger.get("/swagger").headers["location"] == "/swagger/"


def test_it_holds_every_operation_and_every_shape_of_the_document(stranger: WebClient) -> None:
    document = stranger.get("/api/v1/swagger.json").json
    page = stranger.get("/swagger/").body.decode()
    shown = set(re.findall(r'<details class="operation" id="([^"]+)"', page))
    operations = {each["operationId"] for methods in document["paths"].values() for each in methods.values()}
    assert shown == operations | {f"shape-{name}" for name in document["components"]["schemas"]}
    links = set(re.findall(r'href="#(shape-[^"]+)"', page))
    assert links and links <= shown, "links lead somewhere"
    for path, methods in document["paths"].items():
        for method, each in methods.items():
            own = page.partition(f'id="{each["operationId"]}"')[2].partition("</details>")[0]
            assert f"<code>{path}</code>" in own and method.upper() in own
            assert ("Try it" in own) == (method == "get")


def test_a_form_without_scripts_leads_to_the_answer(stranger: WebClient, admin: WebClient) -> None:
    found = stranger.get("/swagger/try?operation=get_message&path.topic=a%2Fb+c&path.partition=0&path.offset=7")
    assert (found.status, found.headers["location"]) == (303, "/api/v1/topics/a%2Fb%20c/messages/0/7")
    found = stranger.get("/swagger/try?operation=list_messages&path.topic=t&query.limit=5&query.filter=")
    assert found.headers["location"] == "/api/v1/topics/t/messages?limit=5"
    assert stranger.get("/swagger/try?operation=get_topic&path.topic=").status == 400
    for wrong in ("delete_topic&path.topic=t", "nothing", ""):
        assert admin.get(f"/swagger/try?operation={wrong}").status == 404, wrong


def test_a_request_is_tried(page: Page, artefacts: Path) -> None:
    page.goto("/console")
    page.get_by_role("link", name="API", exact=True).first.click()
    expect(page.locator("h1")).to_have_text("Admin API")
    page.wait_for_load_state()
    page.keyboard.press("/")
    expect(page.locator("#narrow")).to_be_focused()
    page.keyboard.type("topics/{topic} get")
    expect(page.locator("#get_topic")).to_be_visible()
    expect(page.locator("#delete_topic")).to_be_hidden()
    page.keyboard.press("Control+A")
    page.keyboard.type("no such thing at all")
    expect(page.locator("#none")).to_be_visible()
    page.locator("#narrow").fill("")
    page.locator("#get_topic summary").focus()
    page.keyboard.press("Enter")
    own = page.locator("#get_topic")
    own.get_by_label("topic").fill("odd/name with space")
    page.keyboard.press("Enter")
    expect(own.locator(".outcome p")).to_contain_text("/api/v1/topics/odd%2Fname%20with%20space: 200, application/json")
    assert json.loads(own.locator(".outcome pre").inner_text())["name"] == "odd/name with space"
    page.locator("#list_messages summary").click()
    own = page.locator("#list_messages")
    own.locator("[name='path.topic']").fill("orders")
    own.locator("[name='query.filter']").fill("<script>")
    own.get_by_role("button", name="Try it").click()
    expect(own.locator(".outcome pre")).to_contain_text("<script>document.title")
    assert page.title() == "Admin API · BraidMQ"
    page.screenshot(path=artefacts / "api-light.png")
    page.locator("#list_messages a", has_text="MessagePage").click()
    expect(page.locator("#shape-MessagePage")).to_have_attribute("open", "")
    expect(page.locator("#shape-MessagePage summary")).to_be_focused()


def test_a_stream_is_followed_until_it_is_stopped(page: Page) -> None:
    page.goto("/swagger/#follow_figures")
    own = page.locator("#follow_figures")
    own.get_by_role("button", name="Try it").click()
    expect(own.locator(".outcome pre")).to_contain_text("event: figures")
    own.get_by_role("button", name="Stop").click()
    expect(own.locator(".outcome p")).to_contain_text("stopped")
    expect(own.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_stranger_is_refused_without_a_window_for_passwords(strange_page: Page) -> None:
    strange_page.goto("/swagger/#list_users")
    own = strange_page.locator("#list_users")
    own.get_by_role("button", name="Try it").click()
    expect(own.locator(".outcome p")).to_contain_text(": 401, application/problem+json")


def test_it_fits_a_phone(phone: Page, console: EmbeddedBroker, artefacts: Path) -> None:
    faults = watch(phone)
    phone.goto("/swagger/#list_messages")
    expect(phone.locator("#list_messages form")).to_be_visible()
    wide, screen = phone.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    phone.screenshot(path=artefacts / "api-phone-dark.png")
    assert wide <= screen and faults == []
