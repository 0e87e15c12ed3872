"""Topics by the admin API."""

from __future__ import annotations

from web_client import WebClient

FLYMQ_FIELDS = {"name", "partitions", "replica_factor", "message_count", "retention_bytes", "retention_ms", "created_at"}


def test_a_topic_from_birth_to_death(web: WebClient) -> None:
    made = web.post("/api/v1/topics", {"name": "life", "options": {"partitions": 2, "retention_bytes": 5000}})
    assert made.status == 201 and made.json["partitions"] == 2 and made.json["retention_bytes"] == 5000
    found = web.get("/api/v1/topics/life")
    assert found.status == 200 and found.json == made.json and set(found.json) > FLYMQ_FIELDS
    assert [row["partition"] for row in found.json["partition_details"]] == [0, 1]
    changed = web.patch("/api/v1/topics/life", {"properties": {"durability": "none", "retention_bytes": ""}})
    assert changed.json["durability"] == "none" and changed.json["retention_bytes"] == 1_000_000_000
    assert "life" in [row["name"] for row in web.get("/api/v1/topics").json]
    assert web.delete("/api/v1/topics/life").status == 204
    assert web.get("/api/v1/topics/life").code == "TOPIC_NOT_FOUND"
    assert web.delete("/api/v1/topics/life").status == 404


def test_names_with_slashes(web: WebClient) -> None:
    assert web.post("/api/v1/topics", {"name": "sensors/1/temp é"}).status == 201
    for path in ("sensors/1/temp%20%C3%A9", "sensors%2F1%2Ftemp%20%C3%A9"):
        assert web.get(f"/api/v1/topics/{path}").json["name"] == "sensors/1/temp é"


def test_pages_lead_through_the_whole_list(web: WebClient) -> None:
    names = [f"paged-{number:02d}" for number in range(7)]
    for name in names:
        web.post("/api/v1/topics", {"name": name})
    found: list[str] = []
    path = "/api/v1/topics?prefix=paged-&limit=3"
    cursor = ""
    while True:
        page = web.get(path + (f"&cursor={cursor}" if cursor else ""))
        found += [row["name"] for row in page.json]
        if "x-next-cursor" not in page.headers:
            break
        cursor = page.headers["x-next-cursor"]
        assert page.headers["link"] == f'<?cursor={cursor}>; rel="next"'
    assert found == names
    assert web.get("/api/v1/topics?cursor=nonsense!").code == "INVALID_ARGUMENT"
    assert web.get("/api/v1/topics?cursor=MTI").code == "INVALID_ARGUMENT"


def test_what_makes_no_sense_is_refused(web: WebClient) -> None:
    refused = {
        "INVALID_ARGUMENT": [
            web.post("/api/v1/topics", {"name": "x", "colour": "red"}),
            web.post("/api/v1/topics", {}),
            web.post("/api/v1/topics", []),
            web.post("/api/v1/topics", b"{"),
            web.post("/api/v1/topics", {"name": 5}),
            web.post("/api/v1/topics", {"name": "x", "options": {"partitions": -1}}),
            web.post("/api/v1/topics", {"name": "x", "options": {"properties": {"no": "such"}}}),
            web.get("/api/v1/topics?limit=0"),
            web.get("/api/v1/topics?limit=1&limit=2"),
            web.get("/api/v1/topics?colour=red"),
        ],
        "INVALID_TOPIC": [web.post("/api/v1/topics", {"name": "__own"})],
        "MEDIA_TYPE": [web.post("/api/v1/topics", b"name=x", Content_Type="application/x-www-form-urlencoded")],
        "METHOD_NOT_ALLOWED": [web.put("/api/v1/topics", {})],
        "NO_SUCH_PATH": [web.get("/api/v2/topics")],
    }
    for code, answers in refused.items():
        assert [answer.code for answer in answers] == [code] * len(answers)
    assert refused["METHOD_NOT_ALLOWED"][0].headers["allow"] == "GET, HEAD, POST"
