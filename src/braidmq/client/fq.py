"""A client for fq, of this broker or any other: publish into exchanges, read what a queue gets of them.

    async with fq.connect("127.0.0.1:8765", user="me", queue="mine") as client:
        await client.bind("logs", 'prefix:"web."')
        await client.publish("logs", "web.access", b"...")
        async for message in client:
            print(message.exchange, message.route, message.payload)

`fq.sync` is the same without `async` and `await`. **fq acknowledges no message**: what `publish` and `flush` promise is said there.
Names are bytes on the wire; text is sent as UTF-8.
"""

from braidmq.base.errors import BraidError
from braidmq.client._async.fq import FqClient, connect
from braidmq.client._sync import fq as sync
from braidmq.client.faults import ServerError
from braidmq.client.fq_buffers import Binding
from braidmq.wire.fq.commands import FLAG_PEER, FLAG_TRANSIENT, FLAGS_PERMANENT
from braidmq.wire.fq.messages import Message

__all__ = [
    "FLAGS_PERMANENT", "FLAG_PEER", "FLAG_TRANSIENT", "Binding", "BraidError", "FqClient", "Message", "ServerError", "connect",
    "sync",
]  # fmt: skip
