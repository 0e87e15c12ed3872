"""`mirror`: topics of one broker on another, each record once, in the same partition and order.

It is a pipeline whose sink is the other broker (`sinks/mirror.py`), so it runs, pauses and shows its lag like any other, and goes
on after a crash without a loss or a double.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from braidmq.spark.products.archive import bounds, safe_name

_NAME_CHARACTERS_MAX: Final = 100


def mirror_name(topics: Sequence[str]) -> str:
    """The name of the pipeline; where the topics' own are too long for one, it is cut and told apart by their hash."""
    name = f"mirror-{safe_name('-'.join(topics))}"
    if len(name) <= _NAME_CHARACTERS_MAX:
        return name
    return f"{name[: _NAME_CHARACTERS_MAX - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def mirror_definition(
    topics: Sequence[str],
    servers: str,
    *,
    prefix: str = "",
    options: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    every: str | None = None,
    max_records: int | None = None,
    max_bytes: str | None = None,
) -> tuple[str, dict[str, str]]:
    """The pipeline that mirrors topics, as YAML, and the variables that stand in it for what it must not show: `options`."""
    variables = {f"MIRROR_{name.upper()}": value for name, value in (options or {}).items()}
    named = {name: f"${{MIRROR_{name.upper()}}}" for name in options or {}}
    lines = [
        f"name: {mirror_name(topics)}",
        f"description: {_text('Mirror of ' + ', '.join(topics) + ' on ' + servers)}",
        "source:",
        f"  topics: {_text(list(topics))}",
        "  starting: earliest",
        *bounds(max_records, max_bytes),
        "sinks:",
        "  - mirror:",
        f"      servers: {_text(servers)}",
        *([f"      prefix: {_text(prefix)}"] if prefix else []),
        *([f"      options: {_text(named)}"] if named else []),
        *([f"checkpoint: {_text(checkpoint)}"] if checkpoint else []),
        *([f"trigger: {{every: {every}}}"] if every else []),
    ]
    return "\n".join(lines) + "\n", variables


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
