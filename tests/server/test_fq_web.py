"""HTTP on an fq port: publishing, figures, files, and requests that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fq_peer import LOCAL, NODE, FqBroker, FqPeer, closed, connect, eventually, new_name, request, stats

from braidmq.base import limits
from braidmq.wire.fq.commands import FLAGS_PERMANENT, STATUS_KEYS

ACCEPTED = b'{"routed":%d,"dropped":%d,"no_route":%d,"no_exchange":%d}\n'


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("web") / "root"
    (root / "sub").mkdir(parents=True)
    (root / "index.html").write_bytes(b"<p>hello")
    (root / "sub" / "page.js").write_bytes(b"1")
    (root / "plain").write_bytes(b"?")
    (root.parent / "secret").write_bytes(b"no")
    (root / "link").symlink_to(root.parent / "secret")
    with (root / "large").open("wb") as large:
        large.truncate(limits.FQ_WEB_FILE_BYTES_MAX + 1)
    return root


@pytest.fixture(scope="module")
def broker(web: Path) -> Iterator[FqBroker]:
    with FqBroker(default_partitions=2, fq_web_root=str(web)) as running:
        yield running


def submit(broker: FqBroker, exchange: bytes, payload: bytes, **headers: str) -> tuple[str, bytes]:
    """Publish; returns the status and the body of the answer."""
    given = {"X-Fq-Exchange": exchange.decode(), "X-Fq-Route": "a.b"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head, _, body = request(broker.fq, "POST", "/submit", given, payload).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


# --- publishing


def test_the_answer_says_what_became_of_the_message(broker: FqBroker) -> None:
    exchange = new_name()
    assert submit(broker, exchange, b"1") == ("HTTP/1.0 200 OK", ACCEPTED % (0, 0, 1, 1))
    with FqPeer(broker.fq, kind="mem:public,backlog=1") as peer, FqPeer(broker.fq) as other:
        peer.bind(exchange, b"prefix:a")
        other.bind(exchange, b"exact:b")
        assert submit(broker, exchange, b"2") == ("HTTP/1.0 200 OK", ACCEPTED % (1, 0, 0, 0))
        assert submit(broker, exchange, b"3") == ("HTTP/1.0 200 OK", ACCEPTED % (1, 1, 0, 0))
        assert submit(broker, exchange, b"4", X_Fq_Route="c") == ("HTTP/1.0 200 OK", ACCEPTED % (0, 0, 1, 0))
        assert peer.data().payloads(1) == [b"2"]


def test_who_the_sender_is(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer:
        peer.bind(exchange)
        data = peer.data()
        ids = set()
        for headers, sender in (
            ({}, b"_web"), ({"X_Fq_User": "u"}, b"u"), ({"X_Fq_Sender": "s", "X_Fq_User": "u"}, b"s"),
        ):  # fmt: skip
            submit(broker, exchange, b"payload", **headers)
            (message,) = data.receive(1)
            assert (message.sender, message.hops, message.route) == (sender, (NODE, LOCAL), b"a.b")
            ids.add(message.message_id)
        assert len(ids) == 3


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ({"X-Fq-Exchange": "e", "X-Fq-Route": "r"}, None, "no message"),
        ({"X-Fq-Exchange": "e"}, b"x", "missing route"),
        ({"X-Fq-Route": "r"}, b"x", "missing exchange"),
        ({"X-Fq-Exchange": "e", "X-Fq-Route": "r" * 128}, b"x", "route too long"),
        ({"X-Fq-Exchange": "e" * 128, "X-Fq-Route": "r"}, b"x", "exchange too long"),
        ({"X-Fq-Exchange": "e", "X-Fq-Route": "r", "X-Fq-Sender": "s" * 128}, b"x", "sender too long"),
    ],
)
def test_a_refusal(broker: FqBroker, headers: dict[str, str], body: bytes | None, text: str) -> None:
    answer = request(broker.fq, "POST", "/submit", headers, body)
    assert answer.startswith(b"HTTP/1.0 500 ERROR\r\n") and answer.endswith(b'\r\n\r\n{ "error": "%s" }\n' % text.encode())


def test_many_requests_on_one_connection(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as peer, connect(broker.fq) as raw:
        peer.bind(exchange)
        data = peer.data()
        for number in range(3):
            for part in (
                b"POST /submit HTTP/1.1\r\nX-Fq-Exchange: %s\r\nX-Fq-Route: r\r\n" % exchange,
                b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
            ):
                raw.sendall(part)
            assert raw.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            raw.sendall(b"#%d" % number)
            answer = raw.recv(1000)
            assert answer.startswith(b"HTTP/1.0 200 OK\r\n") and answer.endswith(ACCEPTED % (1, 0, 0, 0))
        two = b"PUT /submit HTTP/1.1\r\nX-Fq-Exchange: %s\r\nX-Fq-Route: r\r\nContent-Length: 1\r\n\r\n!" % exchange
        raw.sendall(two * 2)
        came = b""
        while came.count(b"routed") < 2:
            came += raw.recv(1000)
        assert data.payloads(5) == [b"#0", b"#1", b"#2", b"!", b"!"]


def test_a_body_over_the_limit_is_refused_before_it_comes(broker: FqBroker) -> None:
    most = broker.server.config.fq_payload_bytes_max
    with connect(broker.fq) as raw:
        raw.sendall(b"POST /submit HTTP/1.1\r\nX-Fq-Exchange: e\r\nX-Fq-Route: r\r\nContent-Length: %d\r\n\r\n" % (most + 1))
        assert closed(raw).startswith(b"HTTP/1.0 413 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x" * (limits.FQ_HTTP_HEAD_BYTES_MAX + 10),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (limits.FQ_HTTP_HEADERS_MAX + 1) + b"\r\n",
    ],
)
def test_a_request_that_is_none(broker: FqBroker, raw: bytes) -> None:
    with connect(broker.fq) as asking:
        asking.sendall(raw)
        assert closed(asking).startswith(b"HTTP/1.0 400 ")


def test_a_message_for_a_full_queue_that_blocks_is_answered_when_there_is_room(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq, kind="mem:public,block,backlog=1") as peer, connect(broker.fq) as raw:
        peer.bind(exchange)
        one = b"POST /submit HTTP/1.1\r\nX-Fq-Exchange: %s\r\nX-Fq-Route: r\r\nContent-Length: 1\r\n\r\n" % exchange
        raw.sendall(one + b"1")
        assert raw.recv(1000).endswith(ACCEPTED % (1, 0, 0, 0))
        raw.sendall(one + b"2")
        raw.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.recv(1000)
        raw.settimeout(20)
        assert peer.data().payloads(2) == [b"1", b"2"]
        assert raw.recv(1000).endswith(ACCEPTED % (1, 0, 0, 0))


# --- figures


def test_the_document_of_figures(broker: FqBroker) -> None:
    exchange, queue = new_name(), new_name('q"\xff')
    before = stats(broker.fq)["exchanges"]["_aggregate"]
    with FqPeer(broker.fq, queue, "mem:public,backlog=2", user=b"bob") as peer:
        route = peer.bind(exchange, b'prefix:"a" payload_prefix("\xc3\xa4")', FLAGS_PERMANENT)
        data = peer.data()
        data.publish(exchange, b"a", "ä1".encode(), b"other", "ä2".encode())
        data.receive(2)
        eventually(lambda: peer.figures("routed", "no_route"), (2, 1))
        document = stats(broker.fq)
        assert document["version"] == "0.13.12"
        found = document["exchanges"][exchange.decode()]
        routes = found.pop("routes")
        assert found == {"messages": 3, "octets": 11, "no_route": 1, "routed": 2, "dropped": 0}
        (shown,) = routes.values()
        assert list(routes) == [str(route)] and isinstance(shown.pop("avg_ns"), int)
        assert shown == {
            "route_id": route, "prefix": "a", "queue": queue.decode("utf-8", "backslashreplace"), "permanent": True,
            "invocations": 3, "program": 'prefix:"a" payload_prefix("ä")',
        }  # fmt: skip
        after = document["exchanges"]["_aggregate"]
        assert {name: after[name] - before[name] for name in before} == {
            "no_exchange": 0, "messages": 3, "octets": 11, "no_route": 1, "routed": 2, "dropped": 0, "size_dropped": 0,
        }  # fmt: skip
        mine = document["queues"][queue.decode("utf-8", "backslashreplace")]
        (client,) = mine.pop("clients")
        assert mine == {
            "private": False, "type": "mem", "policy": "drop", "backlog_limit": 2, "backlog": 0, "dropped_to": 0, "refcnt": 1,
        }  # fmt: skip
        port = peer.socket.getsockname()[1]
        assert [client[key] for key in ("user", "remote_addr", "remote_port", "mode")] == ["bob", "127.0.0.1", str(port), "client"]
        assert {key: client[key] for key in STATUS_KEYS[1:]} == {key: str(peer.status()[key]) for key in STATUS_KEYS[1:]}


def test_any_name_makes_a_document(broker: FqBroker) -> None:
    odd = b'"\\\n\xff</script>'
    with FqPeer(broker.fq, odd) as peer:
        peer.bind(odd)
        document: Any = stats(broker.fq)
        shown = odd.decode("utf-8", "backslashreplace")
        assert shown in document["exchanges"] and shown in document["queues"]
        assert "mode" not in document["queues"][shown]["clients"][0], "without a data connection there are no figures"


# --- files


@pytest.mark.parametrize(
    ("target", "kind", "content"),
    [
        ("/", "text/html", b"<p>hello"),
        ("/index.html?x=1", "text/html", b"<p>hello"),
        ("/sub/page.js", "text/javascript", b"1"),
        ("/plain", "application/octet-stream", b"?"),
        ("/sub/../plain", "application/octet-stream", b"?"),
    ],
)
def test_a_file(broker: FqBroker, target: str, kind: str, content: bytes) -> None:
    head, _, body = request(broker.fq, "GET", target).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.0 200 OK" and f"Content-Type: {kind}" in lines and f"Content-Length: {len(content)}" in lines
    assert body == content
    assert request(broker.fq, "HEAD", target).partition(b"\r\n\r\n")[2] == b""


@pytest.mark.parametrize(
    "target", ["/nothing", "/../secret", "/%2e%2e/secret", "/link", "/sub", "/large", "/a%00b", "//etc/passwd", "/sub/page.js/x"]
)
def test_no_file(broker: FqBroker, target: str) -> None:
    answer = request(broker.fq, "GET", target)
    assert answer == b"HTTP/1.0 404 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n"


def test_without_a_directory_there_are_no_files_and_without_http_nothing() -> None:
    with FqBroker(fq_web_root=None) as broker:
        assert request(broker.fq, "GET", "/index.html").startswith(b"HTTP/1.0 404 OK")
    with FqBroker(fq_http=False) as broker:
        assert request(broker.fq, "GET", "/stats.json") == b""


def test_the_shutdown_of_old_does_not_stop_the_broker(broker: FqBroker) -> None:
    assert request(broker.fq, "GET", "/shutdown").startswith(b"HTTP/1.0 404 OK")
    assert json.dumps(stats(broker.fq))
