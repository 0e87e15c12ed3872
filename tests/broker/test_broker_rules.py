"""Names, properties, limits, filters and where groups begin: what the broker lets in, and what it makes of it."""

from __future__ import annotations

import asyncio
import time

import pytest
from broker_bench import run_broker, settings_of, values_of
from hypothesis import given
from hypothesis import strategies as st

from braidmq import hot
from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.groups import start_offset
from braidmq.broker.names import check_group, check_topic
from braidmq.broker.record_filter import compile_filter
from braidmq.broker.topics import PROPERTIES, Topic, check_properties
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.wire.fq.naming import exchange_topic

# --- names

GOOD = [
    "a",
    "orders/eu/1",
    "../x",
    "/",
    "//",
    "/etc/passwd",
    "a b",
    "ü",
    "日本",
    "x" * limits.TOPIC_NAME_BYTES_MAX,
    "é" * (limits.TOPIC_NAME_BYTES_MAX // 2),
    "...",
    "-",
    "_a",
    "CON",
    "a\\b",
    "%2e",
]
TOO_LONG = ["x" * (limits.TOPIC_NAME_BYTES_MAX + 1), "x" * 2000, "é" * (limits.TOPIC_NAME_BYTES_MAX // 2 + 1)]
BAD = ["", ".", "..", "\0", "a\0b", "\n", "\x1f", "\x7f", "\x85", *TOO_LONG, "\ud800", "a\udfffb"]


@pytest.mark.parametrize("name", GOOD)
def test_names_people_can_use_are_let_in(name: str) -> None:
    check_topic(name)
    check_group(name)


@pytest.mark.parametrize("name", BAD)
def test_names_nobody_can_use_are_refused(name: str) -> None:
    with pytest.raises(BraidError, match="INVALID_TOPIC") as caught:
        check_topic(name)
    str(caught.value).encode()
    if name not in (".", "..") and name not in TOO_LONG:
        with pytest.raises(BraidError, match="INVALID_GROUP"):
            check_group(name)


def test_internal_names_are_refused_for_topics() -> None:
    for name in ("__metadata", "__", "__x"):
        with pytest.raises(BraidError, match="internal"):
            check_topic(name)
        check_group(name)


def test_the_longest_name_is_counted_in_bytes() -> None:
    assert limits.TOPIC_NAME_BYTES_MAX == 4 * limits.BLIPMQ_TEXT_CHARACTERS_MAX
    with pytest.raises(BraidError, match="1022 bytes are more than 1020"):
        check_topic("é" * 511)
    check_group("é" * 550)
    with pytest.raises(BraidError, match="1102 bytes are more than 1100"):
        check_group("é" * 551)


def test_the_group_of_the_longest_client_id_and_of_any_queue_has_a_name() -> None:
    check_group("blipmq:" + "\U0001f680" * limits.BLIPMQ_TEXT_CHARACTERS_MAX)
    check_group("fq:" + exchange_topic(b"\xff" * limits.FQ_NAME_BYTES_MAX))


def test_no_name_ever_becomes_a_path() -> None:
    async def work(broker: Broker) -> None:
        for name in GOOD:
            topic = await broker.create_topic(name, 1)
            await broker.append(topic, 0, b"", name.encode())
        for name in BAD:
            with pytest.raises(BraidError, match="INVALID_TOPIC"):
                await broker.create_topic(name, 1)
            with pytest.raises(BraidError, match="INVALID_TOPIC"):
                await broker.delete_topic(name)

    disk = run_broker(work)
    assert disk.list_directory("/") == ["data"]
    assert all(name.isdigit() for name in disk.list_directory("/data/topics"))

    async def check(broker: Broker) -> None:
        assert broker.topic_names() == sorted(GOOD)
        for name in GOOD:
            assert values_of(broker, name) == [name.encode()]

    run_broker(check, disk)


@given(st.text(max_size=1200))
def test_any_text_is_judged_without_surprise(name: str) -> None:
    for check in (check_topic, check_group):
        try:
            check(name)
        except BraidError as error:
            str(error)
        else:
            assert 0 < len(name.encode()) <= limits.GROUP_NAME_BYTES_MAX and "\0" not in name


# --- properties


def test_properties_lie_over_the_defaults() -> None:
    defaults = LogSettings(Level.FSYNC, 1, 2, 3, 4)
    assert Topic("t", 1, 1, 0).settings(defaults) == defaults
    every = {
        "durability": "none", "segment_bytes": "5000", "segment_age_ms": "6", "retention_bytes": "0", "retention_age_ms": "8",
        "ttl_ms": "9", "compression": "gzip",
    }  # fmt: skip
    others = {"schema", "schema_rule", "dlq_expired", "mask_fields", "retention_hold", "retention_hold_bytes"}
    assert set(every) | others == set(PROPERTIES), "the others are no settings of a log"
    check_properties(every)
    expected = LogSettings(Level.NONE, 5000, 6, 0, 8, ttl_ms=9, compression="gzip")
    assert Topic("t", 1, 1, 0, every).settings(defaults) == expected
    for name in ("none", "os", "fsync", "quorum"):
        assert Topic("t", 1, 1, 0, {"durability": name}).settings(defaults).level == Level.parse(name)


@pytest.mark.parametrize(
    "properties",
    [
        {"colour": "blue"},
        {"durability": "FSYNC"},
        {"retention_bytes": "-1"},
        {"retention_bytes": ""},
        {"retention_bytes": "1e9"},
        {"retention_bytes": "١"},
        {"retention_age_ms": "9" * 19},
        {"segment_age_ms": " 1"},
        {"segment_bytes": str(limits.SEGMENT_BYTES_MIN - 1)},
        {"segment_bytes": str(limits.SEGMENT_BYTES_MAX + 1)},
    ],
)
def test_properties_that_mean_nothing_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        check_properties(properties)

    async def work(broker: Broker) -> None:
        with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
            await broker.create_topic("t", 1, properties)
        assert broker.topic_names() == []

    run_broker(work)


def test_properties_survive_a_restart_and_take_effect() -> None:
    async def work(broker: Broker) -> None:
        await broker.create_topic("t", 1, {"segment_bytes": "4096", "durability": "os"})

    disk = run_broker(work, stop=False).crash(1)

    async def check(broker: Broker) -> None:
        log = broker.partition("t", 0)
        assert (log.settings.segment_bytes, log.settings.level) == (4096, Level.OS)

    run_broker(check, disk)


# --- limits


def test_partition_counts_have_a_limit() -> None:
    async def work(broker: Broker) -> None:
        for count in (-1, limits.PARTITIONS_MAX + 1, 1 << 40):
            with pytest.raises(BraidError, match="INVALID_PARTITIONS"):
                await broker.create_topic("t", count)
        assert (await broker.create_topic("zero", 0)).partitions == 1
        assert (await broker.create_topic("most", limits.PARTITIONS_MAX)).partitions == limits.PARTITIONS_MAX
        with pytest.raises(BraidError, match="PARTITION_OUT_OF_RANGE"):
            broker.partition("zero", 1)
        with pytest.raises(BraidError, match="PARTITION_OUT_OF_RANGE"):
            broker.partition("zero", -1)

    run_broker(work)


def test_the_number_of_topics_has_a_limit() -> None:
    async def work(broker: Broker) -> None:
        outcomes = await asyncio.gather(*(broker.create_topic(f"t{number}", 1) for number in range(9)), return_exceptions=True)
        assert sum(isinstance(outcome, Topic) for outcome in outcomes) == 5
        assert {str(outcome) for outcome in outcomes if not isinstance(outcome, Topic)} == {
            "TOPIC_LIMIT: the broker already has 5 topics"
        }
        await broker.delete_topic("t0")
        await broker.create_topic("t9", 1)

    run_broker(work, settings=settings_of(topics_max=5))


def test_a_record_has_a_limit() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        largest = bytes(limits.RECORD_BYTES_MAX - 3)
        assert (await broker.append(topic, 0, b"key", largest))[1] == 0
        with pytest.raises(BraidError, match="RECORD_TOO_LARGE"):
            await broker.append(topic, 0, b"keys", largest)
        over = hot.encode_batch([None], [bytes(limits.RECORD_BYTES_MAX)])
        with pytest.raises(BraidError, match="INVALID_BATCH"):
            broker.stage_batch(topic, 0, over)
        assert len(values_of(broker, "t")) == 1

    run_broker(work, settings=settings_of(segment_bytes=1 << 30))


def test_a_turn_is_written_in_pieces_when_it_grows_too_large() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        value = bytes(limits.FLUSH_BYTES_TARGET // 3)
        await asyncio.gather(*(broker.append(topic, 0, b"", value) for _ in range(8)))
        batch = hot.encode_batch([None], [value])
        for _ in range(8):
            broker.stage_batch(topic, 0, batch)
            assert broker.partition("t", 0).pending_bytes <= limits.FLUSH_BYTES_TARGET
        broker.commit.flush()
        log = broker.partition("t", 0)
        assert log.log_end == 16
        read = log.read_batches(0, 1 << 30, warmed=True)
        data = b"".join(read.slices)  # type: ignore[union-attr]
        at = 0
        while at < len(data):
            head = hot.layout.read_header(data, at)
            assert head.length <= limits.FLUSH_BYTES_TARGET + 4096
            at += head.length

    run_broker(work, settings=settings_of(segment_bytes=1 << 30))


def test_topics_are_made_on_demand_only_where_that_is_wanted() -> None:
    async def wanted(broker: Broker) -> None:
        assert (await broker.auto_create("t")).partitions == 3
        assert (await broker.auto_create("t", 9)).partitions == 3
        assert (await broker.auto_create("u", 9)).partitions == 9

    run_broker(wanted)
    settings = settings_of()
    settings.auto_create_topics = False

    async def unwanted(broker: Broker) -> None:
        with pytest.raises(BraidError, match="TOPIC_NOT_FOUND"):
            await broker.auto_create("t")

    run_broker(unwanted, settings=settings)


def test_records_are_placed_as_asked_by_key_or_in_turn() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 5)
        placed = [(await broker.append(topic, -1, b"", b"v"))[0] for _ in range(7)]
        assert placed == [0, 1, 2, 3, 4, 0, 1]
        assert (await broker.append(topic, -1, b"key", b"v"))[0] == hot.fnv1a(b"key") % 5
        assert (await broker.append(topic, 4, b"key", b"v"))[0] == 4
        for write in (lambda: broker.append(topic, 5, b"", b"v"),):
            with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
                await write()
        with pytest.raises(BraidError, match="PARTITION_NOT_FOUND"):
            broker.stage_batch(topic, 5, hot.encode_batch([None], [b"v"]))

    run_broker(work)


# --- groups


def test_where_a_group_begins() -> None:
    assert start_offset("earliest", 3, 9, 5) == 3
    assert start_offset("latest", 3, 9, 5) == start_offset("", 3, 9, None) == 9
    assert start_offset("commit", 3, 9, 5) == start_offset("committed", 3, 9, 5) == 5
    assert start_offset("commit", 3, 9, None) == 3
    for mode in ("newest", "EARLIEST", "\0"):
        with pytest.raises(BraidError, match="INVALID_MODE"):
            start_offset(mode, 0, 0, None)


def test_subscribing_and_committing_go_by_the_rules() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        for _ in range(4):
            await broker.append(topic, 1, b"", b"v")
        assert broker.subscribe("t", "g", 1, "commit", "me", "1.2.3.4:5") == 0
        await broker.commit_offset("t", "g", 1, 3)
        assert broker.subscribe("t", "g", 1, "commit", "me", "1.2.3.4:5") == 3
        assert broker.subscribe("t", "", 1, "latest", "me", "") == 4, "without a group nobody is a member"
        assert len(broker.groups) == 1
        for call, error in (
            (lambda: broker.subscribe("none", "g", 0, "latest", "me", ""), "TOPIC_NOT_FOUND"),
            (lambda: broker.subscribe("t", "g", 2, "latest", "me", ""), "PARTITION_NOT_FOUND"),
            (lambda: broker.subscribe("t", "g\n", 1, "latest", "me", ""), "INVALID_GROUP"),
            (lambda: broker.subscribe("t", "h", 1, "sideways", "me", ""), "INVALID_MODE"),
        ):
            with pytest.raises(BraidError, match=error):
                call()
        for name, group, partition, error in (
            ("none", "g", 0, "TOPIC_NOT_FOUND"),
            ("t", "", 0, "INVALID_GROUP"),
            ("t", "x" * (limits.GROUP_NAME_BYTES_MAX + 1), 0, "INVALID_GROUP"),
            ("t", "g", -1, "PARTITION_NOT_FOUND"),
            ("t", "g", 2, "PARTITION_NOT_FOUND"),
        ):
            with pytest.raises(BraidError, match=error):
                await broker.commit_offset(name, group, partition, 0)

    run_broker(work)


# --- the filter of FETCH


@pytest.mark.parametrize(
    ("text", "key", "value", "wanted"),
    [
        ("needle", None, b"a NEEDLE in hay", True),
        ("NEEDLE", b"the needle", b"hay", True),
        ("needle", None, b"hay", False),
        ("needle", b"", b"", False),
        ("ü", None, "fünf".encode(), True),
        ("a.c", None, b"abc", True),
        ("^hay$", None, b"hay", True),
        ("^hay$", None, b"hays", False),
        ("h[aeiou]y", b"key hey", b"", True),
        (r"\xff", None, b"\xff", True),
        ("(unclosed", None, b"an (unclosed one", True),
        ("(unclosed", None, b"nothing", False),
        (r"(a)\1", None, b"aa", False),
        (r"(?=x)", None, b"x", False),
        ("$.a", None, b'{"a": 1}', True),
        ("$.a.b", None, b' \n{"a": {"b": null}}', True),
        ("$.a.b", None, b'{"a": {"c": 1}}', False),
        ("$.a.b", None, b'{"a": [1]}', False),
        ("$.a", None, b'["a"]', False),
        ("$.a", None, b'{"a": 1', False),
        ("$.a", None, b'{"b": "$.a"}', True),
        ("$.a", None, b"{" * 100_000, False),
        ("$.a", None, b'{"a":' * 100_000, False),
        ("$.a", None, b'{"a": ' + b"9" * 10_000 + b"}", False),
        ("$.a", None, b"\xff\xfe{", False),
        ("$.", None, b'{"": 1}', True),
        ("[", None, b"[", True),
        ("*", None, b"x", False),
    ],
)
def test_what_a_filter_matches(text: str, key: bytes | None, value: bytes, wanted: bool) -> None:
    assert compile_filter(text)(key, value) is wanted


@pytest.mark.parametrize(
    "text", ["(a+)+$", "(a|aa)+$", "(.*)*x", "a?" * 60 + "a" * 60, "(a{1,100}){1,100}", "((a{1,99}){1,99}){1,99}", "x" * 5000]
)
def test_no_expression_stalls_the_broker(text: str) -> None:
    """Patterns that take a backtracking matcher longer than the universe has left."""
    matches = compile_filter(text)
    start = time.process_time()
    for _ in range(5):
        matches(None, b"a" * 100_000 + b"!")
    assert time.process_time() - start < 5


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.none() | st.binary(max_size=20), st.binary(max_size=60))
def test_any_filter_takes_any_record(text: str, key: bytes | None, value: bytes) -> None:
    assert compile_filter(text)(key, value) in (True, False)


def test_a_filtered_read_tells_where_to_go_on() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        values = [b"even" if number % 2 == 0 else b"odd" for number in range(100)]
        broker.stage_batch(topic, 0, hot.encode_batch([None] * 100, values))
        for start in range(0, 60, 20):
            broker.stage_batch(topic, 0, hot.encode_batch([None] * 20, [b"none"] * 20))
            assert start < 60
        broker.commit.flush()
        log = broker.partition("t", 0)
        found = await broker.filtered(log, 0, 5, "odd")
        assert (found.count, found.next_offset) == (5, 10)
        found = await broker.filtered(log, 10, 1000, "odd")
        assert (found.count, found.next_offset) == (45, 160), "all of it was looked at"
        offsets = [int.from_bytes(bytes(part)[-8:], "big") for part in found.slices]
        assert offsets == list(range(11, 100, 2))
        found = await broker.filtered(log, 160, 10, "odd")
        assert (found.count, found.next_offset) == (0, 160)

    run_broker(work)


def test_a_filtered_read_gives_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTER_SCAN_SECONDS_MAX", 0.0)

    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 1)
        broker.stage_batch(topic, 0, hot.encode_batch([None] * 9000, [b"hay"] * 9000))
        broker.commit.flush()
        found = await broker.filtered(broker.partition("t", 0), 0, 10, "needle")
        assert found.count == 0 and 0 < found.next_offset < 9000, "it says how far it came"

    run_broker(work, settings=settings_of(segment_bytes=1 << 20))
