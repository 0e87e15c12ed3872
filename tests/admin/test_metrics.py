"""Metrics: every one is there and true, dashboard and alerts name only those that exist, and nobody waits for a scrape."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from web_client import WebClient

from braidmq.admin.metrics.snapshot import Snapshot
from braidmq.admin.metrics.table import BY_NAME, METRICS
from braidmq.admin.metrics.text import scrape_text
from braidmq.base import limits
from braidmq.base.config import Listen
from braidmq.base.config_keys import ApiKey
from braidmq.base.disk_real import RealDisk
from braidmq.base.figures import OPERATIONS, Histogram
from braidmq.client.blipmq import sync as blipmq
from braidmq.client.fq import sync as fq
from braidmq.client.sync import connect
from braidmq.server.session import Session
from braidmq.wire import flymq
from braidmq.wire.blipmq import binary1
from braidmq.wire.flymq import Op

ROOT = Path(__file__).resolve().parent.parent.parent
_PIPELINES = {name for name in BY_NAME if name.startswith("braid_pipeline_")}
"""There are none in a broker that runs no pipeline."""
_CLUSTER = {name for name in BY_NAME if name.startswith("braid_cluster_")}
_LISTEN = tuple(Listen(protocol, "127.0.0.1", 0) for protocol in ("flymq", "blipmq", "fq"))
_LINE = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (-?[0-9.e+-]+|NaN)')


def _scraped(broker: EmbeddedBroker) -> dict[str, float]:
    """Values by name with labels, and every line checked."""
    assert broker.service is not None
    answer = WebClient(broker.service.addresses["metrics"]).get("/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for line in answer.body.decode().splitlines():
        if not line.startswith("#"):
            assert _LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def _look_at_lags_again(broker: EmbeddedBroker) -> None:
    """The next scrape does not show what an earlier one found out."""
    assert broker.service is not None and broker.service._serving is not None
    broker.service._serving.site.metrics._lags_at = float("-inf")


def _names(scraped: dict[str, float]) -> set[str]:
    names = {name.partition("{")[0] for name in scraped}
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in BY_NAME else name
        for name in names
    }


def test_every_metric_is_there_and_counts(standing: EmbeddedBroker) -> None:
    web = WebClient(standing.service.addresses["admin"])  # type: ignore[union-attr]
    with connect(standing.address) as client, blipmq.connect(standing.server.addresses["blipmq"], client_id="m") as subscriber:
        subscriber.subscribe("measured", qos=1)
        client.create_topic("measured", 1)
        before = _scraped(standing)
        for _ in range(10):
            client.produce("measured", b"0123456789")
        client.fetch("measured", 0, 0, max_records=10)
        client.commit("measured", "behind", 0, 4)
        message = next(iter(subscriber))
        message.ack()
        with pytest.raises(Exception, match="TOPIC_NOT_FOUND"):
            client.fetch("no such topic", 0, 0)
        _look_at_lags_again(standing)
        found = _scraped(standing)
    assert _names(found) | _PIPELINES | _CLUSTER == set(BY_NAME), set(BY_NAME) ^ (_names(found) | _PIPELINES | _CLUSTER)
    assert not _names(found) & _CLUSTER, "a broker that runs alone has no figures of a cluster"
    assert found["braid_records_in_total"] - before["braid_records_in_total"] == 10
    assert found['braid_topic_records_total{topic="measured"}'] == 10
    assert found['braid_topic_read_records_total{topic="measured"}'] == 10
    assert found['braid_topic_bytes{topic="measured"}'] > 100
    assert found['braid_request_seconds_count{protocol="flymq",operation="produce"}'] > 0
    assert found['braid_request_seconds_count{protocol="flymq",operation="fetch_batches"}'] > 0
    assert found['braid_connections{protocol="blipmq"}'] == 1
    assert found['braid_records_delivered_total{protocol="blipmq"}'] >= 1
    assert found["braid_batch_records_sum"] - before["braid_batch_records_sum"] == 10
    assert found['braid_errors_total{code="TOPIC_NOT_FOUND"}'] >= 1
    assert found["braid_ready"] == 1 and found["process_resident_memory_bytes"] > 1e6
    lag = web.get("/api/v1/consumer-groups/measured:behind").json
    assert lag["lag"] == 6


def test_latency_is_measured_by_protocol_and_operation(tmp_path: Path) -> None:
    """Everything that the reference names is measured, and nothing else."""
    key = ApiKey("me", hashlib.sha256(b"a key").digest())
    settings = {"durability": "os", "listen": _LISTEN, "blipmq_api_keys": (key,)}
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True, **settings) as broker:
        with blipmq.connect(broker.server.addresses["blipmq"], client_id="m", api_key="a key") as client:
            client.subscribe("b", qos=1)
            for qos in (0, 1):
                client.publish("b", b"the first of a topic goes the general way", qos=qos)
                client.publish("b", b"this one does not", qos=qos)
            client.flush()
            for _ in range(4):
                next(iter(client)).ack()
            client.unsubscribe("b")
        with fq.connect(broker.server.addresses["fq"], user="me") as client:
            binding = client.bind("f")
            client.publish("f", "r", b"p")
            client.flush(confirm=True)
            assert next(client).payload == b"p" and client.status()["msgs_in"] == 1
            client.unbind(binding)
        _older_framing(broker.server.addresses["blipmq"])
        http = WebClient(broker.server.addresses["fq"], {"X-Fq-User": "me", "X-Fq-Route": "r", "X-Fq-Exchange": "f"})
        assert http.post("/submit", b"over HTTP").status == 200 and http.get("/stats.json").status == 200
        found = _scraped(broker)
        counted = {
            (labels["protocol"], labels["operation"]): value
            for name, value in found.items()
            if name.startswith("braid_request_seconds_count")
            for labels in [dict(re.findall(r'(\w+)="([^"]*)"', name))]
        }
    named = {(protocol, operation) for protocol, operations in OPERATIONS.items() for operation in operations}
    others = {pair for pair in counted if pair[0] != "flymq"}
    assert others == named, others ^ named
    assert [pair for pair in named if not counted[pair]] == []
    opcodes = {op.name.lower() for op in Op} | {"unknown"}
    assert {operation for protocol, operation in counted if protocol == "flymq"} <= opcodes
    # What was pushed was pushed soon after it was written, and nothing takes less than no time.
    assert 0 <= found['braid_request_seconds_sum{protocol="blipmq",operation="deliver"}'] < 60


def _older_framing(address: str) -> None:
    """HELLO, AUTH, PING, SUBSCRIBE and a POLL of the binary framing, each after the answer to the one before."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as peer:
        file = peer.makefile("rb")

        def ask(message: binary1.Message, correlation: int) -> binary1.Frame:
            peer.sendall(binary1.encode(binary1.Frame(message, correlation)))
            size = int.from_bytes(file.read(4))
            return binary1.decode(memoryview(file.read(size)))

        assert isinstance(ask(binary1.Hello(1), 1).message, binary1.Ack)
        assert isinstance(ask(binary1.Auth(b"a key"), 2).message, binary1.Ack)
        number = ask(binary1.Subscribe("b", 0), 3).message
        assert isinstance(number, binary1.Ack)
        peer.sendall(binary1.encode(binary1.Frame(binary1.Poll(number.subscription), 4)))
        assert isinstance(ask(binary1.Ping(), 5).message, binary1.Pong)


