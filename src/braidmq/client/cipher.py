"""Encryption of values between producer and consumer; the broker only ever sees the ciphertext.

AES-256-GCM, stored as nonce (12 bytes), ciphertext, tag (16 bytes): the layout FlyMQ's clients use. Keys, headers and the
partition stay readable, because the broker and the partitioner need them. A value that was changed on its way, or
encrypted with another key, does not decrypt: that is an error which names the record, never wrong data.
"""

from __future__ import annotations

import os
import re
from typing import Final

from braidmq.base.errors import BraidError

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)


class ValueCipher:
    """Encrypts and decrypts values with one key, given as 64 hexadecimal characters."""

    __slots__ = ("_aead", "_invalid_tag")

    def __init__(self, key_hex: str) -> None:
        if not _KEY.fullmatch(key_hex):
            raise BraidError("INVALID_KEY", reason=f"{len(key_hex)} characters that are not 64 hexadecimal digits")
        # Imported here: loading the library takes longer than connecting, and most clients do not encrypt.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aead = AESGCM(bytes.fromhex(key_hex))
        self._invalid_tag = InvalidTag

    def encrypt(self, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, value, None)

    def decrypt(self, value: bytes, topic: str, partition: int, offset: int) -> bytes:
        """The plain value; the other arguments only name the record in the error."""
        if len(value) < NONCE_BYTES + TAG_BYTES:
            raise BraidError("DECRYPTION_FAILED", topic=topic, partition=partition, offset=offset)
        try:
            return self._aead.decrypt(value[:NONCE_BYTES], value[NONCE_BYTES:], None)
        except self._invalid_tag:
            raise BraidError("DECRYPTION_FAILED", topic=topic, partition=partition, offset=offset) from None
