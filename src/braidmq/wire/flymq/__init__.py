"""The FlyMQ protocol, sans-IO: bytes to typed requests and responses, and back.

The server, the client and the fuzzer use the same code. Bytes become frames in `frames.py`, payloads become dataclasses
through the tables of `requests.py` and `responses.py`, and `layout.py` holds the wire types those tables are written in.
Two layouts of the protocol are spoken on one port (`dialect.py`); decoding a request says which one its sender speaks.

Whatever bytes arrive, decoding ends in a value or in a `BraidError`, and never allocates for a length the bytes do not back.
"""

from braidmq.wire.flymq.dialect import Dialect
from braidmq.wire.flymq.frames import HEADER_BYTES, Frame, FrameReader, encode_frame, read_header, unpack_payload
from braidmq.wire.flymq.opcodes import Op, only_v126
from braidmq.wire.flymq.requests import (
    Commit,
    Consume,
    CreateTopic,
    DeleteTopic,
    Fetch,
    FetchBatches,
    ListTopics,
    Metadata,
    Produce,
    ProduceBatch,
    Request,
    Subscribe,
    decode_request,
    encode_request,
)
from braidmq.wire.flymq.responses import (
    BatchProduced,
    ErrorReply,
    Fetched,
    FetchedBatches,
    FetchedItem,
    Message,
    Offset,
    Ok,
    PartitionMetadata,
    RecordMetadata,
    Response,
    TopicList,
    TopicMetadata,
    decode_response,
    encode_error,
    encode_response,
)

__all__ = [
    "HEADER_BYTES",
    "BatchProduced",
    "Commit",
    "Consume",
    "CreateTopic",
    "DeleteTopic",
    "Dialect",
    "ErrorReply",
    "Fetch",
    "FetchBatches",
    "Fetched",
    "FetchedBatches",
    "FetchedItem",
    "Frame",
    "FrameReader",
    "ListTopics",
    "Message",
    "Metadata",
    "Offset",
    "Ok",
    "Op",
    "PartitionMetadata",
    "Produce",
    "ProduceBatch",
    "RecordMetadata",
    "Request",
    "Response",
    "Subscribe",
    "TopicList",
    "TopicMetadata",
    "decode_request",
    "decode_response",
    "encode_error",
    "encode_frame",
    "encode_request",
    "encode_response",
    "only_v126",
    "read_header",
    "unpack_payload",
]