def test_the_lag_of_groups_is_a_metric(tmp_path: Path) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True, durability="os") as broker:
        with connect(broker.address) as client:
            client.create_topic("t", 1)
            for _ in range(5):
                client.produce("t", b"v")
            client.commit("t", "g", 0, 2)
        found = _scraped(broker)
        assert found['braid_group_lag_records{topic="t",group="g"}'] == 3
        assert found['braid_group_lag_seconds{topic="t",group="g"}'] >= 0
        # Looking into the log for every scrape would be too much: another one sees the same.
        assert found["braid_groups"] == 1


def test_names_and_labels_follow_the_rules() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"[a-z_]+", metric.name) and metric.doc.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric
    assert len(BY_NAME) == len(METRICS)


def test_what_is_written_is_escaped() -> None:

    snapshot = Snapshot()
    snapshot.put("braid_topic_bytes", 1.5, 'a"b\\c\nd')
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    snapshot.put("braid_batch_records", histogram)
    lines = asyncio.run(scrape_text(snapshot)).splitlines()
    assert 'braid_topic_bytes{topic="a\\"b\\\\c\\nd"} 1.5' in lines
    assert [line for line in lines if line.startswith("braid_batch_records")] == [
        'braid_batch_records_bucket{le="1"} 2', 'braid_batch_records_bucket{le="2"} 3', 'braid_batch_records_bucket{le="+Inf"} 4',
        "braid_batch_records_sum 12", "braid_batch_records_count 4",
    ]  # fmt: skip
    assert histogram.quantile(0.5) == 1.0 and histogram.quantile(0.99) == 2.0 and Histogram().quantile(0.5) == 0.0


