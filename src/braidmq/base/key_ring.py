"""The keys of encryption at rest: where they come from, which one writes, and the proof that they fit the data.

Keys come from the environment or from a key file, never from the configuration: a file that people copy, print and commit. A
key is 64 hexadecimal digits; its id, which every encrypted batch carries, is the beginning of its fingerprint. There may be
several. The last one, the newest, encrypts; all of them decrypt. So a rotation is: add a key, restart. A key can be left out
again when nothing on the disk needs it any more.

A data directory that holds anything encrypted has a file `ENCRYPTION` with one proof for each key. It is read before anything
else is opened. Without the keys, or with others, the start is refused and nothing has been changed: recovery must never
take what it cannot read for damage.

Faults: a flipped bit anywhere in what was encrypted is found by its tag. A loss of power while the proofs are written leaves the
old ones or the new ones, and the first batch of a new key follows its proof.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidmq.base import limits
from braidmq.base.disk import Buffer, Disk
from braidmq.base.errors import BraidError

KEYS_ENV: Final = "BRAID_ENCRYPTION_KEYS"
KEY_ENV: Final = "BRAID_ENCRYPTION_KEY"
FLYMQ_KEY_ENV: Final = "FLYMQ_ENCRYPTION_KEY"
MARKER: Final = "ENCRYPTION"
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEAL_BYTES: Final = NONCE_BYTES + TAG_BYTES
"""What encryption adds to the data."""

_KEY: Final = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)
_PROOF_TEXT: Final = b"BRAIDMQ_KEY_PROOF_1"
_MARKER_FORMAT: Final = 1

logger = logging.getLogger("braidmq.keys")


class DoesNotDecrypt(Exception):
    """Damaged, or encrypted with another key than the one its id means here."""


@dataclass(frozen=True, slots=True)
class _Key:
    id: int
    fingerprint: str
    aead: Any

    def __repr__(self) -> str:
        return f"_Key({self.fingerprint})"


def shown_key_id(key_id: int) -> str:
    """A key id as people see it: the first eight digits of the key's fingerprint."""
    return f"{key_id:08x}"


class KeyRing:
    """The keys of one broker, the newest last. Holds no key in a form that could be printed."""

    __slots__ = ("_by_id", "_invalid_tag", "_newest")

    def __init__(self, keys_hex: Sequence[str], origin: str = "the keys") -> None:
        # Imported here: most brokers do not encrypt.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not 0 < len(keys_hex) <= limits.ENCRYPTION_KEYS_MAX:
            raise BraidError("INVALID_KEY", reason=f"{origin}: {len(keys_hex)} keys, not 1 to {limits.ENCRYPTION_KEYS_MAX}")
        self._invalid_tag = InvalidTag
        self._by_id: dict[int, _Key] = {}
        for number, text in enumerate(keys_hex, 1):
            if not _KEY.fullmatch(text):
                # The text may be a key with a typing mistake, so it is not shown.
                reason = f"{origin}, key {number} of {len(keys_hex)}: {len(text)} characters that are not 64 hexadecimal digits"
                raise BraidError("INVALID_KEY", reason=reason)
            key = _Key(*_identity(text), AESGCM(bytes.fromhex(text)))
            known = self._by_id.pop(key.id, None)
            if known is not None and known.fingerprint != key.fingerprint:
                reason = f"{origin}, key {number}: another key has the same id {shown_key_id(key.id)}; make a new one"
                raise BraidError("INVALID_KEY", reason=reason)
            self._by_id[key.id] = self._newest = key

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(map(shown_key_id, self._by_id))})"

    def __contains__(self, key_id: int) -> bool:
        return key_id in self._by_id

    @property
    def ids(self) -> list[int]:
        """Ids of all keys, the newest last."""
        return list(self._by_id)

    @property
    def newest_id(self) -> int:
        """Id of the key that encrypts."""
        return self._newest.id

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell the newest key from others without telling what it is."""
        return self._newest.fingerprint

    def encrypt(self, data: Buffer, associated: Buffer) -> tuple[bytes, bytes]:
        """The nonce, and ciphertext with tag, by the newest key.

        The nonce is 96 random bits. That they repeat under one key stays out of the question up to 2**32 uses.
        """
        nonce = os.urandom(NONCE_BYTES)
        return nonce, self._newest.aead.encrypt(nonce, data, associated)

    def decrypt(self, key_id: int, sealed: Buffer, associated: Buffer) -> bytes:
        """What was encrypted with the key of that id, which must be here; raises `DoesNotDecrypt`."""
        if len(sealed) < SEAL_BYTES:
            raise DoesNotDecrypt
        view = memoryview(sealed)
        try:
            plain: bytes = self._by_id[key_id].aead.decrypt(view[:NONCE_BYTES], view[NONCE_BYTES:], associated)
        except self._invalid_tag:
            raise DoesNotDecrypt from None
        return plain


def _identity(key_hex: str) -> tuple[int, str]:
    """Id and fingerprint. The fingerprint is FlyMQ's, so that its tools can compare; the case of the digits does not matter."""
    fingerprint = hashlib.sha256(key_hex.lower().encode()).hexdigest()[:16]
    return int(fingerprint[:8], 16), fingerprint


# --- where keys come from


