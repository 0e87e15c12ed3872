"""The audit trail on a disk that fails: what is kept, what is found, what is dropped, and what it never holds."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_length import length

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.log.commit import GroupCommit, InlineSyncer
from braidmq.log.level import Level
from braidmq.log.partition import PartitionLog
from braidmq.log.recovery import recover
from braidmq.security.audit import AuditTrail, audit_settings, require_trail
from braidmq.security.audit_events import EVENT_TYPES, AuditEvent, AuditPage, AuditQuery

DAY_S = 86_400


async def run_here(function: Callable[[], None]) -> None:
    function()


class Trail:
    """A trail whose turns of the loop end when the test says so."""

    def __init__(
        self, disk: FaultyDisk | None = None, clock: ManualClock | None = None, days: int = 90, size: int = 1 << 40
    ) -> None:
        self.disk = disk or FaultyDisk(seed=1)
        self.clock = clock or ManualClock()
        self.disk.make_directory("/data")
        self.turn: list[Callable[[], None]] = []
        self.commit = GroupCommit(self.clock, InlineSyncer(self.disk), self.turn.append)
        self.log = PartitionLog(self.disk, "/data/internal/audit", "__audit", 0, audit_settings(Level.FSYNC, days, size))
        recover(self.disk, self.log, None)
        self.trail = AuditTrail(self.log, self.commit, "node-1", run_here)

    def end_turn(self) -> None:
        while self.turn:
            self.turn.pop(0)()

    def record(self, kind: str = "topic.create", **fields: Any) -> None:
        self.trail.record(kind, **fields)
        self.end_turn()

    def query(self, **fields: Any) -> AuditPage:
        return asyncio.run(self.trail.query(AuditQuery(**fields)))

    def resources(self, **fields: Any) -> list[str]:
        return [event.resource for event in self.query(**fields).events]

    def export(self, form: str, **fields: Any) -> bytes:
        return asyncio.run(self.trail.export(AuditQuery(**fields), form))


def test_an_event_comes_back_whole() -> None:
    trail = Trail()
    trail.record("acl.set", user="ann", client_ip="1.2.3.4", resource="orders", action="set", result="denied", details={"a": "ä"})
    (event,) = trail.query().events
    assert event == AuditEvent(
        event.id, trail.clock.now_ms(), "acl.set", "ann", "1.2.3.4", "orders", "set", "denied", "node-1", {"a": "ä"}
    )  # fmt: skip
    assert event.timestamp == "2023-11-14T22:13:20.000Z"


def test_recording_neither_waits_nor_shows_before_it_is_durable() -> None:
    trail = Trail()
    before = trail.disk.operations
    trail.trail.record("system.start")
    assert trail.disk.operations == before and trail.query().total == 0
    trail.end_turn()
    assert trail.query().total == 1 and trail.trail.recorded == 1


def test_events_survive_the_loss_of_power() -> None:
    trail = Trail()
    for number in range(20):
        trail.record(resource=str(number))
    before = trail.query().events
    again = Trail(trail.disk.crash(), trail.clock)
    assert again.resources(limit=3) == ["19", "18", "17"] and again.query().total == 20
    assert again.query().events == before and len({event.id for event in before}) == 20


def test_pages() -> None:
    trail = Trail()
    for number in range(limits.AUDIT_PAGE_EVENTS_DEFAULT + 5):
        trail.record(resource=str(number))
    page = trail.query()
    assert len(page.events) == limits.AUDIT_PAGE_EVENTS_DEFAULT and page.total == 105 and page.has_more
    page = trail.query(offset=100)
    assert [event.resource for event in page.events] == ["4", "3", "2", "1", "0"] and not page.has_more
    page = trail.query(offset=1000)
    assert page == AuditPage((), 105, False)
    for limit, offset in ((-1, 0), (0, -1), (0, -(2**31))):
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*is negative"):
            AuditQuery(limit=limit, offset=offset)


def test_a_page_is_bounded_in_bytes_and_paging_gets_on() -> None:
    trail = Trail()
    big = {f"d{n}": "x" * limits.AUDIT_FIELD_CHARACTERS_MAX for n in range(limits.AUDIT_DETAILS_MAX)}
    for number in range(300):
        trail.record(resource=str(number), details=big)
    seen: list[str] = []
    page = trail.query(limit=1000)
    while True:
        assert sum(len(json.dumps(event.document())) for event in page.events) < limits.AUDIT_PAGE_BYTES_MAX * 1.1
        seen += [event.resource for event in page.events]
        if not page.has_more:
            break
        page = trail.query(limit=1000, offset=len(seen))
    assert seen == [str(number) for number in reversed(range(300))] and page.total == 300


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["auth.success", "topic.create"]),
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["orders", "Orders/eu", "pay"]),
        st.sampled_from(["success", "denied"]),
        st.sampled_from(["", "Ferry"]),
        st.integers(-3, 3),
    ),
    max_size=30,
)
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "types": st.sampled_from([frozenset({"auth.success"}), frozenset({"auth.success", "topic.create"}), frozenset({"x"})]),
        "user": st.sampled_from(["ann", "an"]),
        "resource": st.sampled_from(["rder", "Orders", "zzz"]),
        "result": st.sampled_from(["denied", "failure"]),
        "search": st.sampled_from(["ORDERS", "ferr", "login", "zzz"]),
        "start_s": st.integers(1_700_000_000 - 3, 1_700_000_000 + 6),
        "end_s": st.integers(1_700_000_000 - 3, 1_700_000_000 + 6),
        "limit": st.integers(0, 5),
        "offset": st.integers(0, 5),
    },
)


@settings(max_examples=length(25, 60))
@given(EVENTS, st.lists(QUERIES, max_size=5))
def test_queries_against_a_list(events: list[tuple[Any, ...]], queries: list[dict[str, Any]]) -> None:
    trail = Trail()
    trail.log.settings.segment_bytes = 600
    model: list[tuple[Any, ...]] = []
    for kind, user, resource, result, note, jump_s in events:
        trail.clock.jump(jump_s)
        trail.record(kind, user=user, resource=resource, action="login", result=result, details={"note": note})
        model.insert(0, (kind, user, resource, result, note, trail.clock.now_ms()))
    for query in [*queries, *queries]:
        matching = [
            row for row in model
            if (not query.get("types") or row[0] in query["types"])
            and query.get("user", row[1]) == row[1]
            and query.get("resource", "") in row[2]
            and query.get("result", row[3]) == row[3]
            and any(query.get("search", "").lower() in text.lower() for text in ("login", row[2], row[4]))
            and query.get("start_s", 0) <= row[5] // 1000
            and row[5] // 1000 <= query.get("end_s", 1 << 60)
        ]  # fmt: skip
        page = trail.query(**query)
        start, wanted = query.get("offset", 0), query.get("limit", 0) or 100
        got = [(e.type, e.user, e.resource, e.result, e.details["note"], e.time_ms) for e in page.events]
        assert got == matching[start : start + wanted] and page.total == len(matching)
        assert page.has_more == (len(matching) > start + len(got))


def test_a_query_by_time_does_not_read_what_cannot_match(monkeypatch: pytest.MonkeyPatch) -> None:
    trail = Trail()
    for day in range(10):
        for number in range(5):
            trail.record(resource=f"{day}.{number}")
        trail.clock.advance(DAY_S)
    assert len(trail.log.segments) == 10
    first_s = 1_700_000_000
    assert trail.query().total == 50
    read: list[int] = []
    real = PartitionLog.read_batches

    def noting(log: PartitionLog, offset: int, *args: Any, **settings: Any) -> Any:
        read.append(offset)
        return real(log, offset, *args, **settings)

    monkeypatch.setattr(PartitionLog, "read_batches", noting)
    assert trail.resources(start_s=first_s + 9 * DAY_S) == [f"9.{n}" for n in (4, 3, 2, 1, 0)]
    assert min(read) >= 45
    read.clear()
    assert trail.resources(end_s=first_s) == [f"0.{n}" for n in (4, 3, 2, 1, 0)]
    assert [offset for offset in read if 5 <= offset < 45] == [], "closed segments are known after the first look"


def test_without_a_trail_nothing_is_answered() -> None:
    trail = Trail().trail
    assert require_trail(trail) is trail
    with pytest.raises(BraidError, match="audit trail is not enabled"):
        require_trail(None)


# --- bounds


def test_retention_by_age_and_by_size() -> None:
    trail = Trail(days=3)
    for day in range(10):
        trail.record(resource=str(day))
        trail.clock.advance(DAY_S)
    assert trail.trail.apply_retention(trail.clock.now_ms()) > 0
    assert trail.resources() == ["9", "8", "7"]
    trail = Trail(size=2 * limits.AUDIT_SEGMENT_BYTES)
    details = {str(n): "x" * 1000 for n in range(30)}
    for _ in range(500):
        trail.record(details=details)
    trail.trail.apply_retention(trail.clock.now_ms())
    assert trail.log.size_bytes <= 3 * limits.AUDIT_SEGMENT_BYTES and 0 < trail.query().total < 500


def test_retention_during_a_query_ends_it_early() -> None:
    trail = Trail(days=1)
    for day in range(5):
        for number in range(3):
            trail.record(resource=f"{day}.{number}")
        trail.clock.advance(DAY_S)

    async def query_while_segments_go() -> AuditPage:
        query = asyncio.create_task(trail.trail.query(AuditQuery()))
        await asyncio.sleep(0)
        trail.trail.apply_retention(trail.clock.now_ms() + 10 * DAY_S * 1000)
        return await query

    page = asyncio.run(query_while_segments_go())
    assert [event.resource for event in page.events] == ["4.2", "4.1", "4.0"]


def test_too_many_events_at_once_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    trail = Trail()
    for _ in range(limits.AUDIT_PENDING_EVENTS_MAX + 7):
        trail.trail.record("access.denied")
    assert trail.trail.dropped == 7
    assert caplog.text.count("audit events are being dropped") == 1
    trail.end_turn()
    trail.record()
    assert trail.trail.recorded == limits.AUDIT_PENDING_EVENTS_MAX + 1
    assert "the audit trail is written again; 7 events are missing" in caplog.text


def test_a_full_disk_drops_and_a_failed_one_too() -> None:
    trail = Trail()
    trail.record(resource="before")
    trail.disk.capacity_bytes = 0
    trail.record(resource="lost")
    assert trail.trail.dropped == 1 and trail.resources() == ["before"]
    trail.disk.capacity_bytes = None
    trail.record(resource="after")
    assert trail.resources() == ["after", "before"]
    trail.disk.fail("sync")
    trail.record(resource="unsure")
    trail.record(resource="never tried")
    assert trail.trail.dropped == 3 and trail.resources() == ["after", "before"]
    assert trail.trail.apply_retention(trail.clock.now_ms()) == 0


def test_no_secret_gets_in_and_texts_are_bounded() -> None:
    trail = Trail()
    details = dict.fromkeys(("Password", "old_password", "api_token", "encryption_key"), "hunter2") | {"note": "fine"}
    trail.record("user.password", details=details)
    trail.record(user="u" * 10_000, details={str(n): "v" * 10_000 for n in range(100)})
    newer, older = trail.query().events
    assert "hunter2" not in str(older) and older.details["note"] == "fine" and older.details["Password"] == "[hidden]"
    assert len(newer.user) == limits.AUDIT_FIELD_CHARACTERS_MAX and len(newer.details) == limits.AUDIT_DETAILS_MAX
    assert not trail.trail.dropped


def test_types_are_those_published_and_those_of_pipelines() -> None:
    own = {each for each in EVENT_TYPES if each.startswith("pipeline.")}
    assert len(own) == 6
    assert len(EVENT_TYPES - own) == 29 and {"auth.failure", "config.change", "txn.abort"} <= EVENT_TYPES
    with pytest.raises(AssertionError):
        Trail().record("auth.unheard")


# --- export


def test_export_as_json_and_csv_holds_everything() -> None:
    trail = Trail()
    for number in range(250):
        trail.record("user.create", user='a,"b"', client_ip="::1", resource=str(number), action="create", details={"k": "ä\n"})
    document = json.loads(trail.export("json"))
    assert len(document) == 250
    keys = ["id", "timestamp", "type", "user", "client_ip", "resource", "action", "result", "details", "node_id"]
    assert list(document[0]) == keys and document[0]["resource"] == "249" and document[0]["details"] == {"k": "ä\n"}
    assert trail.export("json").startswith(b'[\n  {\n    "id": ')
    rows = list(csv.reader(io.StringIO(trail.export("csv").decode())))
    assert ",".join(rows[0]) == "ID,Timestamp,Type,User,ClientIP,Resource,Action,Result,NodeID,Details"
    assert len(rows) == 251 and rows[1][3] == 'a,"b"' and json.loads(rows[1][9]) == {"k": "ä\n"}
    assert [event["resource"] for event in json.loads(trail.export("json", limit=2, offset=1))] == ["248", "247"]
    assert json.loads(trail.export("json", user="nobody")) == [] and trail.export("csv", user="nobody").count(b"\n") == 1
    with pytest.raises(BraidError, match="unknown export format"):
        trail.export("xml")


def test_an_export_that_fits_no_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.AUDIT_EXPORT_BYTES_MAX < limits.FRAME_PAYLOAD_BYTES_MAX
    trail = Trail()
    for _ in range(20):
        trail.record(details={"a": "x" * 1000})
    monkeypatch.setattr(limits, "AUDIT_EXPORT_BYTES_MAX", 10_000)
    with pytest.raises(BraidError, match="AUDIT_EXPORT_TOO_LARGE"):
        trail.export("json")
    assert len(json.loads(trail.export("json", limit=5))) == 5


def test_cold_pages_are_brought_in_beside_the_loop() -> None:
    trail = Trail(FaultyDisk(seed=1, resident=False))
    trail.log.settings.segment_bytes = 2000
    for number in range(50):
        trail.record(resource=str(number))
    again = Trail(trail.disk, trail.clock)
    warmed: list[str] = []

    async def run_beside(function: Callable[[], None]) -> None:
        warmed.append("once more")
        function()

    again.trail = AuditTrail(again.log, again.commit, "node-1", run_beside)
    assert again.query().total == 50 and warmed
