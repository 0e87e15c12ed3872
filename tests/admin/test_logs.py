"""Log lines: one an event, in either form, with the id of the request, whatever names and texts they hold."""

from __future__ import annotations

import json
import logging
import sys

import pytest
from running_broker import StartBroker
from web_client import WebClient, basic

from braidmq.server.logs import set_up_logging


@pytest.fixture
def braid_logger() -> object:
    root = logging.getLogger("braidmq")
    before = (root.handlers[:], root.level, root.propagate)
    yield root
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_event_is_one_line(form: str, braid_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", form)
    braid_logger.handlers[0].setStream(sys.stderr)  # type: ignore[attr-defined]
    logging.getLogger("braidmq.x").warning("topic %s", "a\nb\x1b[31m\u2028c\x85", extra={"request_id": "r-1"})
    logging.getLogger("braidmq.x").debug("not asked for")
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and line.splitlines() == [line.rstrip("\n")] and "\x1b" not in line and "r-1" in line
    if form == "json":
        document = json.loads(line)
        assert document["message"] == "topic a\nb\x1b[31m\u2028c\x85" and document["request_id"] == "r-1"
        assert document["level"] == "warning" and document["logger"] == "braidmq.x" and document["time"].endswith("Z")


def test_a_fault_of_ours_carries_its_traceback(braid_logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("info", "json")
    braid_logger.handlers[0].setStream(sys.stderr)  # type: ignore[attr-defined]
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("braidmq.x").exception("failed")
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "Traceback" in json.loads(line)["exception"]


def test_no_payload_and_no_secret_is_logged(start_broker: StartBroker) -> None:
    broker = start_broker(
        "--admin-listen", "127.0.0.1:0", "--log-level", "debug", "--log-format", "json", "--auth-enabled",
        env={"BRAID_AUTH_ADMIN_PASSWORD": "hunter2secret"},
    )  # fmt: skip
    web = WebClient(broker.addresses["admin"], basic("admin", "hunter2secret"))
    assert web.post("/api/v1/topics", {"name": "t"}, X_Request_Id="find-me").status == 201
    assert web.post("/api/v1/topics/t/messages", {"value": "payloadsecret", "key": "keysecret"}).status == 201
    login = web.post("/api/v1/session", {"username": "admin", "password": "hunter2secret"}).json
    assert WebClient(web.address, basic("admin", "wrongsecret")).get("/api/v1/topics").status == 401
    broker.stop()
    lines = [json.loads(line) for line in broker.log.splitlines() if line.startswith("{")]
    assert any(line.get("request_id") == "find-me" for line in lines)
    for secret in ("hunter2secret", "payloadsecret", "keysecret", "wrongsecret", login["token"], login["csrf_token"]):
        assert secret not in broker.log
