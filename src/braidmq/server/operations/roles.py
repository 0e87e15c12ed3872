"""Roles of one's own, and quotas of users: what `braid role` and `braid user quota` ask for."""

from __future__ import annotations

from typing import assert_never

from braidmq.security.users import User
from braidmq.server.operations.calling import Answer, Caller, account, respond
from braidmq.wire import flymq


async def account_admin(caller: Caller, request: flymq.RoleRequest) -> Answer:
    accounts, by = caller.broker.security.accounts, account(caller)
    match request:
        case flymq.RoleCreate():
            await accounts.create_role(by, request.name, request.permissions, request.description)
        case flymq.RoleUpdate():
            await accounts.update_role(by, request.name, request.permissions, request.description)
        case flymq.RoleDelete():
            await accounts.delete_role(by, request.name)
        case flymq.QuotaSet():
            await accounts.set_quota(by, request.user, request.bytes_per_s, request.requests_per_s)
            return respond(caller, request, flymq.Ok(True, request.user))
        case flymq.QuotaList():
            return _quotas(caller, request)
        case _:
            assert_never(request)
    return respond(caller, request, flymq.Ok(True, request.name))


def _quotas(caller: Caller, request: flymq.QuotaList) -> Answer:
    security = caller.broker.security
    shown = [security.users.require(request.user)] if request.user else security.accounts.with_quota()
    rates = security.settings.rates
    return respond(
        caller, request, flymq.Quotas(rates.bytes_per_s, rates.requests_per_s, tuple(map(_quota, shown)))
    )


def _quota(user: User) -> flymq.Quota:
    return flymq.Quota(user.name, user.bytes_per_s, user.requests_per_s)
