"""What a message says by one of several versions of its schema, in values that JSON has."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from typing import Any

import pytest

from braidmq.schemas.compiling import compile_schema
from braidmq.schemas.reading import as_json, read_message

FIRST = {"type": "object", "required": ["id"], "additionalProperties": False, "properties": {"id": {"type": "integer"}}}
SECOND = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


def versions() -> list[tuple[str, Any]]:
    return [(name, compile_schema("json", json.dumps(schema).encode())) for name, schema in (("new", SECOND), ("old", FIRST))]


def test_the_newest_version_that_fits_reads_it() -> None:
    assert read_message(versions(), b'{"name": "a"}').read_as == "new"
    found = read_message(versions(), b'{"id": 1}')
    assert (found.read_as, found.document, found.errors) == ("old", {"id": 1}, ())


def test_what_fits_none_says_why_it_does_not_fit_the_newest() -> None:
    found = read_message(versions(), b'{"id": "x"}')
    assert (found.read_as, found.document) == ("", None)
    assert "name" in found.errors[0]
    assert read_message([], b"anything").errors == ()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x00\xff", "00 ff"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1.5, 1.5),
        (True, True),
        ({1: [None, (b"a",)]}, {"1": [None, ["61"]]}),
        (decimal.Decimal("1.10"), "1.10"),
        (datetime.date(2026, 1, 31), "2026-01-31"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_values_that_json_lacks_become_text(value: object, shown: object) -> None:
    assert as_json(value) == shown
    json.dumps(as_json(value), allow_nan=False)
