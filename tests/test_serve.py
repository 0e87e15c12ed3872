"""`braid serve` as an operator meets it: it starts, says where it listens, survives being killed, and stops when told."""

from __future__ import annotations

import signal
import socket

import pytest
from running_broker import RunningBroker, StartBroker

from braidmq.client.sync import connect


def _accepts(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("broker", [(), ("pure",), ("--durability", "os")], indirect=True, ids=["default", "pure", "os"])
def test_a_ready_broker_accepts_connections_until_stopped(broker: RunningBroker) -> None:
    assert _accepts(broker.address)
    broker.stop()
    assert not broker.running
    assert not _accepts(broker.address)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_well_with_a_client_connected(broker: RunningBroker, number: int) -> None:
    host, _, port = broker.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        broker.signal(number)
        assert broker.wait() == 0
        assert client.recv(1) == b""


@pytest.mark.parametrize("broker", [(), ("pure",)], indirect=True, ids=["compiled", "pure"])
def test_what_was_acked_is_there_after_being_killed(broker: RunningBroker) -> None:
    address, pid = broker.address, broker.pid
    with connect(address) as client:
        client.create_topic("orders", 1)
        offsets = [client.produce("orders", b"%d" % number).offset for number in range(20)]
    broker.kill()
    assert not _accepts(address)
    broker.restart()
    assert broker.address == address
    assert broker.pid != pid
    with connect(address) as client:
        found = client.fetch("orders", 0, 0, max_records=100)
    assert [(record.offset, record.value) for record in found.records] == [(n, b"%d" % n) for n in offsets]
    assert offsets == list(range(20))


def test_it_says_which_hot_path_runs(start_broker: StartBroker) -> None:
    pure = start_broker(env={"BRAID_PURE": "1"})
    pure.stop()
    assert "hot path pure" in pure.log


def test_two_brokers_do_not_share_a_data_directory(start_broker: StartBroker) -> None:
    first = start_broker(name="shared")
    with pytest.raises(pytest.fail.Exception, match="DATA_DIR_LOCKED"):
        start_broker(name="shared")
    assert _accepts(first.address)
