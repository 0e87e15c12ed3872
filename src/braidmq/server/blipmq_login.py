"""Who a BlipMQ client is.

A key of the setting `blipmq_api_keys` stands for a user. Where the broker asks for logins, that user has to exist, and a client may
also show `user:password` of any account. A client certificate says it without a key. Where the broker does not ask for
logins, keys keep strangers out, and the user they name owns the client_ids it creates.

A key is compared by its digest, with all of them and in constant time. Guesses are slowed down by the same count as guesses of
passwords, for the address they come from.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Sequence

from braidmq.base import limits
from braidmq.base.config_keys import ApiKey
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.security.authorizer import Principal


class Login:
    def __init__(self, broker: Broker, keys: Sequence[ApiKey]) -> None:
        self._security = broker.security
        self._keys = keys

    @property
    def required(self) -> bool:
        """Whether a client has to log in before anything else."""
        authorizer = self._security.authorizer
        return bool(self._keys) or (authorizer.enabled and not authorizer.allow_anonymous)

    @property
    def possible(self) -> bool:
        """Whether a key means anything."""
        return bool(self._keys) or self._security.authorizer.enabled

    async def log_in(self, key: bytes, address: str) -> Principal:
        """The user whose key it is; INVALID_API_KEY otherwise."""
        throttle = self._security.accounts.throttle
        guesser = f"key of {address}"
        wait_s = throttle.wait_s(guesser, address)
        if wait_s > limits.THROTTLE_SECONDS_MAX / 2:
            raise BraidError("AUTH_THROTTLED", seconds=wait_s)
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        user = self._user_of(key)
        if user is None:
            name, colon, password = key.decode(errors="replace").partition(":")
            if colon and self._security.authorizer.enabled:
                return await self._account(name, password, address)
            throttle.failed(guesser, address)
            self._security.note("auth.failure", Principal(), address, "api key", "login", "failure")
            raise BraidError("INVALID_API_KEY")
        throttle.succeeded(guesser, address)
        if not self._security.authorizer.enabled:
            return Principal(user)
        principal = self._security.accounts.identify(user, address)
        if principal is None:
            raise BraidError("INVALID_API_KEY")
        return principal

    def _user_of(self, key: bytes) -> str | None:
        digest = hashlib.sha256(key).digest()
        found = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.user
        return found

    async def _account(self, name: str, password: str, address: str) -> Principal:
        try:
            return await self._security.accounts.authenticate(name, password, address)
        except BraidError as refused:
            if refused.code == "INVALID_CREDENTIALS":
                raise BraidError("INVALID_API_KEY") from None
            raise
