"""Reading and writing BlipMQ's messages with the code that the FlatBuffers compiler made from the schema."""

from __future__ import annotations

from typing import Any

import blipmq_generated as oracle
import flatbuffers
from blipmq_verifier import UNION

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
)


def text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def read(body: bytes) -> Envelope:
    """What the generated code finds in a buffer."""
    root = oracle.ProtocolMessage.GetRootAs(body, 0)
    kind = UNION[root.MessageType()]
    table = getattr(oracle, kind)()
    union = root.Message()
    table.Init(union.Bytes, union.Pos)
    pairs = [root.Metadata(index) for index in range(root.MetadataLength())]
    metadata = tuple((pair.Key().decode(), (pair.Value() or b"").decode()) for pair in pairs)
    return Envelope(_message(kind, table), root.SequenceNumber(), root.Timestamp(), metadata)


def octets(table: Any) -> bytes:
    return bytes(table.PayloadAsNumpy()) if table.PayloadLength() else b""


def _message(kind: str, table: Any) -> AnyMessage:
    match kind:
        case "Subscribe":
            return Subscribe(table.Topic().decode(), table.Qos(), text(table.ClientId()))
        case "Unsubscribe":
            return Unsubscribe(table.Topic().decode(), text(table.ClientId()))
        case "Publish":
            return Publish(table.Topic().decode(), octets(table), table.Qos(), table.TtlMs(), text(table.MessageId()))
        case "Message":
            return Message(table.Topic().decode(), octets(table), text(table.MessageId()), table.Timestamp(), table.Qos())
        case "Ack":
            return Ack(table.MessageId().decode(), table.ErrorCode() & 0xFF)
        case "Ping":
            return Ping(table.Timestamp())
        case "Pong":
            return Pong(table.Timestamp())
        case _:
            return ErrorMessage(table.ErrorCode() & 0xFF, text(table.Message()), text(table.Details()))


def write(envelope: Envelope) -> bytes:
    """A buffer that the generated code makes."""
    builder = flatbuffers.Builder(64)
    message = envelope.message
    kind = "Error" if isinstance(message, ErrorMessage) else type(message).__name__
    offsets: dict[str, int] = {}
    values: dict[str, Any] = {}
    for name, value in ((name, getattr(message, name)) for name in message.__dataclass_fields__):
        if isinstance(value, bytes):
            offsets[name] = builder.CreateByteVector(value)
        elif isinstance(value, str):
            offsets[name] = builder.CreateString(value)
        elif value is not None:
            values[name] = value - 256 if name == "error_code" and value > 127 else value
    _call(kind, "Start", builder)
    for name, value in (offsets | values).items():
        field = "".join(part.title() for part in name.split("_"))
        _call(kind, "Add" + field, builder, value)
    table = _call(kind, "End", builder)
    pairs = 0
    if envelope.metadata:
        entries = []
        for key, value in envelope.metadata:
            key_at, value_at = builder.CreateString(key), builder.CreateString(value)
            oracle.MetadataStart(builder)
            oracle.MetadataAddKey(builder, key_at)
            oracle.MetadataAddValue(builder, value_at)
            entries.append(oracle.MetadataEnd(builder))
        oracle.ProtocolMessageStartMetadataVector(builder, len(entries))
        for entry in reversed(entries):
            builder.PrependUOffsetTRelative(entry)
        pairs = builder.EndVector()
    oracle.ProtocolMessageStart(builder)
    oracle.ProtocolMessageAddMessageType(builder, UNION.index(kind))
    oracle.ProtocolMessageAddMessage(builder, table)
    oracle.ProtocolMessageAddSequenceNumber(builder, envelope.sequence)
    oracle.ProtocolMessageAddTimestamp(builder, envelope.timestamp)
    if pairs:
        oracle.ProtocolMessageAddMetadata(builder, pairs)
    builder.Finish(oracle.ProtocolMessageEnd(builder))
    return bytes(builder.Output())


def _call(kind: str, name: str, *arguments: Any) -> Any:
    return getattr(oracle, kind + name)(*arguments)