def test_no_histogram_grows_and_none_loses_anything(tmp_path: Path) -> None:
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), durability="os") as broker, connect(broker.address) as client:
        client.create_topic("t", 1)
        for _ in range(50):
            client.produce("t", b"v")
        figures = broker.server.broker.figures
        deadline_s = time.monotonic() + 60
        while figures.append_s._fresh:
            assert time.monotonic() < deadline_s, "nobody looks, and it grows"
            time.sleep(0.05)
        assert figures.batch_records.total == 50 == figures.records

    histogram = Histogram()
    writers = [threading.Thread(target=lambda: [histogram.observe(0.001) for _ in range(20_000)]) for _ in range(2)]
    readers = [threading.Thread(target=lambda: [histogram.count for _ in range(200)]) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in (*writers, *readers):
        thread.join()
    assert histogram.count == 40_000


def test_a_record_more_in_a_run_is_no_call_more(tmp_path: Path) -> None:
    """Counting, and the question whether anybody traces, happen once a run: what Python does for it does not grow with it."""

    async def calls(session: Session, records: int) -> int:
        data = flymq.encode_request(flymq.Produce("t", b"", b"v", 0), flymq.Dialect.DOCUMENTED) * records
        session._received[: len(data)] = data
        made = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(count)
        session.buffer_updated(len(data))
        sys.setprofile(None)
        await asyncio.sleep(0)
        return made

    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), durability="os") as broker, connect(broker.address) as client:
        client.create_topic("t", 1)
        client.produce("t", b"v")
        (listener,) = broker.server.listeners
        with socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), timeout=60) as peer:
            host, port = peer.getsockname()
            while (session := next((s for s in listener.sessions.copy() if s.address == f"{host}:{port}"), None)) is None:
                time.sleep(0.01)
            found = {records: broker.run(lambda records=records: calls(session, records)) for records in (1, 1, 100, 1000)}
    assert 0 < found[1] == found[100] == found[1000], found


def test_only_so_many_topics_and_groups_have_their_own(standing: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(standing.address) as client:
        for name in ("many-1", "many-2", "many-3"):
            client.create_topic(name, 1)
            client.commit(name, "many", 0, 0)
    _scraped(standing)
    assert limits.METRIC_TOPICS_MAX == limits.METRIC_GROUPS_MAX == 2000
    monkeypatch.setattr(limits, "METRIC_TOPICS_MAX", 1)
    monkeypatch.setattr(limits, "METRIC_GROUPS_MAX", 1)
    _look_at_lags_again(standing)
    found = _scraped(standing)
    assert len([name for name in found if name.startswith("braid_topic_bytes{")]) == 1
    assert found["braid_topics_not_shown"] == found["braid_topics"] - 1
    assert len([name for name in found if name.startswith("braid_group_lag_records{")]) == 1
    assert found["braid_groups_not_shown"] == found["braid_groups"] - 1


def _named_in(text: str) -> set[str]:
    found = set(re.findall(r"\b(?:braid|flymq|process)_[a-z_]+\b", text))
    return {
        re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in BY_NAME else name
        for name in found
    }


def test_the_dashboard_and_the_alerts_name_metrics_that_exist() -> None:
    dashboard = (ROOT / "deploy/grafana/dashboard.json").read_text()
    panels = json.loads(dashboard)["panels"]
    expressions = " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))
    assert len(panels) >= 10
    assert _named_in(expressions) <= set(BY_NAME), _named_in(expressions) - set(BY_NAME)
    import yaml

    rules = [
        rule for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    assert len(rules) >= 8
    for rule in rules:
        assert _named_in(rule["expr"]) and _named_in(rule["expr"]) <= set(BY_NAME), rule
        assert rule["annotations"]["summary"] and rule["annotations"]["description"] and rule["labels"]["severity"]


def test_a_scrape_of_a_thousand_topics_is_quick_and_holds_nobody_up(tmp_path: Path) -> None:
    """No bound on time here but a generous one: the figures are in the benchmarks. What is proven is that produce goes on."""
    with EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True, durability="none") as broker:
        broker.run(lambda: _thousand(broker))
        _scraped(broker)
        longest = 0.0
        done = threading.Event()

        def scrape() -> None:
            try:
                for _ in range(3):
                    found = _scraped(broker)
                    assert found["braid_topics"] >= 1000 and len([n for n in found if n.startswith("braid_topic_bytes")]) >= 1000
            finally:
                done.set()

        with connect(broker.address) as client:
            client.produce("t0", b"v")
            thread = threading.Thread(target=scrape)
            thread.start()
            produced = 0
            while not done.is_set():
                began = time.monotonic()
                client.produce("t0", b"v")
                longest = max(longest, time.monotonic() - began)
                produced += 1
            thread.join()
        assert produced > 10 and longest < 2.0, (produced, longest)


async def _thousand(broker: EmbeddedBroker) -> None:

    await asyncio.gather(*(broker.server.broker.create_topic(f"t{number}", 3) for number in range(1000)))
