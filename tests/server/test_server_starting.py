"""How a broker starts and refuses to: the data directory, the port, the ready file, and what it says about them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from flymq_peer import Peer, until
from running_broker import NO_WEB, RunningBroker, StartBroker

from braidmq.base.config_listen import PORTS
from braidmq.server.app import listener_of
from braidmq.wire.flymq import Commit, CreateTopic, ErrorReply, ListTopics, Metadata, Offset, Ok, Produce, Subscribe


def _serve(tmp_path: Path, *flags: str, data_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a broker that is expected to end by itself."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("BRAID_", "FLYMQ_"))}
    command = [sys.executable, "-m", "braidmq", "serve", "--data-dir", str(data_dir or tmp_path / "data"), *NO_WEB, *flags]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_second_broker_on_one_data_directory_is_refused(start_broker: StartBroker, tmp_path: Path) -> None:
    first = start_broker(name="shared")
    with Peer(first.address) as peer:
        peer.produce(peer.create("t"), b"v")
    second = _serve(tmp_path, "--listen", "flymq://127.0.0.1:0", data_dir=first.data_dir)
    assert second.returncode == 1
    assert "DATA_DIR_LOCKED" in second.stderr and str(first.data_dir) in second.stderr and "Traceback" not in second.stderr
    with Peer(first.address) as peer:
        assert peer.produce("t", b"w")[0].offset == 1
    # The lock dies with its owner, however that ends.
    first.kill()
    first.restart()
    with Peer(first.address) as peer:
        assert len(peer.fetch_all("t")) == 2


def test_a_port_in_use_is_said_clearly_and_nothing_is_lost(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        peer.produce(peer.create("t"), b"v")
    broker.stop()
    host, _, port = broker.address.rpartition(":")
    with socket.create_server((host, int(port))):
        refused = _serve(tmp_path, "--listen", f"flymq://{broker.address}", data_dir=broker.data_dir)
    assert refused.returncode == 2
    assert broker.address in refused.stderr and "in use" in refused.stderr and "Traceback" not in refused.stderr
    broker.restart()
    assert "clean start" in broker.log.rpartition("stopped")[2]
    with Peer(broker.address) as peer:
        assert [item.value for item in peer.fetch_all("t")] == [b"v"]


@pytest.mark.parametrize("scheme", PORTS)
def test_when_a_later_listener_fails_the_first_is_closed_again(tmp_path: Path, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        refused = _serve(tmp_path, "--listen", "flymq://127.0.0.1:0", "--listen", url)
    assert refused.returncode == 2 and "in use" in refused.stderr and "Traceback" not in refused.stderr
    assert url in refused.stderr


def test_one_broker_listens_for_every_protocol(start_broker: StartBroker) -> None:
    listen = [part for scheme in PORTS for part in ("--listen", f"{scheme}://127.0.0.1:0")]
    broker = start_broker(*listen)
    assert list(broker.addresses) == list(PORTS) and len({listener_of(scheme) for scheme in PORTS}) == len(PORTS)
    assert len(set(broker.addresses.values())) == len(PORTS)
    for name, address in broker.addresses.items():
        assert f"listening   {name} {address}" in broker.log
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
    with Peer(broker.address) as peer:
        peer.produce(peer.create("t"), b"v")
    broker.stop()


@pytest.mark.parametrize("what", ["a-file", "below-a-file", "other-format", "broken-format"])
def test_an_unusable_data_directory_is_said_clearly(tmp_path: Path, what: str) -> None:
    data = tmp_path / "data"
    if what in ("a-file", "below-a-file"):
        data.write_text("I was here first")
    else:
        data.mkdir()
        (data / "FORMAT").write_text('{"format": 99}' if what == "other-format" else "\x00")
    refused = _serve(tmp_path, "--listen", "flymq://127.0.0.1:0", data_dir=data / "below" if what == "below-a-file" else data)
    assert refused.returncode == 1
    assert "DATA_DIR_INVALID" in refused.stderr and "Traceback" not in refused.stderr
    if what == "a-file":
        assert data.read_text() == "I was here first"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write any directory")
def test_a_directory_without_permission_is_said_clearly(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o000)
    refused = _serve(tmp_path, "--listen", "flymq://127.0.0.1:0", data_dir=data)
    assert refused.returncode == 1 and "DATA_DIR_INVALID" in refused.stderr and "Traceback" not in refused.stderr


def test_the_ready_file_is_whole_when_it_appears_and_gone_after_the_stop(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data", ("--listen", "flymq://127.0.0.1:0", "--listen", "flymq://127.0.0.1:0?dialect=v126"))
    ready = tmp_path / "data.ready"
    contents: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if ready.exists():
                contents.append(ready.read_text())
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        broker.start()
        watcher.join(20)
        found = json.loads(contents[0])
        assert sorted(found) == ["flymq", "flymq-2"] and found == broker.addresses
        for address in found.values():
            Peer(address).close()
        assert [path.name for path in tmp_path.iterdir() if "ready" in path.name] == ["data.ready"]
        broker.stop()
        assert not ready.exists()
    finally:
        stop.set()
        watcher.join()
        if broker.running:
            broker.kill()


def test_a_ready_file_that_cannot_be_written_ends_the_broker_well(tmp_path: Path) -> None:
    ended = _serve(tmp_path, "--listen", "flymq://127.0.0.1:0", "--ready-file", str(tmp_path / "missing" / "ready"))
    assert ended.returncode != 0 and "Traceback" not in ended.stderr and "missing" in ended.stderr
    assert (tmp_path / "data" / "CLEAN").exists()


def test_restarts_one_after_the_other(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Peer(broker.address) as peer:
        peer.produce(peer.create("t", 12), b"v", partition=11)
        assert peer.ask(Commit("t", "g", 11, 1)) == Ok()
    for number in range(4):
        if number % 2:
            broker.kill()
        else:
            broker.stop()
        broker.restart()
        line = [line for line in broker.log.splitlines() if " start: " in line][-1]
        assert ("recovered start" if number % 2 else "clean start") in line
        assert "1 topics" in line and "0 bytes removed" in line
    with Peer(broker.address) as peer:
        assert [item.value for item in peer.fetch_all("t", 11)] == [b"v"]
        assert peer.ask(Subscribe("t", "g", 11, "commit")) == Offset(1)
        assert len(peer.ask(Metadata("t")).partitions) == 12


def test_a_signal_right_after_the_start_is_not_lost(tmp_path: Path) -> None:
    for _ in range(3):
        broker = RunningBroker(tmp_path / "data")
        broker.start()
        broker.stop()
    assert broker.log.count("stopped") == 3


def test_auto_creation_can_be_switched_off(start_broker: StartBroker) -> None:
    broker = start_broker("--no-auto-create-topics")
    with Peer(broker.address) as peer:
        assert peer.ask(Produce("t", b"", b"v", -1)) == ErrorReply("TOPIC_NOT_FOUND: topic not found: t")
        assert peer.ask(ListTopics()).topics == ()


def test_the_topic_limit_and_what_lowering_it_does_not_undo(start_broker: StartBroker) -> None:
    broker = start_broker("--durability", "os", "--max-topics", "6")
    with Peer(broker.address) as peer:
        for number in range(6):
            peer.produce(peer.create(f"t{number}"), b"%d" % number)
        assert peer.ask(CreateTopic("t6", 1)) == ErrorReply("TOPIC_LIMIT: the broker already has 6 topics")
    broker.kill()
    broker.restart("--durability", "os", "--max-topics", "2")
    with Peer(broker.address) as peer:
        assert peer.ask(ListTopics()).topics == tuple(f"t{number}" for number in range(6))
        for number in range(6):
            assert [item.value for item in peer.fetch_all(f"t{number}")] == [b"%d" % number]
        assert isinstance(peer.ask(CreateTopic("t6", 1)), ErrorReply)


def test_the_log_names_what_listens_and_stops(start_broker: StartBroker) -> None:
    broker = start_broker()
    until(lambda: broker.address in broker.log, "the banner names the address")
    broker.stop()
    assert "stopping" in broker.log and "stopped" in broker.log
