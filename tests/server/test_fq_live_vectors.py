"""The published byte vectors of fq against a live broker: as they are, byte by byte, and all at once."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fq_peer import FqBroker, closed, connect, eventually

ROWS = json.loads((Path(__file__).parent.parent / "wire" / "fq_vectors.json").read_text())
VECTORS = {row["name"]: bytes.fromhex(row["hex"]) for row in ROWS}
MODE = VECTORS["cmd_magic"]

Send = Callable[[socket.socket, bytes], None]


def whole(raw: socket.socket, data: bytes) -> None:
    raw.sendall(data)


def byte_by_byte(raw: socket.socket, data: bytes) -> None:
    """Each byte in a segment of its own: with TCP_NODELAY and a pause that lets the broker see them one by one."""
    for at in range(len(data)):
        raw.sendall(data[at : at + 1])
        if at < 200:
            time.sleep(0.0002)


WAYS: dict[str, Send] = {"whole": whole, "byte by byte": byte_by_byte}


@pytest.fixture
def fresh() -> Iterator[FqBroker]:
    """A broker that gives out route 1 first, under the node id of the captures."""
    with FqBroker(fq_node_id="10.254.254.1", fq_key_grace_s=0.5) as broker:
        yield broker


@pytest.fixture(scope="module")
def standing() -> Iterator[FqBroker]:
    with FqBroker() as running:
        yield running


@pytest.fixture
def broker(standing: FqBroker) -> FqBroker:
    """A broker without queues: those of the test before are gone."""
    eventually(standing.server.broker.fq.all, [])
    return standing


def receive(raw: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        data = raw.recv(size - len(came))
        assert data, came
        came += data
    return came


def let_in(raw: socket.socket) -> bytes:
    """The key, from the answer to AUTH and the heartbeat behind it."""
    came = receive(raw, 133)
    assert came[:4] == VECTORS["auth_ok"][:4] and came[131:] == VECTORS["hb_after_auth"]
    return came[4:131]


def with_key(name: str, key: bytes) -> bytes:
    """A data stream of the vectors with the key of now."""
    raw = VECTORS[name]
    at = 10 if raw[:4] == b"\xcc\x50\xfe\xed" else 6
    return raw[:at] + key + raw[at + 127 :]


def answer(raw: socket.socket, send: Send, request: str, reply: str) -> None:
    send(raw, VECTORS[request])
    assert receive(raw, len(VECTORS[reply])) == VECTORS[reply], request


# --- the conversation that was captured


@pytest.mark.parametrize("way", WAYS)
def test_the_captured_conversation(fresh: FqBroker, way: str) -> None:
    send = WAYS[way]
    with connect(fresh.fq) as command:
        send(command, MODE + VECTORS["auth_plain_full"])
        key = let_in(command)
        with connect(fresh.fq) as data:
            send(data, with_key("data_magic_and_key", key))
            for request, reply in (
                ("bind_flags0", "bind_ok_1"), ("bind_trans", "bind_ok_2"), ("bind_same_again", "bind_same_id"),
                ("bind_bad_program", "bind_illegal"), ("unbind", "unbind_ok"), ("unbind_unknown", "unbind_fail"),
                ("status_req", "status_reply_zero"),
            ):  # fmt: skip
                answer(command, send, request, reply)
            answer(data, send, "msg_publish", "msg_deliver")
            answer(data, send, "msg_publish_empty", "msg_deliver_empty")
            send(data, VECTORS["msg_no_exchange"] + VECTORS["msg_no_route"])

            def status() -> bytes:
                command.sendall(VECTORS["status_req"])
                return receive(command, len(VECTORS["status_reply_counts"]))

            eventually(status, VECTORS["status_reply_counts"])
            send(command, VECTORS["hb_request_300ms"])
            assert receive(command, 4) == VECTORS["hb_from_broker"] * 2
            send(command, VECTORS["hb_from_client"])
            came = closed(command)
            assert came.endswith(VECTORS["error_heartbeat"])
            assert came.removesuffix(VECTORS["error_heartbeat"]).replace(VECTORS["hb_from_broker"], b"") == b""


def test_everything_that_needs_no_answer_first_in_one_segment(fresh: FqBroker) -> None:
    with connect(fresh.fq) as command:
        names = ("auth_plain_full", "bind_flags0", "bind_trans", "bind_same_again", "bind_bad_program", "unbind", "unbind_unknown")
        command.sendall(MODE + b"".join(VECTORS[name] for name in names))
        key = let_in(command)
        replies = ("bind_ok_1", "bind_ok_2", "bind_same_id", "bind_illegal", "unbind_ok", "unbind_fail")
        expected = b"".join(VECTORS[name] for name in replies)
        assert receive(command, len(expected)) == expected
        with connect(fresh.fq) as data:
            data.sendall(with_key("data_magic_and_key", key) + VECTORS["msg_publish"] + VECTORS["msg_publish_empty"])
            expected = VECTORS["msg_deliver"] + VECTORS["msg_deliver_empty"]
            assert receive(data, len(expected)) == expected


# --- refusals


REFUSALS = [row["reply_to"] for row in ROWS if row["name"].startswith("err_") and "reply_to" in row]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("request_name", REFUSALS)
def test_a_refusal(broker: FqBroker, request_name: str, way: str) -> None:
    reply = VECTORS[request_name.removesuffix("_req")]
    with connect(broker.fq) as owner, connect(broker.fq) as private:
        # What the captures found: `pub` is public and drops, `priv` is private and in use.
        for raw, detail in ((owner, b"pub\0mem:public,drop"), (private, b"priv\0mem")):
            raw.sendall(MODE + b"\xaa\xaa\0\0\0\1u" + len(detail).to_bytes(2, "big") + detail + b"\0\0")
            let_in(raw)
        with connect(broker.fq) as asking:
            # The broker need not wait for the rest of what is wrong already.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                WAYS[way](asking, MODE + VECTORS[request_name])
            assert closed(asking) == reply


@pytest.mark.parametrize("name", ["auth_empty_queue", "auth_no_nul"])
def test_a_queue_without_a_type(broker: FqBroker, name: str) -> None:
    with connect(broker.fq) as raw:
        raw.sendall(MODE + VECTORS[name])
        let_in(raw)
        (queue,) = broker.server.broker.fq.all()
        detail = queue.detail
        assert (detail.kind, detail.private, detail.policy, detail.backlog) == ("mem", True, "drop", 16384)
        invented = detail.name.startswith(b"auto-") and len(detail.name) == 41
        assert invented == (name == "auth_empty_queue")
    eventually(broker.server.broker.fq.all, [])


# --- HTTP


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["http_submit", "http_submit_missing_route", "http_404"])
def test_http(broker: FqBroker, name: str, way: str) -> None:
    with connect(broker.fq) as raw:
        WAYS[way](raw, VECTORS[name])
        expected = VECTORS[f"{name}_reply"]
        if name == "http_404":
            assert closed(raw) == expected
        else:
            assert receive(raw, len(expected)) == expected


# --- whole streams of real programs


def talk(broker: FqBroker, command_name: str, data_name: str | None, linger: bool) -> tuple[socket.socket, socket.socket | None]:
    """Send what a program sends: its commands as soon as it is let in, its data with its key."""
    command = connect(broker.fq)
    stream = VECTORS[command_name]
    cut = _auth_end(stream)
    command.sendall(stream[:cut])
    key = let_in(command)
    command.sendall(stream[cut:])
    data = None
    if data_name is not None:
        data = connect(broker.fq)
        data.sendall(with_key(data_name, key))
        if not linger:
            command.close()
            data.close()
    return command, data


def _auth_end(stream: bytes) -> int:
    at = 4 + 4
    for _ in range(3):
        at += 2 + int.from_bytes(stream[at : at + 2], "big")
    return at


@pytest.mark.parametrize(
    ("sender", "delivered"),
    [("real_fq_sndr", 2), ("real_fqs", 1)],
)
def test_what_senders_write_is_received_although_they_close_at_once(fresh: FqBroker, sender: str, delivered: int) -> None:
    stream = VECTORS[f"{sender}_data"]
    exchange = stream[134 : 134 + stream[133]]
    with connect(fresh.fq) as command:
        command.sendall(MODE + b"\xaa\xaa\0\0\0\1u\0\2rr\0\0")
        key = let_in(command)
        command.sendall(b"\xb1\x70\0\0" + len(exchange).to_bytes(2, "big") + exchange + b"\0\x07prefix:")
        assert receive(command, 6)[:2] == b"\xb1\x71"
        with connect(fresh.fq) as data:
            data.sendall(with_key("data_magic_and_key", key))
            talk(fresh, f"{sender}_cmd", f"{sender}_data", linger=False)
            sent = stream[133:]
            came = b""
            while came.count(exchange) < delivered:
                came += data.recv(10000)
            assert sent[-10:] == came[-10:]


def test_a_receiver_gets_its_deliveries(fresh: FqBroker) -> None:
    command, _ = talk(fresh, "real_fq_rcvr_cmd", None, linger=True)
    with command:
        assert receive(command, 6) == VECTORS["bind_ok_1"]


@pytest.mark.parametrize("name", ["real_fqreal_perm", "real_fqreal_trans"])
def test_the_tool_that_installs_queues(fresh: FqBroker, name: str) -> None:
    command, data = talk(fresh, f"{name}_cmd", f"{name}_data", linger=True)
    assert data is not None
    with command, data:
        assert receive(command, 6) == VECTORS["bind_ok_1"]
        queue = fresh.server.broker.fq.all()[0]
        assert queue.permanent == name.endswith("perm")
        assert [binding.permanent for binding in queue.bindings.values()] == [name.endswith("perm")]
    eventually(lambda: len(fresh.server.broker.fq.all()), 1 if name.endswith("perm") else 0)


@pytest.mark.parametrize("name", ["real_java_cmd", "real_node_cmd"])
def test_clients_in_other_languages(fresh: FqBroker, name: str) -> None:
    command, _ = talk(fresh, name, None, linger=True)
    with command:
        came = receive(command, 2)
        while b"\xb1\x71" not in came or b"\x57\xa7\x00\x0adropped_in" not in came:
            came += command.recv(1000)
        command.sendall(VECTORS["real_node_status_req"])
        while not came.endswith(b"\0\0"):
            came += command.recv(1000)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("preamble", ["peer_data_preamble", "peer_old_preamble"])
def test_a_peer(way: str, preamble: str) -> None:
    with FqBroker(fq_node_id="10.0.0.1") as broker:
        command, _ = talk(broker, "peer_cmd", None, linger=True)
        with command, connect(broker.fq) as data, connect(broker.fq) as other:
            assert receive(command, 6)[:2] == b"\xb1\x71"
            key = next(iter(broker.run(_keys(broker))))
            WAYS[way](data, with_key(preamble, key))
            other.sendall(MODE + b"\xaa\xaa\0\0\0\5alice\0\2oo\0\0")
            with connect(broker.fq) as writer:
                writer.sendall(with_key("data_magic_and_key", let_in(other)))
                frame = VECTORS["peer_deliver"]
                exchange_size = frame[0]
                route_at = 1 + exchange_size
                id_at = route_at + 1 + frame[route_at]
                sender_at = id_at + 16
                hops_at = sender_at + 1 + frame[sender_at]
                writer.sendall(frame[:sender_at] + frame[hops_at + 9 :])
                came = receive(data, len(frame) - frame[sender_at] + 5)
                assert came[:sender_at] == frame[:sender_at] and came[-9:] == frame[-9:]
                assert bytes((10, 0, 0, 1, 127, 0, 0, 1)) in came
                # What a peer publishes has its sender and its hops already; this broker is put in front of them.
                sent = VECTORS["peer_publish"]
                hops = bytes((2, 10, 0, 0, 9, 127, 0, 0, 1))
                WAYS[way](data, sent)
                expected = sent.replace(hops, bytes((3, 10, 0, 0, 1)) + hops[1:])
                assert hops in sent and receive(data, len(expected)) == expected


def _keys(broker: FqBroker) -> Callable[[], object]:
    async def keys() -> list[bytes]:
        from braidmq.server.fq_listener import FqListener

        listener = next(each for each in broker.server.listeners if isinstance(each, FqListener))
        return list(listener.clients._by_key)

    return keys


def test_no_vector_of_a_client_is_left_out() -> None:
    source = Path(__file__).read_text()
    streams = ("real_fq_sndr", "real_fqs", "real_fqreal_perm", "real_fqreal_trans")
    by_name = {f"{name}_{part}" for name in streams for part in ("cmd", "data")} | set(REFUSALS)
    unused = {row["name"] for row in ROWS if row["direction"] == "c2s" and f'"{row["name"]}"' not in source} - by_name
    assert unused == set()
