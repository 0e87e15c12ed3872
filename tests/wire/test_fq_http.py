"""HTTP on fq's port: requests however they are cut, what is refused, and the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fq_cases import each_byte, fed

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.fq.http import (
    CONTINUE,
    HttpReader,
    HttpRequest,
    fault_reply,
    file_reply,
    json_reply,
    read_submission,
    submit_refusal,
    submit_reply,
)

POST = b"POST /submit HTTP/1.1\r\nX-Fq-Exchange: ex\r\nX-Fq-Route: a.b\r\n"


def requests(raw: bytes, body_max: int = 1000) -> list[Any]:
    whole = HttpReader(body_max).receive(raw)
    assert fed(HttpReader(body_max).receive, each_byte(raw)) == whole
    return whole


def one(raw: bytes) -> HttpRequest:
    (found,) = requests(raw)
    assert isinstance(found, HttpRequest)
    return found


def test_a_request_is_taken_apart() -> None:
    found = one(b"GET /a%20b/c?x=1&y=&x=2&z=%41+b HTTP/1.1\r\nHost: fq\r\nOdd:\t v w \t\r\nODD: second\r\n\r\n")
    assert (found.method, found.path, found.body, found.keep_alive) == ("GET", "/a b/c", None, True)
    assert found.query == {"x": "2", "y": "", "z": "A b"}
    assert found.headers == {"host": b"fq", "odd": b"v w"}
    assert one(b"\r\n\r\nHEAD / HTTP/1.0\n\n").method == "HEAD"
    assert one(b"GET /%ff%fe HTTP/1.0\r\n\r\n").path == "/��"


@pytest.mark.parametrize(
    ("version", "connection", "keeps", "says"),
    [
        ("1", "", True, False),
        ("1", "Connection: keep-alive\r\n", True, True),
        ("1", "Connection: Upgrade, Close\r\n", False, False),
        ("0", "", False, False),
        ("0", "Connection: Keep-Alive\r\n", True, True),
    ],
)
def test_keeping_the_connection(version: str, connection: str, keeps: bool, says: bool) -> None:
    raw = f"GET / HTTP/1.{version}\r\n{connection}\r\n".encode()
    found = one(raw)
    assert (found.keep_alive, found.says_keep_alive) == (keeps, says)
    assert len(requests(raw * 3)) == (3 if keeps else 1), "nothing is read behind the last request"
    assert (b"Connection: keep-alive\r\n" in submit_reply(found, 1, 0, 0, 0)) is says


def test_bodies() -> None:
    first, second = requests(POST + b"Content-Length: 4\r\n\r\nTEST" + POST + b"Content-Length: 0\r\n\r\n")
    assert (first.body, second.body) == (b"TEST", b"")
    assert one(POST + b"Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc").body == b"abc"
    chunked = one(POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
    assert (chunked.body, chunked.keep_alive) == (None, False)


def test_a_client_that_waits_for_leave_gets_it() -> None:
    reader = HttpReader(1000)
    assert reader.receive(POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n") == [CONTINUE]
    (found,) = reader.receive(b"TEST")
    assert isinstance(found, HttpRequest) and found.body == b"TEST"
    assert len(requests(POST + b"Content-Length: 4\r\nExpect: 100-Continue\r\n\r\nTEST")) == 2
    with pytest.raises(BraidError, match="FRAME_TOO_LARGE"):
        HttpReader(3).receive(POST + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1 \r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/1.1\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nName : x\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\0c\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\rc\r\n\r\n",
        POST + b"Content-Length: -1\r\n\r\n",
        POST + b"Content-Length: 4x\r\n\r\n",
        POST + b"Content-Length: \r\n\r\n",
        POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n",
    ],
)
def test_what_is_no_request(raw: bytes) -> None:
    for pieces in ([raw], each_byte(raw)):
        reader = HttpReader(1000)
        with pytest.raises(BraidError) as caught:
            fed(reader.receive, pieces)
        assert caught.value.code == "MALFORMED_HTTP"
        assert fault_reply(caught.value).startswith(b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n")
    reader = HttpReader(1000)
    assert len(reader.receive(b"GET / HTTP/1.1\r\n\r\n" + raw)) == 1
    with pytest.raises(BraidError, match="MALFORMED_HTTP"):
        reader.receive(b"")


def test_the_limits() -> None:
    most = limits.FQ_HTTP_HEAD_BYTES_MAX
    fits = b"GET / HTTP/1.1\r\nA: ".ljust(most, b"x")
    assert len(HttpReader(10).receive(fits + b"\r\n\r\n")) == 1
    for raw in (fits + b"x\r\n\r\n", fits + b"xxxxx", b"G" * (most + 1)):
        with pytest.raises(BraidError, match="a head of more than"):
            HttpReader(10).receive(raw)
    headers = limits.FQ_HTTP_HEADERS_MAX
    assert len(HttpReader(10).receive(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * headers + b"\r\n")) == 1
    with pytest.raises(BraidError, match="more than 100 headers"):
        HttpReader(10).receive(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (headers + 1) + b"\r\n")
    with pytest.raises(BraidError) as caught:
        HttpReader(10).receive(POST + b"Content-Length: 11\r\n\r\n")
    assert fault_reply(caught.value).startswith(b"HTTP/1.0 413 ")
    with pytest.raises(BraidError):
        HttpReader(10).receive(POST + b"Content-Length: 99999999999999999999\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        (b"X-Fq-Exchange: e\r\nX-Fq-Route: r\r\n", None, "no message"),
        (b"X-Fq-Exchange: e\r\n", b"x", "missing route"),
        (b"X-Fq-Route: r\r\n", b"x", "missing exchange"),
        (b"", b"x", "missing route"),
        (b"X-Fq-Exchange: e\r\nX-Fq-Route: " + b"r" * 128 + b"\r\n", b"x", "route too long"),
        (b"X-Fq-Exchange: " + b"e" * 128 + b"\r\nX-Fq-Route: r\r\n", b"x", "exchange too long"),
        (b"X-Fq-Exchange: e\r\nX-Fq-Route: r\r\nX-Fq-Sender: " + b"s" * 128 + b"\r\n", b"x", "sender too long"),
        (b"X-Fq-Exchange: e\r\nX-Fq-Route: r\r\nX-Fq-User: " + b"s" * 128 + b"\r\n", b"x", "sender too long"),
    ],
)
def test_submissions_that_are_refused(headers: bytes, body: bytes | None, text: str) -> None:
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
    request = one(b"PUT /submit HTTP/1.1\r\n" + headers + length + b"\r\n" + (body or b""))
    with pytest.raises(BraidError) as caught:
        read_submission(request)
    assert caught.value.text == text
    head, _, sent = submit_refusal(request, text).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 500 ERROR\r\n") and json.loads(sent) == {"error": text}


@pytest.mark.parametrize(
    ("headers", "sender"),
    [
        (b"", b"_web"),
        (b"X-Fq-User: u\r\n", b"u"),
        (b"X-Fq-User: u\r\nX-Fq-Sender: s\r\n", b"s"),
        (b"X-Fq-Sender: \r\n", b"_web"),
    ],
)
def test_who_sent_a_submission(headers: bytes, sender: bytes) -> None:
    found = read_submission(one(POST + headers + b"Content-Length: 1\r\n\r\nx"))
    assert (found.exchange, found.route, found.sender, found.payload) == (b"ex", b"a.b", sender, b"x")


def test_answers() -> None:
    get, head = one(b"GET / HTTP/1.0\r\n\r\n"), one(b"HEAD / HTTP/1.0\r\n\r\n")
    raw = json_reply(get, {"a": 'q"uote', "b": [1, True]})
    top, _, body = raw.partition(b"\r\n\r\n")
    assert top == b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Type: application/json"
    assert json.loads(body) == {"a": 'q"uote', "b": [1, True]}
    assert json_reply(head, {"a": 1}).endswith(b"\r\n\r\n")
    kinds = {"a.js": "text/javascript", "x/y.PNG": "image/png", "index.html": "text/html", "html": "application/octet-stream"}
    for name, kind in kinds.items():
        assert f"Content-Length: 2\r\nContent-Type: {kind}\r\n".encode() in file_reply(get, name, b"ok")
    assert file_reply(head, "a.css", b"ok").endswith(b"Content-Type: text/css\r\n\r\n")