def load_keys(environ: Mapping[str, str], key_file: str | None, disk: Disk) -> KeyRing | None:
    """The keys from the first source that has any; None when no source has.

    The key file, one key a line with the newest last and `#` for comments; `BRAID_ENCRYPTION_KEYS`, separated by commas, the newest
    last; `BRAID_ENCRYPTION_KEY`; `FLYMQ_ENCRYPTION_KEY`. Sources are not mixed: which key writes would hang on their order.
    """
    if key_file is not None:
        return KeyRing(_read_key_file(disk, key_file), key_file)
    if listed := environ.get(KEYS_ENV, "").strip():
        return KeyRing([key.strip() for key in listed.split(",") if key.strip()], KEYS_ENV)
    for name in (KEY_ENV, FLYMQ_KEY_ENV):
        if key := environ.get(name, "").strip():
            return KeyRing([key], name)
    return None


def _read_key_file(disk: Disk, path: str) -> list[str]:
    try:
        size = disk.file_size(path)
        if size > limits.ENCRYPTION_KEY_FILE_BYTES_MAX:
            raise BraidError("INVALID_KEY", reason=f"{path}: {size} bytes; a key file has one key a line")
        text = disk.read_file(path).decode("ascii", "replace")
    except OSError as fault:
        raise BraidError("ENCRYPTION_KEY_MISSING", reason=f"key file {path}: {fault.strerror or fault}") from None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


# --- the proof that they fit the data

LoadKeys = Callable[[], KeyRing | None]
FindUsed = Callable[[set[int]], set[int]]
"""Which of these key ids something in the data directory still needs."""


def is_encrypted(disk: Disk, data_dir: str) -> bool:
    """Whether the data directory holds anything that is encrypted."""
    return disk.exists(f"{data_dir}/{MARKER}")


def open_keys(disk: Disk, data_dir: str, load: LoadKeys, encrypt: bool, find_used: FindUsed) -> KeyRing | None:
    """The keys that a broker needs for this data directory, proven to fit; None when it needs none.

    With `encrypt` the newest key gets its proof here, before anything is written with it. Proofs of keys that were left out and
    that nothing needs are let go. Everything else that does not fit is refused, and the directory is as it was.
    """
    proofs = _read_proofs(disk, data_dir)
    if not encrypt and not proofs:
        return None
    keys = load()
    if keys is None:
        if proofs:
            known = ", ".join(map(shown_key_id, sorted(proofs)))
            raise BraidError("ENCRYPTION_KEY_MISSING", reason=f"{data_dir} is encrypted with key {known}, and no key was given")
        raise BraidError("ENCRYPTION_KEY_MISSING", reason="encryption_enabled is set, and no key was given")
    kept = _checked_proofs(data_dir, proofs, keys, find_used)
    if encrypt and keys.newest_id not in kept:
        kept[keys.newest_id] = b"".join(keys.encrypt(_PROOF_TEXT, _proof_context(keys.newest_id)))
    if kept != proofs:
        _write_proofs(disk, data_dir, kept)
    return keys


def _checked_proofs(data_dir: str, proofs: dict[int, bytes], keys: KeyRing, find_used: FindUsed) -> dict[int, bytes]:
    """The proofs that stay; raises when a key is wrong or one is missing that the data needs."""
    for key_id in proofs:
        if key_id in keys:
            try:
                proven = keys.decrypt(key_id, proofs[key_id], _proof_context(key_id)) == _PROOF_TEXT
            except DoesNotDecrypt:
                proven = False
            if not proven:
                reason = f"key {shown_key_id(key_id)} is not the one that {data_dir} was written with"
                raise BraidError("ENCRYPTION_KEY_WRONG", reason=reason)
    missing = {key_id for key_id in proofs if key_id not in keys}
    if not missing:
        return dict(proofs)
    names = ", ".join(map(shown_key_id, sorted(missing)))
    if len(missing) == len(proofs):
        given = ", ".join(map(shown_key_id, keys.ids))
        raise BraidError("ENCRYPTION_KEY_WRONG", reason=f"{data_dir} is encrypted with key {names}, and key {given} was given")
    used = find_used(missing)
    if used:
        names = ", ".join(map(shown_key_id, sorted(used)))
        raise BraidError("ENCRYPTION_KEY_MISSING", reason=f"{data_dir} still holds data encrypted with key {names}")
    logger.info("nothing needs key %s any more", names)
    return {key_id: proof for key_id, proof in proofs.items() if key_id not in missing}


def _proof_context(key_id: int) -> bytes:
    return b"proof of key %08x" % key_id


def _read_proofs(disk: Disk, data_dir: str) -> dict[int, bytes]:
    if not is_encrypted(disk, data_dir):
        return {}
    try:
        document = json.loads(disk.read_file(f"{data_dir}/{MARKER}"))
        if document["format"] != _MARKER_FORMAT:
            raise ValueError(f"its format is {document['format']}")
        proofs = {int(key_id, 16): bytes.fromhex(proof) for key_id, proof in document["keys"].items()}
        if not proofs:
            raise ValueError("it names no key")
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise BraidError("DATA_DIR_INVALID", path=data_dir, reason=f"the file {MARKER} is damaged: {fault}") from None
    return proofs


def _write_proofs(disk: Disk, data_dir: str, proofs: dict[int, bytes]) -> None:
    document = {"format": _MARKER_FORMAT, "keys": {shown_key_id(key_id): proof.hex() for key_id, proof in proofs.items()}}
    disk.replace_file(f"{data_dir}/{MARKER}", json.dumps(document).encode())
