"""What a pipeline leaves on topics when it is forgotten: the hold of its group, by which retention waits for it.

A group of another name, which the definition may give, is somebody's choice and may be shared: that one stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.base.naming import PIPELINE_GROUP_START

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker


async def release_holds(broker: Broker, pipeline: str) -> None:
    """Have retention wait no longer for the group of a pipeline that is gone, whatever topics it held."""
    group = PIPELINE_GROUP_START + pipeline
    for topic in broker.topics.all():
        holders = topic.holders()
        if group in holders:
            await broker.configure_topic(topic.name, {"retention_hold": ",".join(name for name in holders if name != group)})
