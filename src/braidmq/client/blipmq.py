"""A client for BlipMQ: publish to topics, subscribe to patterns.

    async with blipmq.connect("127.0.0.1:7878", client_id="billing") as client:
        await client.subscribe("orders/#", qos=1)
        await client.publish("orders/eu", b"...", qos=1)
        async for message in client:
            print(message.topic, message.payload)
            await message.ack()

`blipmq.sync` is the same without `async` and `await`.
"""

from braidmq.base.errors import BraidError
from braidmq.client._async.blipmq import BlipMQClient, connect
from braidmq.client._async.blipmq_messages import REJECTED, Publication, ReceivedMessage, Subscription
from braidmq.client._sync import blipmq as sync
from braidmq.client.faults import ServerError

__all__ = [
    "REJECTED", "BlipMQClient", "BraidError", "Publication", "ReceivedMessage", "ServerError", "Subscription", "connect", "sync",
]  # fmt: skip
