"""The published byte vectors of BlipMQ with their meaning as values, and strategies for any message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from proof_length import length

from braidmq.base.limits import BLIPMQ_METADATA_ENTRIES_MAX
from braidmq.wire.blipmq import (
    Ack,
    AnyMessage,
    Envelope,
    ErrorMessage,
    Message,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    binary1,
    legacy,
)

quick = settings(max_examples=length(60, 300), deadline=None, database=None)
"""No deadline, because the machine may be busy with other things; no database, so that every run starts the same."""


class Vector(NamedTuple):
    name: str
    data: bytes
    fields: dict[str, Any]

    @property
    def framing(self) -> str:
        return str(self.fields["framing"])

    @property
    def valid(self) -> bool:
        return bool(self.fields["valid"])


def load_vectors() -> list[Vector]:
    with (Path(__file__).parent / "blipmq_vectors.json").open() as file:
        return [Vector(row["name"], bytes.fromhex(row["hex"]), row["fields"]) for row in json.load(file)]


VECTORS = load_vectors()
BY_NAME = {vector.name: vector for vector in VECTORS}
FLATBUFFERS = [vector for vector in VECTORS if vector.framing == "flatbuffers"]
SOUND = [vector for vector in FLATBUFFERS if vector.valid]
BAD = [vector for vector in FLATBUFFERS if not vector.valid]


def envelope_of(fields: dict[str, Any]) -> Envelope:
    """What a valid vector of the FlatBuffers framing says."""
    message: AnyMessage
    match fields["type"]:
        case "Subscribe":
            message = Subscribe(fields["topic"], fields["qos"], fields["client_id"])
        case "Unsubscribe":
            message = Unsubscribe(fields["topic"], fields["client_id"])
        case "Publish":
            payload = bytes.fromhex(fields["payload_hex"])
            message = Publish(fields["topic"], payload, fields["qos"], fields["ttl_ms"], fields["message_id"])
        case "Message":
            payload = bytes.fromhex(fields["payload_hex"])
            message = Message(fields["topic"], payload, fields["message_id"], fields["timestamp"], fields["qos"])
        case "Ack":
            message = Ack(fields["message_id"], fields["error_code"])
        case "Ping":
            message = Ping(fields["timestamp"])
        case "Pong":
            message = Pong(fields["timestamp"])
        case _:
            message = ErrorMessage(fields["error_code"], fields["message"], fields["details"])
    metadata = tuple((key, value) for key, value in fields.get("metadata", ()))
    return Envelope(message, fields["sequence_number"], fields["envelope_timestamp"], metadata)


def binary1_of(fields: dict[str, Any]) -> binary1.Frame:
    """What a vector of the binary framing says."""
    message: binary1.Message
    match binary1.Type(fields["frame_type"]):
        case binary1.Type.HELLO:
            message = binary1.Hello(fields["protocol_version"])
        case binary1.Type.AUTH:
            message = binary1.Auth(fields["api_key"].encode())
        case binary1.Type.PUBLISH:
            message = binary1.Publish(fields["topic"], bytes.fromhex(fields["payload_hex"]), fields["qos"])
        case binary1.Type.SUBSCRIBE:
            message = binary1.Subscribe(fields["topic"], fields["qos"])
        case binary1.Type.ACK:
            message = binary1.Ack(fields["subscription_id"])
        case binary1.Type.NACK:
            message = binary1.Nack(fields["code"], fields["message"])
        case binary1.Type.PING:
            message = binary1.Ping()
        case binary1.Type.PONG:
            message = binary1.Pong()
        case binary1.Type.POLL:
            message = binary1.Poll(fields["subscription_id"])
    return binary1.Frame(message, fields["correlation_id"])


def legacy_of(fields: dict[str, Any]) -> legacy.Command | legacy.SubAck | legacy.Message:
    """What a vector of the legacy framing says."""
    match fields.get("kind"):
        case None:
            payload = bytes.fromhex(fields["payload_hex"])
            return legacy.Command(legacy.Action[fields["action"]], fields["topic"], payload, fields["ttl_ms"])
        case 0:
            return legacy.SubAck(fields["topic"], fields["info"])
        case _:
            payload = bytes.fromhex(fields["payload_hex"])
            return legacy.Message(fields["id"], payload, fields["timestamp"], fields["ttl_ms"])


# --- any message

texts = st.text(max_size=30)
maybe_texts = st.none() | texts
octets = st.integers(0, 255)
qualities = st.integers(-128, 127)
numbers = st.integers(0, 2**64 - 1) | st.integers(0, 5)
payloads = st.binary(max_size=60)
messages = (
    st.builds(Subscribe, texts, qualities, maybe_texts)
    | st.builds(Unsubscribe, texts, maybe_texts)
    | st.builds(Publish, texts, payloads, qualities, numbers, maybe_texts)
    | st.builds(Message, texts, payloads, maybe_texts, numbers, qualities)
    | st.builds(Ack, texts, octets)
    | st.builds(Ping, numbers)
    | st.builds(Pong, numbers)
    | st.builds(ErrorMessage, octets, maybe_texts, maybe_texts)
)
metadatas = st.lists(st.tuples(st.text(max_size=12), texts), max_size=4).map(tuple) | st.just(
    tuple((f"k{number}", "v") for number in range(BLIPMQ_METADATA_ENTRIES_MAX))
)
envelopes = st.builds(Envelope, messages, numbers, numbers, metadatas)
