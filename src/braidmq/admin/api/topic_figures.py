"""How busy topics are, and how far behind those who read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from braidmq.admin.api.topics import TopicQuery, topic_page
from braidmq.admin.call import Call, Nothing
from braidmq.admin.looking import open_logs
from braidmq.broker.broker import Broker
from braidmq.broker.group_lag import GroupLag
from braidmq.broker.pace import Pace
from braidmq.broker.topics import Topic

RATE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What goes on in a topic."""

    name: str
    records_per_s: Annotated[float, f"of the last {RATE_SECONDS} seconds, by the times of the records"]
    groups: int
    worst_lag: Annotated[int | None, "records that the group furthest behind has not read"] = None
    worst_lag_ms: Annotated[int | None, "how old the oldest of them is"] = None
    worst_group: str | None = None
    lag_unknown: Annotated[bool, "whether leaders do not answer, so that a group may be further behind"] = False


async def list_topic_figures(call: Call[TopicQuery, Nothing]) -> list[TopicFigures]:
    """Rate and worst lag of the same topics, in the same order, as a list of topics has with the same query."""
    broker = call.broker
    names, cursor = topic_page(call)
    call.link_next(cursor)
    by_topic: dict[str, list[GroupLag]] = {}
    for lag in await broker.coordinator.lags(frozenset(names)):
        by_topic.setdefault(lag.topic, []).append(lag)
    pace = Pace()
    since_ms = broker.clock.now_ms() - RATE_SECONDS * 1000
    found = []
    for topic in map(broker.topics.get, names):
        if topic is not None:
            recent = await _records_since(broker, topic, since_ms, pace)
            found.append(_figures(topic.name, recent / RATE_SECONDS, by_topic.get(topic.name, [])))
    return found


async def _records_since(broker: Broker, topic: Topic, since_ms: int, pace: Pace) -> int:
    """Records that came since then. Only a partition whose newest segment has some is looked into."""
    found = 0
    for number, log in enumerate(await open_logs(broker, topic, pace)):
        if log is not None and log.segments and log.segments[-1].has_index and log.segments[-1].index.max_timestamp >= since_ms:
            found += log.high_watermark - await broker.coordinator.offset_for_time(topic.name, number, since_ms)
    return found


def _figures(name: str, rate: float, lags: list[GroupLag]) -> TopicFigures:
    if not lags:
        return TopicFigures(name, rate, 0)
    worst = max(lags, key=lambda lag: (lag.records, lag.ms))
    return TopicFigures(name, rate, len(lags), worst.records, worst.ms, worst.group, any(lag.unknown for lag in lags))
