"""The codec against code that the FlatBuffers compiler made from the schema, in both directions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blipmq_cases import BY_NAME, SOUND, Vector, envelopes, quick
from blipmq_oracle import read, write
from blipmq_verifier import SCHEMA, UNION, verify
from hypothesis import given

import braidmq.wire.blipmq
from braidmq.wire.blipmq import Ack, Envelope, ErrorCode, decode, encode

SOURCE = (Path(braidmq.wire.blipmq.__file__).parent / "blipmq.fbs").read_text()


@quick
@given(envelopes)
def test_the_oracle_reads_what_we_write(envelope: Envelope) -> None:
    body = encode(envelope)[4:]
    verify(body)
    assert read(body) == envelope


@quick
@given(envelopes)
def test_we_read_what_the_oracle_writes(envelope: Envelope) -> None:
    body = write(envelope)
    verify(body)
    assert decode(body) == envelope


@pytest.mark.parametrize("vector", SOUND, ids=lambda vector: vector.name)
def test_the_oracle_agrees_about_every_vector(vector: Vector) -> None:
    assert read(vector.data[4:]) == decode(vector.data[4:])


def test_the_verifier_notices_a_number_out_of_place() -> None:
    """The canary: the same content with the size-prefixed finish call stands four bytes off."""
    verify(BY_NAME["publish_qos1"].data[4:])
    with pytest.raises(AssertionError, match="no multiple of 8"):
        verify(BY_NAME["layout_size_prefixed"].data[4:])


def test_the_verifier_notices_a_missing_zero_byte() -> None:
    body = bytearray(encode(Envelope(Ack("abc"), 1))[4:])
    body[body.index(b"abc") + 3] = 1
    with pytest.raises(AssertionError, match="zero byte"):
        verify(bytes(body))


# --- the schema that users get


def test_the_schema_is_the_one_the_oracle_was_made_from() -> None:
    union = re.search(r"union MessageType \{(.*?)\}", SOURCE, re.DOTALL)
    assert union is not None
    assert re.findall(r"^\s+(\w+)", union[1], re.MULTILINE) == UNION[1:]
    kinds = {"string": "string", "[ubyte]": "octets", "uint64": "u64", "QoSLevel": "u8", "ErrorCode": "u8", "[Metadata]": "pairs"}
    for name, body in re.findall(r"table (\w+) \{(.*?)\}", SOURCE, re.DOTALL):
        fields = {
            int(number): kinds.get(kind, "union") + ("!" if required else "")
            for kind, number, required in re.findall(r"\w+: ([\w\[\]]+)[^(]*\(id: (\d+)(, required)?\)", body)
        }
        if name == "ProtocolMessage":
            fields[0] = "u8"
        assert [fields[number] for number in sorted(fields)] == SCHEMA[name], name


def test_the_codes_are_those_of_the_schema() -> None:
    declared = re.search(r"enum ErrorCode : byte \{(.*?)\}", SOURCE, re.DOTALL)
    assert declared is not None
    names = {int(number): name for name, number in re.findall(r"(\w+) = (\d+)", declared[1])}
    assert {code.value: code.name.replace("_", "").lower() for code in ErrorCode} == {
        number: name.lower() for number, name in names.items()
    }
