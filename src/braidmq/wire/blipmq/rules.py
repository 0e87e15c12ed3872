"""What a client may ask for, apart from rights: the checks between decoding a frame and doing what it says.

A fault of these is `Refused` or another `BraidError`: the request gets its Error, nothing is stored, the connection stays.
"""

from __future__ import annotations

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.wire.blipmq.faults import Refused
from braidmq.wire.blipmq.messages import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    Ack,
    Envelope,
    ErrorMessage,
    Message,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)
from braidmq.wire.blipmq.topics import AUTH_TOPIC, check_topic, parse_filter


def check_request(envelope: Envelope, payload_max: int = limits.BLIPMQ_PAYLOAD_BYTES_MAX) -> None:
    """`Refused`, with sequence and subject of the request, for what no client may send."""
    try:
        _check(envelope, payload_max)
    except BraidError as fault:
        raise Refused(fault.code, envelope.sequence, _subject(envelope), **fault.fields) from None


def _check(envelope: Envelope, payload_max: int) -> None:
    match envelope.message:
        case Publish(topic, payload, qos, _, message_id):
            if topic != AUTH_TOPIC:
                check_topic(topic)
            _check_qos(qos)
            _check_length(message_id, "message_id")
            if qos == AT_LEAST_ONCE and not message_id:
                raise BraidError("INVALID_MESSAGE", reason="message_id required for QoS 1")
            if len(payload) > payload_max:
                raise BraidError("RECORD_TOO_LARGE", size=len(payload), limit=payload_max)
        case Subscribe(topic, qos, client_id):
            parse_filter(topic)
            _check_qos(qos)
            _check_length(client_id, "client_id")
        case Unsubscribe(topic, client_id):
            parse_filter(topic)
            _check_length(client_id, "client_id")
        case Message():
            raise BraidError("INVALID_MESSAGE", reason="a Message is sent by the broker only")
        case Ack() | Ping() | Pong() | ErrorMessage():
            return


def _check_qos(qos: int) -> None:
    if qos not in (AT_MOST_ONCE, AT_LEAST_ONCE):
        raise BraidError("INVALID_MESSAGE", reason=f"QoS {qos} is neither 0 nor 1")


def _check_length(text: str | None, name: str) -> None:
    if text is not None and len(text) > limits.BLIPMQ_TEXT_CHARACTERS_MAX:
        limit = limits.BLIPMQ_TEXT_CHARACTERS_MAX
        raise BraidError("INVALID_MESSAGE", reason=f"a {name} of {len(text)} characters, more than {limit}")


def _subject(envelope: Envelope) -> str | None:
    """What an Error names, so that a client need not remember sequence numbers."""
    match envelope.message:
        case Publish(message_id=message_id):
            return message_id
        case Subscribe(topic=topic) | Unsubscribe(topic=topic):
            return topic
    return None
