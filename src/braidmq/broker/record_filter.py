"""The optional filter of FETCH, and of replaying dead letters: which records somebody wants.

A record matches when any test does: `$.a.b` asks whether a JSON object has that path; any filter is tried as a
case-insensitive substring of key or value; and, unless it is a path, as a regular expression. Expressions run in RE2, whose
time is linear in the input, so no expression of a client can stall the broker; one that is not valid never matches.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import re2

from braidmq.base import limits
from braidmq.log.partition_reads import Rows


def compile_filter(text: str) -> Callable[[bytes | None, bytes], bool]:
    """A test of (key, value)."""
    wanted = text.encode().lower()
    path = text[2:].split(".") if text.startswith("$.") else None
    expression = None if path is not None else _expression(text)

    def matches(key: bytes | None, value: bytes) -> bool:
        if path is not None and value.lstrip()[:1] == b"{" and _has_path(value, path):
            return True
        if wanted in value.lower() or (key is not None and wanted in key.lower()):
            return True
        if expression is None:
            return False
        return expression.search(value) is not None or (key is not None and expression.search(key) is not None)

    return matches


def _expression(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 8 << 20
    try:
        return re2.compile(text.encode(), options)
    except re2.error:
        return None


def _has_path(value: bytes, path: list[str]) -> bool:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return False
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def keep_matching(rows: Rows, matches: Callable[[bytes | None, bytes], bool], result: Rows, records_max: int) -> bool:
    """Move matching rows from `rows` to `result`, up to its limits; returns whether it can take more."""
    for part in rows.slices:
        view = memoryview(part)
        at = 0
        while at < len(view):
            key_size = int.from_bytes(view[at : at + 4], "big")
            value_at = at + 8 + key_size
            value_size = int.from_bytes(view[value_at - 4 : value_at], "big")
            end = value_at + value_size + 8
            key = bytes(view[at + 4 : at + 4 + key_size]) if key_size else None
            offset = int.from_bytes(view[end - 8 : end], "big")
            result.next_offset = offset + 1
            if matches(key, bytes(view[value_at : value_at + value_size])):
                if result.count and result.size + end - at > limits.FETCH_BYTES_TARGET:
                    # It would not fit a frame behind the others; it is the first of the next answer.
                    result.next_offset = offset
                    return False
                result.slices.append(view[at:end])
                result.size += end - at
                result.count += 1
                if result.count >= records_max or result.size >= limits.FETCH_BYTES_TARGET:
                    return False
            at = end
    result.next_offset = rows.next_offset
    return True
