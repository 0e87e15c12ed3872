"""The fq client against the broker itself: across protocols, restarts, and queues that are kept."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import itertools
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from running_broker import RunningBroker, StartBroker

from braidmq.client import fq
from braidmq.client import sync as flymq
from braidmq.client.fq import BraidError

LISTEN = ("--listen", "flymq://127.0.0.1:0", "--listen", "fq://127.0.0.1:0")


@pytest.fixture
def served(start_broker: StartBroker) -> RunningBroker:
    return start_broker(*LISTEN, "--durability", "os")


def test_messages_there_and_back(served: RunningBroker) -> None:
    async def scenario() -> None:
        async with fq.connect(served.addresses["fq"], user="alice", queue="mine") as client:
            binding = await client.bind("logs", 'prefix:"web." payload_contains("7")')
            assert binding.route_id >= 1
            assert (await client.bind("logs", 'prefix:"web." payload_contains("7")')) is binding
            for number in range(200):
                await client.publish("logs", f"web.{number}", b"%d" % number)
            await client.flush(confirm=True)
            wanted = [number for number in range(200) if "7" in str(number)]
            found = [await anext(aiter(client)) for _ in wanted]
            assert [int(message.payload) for message in found] == wanted
            assert {message.sender for message in found} == {b"alice"} and all(message.hops for message in found)
            assert {message.exchange for message in found} == {b"logs"}
            assert (await client.status())["msgs_in"] == 200
            with pytest.raises(BraidError, match="INVALID_PROGRAM"):
                await client.bind("logs", "nonsense")
            assert await client.unbind(binding)

    asyncio.run(scenario())


def test_a_flymq_record_comes_out_of_a_queue_and_the_other_way_round(served: RunningBroker) -> None:
    with fq.sync.connect(served.addresses["fq"], user="me") as client, flymq.connect(served.address) as fly:
        fly.create_topic("both", 1)
        client.bind("both")
        fly.produce("both", b"from flymq", key=b"the.key")
        message = next(client)
        assert (message.exchange, message.route, message.payload) == (b"both", b"the.key", b"from flymq")
        client.publish("both", "the.route", b"from fq")
        client.flush(confirm=True)
        assert next(client).payload == b"from fq"
        records = fly.fetch("both", 0, 0).records
        assert [(record.key, record.value) for record in records] == [(b"the.key", b"from flymq"), (b"the.route", b"from fq")]


def test_a_permanent_queue_survives_a_restart_and_the_client_comes_back(served: RunningBroker) -> None:
    with fq.sync.connect(
        served.addresses["fq"], queue="kept", queue_type="disk:public,drop,permanent", backoff_most_s=0.1
    ) as client:
        client.bind("logs", "prefix:", fq.FLAGS_PERMANENT)
        client.publish("logs", "a", b"before")
        client.flush(confirm=True)
        assert next(client).payload == b"before"
        served.restart()
        client.publish("logs", "a", b"after")
        client.flush(confirm=True)
        assert next(client).payload == b"after"
        assert client.reconnects >= 1


def test_consumers_of_one_queue_share_it(served: RunningBroker) -> None:
    address = served.addresses["fq"]
    with (
        fq.sync.connect(address, queue="shared") as one,
        fq.sync.connect(address, queue="shared") as two,
        fq.sync.connect(address, queue="sender") as sender,
    ):
        one.bind("work")
        for number in range(1000):
            sender.publish("work", "r", b"%d" % number)
        sender.flush(confirm=True)
        found: list[list[int]] = [[], []]
        while sum(map(len, found)) < 1000:
            for mine, client in zip(found, (one, two), strict=True):
                mine += [int(message.payload) for message in client.poll(timeout_s=0.05)]
        assert sorted(itertools.chain(*found)) == list(range(1000))
        assert all(mine == sorted(mine) and mine for mine in found)


def test_a_private_queue_has_one_client(served: RunningBroker) -> None:
    address = served.addresses["fq"]
    with fq.sync.connect(address, queue="own", queue_type="mem:private"):
        with pytest.raises(BraidError) as caught, fq.sync.connect(address, queue="own", queue_type="mem:private"):
            raise AssertionError("two clients of a private queue")
        assert caught.value.code == "QUEUE_IN_USE"
        with pytest.raises(BraidError) as caught, fq.sync.connect(address, queue="own", queue_type="disk:private"):
            raise AssertionError("another type")
    assert caught.value.code == "QUEUE_IN_USE"


def test_the_same_behind_tls(start_broker: StartBroker, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    listen = ("--listen", "flymq://127.0.0.1:0", "--listen", "fqs://127.0.0.1:0")
    broker = start_broker(*listen, "--tls-cert-file", certificate, "--tls-key-file", key)
    address = next(at for name, at in broker.addresses.items() if name.startswith("fq"))

    async def scenario() -> None:
        async with fq.connect(f"fqs://{address}", queue="one", tls_ca_file=certificate) as client:
            await client.bind("secret")
            for number in range(2000):
                await client.publish("secret", "r", b"%d" % number)
        async with fq.connect(address, queue="two", tls=True, tls_ca_file=certificate) as client:
            await client.bind("secret")
            with fq.sync.connect(f"fqs://{address}", queue="three", tls_ca_file=certificate) as sender:
                sender.bind("secret")
                for number in range(2000):
                    sender.publish("secret", "r", b"%d" % number)
            found = [int((await anext(client)).payload) for _ in range(2000)]
            assert found == list(range(2000)), "closing let everything out, unread deliveries or not"

    asyncio.run(scenario())
    with flymq.connect(broker.address) as client:
        assert sum(part.newest for part in client.metadata("secret").partitions) == 4000
    with pytest.raises(BraidError, match=r"UNREACHABLE.*certificate verify failed"):
        fq.sync.connect(f"fqs://{address}", timeout_s=0.1).open()


def make_certificate(folder: Path) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1)).add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    paths = folder / "broker.pem", folder / "broker.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return str(paths[0]), str(paths[1])


def test_everything_published_before_closing_arrives(served: RunningBroker) -> None:
    address = served.addresses["fq"]
    with fq.sync.connect(address, queue="all", queue_type="mem:public,drop,backlog=-1") as reader:
        reader.bind("burst")
        for turn in range(20):
            with fq.sync.connect(address) as sender:
                for number in range(500):
                    sender.publish("burst", "r", b"%d" % (turn * 500 + number))
        assert [int(message.payload) for message in itertools.islice(reader, 10_000)] == list(range(10_000))
