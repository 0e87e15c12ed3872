"""Every published byte vector, in both directions and against values written by hand."""

from __future__ import annotations

import pytest
from flymq_cases import MEANING, UNKNOWN_OPCODE, VECTORS, Vector
from flymq_cases_strategies import DOCUMENTED, V126, tells_v126

from braidmq.base.errors import BraidError
from braidmq.wire.flymq import (
    ErrorReply,
    FrameReader,
    Op,
    answer_op,
    decode_request,
    decode_response,
    encode_error,
    encode_frame,
    encode_request,
    encode_response,
    only_v126,
    unpack_payload,
)

vectors = pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.name}-{vector.dialect}".replace(" ", "_"))


def test_every_vector_has_a_meaning() -> None:
    assert sorted(MEANING) == sorted((vector.name, vector.dialect) for vector in VECTORS)


@vectors
def test_request(vector: Vector) -> None:
    request, _ = MEANING[vector.name, vector.dialect]
    (frame,) = FrameReader().receive(vector.request)
    assert frame.op == vector.op
    payload = unpack_payload(frame.flags, frame.payload)
    for dialect in vector.dialects:
        if request is None:
            with pytest.raises(BraidError) as caught:
                decode_request(frame.op, payload, dialect)
            assert caught.value.code == "UNKNOWN_OPCODE"
            continue
        decoded, after = decode_request(frame.op, payload, dialect)
        assert decoded == request
        if vector.dialect != "both":
            assert after is dialect
        if only_v126(vector.op) and dialect is DOCUMENTED:
            with pytest.raises(BraidError, match="exists only in the v126 dialect"):
                encode_request(request, dialect)
            continue
        # A v126 connection also accepts the documented layout; our encoder writes that one in its own dialect.
        written = DOCUMENTED if "(documented layout)" in vector.name else dialect
        assert encode_request(request, written) == encode_frame(vector.op, payload)


@vectors
def test_request_tells_its_dialect(vector: Vector) -> None:
    if vector.op == UNKNOWN_OPCODE:
        return
    (frame,) = FrameReader().receive(vector.request)
    request, after = decode_request(frame.op, unpack_payload(frame.flags, frame.payload), DOCUMENTED)
    telling = vector.dialect != "documented" and "(documented layout)" not in vector.name and tells_v126(request)
    assert after is (V126 if telling else DOCUMENTED)


@vectors
def test_response(vector: Vector) -> None:
    _, response = MEANING[vector.name, vector.dialect]
    (frame,) = FrameReader().receive(vector.response)
    for dialect in vector.dialects:
        expect = None if isinstance(response, BraidError) else type(response)
        decoded = decode_response(vector.op, frame.op, frame.payload, dialect, expect)
        if isinstance(response, BraidError):
            assert frame.op == Op.ERROR
            assert decoded == ErrorReply(response.v126_text if dialect is V126 else str(response))
            assert encode_error(response, dialect) == vector.response
        else:
            assert frame.op == (Op.ERROR if isinstance(response, ErrorReply) else answer_op(vector.op))
            assert decoded == response
            assert encode_response(vector.op, response, dialect) == vector.response
