"""The client library: `connect`, then single requests, a `Producer` or a `Consumer`.

    async with connect("127.0.0.1:9092") as client:
        async with client.producer() as producer:
            await producer.send("orders", b"...", key=b"42")
        async with client.consumer("orders", group="billing") as consumer:
            async for record in consumer:
                ...

`braidmq.client.sync` is the same without `async` and `await`. Way of the data: `_async/producer` or `_async/consumer` uses
`_async/connection`, which uses a stream of `_backend`; what can be decided without I/O is in `outbox` and `inbox`.
"""

from braidmq.base.errors import BraidError
from braidmq.client._async.client import Client, connect
from braidmq.client._async.consumed import ConsumedRecord
from braidmq.client._async.consumer import Consumer, Start
from braidmq.client._async.producer import Producer
from braidmq.client._async.transactions import Transaction
from braidmq.client._backend.asyncio import Delivery
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

__all__ = [
    "Address", "BraidError", "Client", "ClientSettings", "ConsumedRecord", "Consumer", "Delivery", "Failure", "FetchedBytes",
    "FetchedRecords", "GroupPartition", "GroupState", "OffsetChange", "PartitionInfo", "Producer", "Provenance", "Record",
    "RecordMetadata", "ServerError", "Start", "TopicInfo", "TopicPartition", "Transaction", "connect", "load_settings",
    "provenance",
]  # fmt: skip
