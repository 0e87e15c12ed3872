"""Server push: how records find those who wait for them, whichever protocol they speak.

    Feed            one partition that somebody waits on; tells its readers when there is more
    Chunk           a run of records as they lie in the log; encodings of it are made once and shared
    Subscription    what somebody waits for: topics, a filter, a place in each partition, and what is pending
    Hub             knows them all, and brings topics that come and go to those who want them
    Positions       makes durable how far subscribers came that go on where they were

Nothing here holds payloads for a slow reader: what is pending is a list of places in the log. A subscriber that does not read costs
its places and nothing else.
"""

from __future__ import annotations

from braidmq.broker.push.chunk import Chunk, PushRecord
from braidmq.broker.push.feed import Feed, Reader
from braidmq.broker.push.hub import Hub, Watcher
from braidmq.broker.push.pending import Pending, Span
from braidmq.broker.push.positions import Positioned, Positions
from braidmq.broker.push.subscription import Counters, Overflow, Subscription

__all__ = [
    "Chunk", "Counters", "Feed", "Hub", "Overflow", "Pending", "Positioned", "Positions", "PushRecord", "Reader", "Span",
    "Subscription", "Watcher",
]
