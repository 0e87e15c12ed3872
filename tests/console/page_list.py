"""Every page of the console, as the sample broker fills it."""

from __future__ import annotations

from typing import Final

PAGES: Final = {
    "overview": "/console",
    "topics": "/console/topics",
    "topics-search": "/console/topics?search=ord",
    "topic": "/console/topics/orders",
    "topic-odd": "/console/topics/odd%2Fname%20with%20space",
    "messages": "/console/topics/orders/messages",
    "messages-filter": "/console/topics/orders/messages?start=earliest&filter=order+7&partition=-1&limit=20",
    "message": "/console/topics/orders/messages/0/0",
    "message-avro": "/console/topics/clicks/messages/0/3",
    "message-binary": "/console/topics/odd%2Fname%20with%20space/messages/0/0",
    "produce": "/console/topics/orders/produce",
    "copy": "/console/topics/orders/produce?partition=0&offset=0",
    "groups": "/console/groups",
    "group": "/console/topics/orders/groups/billing",
    "schemas": "/console/schemas",
    "schema": "/console/schemas/orders",
    "dead-letters": "/console/dead-letters",
    "letters": "/console/dead-letters/orders",
    "delayed": "/console/delayed",
    "transactions": "/console/transactions",
    "subscriptions": "/console/subscriptions",
    "queues": "/console/queues",
    "connections": "/console/connections",
    "pipelines": "/console/pipelines",
    "pipeline": "/console/pipelines/enrich",
    "users": "/console/users",
    "acls": "/console/acls",
    "audit": "/console/audit",
    "recovery": "/console/recovery",
    "settings": "/console/settings",
    "cluster": "/console/cluster",
}

FOR_READERS: Final = (
    "overview", "topics", "topic", "messages", "message", "groups", "group", "schemas", "schema", "dead-letters", "letters",
    "pipelines", "pipeline", "cluster",
)  # fmt: skip
"""Those that somebody sees who may only read."""
