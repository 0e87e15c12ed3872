"""What BlipMQ peers say to each other, as values.

One class a table of the schema. Every message travels in an `Envelope` with a sequence number, a timestamp and name/value pairs.
Values are as they came: a QoS of 2 or a topic with a wildcard in a Publish is decoded, and refused by `braidmq.wire.blipmq.rules`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.wire.shape import shape

Metadata = tuple[tuple[str, str], ...]

AT_MOST_ONCE: Final = 0
AT_LEAST_ONCE: Final = 1
"""Qualities of service."""

META_API_KEY: Final = "api_key"
META_FILTER: Final = "filter"
META_ACCEPT_COMPRESSION: Final = "accept_compression"
META_COMPRESSION: Final = "compression"
META_KEEPALIVE: Final = "keepalive_s"
META_DURABLE_EXPIRY: Final = "durable_expiry_s"
META_DELIVERY: Final = "delivery"
META_ATTEMPT: Final = "attempt"
META_MESSAGE_ID: Final = "message_id"
META_DLQ_TOPIC: Final = "dlq_topic"
META_DLQ_CODE: Final = "dlq_code"
META_DLQ_REASON: Final = "dlq_reason"
META_DLQ_ATTEMPTS: Final = "dlq_attempts"
META_BROKER_ID: Final = "broker_id"
META_VIA: Final = "via"
META_ORIGIN: Final = "origin"
META_TTL: Final = "ttl_ms"
USER_PREFIX: Final = "x-"
"""Metadata whose name begins so belongs to users and travels with the message."""

ACK_OF_LOGIN: Final = "auth"
"""message_id of the Ack that confirms an API key on a frame without an Ack of its own."""


class ErrorCode(IntEnum):
    """Why a request was refused. 100 to 255 are for users, in Acks of subscribers."""

    NONE = 0
    INVALID_TOPIC = 1
    TOPIC_NOT_FOUND = 2
    MESSAGE_TOO_LARGE = 3
    QUEUE_FULL = 4
    AUTHENTICATION_FAILED = 5
    AUTHORIZATION_FAILED = 6
    SERVER_ERROR = 7
    PROTOCOL_ERROR = 8
    TTL_EXPIRED = 9


ERROR_TEXTS: Final = {
    ErrorCode.INVALID_TOPIC: "invalid topic",
    ErrorCode.TOPIC_NOT_FOUND: "topic not found",
    ErrorCode.MESSAGE_TOO_LARGE: "message too large",
    ErrorCode.QUEUE_FULL: "queue full",
    ErrorCode.AUTHENTICATION_FAILED: "authentication failed",
    ErrorCode.AUTHORIZATION_FAILED: "not authorized",
    ErrorCode.SERVER_ERROR: "internal error",
    ErrorCode.PROTOCOL_ERROR: "protocol error",
    ErrorCode.TTL_EXPIRED: "message expired",
}
"""The short text that goes with each code; what is special about the case is in `details`."""


@shape
class Subscribe:
    """Send me what is published to topics that match. `topic` is a filter, `qos` the highest wanted."""

    topic: str
    qos: int = AT_MOST_ONCE
    client_id: str | None = None
    """Names a subscriber that outlives its connection."""


@shape
class Unsubscribe:
    topic: str
    client_id: str | None = None


@shape
class Publish:
    topic: str
    payload: bytes
    qos: int = AT_MOST_ONCE
    ttl_ms: int = 0
    """0 is for ever."""
    message_id: str | None = None


@shape
class Message:
    """A delivery to a subscriber."""

    topic: str
    payload: bytes
    message_id: str | None = None
    timestamp: int = 0
    """When the broker accepted it."""
    qos: int = AT_MOST_ONCE


@shape
class Ack:
    """What the message with this id asked for is done; with a code other than 0 it is not."""

    message_id: str
    error_code: int = ErrorCode.NONE


@shape
class Ping:
    timestamp: int = 0
    """The client's own; the Pong repeats it."""


@shape
class Pong:
    timestamp: int = 0


@shape
class ErrorMessage:
    """The schema's `Error`."""

    error_code: int
    message: str | None = None
    details: str | None = None


AnyMessage = Subscribe | Unsubscribe | Publish | Message | Ack | Ping | Pong | ErrorMessage


@shape
class Envelope:
    """One frame's content."""

    message: AnyMessage
    sequence: int = 0
    """A reply repeats that of its request; 0 is none."""
    timestamp: int = 0
    metadata: Metadata = ()

    def meta(self, name: str) -> str | None:
        """The first value of that name."""
        for key, value in self.metadata:
            if key == name:
                return value
        return None

    @property
    def user_metadata(self) -> Metadata:
        """What travels with a published message, in order."""
        return tuple(pair for pair in self.metadata if pair[0].startswith(USER_PREFIX))


def error_message(error: BraidError) -> ErrorMessage:
    """What a peer is told about `error`: the protocol's code and text for its kind, our code and sentence as details."""
    code = ErrorCode(error.spec.blipmq)
    return ErrorMessage(int(code), ERROR_TEXTS[code], str(error))


def error_envelope(error: BraidError, sequence: int = 0, timestamp: int = 0, subject: str | None = None) -> Envelope:
    """The Error frame that answers a request; `subject` is the message_id or topic of what was refused."""
    metadata: Metadata = () if subject is None else ((META_MESSAGE_ID, subject),)
    return Envelope(error_message(error), sequence, timestamp, metadata)
