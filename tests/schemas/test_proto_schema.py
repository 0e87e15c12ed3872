"""Protocol Buffers: the .proto reader, descriptors, and messages that are really decoded."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from braidmq.base.errors import BraidError
from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.proto_schema import ProtobufSchema

ORDER = """
// An order.
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "x.y";
/* a block
   comment */
message Order {
  int64 id = 1;
  repeated Item items = 2;
  map<string, Item> by_name = 3;
  oneof paid { string card = 4; Cash cash = 5; }
  optional sint32 note_count = 6;
  google.protobuf.Timestamp at = 7 [deprecated = true, (custom.opt) = { a: 1 }];
  State state = 0x8;
  repeated int32 numbers = 9 [packed = false];
  reserved 20 to 22, 30, 100 to max;
  reserved "old", 'older';
  message Item { string name = 1; .shop.v1.Order.State state = 2; Order parent = 3; }
  enum State { option allow_alias = true; NEW = 0; OPEN = 1; ALSO_OPEN = 1; reserved 5 to 7; }
  ;
}
message Cash { fixed32 amount = 1; }
service Shop { rpc Buy (Order) returns (Cash) { option x = 1; } }
"""
OLD = """
syntax = "proto2";
message Old {
  required int32 id = 1;
  optional string text = 2 [default = "a\\tb"];
  optional Kind kind = 3 [default = B];
  enum Kind { A = 1; B = -2; }
  extensions 100 to 199;
}
"""


def compiled(text: str | bytes) -> Any:
    return compile_schema("proto", text.encode() if isinstance(text, str) else text)


def test_a_whole_file() -> None:
    schema = compiled(ORDER)
    message = schema._message(
        id=5,
        items=[{"name": "x", "state": 1}],
        by_name={"k": {"name": "y"}},
        card="c",
        note_count=-1,
        at={"seconds": 3},
        numbers=[1, 2],
    )
    assert schema.kind == "protobuf"
    assert schema.descriptor.full_name == "shop.v1.Order"
    assert schema.check(message.SerializeToString()) == []
    assert schema.check(b"") == []
    fields = schema.descriptor.fields_by_name
    assert fields["state"].number == 8
    assert fields["at"].message_type.full_name == timestamp_pb2.Timestamp.DESCRIPTOR.full_name
    assert fields["note_count"].has_presence and not fields["id"].has_presence
    assert not fields["numbers"].is_packed
    assert [field.name for field in schema.descriptor.oneofs_by_name["paid"].fields] == ["card", "cash"]
    proto = descriptor_pb2.DescriptorProto()
    schema.descriptor.CopyToProto(proto)
    assert [(each.start, each.end) for each in proto.reserved_range] == [(20, 23), (30, 31), (100, 1 << 29)]
    assert list(proto.reserved_name) == ["old", "older"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"\x0a\x01a", "type mismatch at id: wire type 2 does not fit"),
        (b"\x08", "invalid Protobuf message: "),
        (b"\xff", "invalid Protobuf message: "),
        (b"\x58\x01", "unexpected field: 11"),
        (b"\x12\x02\x28\x01", "unexpected field: items[0].5"),
        (b"\x1a\x07\x0a\x01k\x12\x02\x28\x01", "unexpected field: by_name[k].5"),
        (b"\x2a\x02\x08\x01", "type mismatch at cash.amount: wire type 0 does not fit"),
        (b"\x22\x01\xff", "invalid Protobuf message: "),
        (b"not protobuf", "invalid Protobuf message: "),
    ],
)
def test_a_message_that_does_not_fit(message: bytes, error: str) -> None:
    (found,) = compiled(ORDER).check(message)
    assert found.startswith(error)


def test_proto2() -> None:
    schema = compiled(OLD)
    assert schema.check(b"\x08\x01") == []
    assert schema.check(b"") == ["missing required field: id"]
    assert schema.check(b"\x08\x01\x18\x07") == ["invalid value at kind: the enum has no 7"]
    assert schema.check(b"\x08\x01\x18\x01") == []
    fields = schema.descriptor.fields_by_name
    assert fields["text"].default_value == "a\tb"
    assert fields["kind"].default_value == -2


def test_the_message_that_is_meant() -> None:
    assert compiled("// message: B\n" + 'syntax="proto3"; message A {int32 a=1;} message B {string b=2;}').check(b"\x12\x01x") == []
    nested = compiled('syntax="proto3"; package p.q;\n  // message: A.B\nmessage A { message B { string b=2; } }')
    assert nested.descriptor.full_name == "p.q.A.B"
    assert compiled('syntax="proto3"; message A {int32 a=1;} message B {string b=2;}').check(b"\x12\x01x")
    with pytest.raises(BraidError, match="no message"):
        compiled('// message: C\nsyntax="proto3"; message A {}')


def test_compiled_descriptors() -> None:
    text = compiled(ORDER)
    file = descriptor_pb2.FileDescriptorProto()
    text.descriptor.file.CopyToProto(file)
    alone = compiled(file.SerializeToString())
    assert alone.fingerprint == text.fingerprint, "a text and its descriptor are one schema"
    whole = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(whole.file.add())
    whole.file.append(file)
    in_set = compiled(whole.SerializeToString())
    assert in_set.descriptor.full_name == "shop.v1.Order"
    assert in_set.check(b"\x08\x01") == [] and in_set.check(b"\x58\x01")


def test_two_files_of_a_set() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add(name="a.proto", syntax="proto3").message_type.add(name="A").field.add(name="x", number=1, type=5, label=1)
    other = files.file.add(name="b.proto", syntax="proto3", dependency=["a.proto"])
    other.message_type.add(name="B").field.add(name="a", number=1, type=11, type_name=".A", label=1)
    schema = compiled(files.SerializeToString())
    assert schema.descriptor.full_name == "B"
    assert schema.check(b"\x0a\x02\x08\x01") == []
    del files.file[0]
    with pytest.raises(BraidError, match=r"a\.proto"):
        compiled(files.SerializeToString())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('syntax="proto4"; message A {}', "neither proto2 nor proto3"),
        ('syntax="proto3"; message A { required int32 a = 1; }', "no required"),
        ("message A { int32 a = 1; }", "begins with optional"),
        ('syntax="proto3"; message A { int32 a = 0; }', "is not 1 to"),
        ('syntax="proto3"; message A { int32 a = 1; int32 b = 1; }', "."),
        ('syntax="proto3"; message A { int32 a = 1; int32 a = 2; }', "."),
        ('syntax="proto3"; message A { Missing a = 1; }', "unknown type Missing"),
        ('syntax="proto3"; message A { .x.Missing a = 1; }', "unknown type .x.Missing"),
        ('syntax="proto3"; message A { int32 a = 1;', "ends too early"),
        ('syntax="proto3"; message A', "ends too early"),
        ('syntax="proto3"; message', "ends too early"),
        ('syntax="proto3"; message A { message', "line 1"),
        ('syntax="proto3"; message A { oneof', "line 1"),
        ('syntax="proto3"; message A { map<float, int32> a = 1; }', "key of a map"),
        ('syntax="proto3"; message A { oneof x { repeated int32 a = 1; } }', "cannot hold"),
        ('syntax="proto3"; message A { enum E { X = 1; } E e = 1; }', "."),
        ('syntax="proto3"; import "other.proto"; message A {}', "not a well-known type"),
        ('syntax="proto2"; message A { extend B { optional int32 x = 1; } }', "not supported"),
        ('syntax="proto2"; message A { optional group G = 1 { } }', "not supported"),
        ('edition="2023"; message A {}', "not supported"),
        ('syntax="proto3";', "no message"),
        ("just words", "not supported"),
        ('syntax="proto3"; message A { int32 a = 1; } /* open', "unexpected"),
        ('syntax="proto3"; message A { reserved 5; int32 a = 5; }', "reserved"),
        ('syntax="proto3"; message A { reserved "a"; int32 a = 5; }', "reserved"),
        ('syntax="proto3"; message A { int32 a = 99999999999999999999999999; }', "too long"),
        ('syntax="proto3"; message A { int32 a = 1.5; }', "line 1"),
        ('syntax="proto3";\n\nmessage A {\n  int32 = 1; }', "line 4"),
    ],
)
def test_a_definition_that_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BraidError, match=reason) as caught:
        compiled(text)
    assert caught.value.code == "SCHEMA_INVALID"


@pytest.mark.parametrize("definition", [b"\x00\x01\x02", b"\x0a\x05hello", b"\x0a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_descriptor(definition: bytes) -> None:
    with pytest.raises(BraidError, match="text nor a file descriptor"):
        compiled(definition)


def test_white_space_and_comments_change_nothing() -> None:
    one = compiled('syntax="proto3"; message A { int32 a = 1; }')
    other = compiled('// hello\nsyntax = "proto3";\nmessage A {\n  int32 a = 1; // the a\n}\n')
    assert isinstance(one, ProtobufSchema)
    assert one.fingerprint == other.fingerprint
    assert compiled('syntax="proto3"; message A { int64 a = 1; }').fingerprint != one.fingerprint
