"""Passwords as they are stored: scrypt, with a salt of their own and the cost beside them.

A stored password is `scrypt$ln=15,r=8,p=1$SALT$HASH` (base64 without padding), so the cost can rise without a change to what is
stored: an old one still verifies, and `needs_rehash` says that the next login should store it anew.

Hashing takes a core for a tenth of a second and 32 MiB. Every function here may run in any thread, and the event loop must not be
the one. A user that does not exist costs the same time as one that does, and hashes are compared in constant time, so
nothing can be learned from how long a refusal took.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

from braidmq.base import limits
from braidmq.base.errors import BraidError

_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_STORED: Final = re.compile(r"scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{16,88})\$([A-Za-z0-9+/]{43})", re.ASCII)
_LOG2_N_MAX: Final = 20
_R_MAX: Final = 16
_P_MAX: Final = 16
"""A damaged or hostile stored hash must not ask for more memory than the machine has."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What guessing one password costs: time grows with all three, memory with the first two."""

    log2_n: int = 15
    r: int = 8
    p: int = 1

    def derive(self, password: str, salt: bytes) -> bytes:
        memory = 128 * self.r * (1 << self.log2_n)
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"), salt=salt, n=1 << self.log2_n, r=self.r, p=self.p,
            maxmem=2 * memory + limits.MIB, dklen=_HASH_BYTES,
        )  # fmt: skip


DEFAULT_COST: Final = Cost()


def check_password(password: str) -> None:
    """Refuse what cannot be a password."""
    if not password:
        raise BraidError("INVALID_ARGUMENT", reason="the password is empty")
    if _is_too_long(password):
        raise BraidError("INVALID_ARGUMENT", reason=f"the password is longer than {limits.PASSWORD_BYTES_MAX} bytes")


def hash_password(password: str, cost: Cost = DEFAULT_COST) -> str:
    """What to store for `password`. Slow on purpose."""
    check_password(password)
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"scrypt$ln={cost.log2_n},r={cost.r},p={cost.p}${_text(salt)}${_text(cost.derive(password, salt))}"


def verify_password(password: str, stored: str | None, cost: Cost = DEFAULT_COST) -> bool:
    """Whether `password` is the one behind `stored`; None stands for a user that does not exist. Slow on purpose."""
    found = None if stored is None or _is_too_long(password) else _parse(stored)
    if found is None:
        cost.derive("", b"nobody has this salt")
        return False
    stored_cost, salt, expected = found
    return hmac.compare_digest(stored_cost.derive(password, salt), expected)


def needs_rehash(stored: str, cost: Cost = DEFAULT_COST) -> bool:
    """Whether `stored` was made at another cost than passwords are stored at now."""
    found = _parse(stored)
    return found is None or found[0] != cost


def _is_too_long(password: str) -> bool:
    return len(password.encode("utf-8", "surrogatepass")) > limits.PASSWORD_BYTES_MAX


def _parse(stored: str) -> tuple[Cost, bytes, bytes] | None:
    """Cost, salt and hash; None for text that is no stored password."""
    match = _STORED.fullmatch(stored)
    if match is None:
        return None
    log2_n, r, p = (int(number) for number in match.group(1, 2, 3))
    if not (1 <= log2_n <= _LOG2_N_MAX and 1 <= r <= _R_MAX and 1 <= p <= _P_MAX):
        return None
    return Cost(log2_n, r, p), _bytes(match[4]), _bytes(match[5])


def _text(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return b64decode(text + "=" * (-len(text) % 4))
