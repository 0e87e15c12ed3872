"""Pages without a browser: well-formed, guarded, escaped, quick, and made of files that are what they say."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources
from urllib.parse import quote

import pytest
from console_samples import ADMIN, READER, SCRIPT
from embedded_broker import EmbeddedBroker
from html_checks import check_html
from page_list import FOR_READERS, PAGES
from web_client import Answer, WebClient

from braidmq.admin.console.static import static_files
from braidmq.admin.console.view import POLICY
from braidmq.base import limits

FORM = "application/x-www-form-urlencoded"


def csrf_of(answer: Answer) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', answer.body.decode())
    assert found is not None, "no form on this page"
    return found[1]


# --- what every page is like


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_tells_browsers_to_be_careful(admin: WebClient, name: str) -> None:
    answer = admin.get(PAGES[name])
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-frame-options"] == "DENY" and answer.headers["cache-control"] == "no-store"
    assert check_html(answer.body.decode()) == []


def test_the_check_of_pages_notices() -> None:
    page = "<!doctype html><p>{}</p>"
    assert check_html(page.format("fine")) == []
    for wrong in (
        "<b>", "</b>", "<b><i></b></i>", "<script>1</script>", '<a onclick="x">y</a>', '<i style="color: red">x</i>',
        '<input name="x">', '<i id="a"></i><i id="a"></i>', '<a href="javascript:x">y</a>', "<img src='x'>",
    ):  # fmt: skip
        assert check_html(page.format(wrong)), wrong


def test_the_policy_lets_nothing_inline_run() -> None:
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "script-src 'self'" in POLICY


def test_the_port_leads_to_the_console(stranger: WebClient) -> None:
    for path in ("/", "/console/"):
        answer = stranger.get(path)
        assert (answer.status, answer.headers["location"]) == (307, "/console")


def test_names_of_topics_lead_to_their_pages(admin: WebClient) -> None:
    listed = admin.get("/console/topics").body.decode()
    assert 'href="/console/topics/odd%2Fname%20with%20space"' in listed
    assert "odd/name with space" in admin.get("/console/topics/odd%2Fname%20with%20space").body.decode()


# --- rights


@pytest.mark.parametrize("name", PAGES)
def test_a_stranger_is_led_to_the_login_and_back(stranger: WebClient, name: str) -> None:
    answer = stranger.get(PAGES[name])
    assert answer.status == 303
    assert answer.headers["location"].startswith("/console/login?next=" + quote(PAGES[name].partition("?")[0], safe=""))


def test_a_login_leads_to_pages_of_ours_only(stranger: WebClient) -> None:
    for asked in ("https://example.org/", "//example.org", "/api/v1/topics", "/console\\..", ""):
        body = f"username={ADMIN[0]}&password={ADMIN[1]}&next={quote(asked, safe='')}".encode()
        answer = stranger.post("/console/login", body, Content_Type=FORM)
        assert (answer.status, answer.headers["location"]) == (303, "/console")
        assert "httponly" in answer.headers["set-cookie"].lower() and "samesite=strict" in answer.headers["set-cookie"].lower()


def test_a_wrong_password_is_said_and_not_repeated(stranger: WebClient) -> None:
    answer = stranger.post("/console/login", b"username=nobody-at-all&password=hunter2&next=%2Fconsole", Content_Type=FORM)
    assert answer.status == 401
    text = answer.body.decode()
    assert "INVALID_CREDENTIALS" in text and 'value="nobody-at-all"' in text and "hunter2" not in text


@pytest.mark.parametrize("name", FOR_READERS)
def test_a_reader_sees_no_way_to_change_anything(reader: WebClient, name: str) -> None:
    answer = reader.get(PAGES[name])
    assert answer.status == 200, answer
    forms = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', answer.body.decode())
    assert forms == ["/console/logout"]


@pytest.mark.parametrize("name", ["connections", "users", "acls", "audit", "settings", "recovery", "transactions", "queues"])
def test_a_reader_is_refused_what_is_for_administrators(reader: WebClient, name: str) -> None:
    answer = reader.get(PAGES[name])
    assert answer.status == 403 and b"UNAUTHORIZED" in answer.body
    assert check_html(answer.body.decode()) == []


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/console/topics", "name=by-reader"),
        ("/console/topics/orders/delete", ""),
        ("/console/topics/orders/settings", "ttl_ms=1"),
        ("/console/topics/orders/produce", "value=x"),
        ("/console/topics/orders/groups/billing/reset", "mode=latest"),
        ("/console/topics/orders/groups/billing/plan", "mode=latest"),
        ("/console/dead-letters/orders/retry", ""),
        ("/console/dead-letters/orders/purge", ""),
        ("/console/dead-letters/orders/some-letter/discard", ""),
        ("/console/pipelines/enrich/replays", "kind=letters"),
        ("/console/pipelines/enrich/replays/1/cancel", ""),
        ("/console/schemas", "name=x&type=json&schema=%7B%7D"),
        ("/console/users", "username=x&password=ypassword1"),
        ("/console/acls", "pattern=orders&public=true"),
        ("/console/connections/x/close", ""),
        ("/console/transactions/x/abort", ""),
    ],
)
def test_a_reader_is_refused_every_change(reader: WebClient, admin: WebClient, path: str, form: str) -> None:
    token = csrf_of(reader.get("/console"))
    answer = reader.post(path, f"{form}&csrf={quote(token)}".encode(), Content_Type=FORM)
    assert answer.status == 403 and b"UNAUTHORIZED" in answer.body, answer


def test_a_form_without_its_token_changes_nothing(admin: WebClient) -> None:
    for token in ("", "guessed", csrf_of(admin.get("/console/topics"))[:-1]):
        answer = admin.post("/console/topics", f"name=forged&csrf={token}".encode(), Content_Type=FORM)
        assert answer.status == 403 and b"CROSS_SITE" in answer.body
    assert admin.get("/api/v1/topics/forged").status == 404


def test_a_form_of_another_site_changes_nothing(admin: WebClient) -> None:
    token = csrf_of(admin.get("/console/topics"))
    answer = admin.post("/console/topics", f"name=forged&csrf={token}".encode(), Content_Type=FORM, Sec_Fetch_Site="cross-site")
    assert answer.status == 403 and b"CROSS_SITE" in answer.body


def test_logging_out_ends_the_login(stranger: WebClient) -> None:
    came = stranger.post("/console/login", f"username={READER[0]}&password={READER[1]}".encode(), Content_Type=FORM)
    somebody = WebClient(stranger.address, {"Cookie": came.headers["set-cookie"].partition(";")[0]})
    token = csrf_of(somebody.get("/console"))
    assert somebody.post("/console/logout", f"csrf={token}".encode(), Content_Type=FORM).status == 303
    assert somebody.get("/console").headers["location"].startswith("/console/login")


# --- what is shown


def test_a_payload_stays_text(admin: WebClient) -> None:
    answer = admin.get("/console/topics/orders/messages?start=latest&limit=20")
    assert b"&lt;script&gt;document" in answer.body and SCRIPT.encode() not in answer.body


def test_masked_fields_are_for_administrators(admin: WebClient, reader: WebClient) -> None:
    for path in (
        "/console/topics/people/messages/0/1", "/console/topics/people/messages?start=earliest", "/api/v1/topics/people/messages",
        "/api/v1/topics/people/messages/0/1",
    ):  # fmt: skip
        assert b"person1@example.org" in admin.get(path).body, path
        shown = reader.get(path).body
        assert b"example.org" not in shown and "•••".encode() in shown and b"Berlin" in shown, path
    found = reader.get("/api/v1/topics/people/messages?filter=person1%40example").json
    assert found["messages"] == [], "a filter must not find out what is masked"
    assert b"masked for you" in reader.get("/console/topics/people/messages/0/1").body
    assert reader.get("/console/topics/people/produce?partition=0&offset=1").status == 403


def test_a_payload_that_does_not_fit_shows_why_and_its_bytes(admin: WebClient, console: EmbeddedBroker) -> None:
    broker = console.server.broker

    async def fill() -> None:
        topic = await broker.create_topic("broken-clicks", 1, {})
        await broker.append(topic, 0, b"", b"\x0a/ho\xff<b>")
        await broker.append(topic, 0, b"", b"\x0a/home\x06")
        await broker.configure_topic("broken-clicks", {"schema": "clicks"})

    console.run(fill)
    listed = admin.get("/console/topics/broken-clicks/messages").body.decode()
    assert listed.count("does not fit its schema") == 1 and "invalid Avro message" in listed
    assert "{&#34;page&#34;: &#34;/home&#34;, &#34;ms&#34;: 3}" in listed
    page = admin.get("/console/topics/broken-clicks/messages/0/0").body.decode()
    assert "Not decoded by the schema of its topic" in page and "invalid Avro message" in page
    assert "00000000  0a 2f 68 6f ff 3c 62 3e" in page and '<details class="card more" open>' in page
    assert check_html(page) == [] and check_html(listed) == []


def test_a_record_is_decoded_by_the_schema_of_its_topic(admin: WebClient) -> None:
    found = admin.get("/api/v1/topics/clicks/messages/0/3").json
    assert found["decoded"] == {"page": "/home", "ms": 3} and found["decoded_as"] == "avro: clicks, version 1"
    assert admin.get("/api/v1/topics/clicks/messages/0/99").code == "OFFSET_OUT_OF_RANGE"
    assert admin.get("/api/v1/topics/clicks/messages/x/0").code == "INVALID_ARGUMENT"


def test_errors_are_pages_with_a_hint(admin: WebClient) -> None:
    answer = admin.get("/console/topics/no-such-topic")
    assert answer.status == 404 and b"TOPIC_NOT_FOUND" in answer.body and check_html(answer.body.decode()) == []
    in_part = admin.get("/console/topics/no-such-topic", HX_Request="true")
    assert in_part.status == 404 and b"<html" not in in_part.body and b"TOPIC_NOT_FOUND" in in_part.body
    assert admin.get("/console/nowhere").status == 404


def test_a_form_has_its_limits(admin: WebClient) -> None:
    many = "&".join(f"f{number}=x" for number in range(limits.FORM_FIELDS_MAX + 1)).encode()
    assert b"INVALID_ARGUMENT" in admin.post("/console/topics", many, Content_Type=FORM).body
    large = b"name=" + b"x" * limits.HTTP_BODY_BYTES_MAX
    assert b"FRAME_TOO_LARGE" in admin.post("/console/topics", large, Content_Type=FORM).body
    assert admin.post("/console/topics", {"name": "x"}).status == 415
    long = "email," * (limits.MASK_FIELDS_CHARACTERS_MAX // 6 + 1)
    body = f"mask_fields={long}&csrf={csrf_of(admin.get('/console/topics'))}".encode()
    assert b"INVALID_ARGUMENT" in admin.post("/console/topics/people/settings", body, Content_Type=FORM).body


def test_a_pipeline_is_drawn_and_steered(admin: WebClient, reader: WebClient) -> None:
    shown = admin.get("/console/pipelines/enrich").body.decode()
    assert shown.count("<rect") == 6 and 'href="/console/topics/orders.clean"' in shown
    assert "has_customer 2" in shown and "Too late" in shown
    token = csrf_of(admin.get("/console/pipelines/enrich"))
    for desired, button in (("pause", "Resume"), ("run", "Pause")):
        answer = admin.post("/console/pipelines/enrich/steer", f"desired={desired}&csrf={token}".encode(), Content_Type=FORM)
        assert answer.status == 303
        assert f">{button}</button>" in admin.get("/console/pipelines/enrich").body.decode()
    refused = f"desired=stop&csrf={csrf_of(reader.get('/console'))}".encode()
    assert reader.post("/console/pipelines/enrich/steer", refused, Content_Type=FORM).status == 403


# --- files


def test_what_is_vendored_is_what_the_manifest_says() -> None:
    folder = resources.files("braidmq.admin.console") / "static" / "vendor"
    rows = json.loads((folder / "manifest.json").read_text())
    assert {row["file"] for row in rows} == {entry.name for entry in folder.iterdir() if entry.name.endswith((".js", ".css"))}
    for row in rows:
        data = (folder / row["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"], row["file"]
        assert row["version"] and row["licence"] in ("0BSD", "MIT")
        assert (folder / f"{row['file'].partition('.')[0]}.LICENSE.txt").is_file()


def test_files_are_kept_for_ever_under_their_mark(stranger: WebClient) -> None:
    for name, file in static_files().items():
        answer = stranger.get(f"/console/static/{file.mark}/{name}")
        assert answer.status == 200 and "immutable" in answer.headers["cache-control"] and answer.body == file.data
    for path in ("/console/static/x/console.css", "/console/static/..%2f..%2f/view.py", "/console/static/x/../view.py"):
        assert stranger.get(path).status == 404


def test_scripts_and_styles_load_nothing_from_elsewhere() -> None:
    own = {name: file.data.decode() for name, file in static_files().items() if not name.startswith("vendor/")}
    for name, text in own.items():
        for found in re.findall(r"https?://[^\s\"')]+", text):
            assert found == "http://www.w3.org/2000/svg", (name, found)
        assert "eval(" not in text and "innerHTML =" not in text
