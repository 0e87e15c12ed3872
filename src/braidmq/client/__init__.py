"""The client library: `connect`, then single requests, a `Producer` or a `Consumer`.

    async with connect("127.0.0.1:9092") as client:
        async with client.producer() as producer:
            await producer.send("orders", b"...", key=b"42")
        async with client.consumer("orders", group="billing") as consumer:
            async for record in consumer:
                ...

`braidmq.client.sync` is the same without `async` and `await`. Way of the data: `_async/producer` or `_async/consumer` uses
`_async/connection`, which uses a stream of `_backend`; what can be decided without I/O is in `outbox` and `inbox`.

What needs asyncio is imported when it is first asked for: `sync` lives in this package, and programs that use only that one (among
them every Python worker of Spark) would wait for it in vain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from braidmq.base.errors import BraidError
from braidmq.client.addresses import Address
from braidmq.client.faults import ServerError
from braidmq.client.models import (
    Failure,
    FetchedBytes,
    FetchedRecords,
    GroupPartition,
    GroupState,
    OffsetChange,
    PartitionInfo,
    Provenance,
    Record,
    RecordMetadata,
    TopicInfo,
    TopicPartition,
)
from braidmq.client.provenance import provenance
from braidmq.client.settings import ClientSettings, load_settings

if TYPE_CHECKING:
    from braidmq.client._async.client import Client, connect
    from braidmq.client._async.consumed import ConsumedRecord
    from braidmq.client._async.consumer import Consumer, Start
    from braidmq.client._async.producer import Producer
    from braidmq.client._async.transactions import Transaction
    from braidmq.client._backend.asyncio import Delivery

__all__ = [
    "Address", "BraidError", "Client", "ClientSettings", "ConsumedRecord", "Consumer", "Delivery", "Failure", "FetchedBytes",
    "FetchedRecords", "GroupPartition", "GroupState", "OffsetChange", "PartitionInfo", "Producer", "Provenance", "Record",
    "RecordMetadata", "ServerError", "Start", "TopicInfo", "TopicPartition", "Transaction", "connect", "load_settings",
    "provenance",
]  # fmt: skip

_LATER = {
    "Client": "_async.client", "connect": "_async.client", "ConsumedRecord": "_async.consumed", "Consumer": "_async.consumer",
    "Start": "_async.consumer", "Producer": "_async.producer", "Transaction": "_async.transactions", "Delivery": "_backend.asyncio",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
