"""A broker that was held up itself, by a busy machine or a debugger, does not blame its clients for the silence.

What they sent meanwhile lies in its sockets, and is read before anybody is judged.
"""

from __future__ import annotations

import signal
import time

from blipmq_peer import BlipMQPeer, delivered
from flymq_peer import Peer
from fq_peer import FqPeer
from running_broker import StartBroker

from braidmq.wire import flymq
from braidmq.wire.blipmq import Ping, Pong
from braidmq.wire.fq.commands import Heartbeat, HeartbeatRequest, Status, StatusRequest

FLAGS = (
    *(part for scheme in ("flymq", "blipmq", "fq") for part in ("--listen", f"{scheme}://127.0.0.1:0")),
    "--durability", "os", "--idle-timeout", "4s", "--blipmq-keepalive", "2s", "--blipmq-ack-timeout", "4s",
)  # fmt: skip
BEAT_MS = 1300
STALL_S = 5.0
"""Longer than all of these: the idle time-out, two intervals of keepalive, the time for an Ack, three heartbeats."""


def test_a_broker_that_was_held_up_reads_before_it_judges(start_broker: StartBroker) -> None:
    broker = start_broker(*FLAGS)
    with (
        Peer(broker.address) as idle,
        FqPeer(broker.addresses["fq"]) as beating,
        BlipMQPeer(broker.addresses["blipmq"]) as subscriber,
        BlipMQPeer(broker.addresses["blipmq"]) as publisher,
    ):
        idle.create("topic")
        subscriber.subscribe("news", 1, "steady")
        publisher.publish("news", b"once", "m-1")
        first = subscriber.receive()
        assert delivered(first).payload == b"once"
        beating.send(HeartbeatRequest(BEAT_MS))
        assert beating.reply(Heartbeat) == Heartbeat()

        broker.signal(signal.SIGSTOP)
        try:
            idle.send(idle.encode(flymq.Produce("topic", b"", b"x", 0)))
            beating.send(StatusRequest())
            subscriber.ack(first)
            publisher.send(Ping(7))
            time.sleep(STALL_S)
        finally:
            broker.signal(signal.SIGCONT)

        assert isinstance(idle.decode(flymq.Produce.op, idle.receive_frame()), flymq.RecordMetadata)
        while isinstance(reply := beating.next_reply(), Heartbeat):
            pass
        assert isinstance(reply, Status), reply
        assert publisher.receive().message == Pong(7)
        publisher.publish("news", b"next", "m-2")
        assert delivered(subscriber.receive()).payload == b"next", "not the first one again"
