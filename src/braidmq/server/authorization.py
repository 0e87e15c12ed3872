"""What a FlyMQ request touches, put to the one place that decides (`security/authorizer.py`).

A request that names several topics needs the right on each. One that names none, but leads to one all the same (a group
without a topic, a delayed message by its id, a transaction), is decided by what it leads to: nothing is reached by leaving a
name out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.work_table import number_in
from braidmq.security.authorizer import Principal
from braidmq.security.rules import OPCODE_PERMISSIONS, Rule
from braidmq.wire import flymq
from braidmq.wire.flymq import Op

if TYPE_CHECKING:
    from braidmq.server.operations.calling import Caller

_RULES: Final[dict[int, Rule]] = {int(op): rule for op, rule in OPCODE_PERMISSIONS.items()}
_OWNED_PIPELINES: Final = (
    flymq.PipelinePut, flymq.PipelineSteer, flymq.PipelineRemove, flymq.PipelineStart, flymq.PipelineReport, flymq.PipelineEnd,
    flymq.PipelineReplay, flymq.PipelineReplayTake, flymq.PipelineReplayEnd,
)  # fmt: skip
_TRANSACTION_RULES: Final = (Rule.OWNER, Rule.OWNER_OR_ADMIN, Rule.OWNER_WRITE_TOPIC, Rule.OWNER_READ_TOPIC)


def authorize(caller: Caller, request: flymq.Request) -> None:
    """Refuse what the caller may not ask, and write the refusal down."""
    broker = caller.broker
    authorizer = broker.security.authorizer
    if not authorizer.enabled:
        return
    op = _asked_as(request)
    owner = _owner(caller, request) if OPCODE_PERMISSIONS.get(op) in _TRANSACTION_RULES else None
    subject = request.user if isinstance(request, flymq.PasswordChange) else ""
    for topic in _topics(broker, request) or ("",):
        refused = authorizer.decide_request(caller.principal, op, topic, owner=owner, subject=subject)
        if refused is not None:
            raise denied(caller, request.op, topic, refused)


def refuse_stranger(caller: Caller, op: int) -> None:
    """Refuse whoever has to log in first, before anything of the request is unpacked."""
    authorizer = caller.broker.security.authorizer
    stranger = authorizer.enabled and not authorizer.allow_anonymous and authorizer.current(caller.principal).anonymous
    if stranger and _RULES.get(op, Rule.NONE) not in (Rule.NONE, Rule.ANSWER):
        raise denied(caller, op, "", BraidError("AUTHENTICATION_REQUIRED"))


def denied(caller: Caller, op: int, topic: str, refused: BraidError) -> BraidError:
    name = Op(op).name
    caller.broker.security.note(
        "access.denied", caller.principal, caller.ip, topic or name, name.lower(), "denied", reason=refused.text
    )
    return refused


def _asked_as(request: flymq.Request) -> Op:
    """The opcode whose rule applies."""
    if isinstance(request, flymq.TopicConfig) and not request.properties:
        return Op.METADATA
    if isinstance(request, flymq.StagePublish) and not request.offsets:
        # Without offsets it reads nothing; what it writes was decided while it was staged.
        return Op.TXN_COMMIT
    if isinstance(request, flymq.CancelDelayed):
        # Which topic it is about is not known yet: `check_cancel` decides.
        return Op.TXN_BEGIN
    return request.op


def _topics(broker: Broker, request: flymq.Request) -> Iterable[str]:
    match request:
        case flymq.GroupJoin() | flymq.TopicPlaces():
            return request.topics
        case flymq.GroupCommit() | flymq.TxnOffsets() | flymq.StagePublish() | flymq.GroupPlan():
            return dict.fromkeys(place.topic for place in request.offsets)
        case flymq.GroupHeartbeat() | flymq.GroupLeave():
            shared = broker.coordinator.members.get(request.group)
            member = None if shared is None else shared.members.get(request.member)
            return () if member is None else member.topics
        case flymq.GetOffset(topic="") | flymq.GroupLag(topic=""):
            return _first_topic(broker, request.group)
        case flymq.FetchDlq():
            # Its letters lie in a topic that may have an ACL of its own.
            letters = broker.dead_letters
            return (letters.origin_of(request.topic), letters.topic_name(request.topic))
        case (
            flymq.RegisterSchema() | flymq.GetSchema() | flymq.ListSchemas() | flymq.ValidateSchema() | flymq.DeleteSchema()
        ):
            return (request.name,)
        case flymq.CancelDelayed():
            return ()
    topic: str = getattr(request, "topic", "")
    return (topic,)


def _first_topic(broker: Broker, group: str) -> list[str]:
    try:
        return broker.coordinator.topics_of(group)[:1]
    except BraidError:
        # There is no such group, which the operation says itself.
        return []


# --- transactions


def owner_text(principal: Principal) -> str:
    """A principal as a transaction remembers it."""
    return f"{principal.id}:{principal.name}"


def owner_of(text: str) -> Principal:
    number, _, name = text.partition(":")
    return Principal(name, int(number))


def _owner(caller: Caller, request: flymq.Request) -> Principal | None:
    """Who began the transaction of a request, staged its epoch or made its pipeline; None when nobody knows it."""
    if isinstance(request, flymq.StageBatch | flymq.StagePublish | flymq.StageAbort | flymq.StageStatus):
        epoch = caller.broker.stages.epoch(request.writer, request.epoch)
        # Those who stage have many connections, so without accounts all of them are the same to us.
        return None if epoch is None else owner_of(epoch.user)
    if isinstance(request, _OWNED_PIPELINES):
        pipeline = caller.broker.pipelines.table.find(request.pipeline)
        return None if pipeline is None else owner_of(pipeline.owner)
    try:
        transaction = caller.broker.transactions.get(getattr(request, "id", ""))
    except BraidError:
        return None
    owner = owner_of(transaction.user)
    if owner.anonymous and transaction.owner is not caller:
        # Of those who have no name, only the connection tells one from another.
        return Principal("another connection", -1)
    return owner


# --- delayed messages


async def check_cancel(caller: Caller, request: flymq.CancelDelayed) -> None:
    """Whoever cancels a delayed message needs the right to write to the topic it would have gone to."""
    broker = caller.broker
    if not broker.security.authorizer.enabled:
        return
    number = number_in(request.id, "delayed-")
    message = (await broker.delayed.staged([number])).get(number)
    if message is None:
        raise BraidError("MESSAGE_NOT_FOUND", id=request.id)
    refused = broker.security.authorizer.decide_request(caller.principal, request.op, message.topic)
    if refused is not None:
        raise denied(caller, request.op, message.topic, refused)
