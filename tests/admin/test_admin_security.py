"""Who may do what by HTTP: the users and rights of the wire, logins, and requests that another site made a browser send."""

from __future__ import annotations

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient, basic

from braidmq.admin.api import ENDPOINTS
from braidmq.admin.identity import Credentials, Doorkeeper
from braidmq.admin.origins import allowed_hosts, check_host
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security.rules import Rule

MADE_UP = {
    "topic": "t", "group": "g", "name": "s", "version": "1", "id": "x-1", "user": "u", "role": "r", "pattern": "p",
    "partition": "0", "offset": "0", "pipeline": "p", "number": "1", "node": "n",
}  # fmt: skip


def _path(path: str) -> str:
    return path.format_map(MADE_UP)


def _as(client: WebClient, name: str) -> WebClient:
    return WebClient(client.address, basic(name, f"{name}pass1"))


def test_a_stranger_gets_nothing_but_what_is_for_anybody(stranger: WebClient) -> None:
    for endpoint in ENDPOINTS:
        answer = stranger.request(endpoint.method, _path(endpoint.path), _body(endpoint.name))
        if endpoint.rule is Rule.NONE:
            assert answer.status != 401 or endpoint.name == "log_in", endpoint
        else:
            assert answer.status == 401, (endpoint, answer)
            assert answer.json["error"] == "Authentication required"
            assert answer.headers["www-authenticate"].startswith('Basic realm="FlyMQ Admin API"')


def test_only_administrators_administer(admin: WebClient) -> None:
    guest = _as(admin, "guest")
    for endpoint in ENDPOINTS:
        if endpoint.rule is Rule.ADMIN:
            answer = guest.request(endpoint.method, _path(endpoint.path), _body(endpoint.name))
            assert answer.status == 403 and answer.json["error"] == "Insufficient permissions", (endpoint, answer)


def _body(name: str) -> object:
    """One that is well-formed, so that what is refused is the caller."""
    return {
        "log_in": {"username": "x", "password": "y"}, "create_topic": {"name": "t"}, "configure_topic": {"properties": {}},
        "produce_message": {"value": "v"}, "reset_group": {"mode": "latest"}, "register_schema": {"name": "s", "schema": "{}"},
        "validate_message": {"value": "v"}, "replay_letters": {"all": True}, "create_user": {"username": "u", "password": "p"},
        "update_user": {}, "change_password": {"new_password": "p"}, "set_quota": {},
        "create_role": {"name": "r", "permissions": []},
        "update_role": {"permissions": []}, "set_acl": {}, "export_audit": {}, "reassign_partition": {"new_leader": "x"},
        "steer_pipeline": {"desired": "stop"}, "ask_replay": {"letters": True}, "retry_letter": {"value": "v"},
    }.get(name)  # fmt: skip


def test_rights_on_topics_are_those_of_the_wire(admin: WebClient) -> None:
    assert admin.post("/api/v1/topics", {"name": "rights"}).status == 201
    reader, writer, guest = (_as(admin, name) for name in ("reader", "writer", "guest"))
    assert writer.post("/api/v1/topics/rights/messages", {"value": "v"}).status == 201
    assert reader.post("/api/v1/topics/rights/messages", {"value": "v"}).status == 403
    assert reader.get("/api/v1/topics/rights/messages").json["messages"][0]["value"] == "v"
    assert writer.get("/api/v1/topics/rights/messages").status == 403
    assert "rights" in [row["name"] for row in reader.get("/api/v1/topics").json]
    assert guest.get("/api/v1/topics").json == []
    assert admin.put("/api/v1/acls/rights", {"allowed_users": ["guest"]}).json["allowed_users"] == ["guest"]
    assert [row["name"] for row in guest.get("/api/v1/topics").json] == ["rights"]
    assert admin.delete("/api/v1/acls/rights").status == 204
    assert admin.delete("/api/v1/acls/rights").code == "ACL_NOT_FOUND"
    denied = admin.get("/api/v1/audit/events?types=access.denied&user=reader").json
    assert denied["events"][0]["resource"] == "rights"


def test_wrong_passwords_are_refused_and_slowed_down(admin: WebClient, stranger: WebClient) -> None:
    made = admin.post("/api/v1/users", {"username": "victim", "password": "victimpass1"})
    assert made.status == 201
    wrong = WebClient(stranger.address, basic("victim", "guess"))
    refused = [wrong.get("/api/v1/topics") for _ in range(2)]
    assert [answer.json["error"] for answer in refused] == ["Invalid credentials"] * 2
    assert stranger.get("/api/v1/topics", Authorization="Basic !!!").code == "INVALID_CREDENTIALS"
    assert stranger.get("/api/v1/topics", Authorization="Digest x").code == "INVALID_CREDENTIALS"
    assert stranger.get("/api/v1/topics", Authorization="Bearer made-up").code == "INVALID_CREDENTIALS"
    assert WebClient(stranger.address, basic("victim", "victimpass1")).get("/api/v1/topics").status == 200


