"""A strict verifier of FlatBuffers for the schema of BlipMQ: what readers that check alignment insist on.

It knows nothing of the codec and shares no code with it.
"""

from __future__ import annotations

import struct

SCALARS = {"u8": 1, "u64": 8}
SCHEMA: dict[str, list[str]] = {
    "Subscribe": ["string!", "u8", "string"],
    "Unsubscribe": ["string!", "string"],
    "Publish": ["string!", "octets!", "u8", "u64", "string"],
    "Message": ["string!", "octets!", "string", "u64", "u8"],
    "Ack": ["string!", "u8"],
    "Ping": ["u64"],
    "Pong": ["u64"],
    "Error": ["u8", "string", "string"],
    "Metadata": ["string!", "string"],
    "ProtocolMessage": ["u8", "union!", "u64", "u64", "pairs"],
}
UNION = ["", "Subscribe", "Unsubscribe", "Publish", "Message", "Ack", "Ping", "Pong", "Error"]


def verify(body: bytes) -> None:
    """AssertionError unless `body` is a well-formed ProtocolMessage with every number at a multiple of its size."""
    (root,) = struct.unpack_from("<I", body)
    _table(body, root, "ProtocolMessage")


def _inside(body: bytes, at: int, size: int, alignment: int) -> None:
    assert at % alignment == 0, f"byte {at} is no multiple of {alignment}"
    assert at >= 0 and at + size <= len(body), f"{size} bytes at {at} lie outside {len(body)}"


def _table(body: bytes, at: int, name: str) -> None:
    _inside(body, at, 4, 4)
    vtable = at - struct.unpack_from("<i", body, at)[0]
    _inside(body, vtable, 4, 2)
    vtable_size, size = struct.unpack_from("<HH", body, vtable)
    assert vtable_size % 2 == 0
    _inside(body, vtable, vtable_size, 2)
    _inside(body, at, size, 4)
    slots = struct.unpack_from(f"<{vtable_size // 2 - 2}H", body, vtable + 4)
    fields = SCHEMA[name]
    assert len(slots) <= len(fields)
    places = dict(enumerate(slots))
    for number, kind in enumerate(fields):
        place = places.get(number, 0)
        if not place:
            assert not kind.endswith("!"), f"field {number} of {name} is missing"
            continue
        kind = kind.rstrip("!")
        width = SCALARS.get(kind, 4)
        assert 4 <= place <= size - width, f"field {number} of {name} lies outside its table"
        _inside(body, at + place, width, width)
        if kind in SCALARS:
            continue
        target = at + place + struct.unpack_from("<I", body, at + place)[0]
        assert target > at + place
        if kind == "union":
            _table(body, target, UNION[body[at + places[0]]])
        elif kind == "pairs":
            (count,) = struct.unpack_from("<I", body, target)
            _inside(body, target, 4 + 4 * count, 4)
            for entry in range(target + 4, target + 4 + 4 * count, 4):
                _table(body, entry + struct.unpack_from("<I", body, entry)[0], "Metadata")
        else:
            _inside(body, target, 4, 4)
            (length,) = struct.unpack_from("<I", body, target)
            _inside(body, target + 4, length + (kind == "string"), 1)
            assert kind != "string" or body[target + 4 + length] == 0, "a string ends with a zero byte"
