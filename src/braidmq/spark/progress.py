"""A stream is a consumer group: where it is, how far it is behind, and that it is alive, seen wherever groups are seen.

The position of the group is what the query has completed. Spark tells its source so by accident: `latestOffset(start)` is called
after every batch with the end of the last completed one. Where rows go to topics of the same broker with the same `group`, the
position moves in the very publication of the rows (`writer.py`); `latestOffset` then finds nothing left to do.

The position never decides where a query goes on: the checkpoint does.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from braidmq.base.errors import BraidError
from braidmq.client._sync.presence import Presence
from braidmq.client.sync import Client
from braidmq.spark.options import Options

StreamOffset = dict[str, dict[str, Any]]

logger = logging.getLogger("braidmq.spark")


class Progress:
    """The group of one stream, as its driver keeps it."""

    def __init__(self, client: Client, group: str, hold: bool) -> None:
        self._client = client
        self._group = group
        self._hold = hold
        self._held: set[str] = set()
        self._committed: dict[tuple[str, int], int] = {}
        self._presence: Presence = client.presence(group)

    def completed(self, offset: StreamOffset) -> None:
        """The query has completed everything before `offset`."""
        try:
            if self._hold:
                self._hold_retention(set(offset) - self._held)
            self._presence.announce(offset)
            moved = [place for place in places_in(offset) if self._committed.get(place[:2]) != place[2]]
            if moved:
                self._client.group.commit(self._group, moved)
                self._committed |= {(topic, partition): at for topic, partition, at in moved}
        except BraidError as fault:
            if fault.code in ("UNAUTHORIZED", "INVALID_GROUP", "AUTHENTICATION_REQUIRED", "INVALID_ARGUMENT"):
                raise
            # Being seen is not worth a failed query; the next batch tells the broker again.
            logger.warning("the position of group %s could not be stored: %s", self._group, fault)

    def planned(self, offset: StreamOffset) -> None:
        """The query is about to do what ends at `offset`."""
        try:
            self._client.group.plan(self._group, places_in(offset))
        except BraidError as fault:
            logger.warning("the next position of group %s could not be told: %s", self._group, fault)

    def _hold_retention(self, topics: set[str]) -> None:
        for topic in sorted(topics):
            held = self._client.topic_config(topic).get("retention_hold", "")
            groups = [name for name in held.split(",") if name]
            if self._group not in groups:
                self._client.topic_config(topic, {"retention_hold": ",".join([*groups, self._group])})
            self._held.add(topic)


def places_in(offset: StreamOffset) -> list[tuple[str, int, int]]:
    """(topic, partition, next offset) of an offset of a stream."""
    return [(topic, int(number), at) for topic, known in offset.items() for number, at in known["next"].items()]


class ProgressListener(StreamingQueryListener):
    """Moves the group at the end of every batch, where the driver is ours: `spark.streams.addListener(ProgressListener(...))`.

    Without it a query that waits for its next trigger shows its last position only then.
    """

    def __init__(self, options: dict[str, str]) -> None:
        from braidmq.spark.connecting import client_of

        checked = Options(options)
        self._group: str = checked.get("group")
        self._client = client_of(checked)

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: Any) -> None:
        import json

        for source in event.progress.sources:
            try:
                offset = json.loads(source.endOffset)
                places = places_in(offset) if isinstance(offset, dict) else []
            except (ValueError, TypeError, KeyError, AttributeError):
                # Somebody else's source.
                continue
            try:
                self._client.group.commit(self._group, places)
            except BraidError as fault:
                logger.warning("the position of group %s could not be stored: %s", self._group, fault)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has moved."""

    def onQueryTerminated(self, event: Any) -> None:
        """The group stays where it is."""
