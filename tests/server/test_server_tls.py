"""TLS listeners: what they speak, what they refuse, and that a session behind TLS is the same session."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest
from authority import Authority
from flymq_peer import Peer, batch, records_of
from running_broker import RunningBroker, StartBroker

from braidmq.wire.flymq import Consume, ErrorReply, Fetch, FetchBatches, ListTopics, Message, Op, Produce, ProduceBatch, TopicList


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


def _start(start_broker: StartBroker, authority: Authority, *flags: str, env: dict[str, str] | None = None) -> RunningBroker:
    certificate, key = authority.issue("broker")
    return start_broker(
        "--listen", "flymq://127.0.0.1:0", "--listen", "flymqs://127.0.0.1:0", "--tls-cert-file", str(certificate),
        "--tls-key-file", str(key), "--durability", "os", *flags, env=env,
    )


@pytest.mark.parametrize("env", [{}, {"BRAID_PURE": "1"}], ids=["compiled", "pure"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_a_conversation_behind_tls(
    start_broker: StartBroker, authority: Authority, env: dict[str, str], version: ssl.TLSVersion
) -> None:
    broker = _start(start_broker, authority, env=env)
    context = authority.client()
    context.minimum_version = context.maximum_version = version
    large = random.Random(1).randbytes(5 << 20)
    with Peer(broker.addresses["flymqs"], tls=context) as peer, Peer(broker.address) as plain:
        topic = peer.create("t")
        replies = peer.ask_all(
            *(Produce(topic, b"", b"%d" % n, 0) for n in range(2000)), Fetch(topic, 0, 1990, 100),
            ProduceBatch(topic, 0, batch(b"in", b"bulk")), Produce(topic, b"", large, 0), Consume(topic, 0, 2002),
            FetchBatches(topic, 0, 2002, 1, 1, 0),
        )
        assert [reply.offset for reply in replies[:2000]] == list(range(2000))
        assert [item.offset for item in replies[2000].items] == list(range(1990, 2000))
        assert replies[-2] == Message(b"", large)
        assert records_of(replies[-1].batches) == [(2002, None, large)]
        assert plain.ask(Consume(topic, 0, 2002)) == Message(b"", large)
        assert peer.ask(Consume("missing", 0, 0)) == ErrorReply("TOPIC_NOT_FOUND: topic not found: missing")


def test_older_versions_are_refused(start_broker: StartBroker, authority: Authority) -> None:
    broker = _start(start_broker, authority)
    context = authority.client()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        Peer(broker.addresses["flymqs"], tls=context)
    with Peer(broker.addresses["flymqs"], tls=authority.client()) as peer:
        assert peer.ask(ListTopics()) == TopicList(())


def test_plain_text_on_a_tls_port_is_refused(start_broker: StartBroker, authority: Authority) -> None:
    broker = _start(start_broker, authority)
    with Peer(broker.addresses["flymqs"]) as plain:
        plain.send(plain.encode(ListTopics()))
        # A TLS alert may come before the end; an answer may not.
        assert b"\xaf\x01" not in plain.rest()
    with Peer(broker.addresses["flymqs"], tls=authority.client()) as peer:
        assert peer.ask(ListTopics()) == TopicList(())


def _asks(address: str, context: ssl.SSLContext) -> object:
    """What a client gets. With TLS 1.3 it learns only from its first read that its certificate was refused."""
    with Peer(address, tls=context) as peer:
        return peer.ask(ListTopics())


def test_with_an_authority_named_clients_must_show_a_certificate(
    start_broker: StartBroker, authority: Authority, tmp_path: Path
) -> None:
    broker = _start(start_broker, authority, "--tls-ca-file", str(authority.file))
    address = broker.addresses["flymqs"]
    stranger = Authority(tmp_path, "stranger")
    assert _asks(address, authority.client(authority.issue("client"))) == TopicList(())
    for identity in (None, stranger.issue("impostor")):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = authority.client(identity)
            context.minimum_version = context.maximum_version = version
            with pytest.raises((ssl.SSLError, ConnectionError)):
                _asks(address, context)
    assert _asks(address, authority.client(authority.issue("client"))) == TopicList(())
    assert _asks_plain(broker.address) == TopicList(())


def _asks_plain(address: str) -> object:
    with Peer(address) as peer:
        return peer.ask(ListTopics())


def test_a_client_that_does_not_trust_the_broker_goes_away_unharmed(
    start_broker: StartBroker, authority: Authority, tmp_path: Path
) -> None:
    broker = _start(start_broker, authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        _asks(broker.addresses["flymqs"], Authority(tmp_path, "elsewhere").client())
    assert _asks(broker.addresses["flymqs"], authority.client()) == TopicList(())
    assert "Traceback" not in broker.log, broker.log


def test_a_wrong_frame_behind_tls_closes_the_connection(start_broker: StartBroker, authority: Authority) -> None:
    broker = _start(start_broker, authority)
    with Peer(broker.addresses["flymqs"], tls=authority.client()) as peer:
        peer.create("t")
        peer.send(peer.encode(Produce("t", b"", b"v", 0)) + b"GET / HTTP/1.1\r\n\r\n")
        assert peer.receive_frame()[2] == Op.PRODUCE
        assert peer.rest() == b""
    broker.stop()
    assert "Traceback" not in broker.log, broker.log
