"""Transactions, 40 to 43, and our own TXN_OFFSETS and TXN_LIST.

What a transaction needs beyond the published fields is our own addition behind them: a name that fences an earlier instance of the
same producer, the epoch by which the broker knows an instance again, a time-out, and key and partition of a record.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from braidmq.wire.flymq.answers import OK, RECORD_METADATA
from braidmq.wire.flymq.layout import BOOL, BYTES, I32, I64, STR, U32, Extended, Layout, Many, WireType, asked
from braidmq.wire.flymq.opcodes import Op
from braidmq.wire.flymq.places import TOPIC_OFFSET, TopicOffset
from braidmq.wire.shape import shape


@shape
class TxnBegin:
    op: ClassVar[Op] = Op.TXN_BEGIN
    transactional_id: str = ""
    """Beginning under a name ends what an earlier producer of that name began."""
    timeout_ms: int = 0
    """0 leaves it to the broker."""
    epoch: int = -1
    """What the answer to an earlier one under the same name said: go on as that instance, unless a newer one took over. -1 is a new
    instance, which takes the name over."""


@shape
class TxnCommit:
    op: ClassVar[Op] = Op.TXN_COMMIT
    id: str


@shape
class TxnRollback:
    op: ClassVar[Op] = Op.TXN_ROLLBACK
    id: str


@shape
class TxnProduce:
    op: ClassVar[Op] = Op.TXN_PRODUCE
    id: str
    topic: str
    data: bytes
    key: bytes = b""
    partition: int = -1


@shape
class TxnOffsets:
    """Commit a group's offsets with the transaction, or not at all."""

    op: ClassVar[Op] = Op.TXN_OFFSETS
    id: str
    group: str
    offsets: tuple[TopicOffset, ...]


@shape
class TxnList:
    op: ClassVar[Op] = Op.TXN_LIST


TransactionRequest = TxnBegin | TxnCommit | TxnRollback | TxnProduce | TxnOffsets | TxnList


@shape
class TxnDone:
    """A transaction was begun, committed or rolled back; failures are ERROR frames."""

    id: str
    success: bool = True
    epoch: int = -1
    """Of one that was begun under a name: which instance of the producer that is."""


@shape
class Transaction:
    id: str
    owner: str
    state: str
    started_ms: int
    records: int


@shape
class Transactions:
    transactions: tuple[Transaction, ...]


TransactionResponse = TxnDone | Transactions

_DONE: Final = Layout(TxnDone, id=STR, success=BOOL)

REQUESTS: Final[dict[int, WireType[Any]]] = {
    Op.TXN_BEGIN: Extended(TxnBegin, {"transactional_id": STR, "timeout_ms": U32, "epoch": I64}),
    Op.TXN_COMMIT: Layout(TxnCommit, id=STR),
    Op.TXN_ROLLBACK: Layout(TxnRollback, id=STR),
    Op.TXN_PRODUCE: Extended(TxnProduce, {"key": BYTES, "partition": I32}, id=STR, topic=STR, data=BYTES),
    Op.TXN_OFFSETS: Layout(TxnOffsets, id=STR, group=STR, offsets=asked(TOPIC_OFFSET)),
    Op.TXN_LIST: Layout(TxnList),
}

RESPONSES: Final[dict[int, WireType[Any]]] = {
    Op.TXN_BEGIN: Extended(TxnDone, {"epoch": I64}, id=STR, success=BOOL),
    Op.TXN_COMMIT: _DONE,
    Op.TXN_ROLLBACK: _DONE,
    Op.TXN_PRODUCE: RECORD_METADATA,
    Op.TXN_OFFSETS: OK,
    Op.TXN_LIST: Layout(
        Transactions, transactions=Many(Layout(Transaction, id=STR, owner=STR, state=STR, started_ms=I64, records=U32))
    ),
}
