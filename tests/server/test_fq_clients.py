"""The habits of published clients, each as a small stand-in that does on the wire what the real one does.

    C (libfq)   five small writes for AUTH, the data connection some milliseconds later, each field read with one call
    fqs         publishes and closes both connections at once
    fqtool      needs the answer to its bind, and nothing else, to exit
    Java        reads, then writes, one thing at a time; needs heartbeats to get on
    Node        opens both connections first; two zero bytes behind a status request; refuses messages from nobody
    Go          heartbeats every second, answers them
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from fq_peer import FqBroker, FqPeer, connect, eventually, new_name, request, stats

from braidmq.wire.fq.messages import Message, encode_message


@pytest.fixture(scope="module")
def broker() -> Iterator[FqBroker]:
    with FqBroker(default_partitions=2) as running:
        yield running


def u16(number: int) -> bytes:
    return number.to_bytes(2, "big")


def str16(raw: bytes) -> bytes:
    return u16(len(raw)) + raw


def read_field(raw: socket.socket, size: int) -> bytes:
    """One call, as C and Java do: a short read is fatal to them."""
    data = raw.recv(size)
    assert len(data) == size, f"a short read: {len(data)} of {size}"
    return data


def exactly(raw: socket.socket, size: int) -> bytes:
    came = b""
    while len(came) < size:
        data = raw.recv(size - len(came))
        assert data, "closed"
        came += data
    return came


@dataclass
class LibFq:
    """The C client, as far as its two connections go."""

    address: str
    queue: bytes
    kind: bytes = b"mem:public,drop"
    user: bytes = b"c-user"
    command: socket.socket = field(init=False)
    data: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self.command = connect(self.address)
        detail = self.queue + b"\0" + self.kind
        for piece in (b"\xcc\x50\xca\xfe", b"\xaa\xaa" + u16(0), str16(self.user), str16(detail), str16(b"nopass")):
            self.command.sendall(piece)
        assert read_field(self.command, 2) == b"\xaa\x00"
        size = int.from_bytes(read_field(self.command, 2), "big")
        assert size == 127
        key = read_field(self.command, size)
        time.sleep(0.016)
        self.data = connect(self.address)
        self.data.sendall(b"\xcc\x50\xfa\xce" + str16(key))

    def bind(self, exchange: bytes, program: bytes, flags: int) -> int:
        self.command.sendall(b"\xb1\x70" + u16(flags) + str16(exchange) + str16(program))
        while (code := read_field(self.command, 2)) == b"\xbe\xa7":
            self.command.sendall(b"\xbe\xa7")
        assert code == b"\xb1\x71"
        return int.from_bytes(read_field(self.command, 4), "big")

    def publish(self, exchange: bytes, route: bytes, payload: bytes) -> None:
        self.data.sendall(encode_message(Message(exchange, route, (7).to_bytes(4, "little") + bytes(12), payload), False))

    def receive(self) -> bytes:
        """The payload of the next delivery, read as the C client reads it."""
        for _ in range(2):
            exactly(self.data, exactly(self.data, 1)[0])
        exactly(self.data, 16)
        exactly(self.data, exactly(self.data, 1)[0])
        exactly(self.data, 4 * exactly(self.data, 1)[0])
        return exactly(self.data, int.from_bytes(exactly(self.data, 4), "big"))

    def close(self) -> None:
        self.command.close()
        self.data.close()


def test_a_receiver_and_a_sender_in_c(broker: FqBroker) -> None:
    exchange = new_name()
    receiver = LibFq(broker.fq, new_name("rcvr"))
    assert receiver.bind(exchange, b'prefix:"test.prefix." sample(1)', 0x0100) != 0xFFFFFFFF
    sender = LibFq(broker.fq, new_name("sndr"))
    for number in range(50):
        sender.publish(exchange, b"test.prefix.boo", b"%d" % number)
    assert [receiver.receive() for _ in range(50)] == [b"%d" % number for number in range(50)]
    receiver.close()
    sender.close()


def test_one_line_a_hundred_times(broker: FqBroker) -> None:
    exchange = new_name()
    with FqPeer(broker.fq) as reader:
        reader.bind(exchange)
        data = reader.data()
        for number in range(100):
            fqs = LibFq(broker.fq, b"fqs-%d" % number, b"mem")
            fqs.publish(exchange, b"line", b"%d\n" % number)
            fqs.close()
        assert sorted(data.payloads(100)) == sorted(b"%d\n" % number for number in range(100))


def test_the_tool_installs_and_uninstalls(broker: FqBroker) -> None:
    exchange, queue = new_name(), new_name("tool")
    installing = LibFq(broker.fq, queue, b"mem:permanent,public,backlog=-1")
    first = installing.bind(exchange, b"prefix:", 0x0110)
    installing.close()
    eventually(lambda: stats(broker.fq)["queues"].get(queue.decode(), {}).get("refcnt"), 0)
    # The benchmark's queue: it publishes into an exchange that the binding keeps alive.
    bench = LibFq(broker.fq, b"benchmark_queue", b"mem:public,drop,backlog=10000,permanent")
    bench.publish(exchange, b"bench", b"x" * 100)
    eventually(lambda: stats(broker.fq)["queues"][queue.decode()]["backlog"], 1)
    bench.close()
    removing = LibFq(broker.fq, queue, b"mem:transient,public")
    assert removing.bind(exchange, b"prefix:", 0x0100) == first
    assert removing.receive() == b"x" * 100
    removing.close()
    eventually(lambda: queue.decode() in stats(broker.fq)["queues"], False)


def test_java_gets_on_with_what_arrives(broker: FqBroker) -> None:
    """Its command loop reads one thing, then sends what waits: without heartbeats nothing would ever be sent."""
    exchange = new_name()
    with connect(broker.fq) as command, connect(broker.fq) as data:
        command.sendall(b"\xcc\x50\xca\xfe\xaa\xaa\0\0" + str16(b"jrcv") + str16(b"jq-" + exchange + b"\0mem") + str16(b"pw"))
        assert read_field(command, 4) == b"\xaa\x00\x00\x7f"
        key = read_field(command, 127)
        data.sendall(b"\xcc\x50\xfa\xce" + str16(key))
        waiting = [
            b"\xc7\xa7", b"\x48\x48" + u16(10_000),
            b"\xb1\x70\0\0" + str16(exchange) + str16(b'prefix:"test." sample(1)'), b"\xbe\xa7",
        ]  # fmt: skip
        bound = False
        while waiting or not bound:
            code = read_field(command, 2)
            if code == b"\x57\xa7":
                while size := int.from_bytes(read_field(command, 2), "big"):
                    read_field(command, size)
                    read_field(command, 4)
            elif code == b"\xb1\x71":
                assert read_field(command, 4) != b"\xff" * 4
                bound = True
            else:
                assert code == b"\xbe\xa7"
            if waiting:
                command.sendall(waiting.pop(0))
        data.sendall(encode_message(Message(exchange, b"test.empty", bytes(16), b""), False))
        assert exactly(data, 1 + len(exchange))[1:] == exchange


def test_node_opens_both_connections_first(broker: FqBroker) -> None:
    exchange = new_name()
    with connect(broker.fq) as command, connect(broker.fq) as data:
        command.sendall(b"\xcc\x50\xca\xfe")
        command.sendall(b"\xaa\xaa\0\0" + str16(b"nodeu") + str16(b"n-" + exchange + b"\0mem") + str16(b"pass"))
        key = exactly(command, 133)[4:131]
        command.sendall(b"\x48\x48" + u16(1000))
        command.sendall(b"\xb1\x70" + u16(0x0100) + str16(exchange) + str16(b'prefix:"n." sample(1)'))
        assert exactly(command, 2) == b"\xbe\xa7", "one at once, since heartbeats were asked for"
        assert exactly(command, 2) == b"\xb1\x71"
        route = exactly(command, 4)
        # The data connection was silent until now.
        data.sendall(b"\xcc\x50\xfa\xce" + str16(key))
        request(broker.fq, "POST", "/submit", {"X-Fq-Exchange": exchange.decode(), "X-Fq-Route": "n.1"}, b"payload")
        head = exactly(data, 1 + len(exchange) + 1 + 3 + 16)
        assert head[1 : 1 + len(exchange)] == exchange
        sender = exactly(data, exactly(data, 1)[0])
        hops = exactly(data, 1)[0]
        assert sender and hops, "it refuses a message from nobody that came nowhere through"
        exactly(data, 4 * hops + 4 + len(b"payload"))
        for _ in range(2):
            command.sendall(b"\xc7\xa7\0\0")
            assert exactly(command, 2) == b"\x57\xa7"
            keys = []
            while size := int.from_bytes(exactly(command, 2), "big"):
                keys.append(exactly(command, size))
                exactly(command, 4)
            assert keys[0] == b"dropped_in" and len(keys) == 10
        command.sendall(b"\x07\x1b" + route + str16(exchange))
        assert exactly(command, 6) == b"\x17\x1b" + route


def test_go_answers_heartbeats_and_lives(broker: FqBroker) -> None:
    with connect(broker.fq) as command:
        command.sendall(b"\xcc\x50\xca\xfe\xaa\xaa\0\0" + str16(b"go") + str16(new_name("go")) + str16(b""))
        exactly(command, 133)
        command.sendall(b"\x48\x48" + u16(40))
        for _ in range(12):
            assert exactly(command, 2) == b"\xbe\xa7"
            command.sendall(b"\xbe\xa7")
