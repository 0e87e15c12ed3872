"""`compact`: the latest record of each key, as a Delta table and, where wanted, as a topic.

Of each batch only the last record of a key is used. It replaces the key's row in the table, and is appended to the topic, which so
holds a key once a batch instead of once a change: enough to rebuild the latest state from, at a fraction of the size. Records
without a key say nothing about one and are passed over. A record with an empty value is a tombstone: it takes the key's row out of
the table, and goes into the topic, so that those who rebuild the state from there do the same.

It is a pipeline like any other: table and topic each take a batch once.
"""

from __future__ import annotations

import json

from braidmq.base.errors import BraidError
from braidmq.spark.products.archive import bounds, safe_name


def compact_definition(
    topic: str,
    *,
    table: str | None = None,
    to_topic: str | None = None,
    checkpoint: str | None = None,
    every: str | None = None,
    max_records: int | None = None,
    max_bytes: str | None = None,
) -> str:
    """The pipeline that compacts a topic into a table, a topic, or both, as YAML."""
    if table is None and to_topic is None:
        raise BraidError("INVALID_ARGUMENT", reason="compacting needs a table, a topic, or both to write to")
    if to_topic == topic:
        raise BraidError("INVALID_ARGUMENT", reason=f"{topic} cannot be compacted into itself")
    lines = [
        f"name: compact-{safe_name(topic)}",
        f"description: {_text(f'The latest record of each key of {topic}')}",
        "source:",
        f"  topics: {_text([topic])}",
        "  starting: earliest",
        *bounds(max_records, max_bytes),
        "steps:",
        "  - sql: SELECT key, value, headers, timestamp, partition, offset FROM input WHERE length(key) > 0",
        "sinks:",
    ]
    if table is not None:
        lines.append(f"  - table: {{path: {_text(table)}, key: key, delete_when: length(value) = 0}}")
    if to_topic is not None:
        lines.append(f"  - topic: {{name: {_text(to_topic)}, key: key, value: value, headers: headers, latest: true}}")
    lines += [f"checkpoint: {_text(checkpoint)}"] if checkpoint else []
    lines += [f"trigger: {{every: {every}}}"] if every else []
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
