"""How much of topics one batch of a pipeline reads when its definition does not say.

What a batch writes to a topic is staged, and the broker stages so much of a batch and no more; besides, a batch is computed once
and kept. So a first run from the beginning of a topic must not take all of it at once: Spark decides on a batch before anything is
read, and asks for the same batch again ever after. The limit of the data source counts bytes as they are stored, which compression
makes fewer: so it is lowered by how much larger a few records of each topic are when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.base.limits import MIB
from braidmq.client.sync import Client

BATCH_BYTES: Final = 256 * MIB
"""A quarter of what can be staged (`STAGE_EPOCH_BYTES_MAX`): steps may make records larger."""
_SAMPLE_RECORDS: Final = 500
_RECORD_BYTES: Final = 32
"""About what a record takes besides key, value and headers."""


def default_bytes(client: Client, topics: Sequence[str]) -> int:
    """Stored bytes of these topics that are about `BATCH_BYTES` when they are read."""
    return int(BATCH_BYTES / max((_growth(client, topic) for topic in topics), default=1.0))


def _growth(client: Client, topic: str) -> float:
    """How many times larger records of a topic are than they are stored; 1 where nothing compresses them."""
    found = client.places([topic]).get(topic)
    for number, place in enumerate(found.partitions if found is not None else ()):
        if place.newest <= place.oldest:
            continue
        try:
            records = client.fetch(topic, number, place.oldest, max_records=_SAMPLE_RECORDS).records
        except BraidError:
            # Retention may have taken them just now; what is wrong with the topic as such the query will say.
            continue
        if records:
            read = sum(
                _RECORD_BYTES + len(each.value) + len(each.key or b"") + sum(map(len, each.headers.values())) for each in records
            )
            stored = place.size_bytes / (place.newest - place.oldest)
            return max(1.0, read / len(records) / max(1.0, stored))
    return 1.0
