"""BlipMQ: bytes to messages and back, without sockets.

    framing = detect(first_bytes)                  which of the framings a connection speaks
    reader = FrameReader(); reader.receive(data)   frames of the FlatBuffers framing, any split
    envelope = decode(body); encode(envelope)      one frame
    check_request(envelope)                        what no client may ask for
    parse_filter(text).matches(topic)              patterns
    parse_expression(text)(candidate)              content filters

The other two framings are modules of their own, `binary1` and `legacy`.
"""

from braidmq.wire.blipmq import binary1, legacy
from braidmq.wire.blipmq.content_filter import Candidate, ContentFilter, parse_expression
from braidmq.wire.blipmq.detect import Framing, detect, unknown_framing
from braidmq.wire.blipmq.faults import Malformed, Refused, WireFault
from braidmq.wire.blipmq.frames import FRAME_BYTES_MAX, LENGTH_BYTES, FrameReader, TooLarge, body_length, decode, encode
from braidmq.wire.blipmq.messages import (
    ACK_OF_LOGIN,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    META_ACCEPT_COMPRESSION,
    META_API_KEY,
    META_ATTEMPT,
    META_BROKER_ID,
    META_COMPRESSION,
    META_DELIVERY,
    META_DLQ_ATTEMPTS,
    META_DLQ_CODE,
    META_DLQ_REASON,
    META_DLQ_TOPIC,
    META_DURABLE_EXPIRY,
    META_FILTER,
    META_KEEPALIVE,
    META_MESSAGE_ID,
    META_ORIGIN,
    META_TTL,
    META_VIA,
    USER_PREFIX,
    Ack,
    AnyMessage,
    Envelope,
    ErrorCode,
    ErrorMessage,
    Message,
    Metadata,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    error_envelope,
    error_message,
)
from braidmq.wire.blipmq.rules import check_request
from braidmq.wire.blipmq.topics import (
    AUTH_TOPIC,
    DEAD_LETTER_PREFIX,
    TopicFilter,
    check_topic,
    is_reserved,
    parse_filter,
    shown_name,
    stored_name,
)

__all__ = [
    "ACK_OF_LOGIN", "AT_LEAST_ONCE", "AT_MOST_ONCE", "AUTH_TOPIC", "DEAD_LETTER_PREFIX", "FRAME_BYTES_MAX", "LENGTH_BYTES",
    "META_ACCEPT_COMPRESSION", "META_API_KEY", "META_ATTEMPT", "META_BROKER_ID", "META_COMPRESSION", "META_DELIVERY",
    "META_DLQ_ATTEMPTS", "META_DLQ_CODE", "META_DLQ_REASON", "META_DLQ_TOPIC", "META_DURABLE_EXPIRY", "META_FILTER",
    "META_KEEPALIVE", "META_MESSAGE_ID", "META_ORIGIN", "META_TTL", "META_VIA", "USER_PREFIX", "Ack", "AnyMessage", "Candidate",
    "ContentFilter", "Envelope", "ErrorCode", "ErrorMessage", "FrameReader", "Framing", "Malformed", "Message", "Metadata", "Ping",
    "Pong", "Publish", "Refused", "Subscribe", "TooLarge", "TopicFilter", "Unsubscribe", "WireFault", "binary1", "body_length",
    "check_request", "check_topic", "decode", "detect", "encode", "error_envelope", "error_message", "is_reserved", "legacy",
    "parse_expression", "parse_filter", "shown_name", "stored_name", "unknown_framing",
]  # fmt: skip