def test_a_login_gives_a_token_and_a_cookie(admin: WebClient, stranger: WebClient) -> None:
    assert admin.post("/api/v1/users", {"username": "eve", "password": "evepass123", "roles": ["admin"]}).status == 201
    answer = stranger.post("/api/v1/session", {"username": "eve", "password": "evepass123"})
    assert answer.status == 201 and answer.json["admin"] and answer.json["permissions"] == ["read", "write", "admin"]
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    bearer = WebClient(stranger.address, {"Authorization": f"Bearer {answer.json['token']}"})
    assert bearer.get("/api/v1/users/eve").json["roles"] == ["admin"]
    assert bearer.post("/api/v1/topics", {"name": "by-token"}).status == 201

    by_cookie = WebClient(stranger.address, {"Cookie": cookie.partition(";")[0]})
    me = by_cookie.get("/api/v1/session").json
    assert me["username"] == "eve" and me["csrf_token"] == answer.json["csrf_token"]
    refused = by_cookie.post("/api/v1/topics", {"name": "by-cookie"})
    assert refused.code == "CROSS_SITE"
    assert by_cookie.post("/api/v1/topics", {"name": "by-cookie"}, X_CSRF_Token="wrong").code == "CROSS_SITE"
    assert by_cookie.post("/api/v1/topics", {"name": "by-cookie"}, X_CSRF_Token=me["csrf_token"]).status == 201
    assert "www-authenticate" not in WebClient(stranger.address, {"Cookie": "braid_session=old"}).get("/api/v1/users").headers

    # A changed password ends what was logged in with the old one.
    changed = bearer.post("/api/v1/users/eve/password", {"old_password": "evepass123", "new_password": "another123"})
    assert changed.status == 200, changed
    assert bearer.get("/api/v1/users").code == "INVALID_CREDENTIALS"
    assert WebClient(stranger.address, basic("eve", "evepass123")).get("/api/v1/users").status == 401

    again = stranger.post("/api/v1/session", {"username": "eve", "password": "another123"}).json["token"]
    bearer = WebClient(stranger.address, {"Authorization": f"Bearer {again}"})
    assert bearer.delete("/api/v1/session").status == 204
    assert bearer.get("/api/v1/users").status == 401


def test_a_disabled_user_is_out_at_once(admin: WebClient, stranger: WebClient) -> None:
    assert admin.post("/api/v1/users", {"username": "temp", "password": "temppass1", "roles": ["consumer"]}).status == 201
    temp = WebClient(stranger.address, basic("temp", "temppass1"))
    assert temp.get("/api/v1/topics").status == 200
    assert admin.put("/api/v1/users/temp", {"enabled": False}).json["enabled"] is False
    assert temp.get("/api/v1/topics").status in (401, 403)


def test_requests_of_other_sites_are_refused(web: WebClient) -> None:
    body = {"name": "cross"}
    assert web.get("/api/v1/topics", Host="evil.example:9096").code == "CROSS_SITE"
    assert web.post("/api/v1/topics", body, Origin="http://evil.example").code == "CROSS_SITE"
    assert web.post("/api/v1/topics", body, Origin="null").code == "CROSS_SITE"
    assert web.post("/api/v1/topics", body, Sec_Fetch_Site="cross-site").code == "CROSS_SITE"
    assert web.post("/api/v1/topics", body, Sec_Fetch_Site="same-site").code == "CROSS_SITE"
    assert web.get("/api/v1/topics/cross").status == 404, "none of them got through"
    own = f"http://{web.address}"
    assert web.post("/api/v1/topics", body, Origin=own, Sec_Fetch_Site="same-origin").status == 201
    assert web.get("/api/v1/topics", Host="localhost:1").status == 200
    assert web.get("/api/v1/topics", Sec_Fetch_Site="cross-site").status == 200, "a page cannot read what it gets"


def test_names_of_the_server() -> None:
    allowed = allowed_hosts(("braid.example",), "node1", "0.0.0.0")
    for fine in (
        "localhost",
        "localhost:9096",
        "127.0.0.1:9096",
        "[::1]:9096",
        "node1",
        "BRAID.example:80",
        "x.localhost",
        "10.1.2.3",
    ):
        check_host(fine, allowed)
    for other in ("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9096"):
        with pytest.raises(BraidError, match="CROSS_SITE"):
            check_host(other, allowed)
    check_host("anything", allowed_hosts(("*",), "n", ""))


def test_logins_are_bounded_and_end_in_silence(guarded: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.ADMIN_SESSIONS_MAX == 10_000
    monkeypatch.setattr(limits, "ADMIN_SESSIONS_MAX", 2)

    async def scene() -> None:
        keeper = Doorkeeper(guarded.server.broker)
        logins = [await keeper.log_in("reader", "readerpass1", "10.0.0.9") for _ in range(3)]
        with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
            keeper.recognize(Credentials(token=logins[0].token))
        assert keeper.recognize(Credentials(token=logins[2].token)).principal.name == "reader"
        logins[2].used_at -= limits.ADMIN_SESSION_IDLE_SECONDS_MAX
        with pytest.raises(BraidError, match="INVALID_CREDENTIALS"):
            keeper.recognize(Credentials(token=logins[2].token))

    guarded.run(scene)


def test_every_answer_has_careful_headers_and_an_id(web: WebClient) -> None:
    answer = web.get("/api/v1/topics", X_Request_Id="mine-1")
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    assert web.get("/nowhere", X_Request_Id="mine-2").json["request_id"] == "mine-2"
    for given in ("x" * (limits.REQUEST_ID_CHARACTERS_MAX + 1), "with space"):
        assert web.get("/api/v1/topics", X_Request_Id=given).headers["x-request-id"] != given


def test_a_body_over_the_limit_is_refused(web: WebClient) -> None:
    assert web.post("/api/v1/topics", b" " * (limits.HTTP_BODY_BYTES_MAX + 1)).code == "FRAME_TOO_LARGE"
