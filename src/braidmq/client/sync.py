"""The blocking twin of `braidmq.client`: the same names and the same behaviour, without `async` and `await`.

    with connect("127.0.0.1:9092") as client, client.producer() as producer:
        delivery = producer.send("orders", b"...", key=b"42")
        print(delivery.result().offset)

A `Client` and a `Producer` may be used by several threads, a `Consumer` by one at a time.
"""

from braidmq.base.errors import BraidError
from braidmq.client._backend.threads import Delivery
from braidmq.client._sync.client import Client, connect
from braidmq.client._sync.consumed import ConsumedRecord
from braidmq.client._sync.consumer import Consumer, Start
from braidmq.client._sync.producer import Producer
from braidmq.client._sync.transactions import Transaction
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
