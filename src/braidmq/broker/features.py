"""How the broker's security is put together: tables, decisions, accounts, quotas, and the audit trail.

The tables are machines of the metadata journal, so they exist before it is replayed; accounts and trail need what only recovery
opens, and come after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from braidmq.base.clock import Clock
from braidmq.base.figures import Figures
from braidmq.broker.journal import StateMachine
from braidmq.broker.machines import ACLS, ROLES, USERS
from braidmq.log.commit import GroupCommit
from braidmq.log.partition import PartitionLog
from braidmq.security.accounts import Accounts, Caller, Submit, count_event
from braidmq.security.acls import AclTable
from braidmq.security.audit import AuditTrail
from braidmq.security.audit_events import Result
from braidmq.security.authorizer import Authorizer, Principal
from braidmq.security.quotas import Quotas, Rates
from braidmq.security.roles import RoleTable
from braidmq.security.users import UserTable

SYSTEM: Final = Principal("system")
BROKER: Final = Caller(SYSTEM)
"""Who does what nobody asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    node_id: str = "braid"
    auth_enabled: bool = False
    allow_anonymous: bool = False
    default_public: bool = True
    admin_name: str = "admin"
    admin_password: Callable[[], str | None] = field(default=lambda: None, repr=False)
    """Asked when the administrator is missing."""
    audit_enabled: bool = False
    audit_retention_days: int = 90
    audit_retention_bytes: int = 1_000_000_000
    rates: Rates = field(default_factory=Rates)
    """What a user may spend a second, unless something else is set for that user."""


class Security:
    def __init__(self, settings: SecuritySettings, clock: Clock, figures: Figures | None = None) -> None:
        self.settings = settings
        self.figures = figures or Figures()
        self._clock = clock
        self.users = UserTable()
        self.roles = RoleTable(used_by=self._role_used_by)
        self.acls = AclTable()
        self.authorizer = Authorizer(
            self.users, self.roles, self.acls, enabled=settings.auth_enabled, allow_anonymous=settings.allow_anonymous,
            default_public=settings.default_public,
        )  # fmt: skip
        self.audit: AuditTrail | None = None
        self.accounts: Accounts
        self.quotas: Quotas

    def _role_used_by(self, role: str) -> str | None:
        user, topic = self.users.having(role), self.acls.naming(role)
        if user is not None:
            return f'user "{user}"'
        return None if topic is None else f'the ACL of "{topic}"'

    def machines(self) -> Mapping[str, StateMachine]:
        return {USERS: self.users, ROLES: self.roles, ACLS: self.acls}

    def open(
        self,
        trail: PartitionLog | None,
        commit: GroupCommit,
        submit: Submit,
        beside: Callable[[Callable[[], Any]], Awaitable[Any]],
        hashing: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """Begin, with everything recovered. `trail` is the log of the audit trail, None when there is to be no trail."""
        settings = self.settings
        if trail is not None:
            self.audit = AuditTrail(trail, commit, settings.node_id, beside)
        accounts = self.accounts = Accounts(
            self.users, self.roles, self.acls, self.authorizer, submit=submit, run_blocking=hashing, clock=self._clock,
            audit=self.audit, figures=self.figures,
        )  # fmt: skip
        self.quotas = Quotas(self._clock, settings.rates, lambda name: accounts.rates_of(name, settings.rates))

    async def ensure_admin(self) -> None:
        """See to it that somebody can administer a broker that asks for logins."""
        settings = self.settings
        if settings.auth_enabled:
            await self.accounts.ensure_admin(settings.admin_name, settings.admin_password())

    @property
    def metered(self) -> bool:
        """Whether anybody's requests and bytes may have to be counted."""
        return self.settings.auth_enabled or self.settings.rates != Rates()

    def note(
        self, kind: str, principal: Principal, client_ip: str, resource: str, action: str, result: Result = "success",
        **details: str,
    ) -> None:
        """Write something into the audit trail, if there is one, and count what metrics show."""
        count_event(self.figures, kind)
        if self.audit is not None:
            self.audit.record(
                kind, user=principal.name, client_ip=client_ip, resource=resource, action=action, result=result, details=details
            )

    def apply_retention(self, now_ms: int) -> None:
        if self.audit is not None:
            self.audit.apply_retention(now_ms)
