"""The decision: may this principal do that. The only place that makes it.

A login lasts as long as its account: whoever was deleted or disabled since is anonymous, whatever is asked.

Access to a topic, with authentication on, first test that applies:

1. the topic is public (its ACL says so, or it has none and topics are public by default): everybody who is logged in, and with
   `allow_anonymous` everybody;
2. anonymous: `authentication required`;
3. a role of the user has the permission: yes;
4. the topic's ACL names the user or one of its roles: yes;
5. `unauthorized`.

Administration is never public. The broker's own topics are out of reach for everybody, administrators and brokers
without authentication included. A dead-letter topic without an ACL of its own has that of the topic its records
came from: what was private does not become public by failing. A request without a rule is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.base.naming import DEAD_LETTER_ENDING
from braidmq.security.account_names import INTERNAL_PREFIX
from braidmq.security.acls import Acl, AclTable
from braidmq.security.roles import Permission, RoleTable
from braidmq.security.rules import AUDIT_TEXTS, OPCODE_PERMISSIONS, Rule
from braidmq.security.users import User, UserTable
from braidmq.wire.flymq.opcodes import Op


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody as a connection knows them: the name they logged in with, and the number their account had then."""

    name: str = ""
    id: int = 0

    @property
    def anonymous(self) -> bool:
        return not self.id


ANONYMOUS: Final = Principal()

_TOPIC_RULES: Final = {
    Rule.READ_TOPIC: Permission.READ,
    Rule.WRITE_TOPIC: Permission.WRITE,
    Rule.OWNER_WRITE_TOPIC: Permission.WRITE,
    Rule.OWNER_READ_TOPIC: Permission.READ,
}


class Authorizer:
    def __init__(
        self,
        users: UserTable,
        roles: RoleTable,
        acls: AclTable,
        *,
        enabled: bool = True,
        allow_anonymous: bool = False,
        default_public: bool = True,
    ) -> None:
        self._users = users
        self._roles = roles
        self._acls = acls
        self.enabled = enabled
        self.allow_anonymous = allow_anonymous
        self.default_public = default_public

    @property
    def version(self) -> int:
        """Grows with everything a decision depends on: what was decided at another version has to be decided again."""
        return self._users.version + self._roles.version + self._acls.version

    def current(self, principal: Principal) -> Principal:
        """Who somebody that logged in once is now: nobody any more when the account is gone, disabled or another one."""
        return principal if not self.enabled or self._live_user(principal) is not None else ANONYMOUS

    # --- decisions

    def decide(self, principal: Principal, permission: Permission, topic: str | None = None) -> BraidError | None:
        """None when allowed, else why not. Without a topic only `ADMIN` makes sense."""
        if topic is not None and topic.startswith(INTERNAL_PREFIX):
            return BraidError("INVALID_TOPIC", reason=f"names that begin with {INTERNAL_PREFIX} are internal")
        if not self.enabled:
            return None
        if permission is Permission.ADMIN or topic is None:
            return self._decide_by_role(principal, permission)
        acl = self._acl_of(topic)
        user = self._live_user(principal)
        if self.default_public if acl is None else acl.public:
            return None if self.allow_anonymous or user is not None else BraidError("AUTHENTICATION_REQUIRED")
        if user is None:
            return BraidError("AUTHENTICATION_REQUIRED")
        if self._roles.grants(user.roles, permission) or (acl is not None and acl.names(user.name, user.roles)):
            return None
        return BraidError("UNAUTHORIZED")

    def decide_request(
        self,
        principal: Principal,
        op: int,
        topic: str = "",
        *,
        owner: Principal | None = None,
        subject: str = "",
    ) -> BraidError | None:
        """Whether a FlyMQ request may be carried out.

        `topic` is the one it names; "" where it names none, or all of them. `owner` began the transaction the request is about;
        `subject` is the user whose password it changes.
        """
        try:
            rule = OPCODE_PERMISSIONS[Op(op)]
        except (ValueError, KeyError):
            return BraidError("UNAUTHORIZED")
        if rule is Rule.ANSWER:
            return BraidError("UNKNOWN_OPCODE", opcode=op)
        refused = self.decide_rule(principal, rule, topic, owner=owner, subject=subject)
        if rule is Rule.ADMIN and refused is not None and refused.code == "UNAUTHORIZED" and op in AUDIT_TEXTS:
            return BraidError("AUDIT_ADMIN_REQUIRED", what=AUDIT_TEXTS[Op(op)])
        return refused

    def decide_rule(
        self, principal: Principal, rule: Rule, topic: str = "", *, owner: Principal | None = None, subject: str = ""
    ) -> BraidError | None:
        """Whether what needs `rule` may be carried out, whichever protocol asks."""
        match rule:
            case Rule.NONE:
                return None
            case Rule.ANSWER:
                return BraidError("UNAUTHORIZED")
            case Rule.READ_TOPIC | Rule.WRITE_TOPIC:
                return self.decide(principal, _TOPIC_RULES[rule], topic)
            case Rule.OWNER | Rule.OWNER_OR_ADMIN | Rule.OWNER_WRITE_TOPIC | Rule.OWNER_READ_TOPIC:
                refused = self._decide_known(principal)
                if refused is None and self.enabled and owner is not None and owner != self.current(principal):
                    # Somebody has to be able to end a transaction whose owner will not.
                    may_end_it = rule is Rule.OWNER_OR_ADMIN
                    refused = self.decide(principal, Permission.ADMIN) if may_end_it else BraidError("UNAUTHORIZED")
                if refused is None and rule in _TOPIC_RULES:
                    refused = self.decide(principal, _TOPIC_RULES[rule], topic)
                return refused
            case Rule.AUTHENTICATED:
                return self._decide_known(principal)
            case Rule.SELF_OR_ADMIN:
                if principal.anonymous or principal.name != subject:
                    return self.decide(principal, Permission.ADMIN)
                live = not self.enabled or self._live_user(principal) is not None
                return None if live else BraidError("AUTHENTICATION_REQUIRED")
            case Rule.ADMIN:
                return self.decide(principal, Permission.ADMIN, topic or None)

    def visible(self, principal: Principal, names: Iterable[str]) -> list[str]:
        """Of these topics (or schemas, which are named after topics) those that the principal may read."""
        if not self.enabled:
            return list(names)
        return [name for name in names if self.decide(principal, Permission.READ, name) is None]

    def _decide_by_role(self, principal: Principal, permission: Permission) -> BraidError | None:
        user = self._live_user(principal)
        if user is None:
            return BraidError("AUTHENTICATION_REQUIRED")
        return None if self._roles.grants(user.roles, permission) else BraidError("UNAUTHORIZED")

    def _decide_known(self, principal: Principal) -> BraidError | None:
        """Anybody with an account, and with `allow_anonymous` anybody."""
        known = not self.enabled or self.allow_anonymous or self._live_user(principal) is not None
        return None if known else BraidError("AUTHENTICATION_REQUIRED")

    def _live_user(self, principal: Principal) -> User | None:
        """The account behind a login, as long as it is the one that logged in."""
        user = None if principal.anonymous else self._users.get(principal.name)
        return user if user is not None and user.id == principal.id and user.enabled else None

    def _acl_of(self, topic: str) -> Acl | None:
        if not topic:
            return None
        acl = self._acls.covering(topic)
        while acl is None and topic.endswith(DEAD_LETTER_ENDING):
            topic = topic.removesuffix(DEAD_LETTER_ENDING)
            acl = self._acls.covering(topic)
        return acl
