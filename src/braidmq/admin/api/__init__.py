"""Every endpoint of the admin API: one row each.

Paths up to FlyMQ's own are those of its published API, with the fields it documents; more fields may stand beside them.
"""

from __future__ import annotations

from typing import Final

from braidmq.admin.api import logins, topics
from braidmq.admin.endpoint import Endpoint
from braidmq.security.rules import Rule

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    # --- who one is
    Endpoint("GET", "/api/v1/session", Rule.NONE, logins.who_am_i),
    Endpoint("POST", "/api/v1/session", Rule.NONE, logins.log_in, 201, hashes=True),
    Endpoint("DELETE", "/api/v1/session", Rule.NONE, logins.log_out, 204),
    # --- topics
    Endpoint("GET", "/api/v1/topics", Rule.AUTHENTICATED, topics.list_topics),
    Endpoint("POST", "/api/v1/topics", Rule.ADMIN, topics.create_topic, 201),
    Endpoint("GET", "/api/v1/topics/{topic}", Rule.READ_TOPIC, topics.get_topic, raw_tail=True),
    Endpoint("PATCH", "/api/v1/topics/{topic}", Rule.ADMIN, topics.configure_topic),
    Endpoint("DELETE", "/api/v1/topics/{topic}", Rule.ADMIN, topics.delete_topic, 204, raw_tail=True),
)

BY_NAME: Final[dict[str, Endpoint]] = {endpoint.name: endpoint for endpoint in ENDPOINTS}
"""By the name of the handler, which is the operation's id in the OpenAPI document."""
