"""Topics: making, deleting, listing and describing them, and their properties."""

from __future__ import annotations

from braidmq.broker.peers import Peers
from braidmq.broker.topics import Topic
from braidmq.server.operations.calling import Answer, Caller, Outcome, account, note, respond
from braidmq.wire import flymq


async def create_topic(caller: Caller, request: flymq.CreateTopic) -> Answer:
    await caller.broker.create_topic(request.topic, request.partitions, request.properties, by=account(caller))
    return respond(caller, request, flymq.Ok())


async def delete_topic(caller: Caller, request: flymq.DeleteTopic) -> Answer:
    if await caller.broker.delete_topic(request.topic):
        note(caller, "topic.delete", request.topic, "delete")
    return respond(caller, request, flymq.Ok())


def list_topics(caller: Caller, request: flymq.ListTopics) -> Answer:
    """Those that the caller may read."""
    authorizer = caller.broker.security.authorizer
    names = caller.broker.topic_names()
    return respond(caller, request, flymq.TopicList(tuple(authorizer.visible(caller.principal, names))))


def metadata(caller: Caller, request: flymq.Metadata) -> Outcome:
    topic = caller.broker.topic(request.topic)
    if caller.broker.peers is not None:
        return _cluster_metadata(caller, request, topic, caller.broker.peers)
    partitions = []
    for number in range(topic.partitions):
        log = caller.broker.log_of(topic, number)
        partitions.append(flymq.PartitionMetadata(number, 0, log.log_start, log.high_watermark))
    return respond(caller, request, flymq.TopicMetadata(request.topic, tuple(partitions)))


async def _cluster_metadata(caller: Caller, request: flymq.Metadata, topic: Topic, peers: Peers) -> Answer:
    """In a cluster a leader has a number from 1 on, by the order of the nodes' names; -1 while nobody leads."""
    places = await peers.places(topic)
    numbers = {node.name: number for number, node in enumerate(sorted(peers.nodes(), key=lambda node: node.name), 1)}
    leaders = [numbers.get(peers.partition_info(topic.id, number).leader, -1) for number in range(topic.partitions)]
    partitions = tuple(
        flymq.PartitionMetadata(number, leader, *place) for number, (leader, place) in enumerate(zip(leaders, places, strict=True))
    )
    return respond(caller, request, flymq.TopicMetadata(request.topic, partitions))


async def topic_config(caller: Caller, request: flymq.TopicConfig) -> Answer:
    asked = dict(request.properties)
    topic = await caller.broker.configure_topic(request.topic, asked)
    if asked:
        note(caller, "config.change", topic.name, "configure topic", "success", **asked)
    return respond(caller, request, flymq.TopicProperties(tuple(sorted(topic.properties.items()))))
