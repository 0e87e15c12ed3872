"""API keys of BlipMQ clients, as settings name them: `USER=KEY`, or `USER=sha256:HEX` for who does not want to write a key down.

Only the digest of a key is kept, so nothing that shows a configuration can show a key. The user is one of the broker's:
whoever presents the key has that user's rights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

DIGEST_PREFIX: Final = "sha256:"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Who presents a key with this digest is this user."""

    user: str
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""

    def __str__(self) -> str:
        return f"{self.user}=(hidden)"


def parse_api_key(text: str) -> ApiKey:
    """The key that `text` names; `ValueError` says what is wrong with it, without the key."""
    import hashlib

    user, separator, key = text.strip().partition("=")
    if not separator or not user.strip() or not key.strip():
        raise ValueError("an API key is USER=KEY or USER=sha256:HEX")
    user, key = user.strip(), key.strip()
    if not key.startswith(DIGEST_PREFIX):
        return ApiKey(user, hashlib.sha256(key.encode()).digest())
    digits = key.removeprefix(DIGEST_PREFIX).lower()
    if len(digits) != 2 * hashlib.sha256().digest_size or any(digit not in "0123456789abcdef" for digit in digits):
        raise ValueError(f"the key of {user} begins with {DIGEST_PREFIX} and is not 64 hexadecimal digits after it")
    return ApiKey(user, bytes.fromhex(digits))
