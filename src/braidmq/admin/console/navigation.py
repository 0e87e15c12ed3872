"""What the console's menu shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    path: str
    admin: bool = False
    """Whether only administrators see anything there."""


NAVIGATION: Final[tuple[tuple[str, tuple[Entry, ...]], ...]] = (
    ("", (Entry("Overview", "/console"),)),
    ("Data", (
        Entry("Topics", "/console/topics"),
        Entry("Schemas", "/console/schemas"),
        Entry("Dead letters", "/console/dead-letters"),
        Entry("Delayed", "/console/delayed", admin=True),
        Entry("Transactions", "/console/transactions", admin=True),
    )),
    ("Readers", (
        Entry("Groups", "/console/groups"),
        Entry("Subscriptions", "/console/subscriptions", admin=True),
        Entry("fq queues", "/console/queues", admin=True),
        Entry("Connections", "/console/connections", admin=True),
    )),
    ("Spark", (
        Entry("Pipelines", "/console/pipelines"),
    )),
    ("Administration", (
        Entry("Cluster", "/console/cluster"),
        Entry("Users", "/console/users", admin=True),
        Entry("ACLs", "/console/acls", admin=True),
        Entry("Audit", "/console/audit", admin=True),
        Entry("Recovery and disk", "/console/recovery", admin=True),
        Entry("Settings", "/console/settings", admin=True),
        Entry("API", "/swagger/"),
    )),
)  # fmt: skip
"""Groups of entries, each under its heading."""
