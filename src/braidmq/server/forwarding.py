"""Requests that another node has to run: sent there whole, with who asks, and answered here.

What lives in one place of a cluster (members of groups, transactions, what is delayed, dead letters, staged writes) lives with the
coordinator. A connection to any other node may ask for it all the same: the request goes to the coordinator as it came, is decoded,
authorized and run there by the same table of operations, and its answer comes back as bytes. For the coordinator each such
connection is a caller like its own; when it ends, or its node does, it ends there, too.

The answer says how far the coordinator's journals were when it was made. It goes out when this node has applied as much, so whoever
asked can read here what was written there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from braidmq.base import limits
from braidmq.base.disk import Buffer
from braidmq.base.errors import BraidError
from braidmq.broker.admission import is_open
from braidmq.broker.broker import Broker
from braidmq.cluster.messages import pack, unpack
from braidmq.cluster.node import ClusterNode
from braidmq.cluster.transport import ClusterOp
from braidmq.security.authorizer import Principal
from braidmq.server.authorization import authorize
from braidmq.server.operations import OPERATIONS, Answer
from braidmq.wire import flymq
from braidmq.wire.flymq import Dialect, Op

if TYPE_CHECKING:
    from braidmq.server.flymq_session import FlyMQSession

_ANSWER_S: Final = limits.SESSION_TIMEOUT_MS_MAX / 1000 + 60
"""To join a group may take as long as a session of its members."""
_PATIENCE_S: Final = 20.0
_AGAIN_S: Final = 0.1
_CAUGHT_UP_S: Final = 5.0

COORDINATED: Final = frozenset({
    Op.CREATE_TOPIC, Op.DELETE_TOPIC, Op.TOPIC_CONFIG, Op.SUBSCRIBE, Op.COMMIT,
    Op.REGISTER_SCHEMA, Op.DELETE_SCHEMA,
    Op.FETCH_DLQ, Op.REPLAY_DLQ, Op.PURGE_DLQ, Op.DLQ_DISCARD, Op.DLQ_FAIL, Op.PRODUCE_DELAYED, Op.CANCEL_DELAYED,
    Op.DELAYED_LIST,
    Op.TXN_BEGIN, Op.TXN_COMMIT, Op.TXN_ROLLBACK, Op.TXN_PRODUCE, Op.TXN_LIST, Op.TXN_OFFSETS,
    Op.STAGE_BATCH, Op.STAGE_PUBLISH, Op.STAGE_ABORT, Op.STAGE_STATUS, Op.STAGE_LIST, Op.GROUP_PLAN,
    Op.GROUP_JOIN, Op.GROUP_HEARTBEAT, Op.GROUP_LEAVE, Op.GROUP_COMMIT, Op.GROUP_LAG, Op.GET_OFFSET, Op.RESET_OFFSET,
    Op.LIST_GROUPS, Op.DESCRIBE_GROUP, Op.GET_LAG, Op.DELETE_GROUP, Op.SEEK_TO_TIMESTAMP,
    Op.USER_CREATE, Op.USER_DELETE, Op.USER_UPDATE, Op.ACL_SET, Op.ACL_DELETE, Op.PASSWORD_CHANGE, Op.ACCOUNT_ADMIN,
    Op.PIPELINE_PUT, Op.PIPELINE_LIST, Op.PIPELINE_GET, Op.PIPELINE_STEER, Op.PIPELINE_REMOVE, Op.PIPELINE_START,
    Op.PIPELINE_REPORT, Op.PIPELINE_END, Op.CLUSTER_STEER,
})  # fmt: skip
"""What only the coordinator can do."""

_ADMITTED: Final = frozenset({Op.PRODUCE, Op.PRODUCE_BATCH, Op.PRODUCE_WITH_TTL, Op.PRODUCE_WITH_SCHEMA})
"""What may make dead letters, where the topic says so."""

_ONCE: Final = frozenset({
    Op.PRODUCE, Op.PRODUCE_BATCH, Op.PRODUCE_WITH_TTL, Op.PRODUCE_WITH_SCHEMA, Op.PRODUCE_DELAYED, Op.TXN_BEGIN, Op.TXN_PRODUCE,
    Op.REPLAY_DLQ, Op.DLQ_DISCARD, Op.USER_CREATE, Op.PASSWORD_CHANGE, Op.REGISTER_SCHEMA,
})  # fmt: skip
"""What asked twice would be done twice, or answered with an error: where no answer came, whoever asked has to decide."""

logger = logging.getLogger("braidmq.cluster")


class RemoteCaller:
    """A connection to another node."""

    forwarded = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.dialect = Dialect.DOCUMENTED
        self.principal = Principal()
        self.address = self.ip = self.reached_at = ""
        self._memberships: set[tuple[int, str]] = set()
        self._commits: set[str] = set()
        self._gone = False

    def remember_membership(self, topic_id: int, group: str) -> None:
        if self._gone:
            # The connection ended while its request was run.
            self.broker.unsubscribe(topic_id, group, self)
        self._memberships.add((topic_id, group))

    def first_commit(self, group: str) -> bool:
        if group in self._commits:
            return False
        if len(self._commits) >= limits.SESSION_COMMITS_NOTED_MAX:
            self._commits.clear()
        self._commits.add(group)
        return True

    def logged_in(self, principal: Principal) -> None:
        self.principal = principal
        self._commits.clear()

    def lost(self) -> None:
        self._gone = True
        broker = self.broker
        for topic_id, group in self._memberships:
            broker.unsubscribe(topic_id, group, self)
        broker.coordinator.members.owner_lost(self)
        broker.transactions.abort_owner(self)


class Forwarding:
    """Both ends of it, for one node."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node
        self._broker = node.broker
        self._numbers: dict[FlyMQSession, int] = {}
        self._last = 0
        self._callers: dict[tuple[str, int], RemoteCaller] = {}
        self._endings: set[asyncio.Task[None]] = set()
        node.transport.serve(ClusterOp.FORWARD_REQUEST, self._asked)
        node.watchers.append(self._drop_gone)

    # --- asking

    def concerns(self, request: flymq.Request) -> bool:
        """Whether the coordinator has to run a request, and this node is not it."""
        if self._node.coordinates:
            return False
        if isinstance(request, flymq.SeekToTimestamp) and not request.group:
            # It moves no group, and any node may ask the leader.
            return self._broker.topics.get(request.topic) is None
        if request.op in COORDINATED:
            return True
        if request.op not in _ADMITTED:
            return False
        topic = self._broker.topics.get(getattr(request, "topic", ""))
        return topic is not None and not is_open(topic) and topic.properties.get("schema_rule") == "dead-letter"

    async def forward(self, session: FlyMQSession, op: int, flags: int, payload: bytes) -> Answer:
        """Have the coordinator run a request."""
        number = self._numbers.get(session)
        if number is None:
            self._last += 1
            number = self._numbers[session] = self._last
        document = {
            "session": number, "op": op, "flags": flags, "dialect": session.dialect.value, "user": session.principal.name,
            "id": session.principal.id, "address": session.address, "ip": session.ip, "reached_at": session.reached_at,
        }  # fmt: skip
        clock = self._node.clock
        deadline_s = clock.monotonic() + _PATIENCE_S
        while True:
            try:
                if self._node.coordinates:
                    # It came here meanwhile.
                    return await self._run(self._caller(self._node.node, document), op, flags, payload)
                leader = self._node.coordinator_node()
                if not leader:
                    raise BraidError("NOT_LEADER", reason="no leader elected")
                answered = await self._node.transport.call(
                    leader, ClusterOp.FORWARD_REQUEST, pack(document, payload), _ANSWER_S
                )
                break
            except BraidError as error:
                # Who says that it does not coordinate did nothing, and who refused the connection got nothing.
                again = error.code == "NOT_LEADER" or (
                    error.code == "NODE_UNREACHABLE" and (Op(op) not in _ONCE or bool(error.fields.get("refused")))
                )
                if not again or clock.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(_AGAIN_S)
        applied, answer = unpack(answered)
        await self._node.caught_up(applied, _CAUGHT_UP_S)
        return [answer]

    def session_lost(self, session: FlyMQSession) -> None:
        number = self._numbers.pop(session, None)
        if number is None:
            return
        if self._node.coordinates:
            self._drop((self._node.node, number))
            return
        task = asyncio.get_running_loop().create_task(self._tell_end(number))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _tell_end(self, number: int) -> None:
        leader = self._node.coordinator_node()
        try:
            if leader:
                over = pack({"session": number, "over": True})
                await self._node.transport.call(leader, ClusterOp.FORWARD_REQUEST, over, _CAUGHT_UP_S)
        except BraidError as error:
            # Its members and transactions end by their time-outs.
            logger.debug("the end of a connection was not told: %s", error)

    # --- being asked

    async def _asked(self, node: str, payload: memoryview) -> Sequence[Buffer]:
        document, body = unpack(payload)
        if document.get("over"):
            self._drop((node, document["session"]))
            return pack({})
        self._node.check_coordinates()
        caller = self._caller(node, document)
        answer = await self._run(caller, document["op"], document["flags"], bytes(body))
        return pack(self._node.applied(), *answer)

    def _caller(self, node: str, document: Mapping[str, object]) -> RemoteCaller:
        key = (node, int(str(document["session"])))
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = RemoteCaller(self._broker)
        caller.dialect = Dialect(document["dialect"])
        caller.principal = Principal(str(document["user"]), int(str(document["id"])))
        caller.address, caller.ip = str(document["address"]), str(document["ip"])
        caller.reached_at = str(document["reached_at"])
        return caller

    async def _run(self, caller: RemoteCaller, op: int, flags: int, payload: bytes) -> Answer:
        try:
            request, _ = flymq.decode_request(op, flymq.unpack_payload(flags, payload), caller.dialect)
            authorize(caller, request)
            outcome = OPERATIONS[request.op](caller, request)
            return outcome if isinstance(outcome, list) else await outcome
        except BraidError as error:
            self._broker.figures.failed(error.code)
            return [flymq.encode_error(error, caller.dialect)]
        except Exception:
            logger.exception("%s: bug in an operation", caller.address)
            return [flymq.encode_error(BraidError("INTERNAL", reason="forwarded"), caller.dialect)]

    def _drop(self, key: tuple[str, int]) -> None:
        caller = self._callers.pop(key, None)
        if caller is not None:
            caller.lost()

    def _drop_gone(self) -> None:
        """Connections end with the node that they are to."""
        live = self._node.live()
        for key in [key for key in self._callers if key[0] not in live]:
            self._drop(key)
