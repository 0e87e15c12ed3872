"""`braid produce --via` and `braid consume --via`, against a broker as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from running_broker import RunningBroker

from braidmq.cli.exits import Exit
from braidmq.client.sync import connect

LISTENERS = tuple(flag for scheme in ("flymq", "blipmq", "fq") for flag in ("--listen", f"{scheme}://127.0.0.1:0"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    broker = RunningBroker(tmp_path_factory.mktemp("via") / "data", (*LISTENERS, "--durability", "os"))
    broker.start()
    try:
        yield broker
        broker.stop()
    finally:
        if broker.running:
            broker.kill()


def braid(*arguments: str, feed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "braidmq", *arguments], input=feed, capture_output=True, timeout=120, check=False)


def via(server: RunningBroker, protocol: str) -> tuple[str, ...]:
    return ("--via", protocol, "--server", server.addresses[protocol])


def stored(server: RunningBroker, topic: str, count: int) -> list[tuple[bytes | None, bytes, dict[str, bytes]]]:
    with connect(server.address) as client, client.consumer(topic, start="earliest") as consumer:
        found = []
        while len(found) < count:
            records = consumer.poll(100, 20)
            assert records, f"{len(found)} of {count} came"
            found += [(record.key, record.value, record.headers) for record in records]
        return found


def test_blipmq_takes_messages_with_headers(server: RunningBroker) -> None:
    done = braid("produce", "a/b", "--header", "kind=test", *via(server, "blipmq"), feed=b"one\ntwo\n")
    assert (done.returncode, done.stdout) == (Exit.OK, b"")
    assert b"2 messages acknowledged" in done.stderr
    assert stored(server, "a/b", 2) == [(None, b"one", {"x-kind": b"test"}), (None, b"two", {"x-kind": b"test"})]


def test_a_blipmq_message_may_have_headers_and_a_time_to_live(server: RunningBroker) -> None:
    done = braid("produce", "both", "value", "--header", "x-kind=test", "--ttl", "1h", *via(server, "blipmq"))
    assert done.returncode == Exit.OK, done.stderr
    assert stored(server, "both", 1) == [(None, b"value", {"x-kind": b"test"})]


def test_fq_takes_messages_with_a_route(server: RunningBroker) -> None:
    done = braid("produce", "logs", "--key-separator", ":", *via(server, "fq"), feed=b"web.access:GET\nweb.error:oops\n")
    assert done.returncode == Exit.OK, done.stderr
    assert b"2 messages read by the broker" in done.stderr and b"acknowledged" not in done.stderr, "fq acknowledges nothing"
    assert [(key, value) for key, value, _ in stored(server, "logs", 2)] == [(b"web.access", b"GET"), (b"web.error", b"oops")]


@pytest.mark.parametrize(
    ("protocol", "option"),
    [("blipmq", "--key=k"), ("blipmq", "--partition=0"), ("blipmq", "--delay=1s"), ("fq", "--ttl=1s"), ("fq", "--header=a=b")],
)
def test_what_a_protocol_has_no_place_for_is_refused(server: RunningBroker, protocol: str, option: str) -> None:
    done = braid("produce", "refused", "value", option, *via(server, protocol))
    assert done.returncode != Exit.OK
    assert f"has no place in {protocol}".encode() in done.stderr
    with connect(server.address) as client:
        assert "refused" not in client.list_topics()


@pytest.mark.parametrize("protocol", ["blipmq", "fq"])
def test_a_group_goes_on_where_it_stopped(server: RunningBroker, protocol: str) -> None:
    """The first run makes the group known to the broker; what comes between the runs is kept for it."""
    topic = f"kept-{protocol}"
    with connect(server.address) as client:
        client.create_topic(topic, 1)
        first = subprocess.Popen(
            [sys.executable, "-m", "braidmq", "consume", topic, "--group", "mine", "--count", "1", *via(server, protocol)],
            stdout=subprocess.PIPE,
        )
        try:
            while not any(info.group.endswith("mine") and info.topic == topic for info in client.group.ls()):
                assert first.poll() is None
            client.produce(topic, b"one")
            assert first.communicate(timeout=60)[0] == b"one\n"
        finally:
            first.kill()
            first.wait()
        client.produce(topic, b"two")
        client.produce(topic, b"three")
    second = braid("consume", topic, "--group", "mine", "--count", "2", "-o", "json", *via(server, protocol))
    assert [json.loads(line)["value"] for line in second.stdout.splitlines()] == ["two", "three"], second.stderr


def test_what_could_not_be_printed_is_not_acknowledged(server: RunningBroker) -> None:
    group = ("--group", "piped", *via(server, "blipmq"))
    assert braid("consume", "piped", "--count", "0", *group).returncode == Exit.OK, "known to the broker from now on"
    assert braid("produce", "piped", *via(server, "blipmq"), feed=b"1\n2\n3\n").returncode == Exit.OK
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "braidmq", "consume", "piped", "--count", "3", *group]
    subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writing)
    done = braid("consume", "piped", "--count", "3", *group)
    assert done.stdout.split() == [b"1", b"2", b"3"]
