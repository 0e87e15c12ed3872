"""Health, as Kubernetes asks for it: during recovery, with a failed disk, while the broker stops."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from embedded_broker import EmbeddedBroker
from running_broker import StartBroker
from web_client import WebClient

from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.disk_real import RealDisk
from braidmq.broker.broker import Broker
from braidmq.client.sync import connect


def _health(broker: EmbeddedBroker) -> WebClient:
    assert broker.service is not None
    return WebClient(broker.service.addresses["health"])


@pytest.mark.parametrize("path", ["/live", "/ready", "/health", "/health/live", "/health/ready", "/livez", "/readyz", "/healthz"])
def test_a_broker_that_is_well(standing: EmbeddedBroker, path: str) -> None:
    answer = _health(standing).get(path)
    assert answer.status == 200 and answer.json["status"] == "healthy"
    assert {"status", "timestamp", "version", "checks"} == set(answer.json)
    live = path in ("/live", "/health/live", "/livez")
    assert bool(answer.json["checks"]) != live


def test_not_ready_while_it_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, recovering = threading.Event(), threading.Event()
    recover = Broker._recover

    def slowly(self: Broker) -> None:
        recovering.set()
        assert go_on.wait(30)
        recover(self)

    monkeypatch.setattr(Broker, "_recover", slowly)
    broker = EmbeddedBroker(RealDisk(), str(tmp_path / "data"), web=True)
    starting = threading.Thread(target=broker.__enter__)
    starting.start()
    try:
        assert recovering.wait(30)
        ready = _health(broker).get("/ready")
        assert ready.status == 503
        assert [check["message"] for check in ready.json["checks"] if check["status"] != "healthy"] == [
            "the broker recovers its log"
        ]
        assert _health(broker).get("/live").status == 200, "a restart would not help"
        assert broker.service is not None
        assert WebClient(broker.service.addresses["admin"]).get("/api/v1/topics").code == "NOT_READY"
        assert WebClient(broker.service.addresses["metrics"]).get("/metrics").status == 503
    finally:
        go_on.set()
        starting.join(30)
        assert _health(broker).get("/ready").status == 200
        broker.__exit__(None, None, None)


def test_a_partition_whose_disk_failed_is_named() -> None:
    disk = FaultyDisk()
    with EmbeddedBroker(disk, web=True) as broker:
        broker.create("fragile")
        with connect(broker.address) as client:
            client.produce("fragile", b"v", partition=0)
            disk.fail("sync", path="/data/topics/1/0/00000000000000000000.log", code=errno.EIO)
            with pytest.raises(Exception, match="STORAGE_FAILED"):
                client.produce("fragile", b"v", partition=0)
        answer = _health(broker).get("/ready")
        assert answer.status == 503 and _health(broker).get("/health").status == 503 and _health(broker).get("/live").status == 200
        (bad,) = [check for check in answer.json["checks"] if check["status"] != "healthy"]
        assert bad["name"] == "partitions" and "fragile/0" in bad["message"]


def test_a_broker_as_users_run_it(start_broker: StartBroker) -> None:
    flags = [word for name in ("admin", "metrics", "health") for word in (f"--{name}-listen", "127.0.0.1:0")]
    broker = start_broker(*flags)
    assert WebClient(broker.addresses["health"]).get("/ready").status == 200
    assert WebClient(broker.addresses["admin"]).get("/api/v1/topics").json == []
    assert b"braid_ready 1" in WebClient(broker.addresses["metrics"]).get("/metrics").body
    taken = broker.addresses["admin"]
    with pytest.raises(pytest.fail.Exception, match=r"CONFIG_INVALID_VALUE.*admin_listen"):
        start_broker("--admin-listen", taken, name="second")
