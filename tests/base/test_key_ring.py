"""Keys of encryption at rest: where they come from, which one writes, and that no wrong set of them gets to the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import pytest

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import DoesNotDecrypt, KeyRing, is_encrypted, load_keys, open_keys, shown_key_id

OLD, NEW, OTHER = "0f" * 32, "a1" * 32, "5c" * 32
DATA = "/data"


def none_used(key_ids: set[int]) -> set[int]:
    return set()


def all_used(key_ids: set[int]) -> set[int]:
    return key_ids


def never_asked(key_ids: set[int]) -> set[int]:
    raise AssertionError("the data was searched for no reason")


def ring(*keys: str) -> Callable[[], KeyRing]:
    return lambda: KeyRing(keys)


def key_id(key: str) -> int:
    return KeyRing([key]).newest_id


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directory(DATA)
    return made


# --- a ring


def test_the_newest_encrypts_and_all_decrypt() -> None:
    before = b"".join(KeyRing([OLD]).encrypt(b"secret", b"place"))
    keys = KeyRing([OLD, NEW])
    after = b"".join(keys.encrypt(b"secret", b"place"))
    assert keys.newest_id == key_id(NEW) and keys.ids == [key_id(OLD), key_id(NEW)]
    assert keys.decrypt(key_id(OLD), before, b"place") == b"secret" == keys.decrypt(key_id(NEW), after, b"place")
    with pytest.raises(DoesNotDecrypt):
        keys.decrypt(key_id(NEW), before, b"place")


def test_every_bit_counts() -> None:
    keys = KeyRing([OLD])
    sealed = b"".join(keys.encrypt(b"secret", b"place"))
    assert len(sealed) == len(b"secret") + 28
    for at in range(len(sealed)):
        broken = bytearray(sealed)
        broken[at] ^= 1
        with pytest.raises(DoesNotDecrypt):
            keys.decrypt(keys.newest_id, broken, b"place")
    for cut in range(len(sealed)):
        with pytest.raises(DoesNotDecrypt):
            keys.decrypt(keys.newest_id, sealed[:cut], b"place")
    with pytest.raises(DoesNotDecrypt):
        keys.decrypt(keys.newest_id, sealed, b"another place")


def test_nonces_do_not_repeat() -> None:
    keys = KeyRing([OLD])
    assert len({keys.encrypt(b"", b"")[0] for _ in range(5000)}) == 5000


def test_the_fingerprint_is_flymqs_and_the_id_its_beginning() -> None:
    keys = KeyRing([NEW])
    assert keys.fingerprint == hashlib.sha256(NEW.encode()).hexdigest()[:16]
    assert shown_key_id(keys.newest_id) == keys.fingerprint[:8]
    assert KeyRing([NEW.upper()]).newest_id == keys.newest_id, "digits in capitals are the same key"


def test_a_key_named_twice_counts_where_it_is_named_last() -> None:
    assert KeyRing([OLD, NEW, OLD]).ids == [key_id(NEW), key_id(OLD)]


def test_nothing_prints_a_key() -> None:
    assert OLD not in repr(KeyRing([OLD, NEW])) and OLD not in repr(vars(KeyRing))
    for bad in (OLD[:-1], OLD + "00", OLD[:-1] + "g", "z" * 64, ""):
        with pytest.raises(BraidError, match=r"INVALID_KEY.*key 2 of 2.*not 64 hexadecimal digits") as caught:
            KeyRing([NEW, bad])
        assert not bad or bad not in str(caught.value)


def test_the_number_of_keys_is_limited() -> None:
    keys = [f"{number:064x}" for number in range(limits.ENCRYPTION_KEYS_MAX + 1)]
    assert len(KeyRing(keys[1:]).ids) == limits.ENCRYPTION_KEYS_MAX
    for wrong in (keys, []):
        with pytest.raises(BraidError, match=f"INVALID_KEY.*{len(wrong)} keys, not 1 to 100"):
            KeyRing(wrong)


def test_two_keys_with_one_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.base.key_ring._identity", lambda text: (7, text[:16]))
    with pytest.raises(BraidError, match=r"INVALID_KEY.*another key has the same id 00000007"):
        KeyRing([OLD, NEW])


# --- where keys come from


def test_sources_in_order(disk: FaultyDisk) -> None:
    disk.write_file("/keys", f"# the first one\n{OLD}\n\n  {NEW.upper()}  # since May\n".encode())
    everything = {"BRAID_ENCRYPTION_KEYS": f" {NEW}, {OTHER} ", "BRAID_ENCRYPTION_KEY": OLD, "FLYMQ_ENCRYPTION_KEY": NEW}
    found = load_keys(everything, "/keys", disk)
    assert found is not None and found.ids == [key_id(OLD), key_id(NEW)]
    found = load_keys(everything, None, disk)
    assert found is not None and found.ids == [key_id(NEW), key_id(OTHER)]
    del everything["BRAID_ENCRYPTION_KEYS"]
    found = load_keys(everything, None, disk)
    assert found is not None and found.ids == [key_id(OLD)]
    found = load_keys({"FLYMQ_ENCRYPTION_KEY": OTHER, "BRAID_ENCRYPTION_KEY": ""}, None, disk)
    assert found is not None and found.ids == [key_id(OTHER)]
    assert load_keys({}, None, disk) is None


def test_a_key_file_that_is_none(disk: FaultyDisk) -> None:
    with pytest.raises(BraidError, match=r"ENCRYPTION_KEY_MISSING.*/keys: No such file"):
        load_keys({"BRAID_ENCRYPTION_KEY": OLD}, "/keys", disk)
    disk.write_file("/keys", b"# nothing yet\n")
    with pytest.raises(BraidError, match=r"INVALID_KEY.*/keys: 0 keys"):
        load_keys({}, "/keys", disk)
    disk.write_file("/keys", b"\xff\xfe" + OLD.encode())
    with pytest.raises(BraidError, match=r"INVALID_KEY.*/keys, key 1 of 1"):
        load_keys({}, "/keys", disk)
    disk.write_file("/keys", b"#" * (limits.ENCRYPTION_KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(BraidError, match=r"INVALID_KEY.*65537 bytes"):
        load_keys({}, "/keys", disk)
    disk.write_file("/keys", b"#" * (limits.ENCRYPTION_KEY_FILE_BYTES_MAX - 65) + b"\n" + OLD.encode())
    assert load_keys({}, "/keys", disk) is not None


# --- the proof


def test_without_encryption_there_is_neither_key_nor_proof(disk: FaultyDisk) -> None:
    def load() -> KeyRing:
        raise AssertionError("nobody needs a key")

    assert open_keys(disk, DATA, load, False, never_asked) is None
    assert not is_encrypted(disk, DATA) and disk.list_directory(DATA) == []


def test_encryption_needs_a_key_from_the_first_start_on(disk: FaultyDisk) -> None:
    with pytest.raises(BraidError, match=r"ENCRYPTION_KEY_MISSING.*no key was given"):
        open_keys(disk, DATA, lambda: None, True, never_asked)
    assert not is_encrypted(disk, DATA)


def test_the_proof_survives_the_loss_of_power_and_holds_no_key(disk: FaultyDisk) -> None:
    assert open_keys(disk, DATA, ring(OLD), True, never_asked) is not None
    disk = disk.crash(unsynced="lost")
    assert is_encrypted(disk, DATA)
    assert OLD.encode() not in disk.read_file(f"{DATA}/ENCRYPTION")
    found = open_keys(disk, DATA, ring(OLD), True, never_asked)
    assert found is not None and found.newest_id == key_id(OLD)


@pytest.mark.parametrize("encrypt", [True, False])
def test_wrong_or_missing_keys_change_nothing(disk: FaultyDisk, encrypt: bool) -> None:
    open_keys(disk, DATA, ring(OLD), True, never_asked)
    before = disk.read_file(f"{DATA}/ENCRYPTION")
    operations = disk.operations
    old, new = shown_key_id(key_id(OLD)), shown_key_id(key_id(NEW))
    with pytest.raises(BraidError, match=f"ENCRYPTION_KEY_MISSING.*encrypted with key {old}, and no key was given"):
        open_keys(disk, DATA, lambda: None, encrypt, never_asked)
    with pytest.raises(BraidError, match=f"ENCRYPTION_KEY_WRONG.*{old}, and key {new}"):
        open_keys(disk, DATA, ring(NEW), encrypt, never_asked)
    assert disk.read_file(f"{DATA}/ENCRYPTION") == before and disk.operations == operations


def test_a_rotation_keeps_the_old_key_as_long_as_it_is_needed(disk: FaultyDisk) -> None:
    open_keys(disk, DATA, ring(OLD), True, never_asked)
    keys = open_keys(disk, DATA, ring(OLD, NEW), True, never_asked)
    assert keys is not None and keys.newest_id == key_id(NEW)
    old = shown_key_id(key_id(OLD))
    with pytest.raises(BraidError, match=f"ENCRYPTION_KEY_MISSING.*still holds data encrypted with key {old}"):
        open_keys(disk, DATA, ring(NEW), True, all_used)
    assert open_keys(disk, DATA, ring(NEW), True, none_used) is not None
    # Its proof is gone with it, so nobody asks for it again.
    assert open_keys(disk, DATA, ring(NEW), True, never_asked) is not None
    with pytest.raises(BraidError, match="ENCRYPTION_KEY_WRONG"):
        open_keys(disk, DATA, ring(OLD), True, never_asked)


def test_switched_off_the_keys_still_read_and_none_is_proven_anew(disk: FaultyDisk) -> None:
    open_keys(disk, DATA, ring(OLD), True, never_asked)
    before = disk.read_file(f"{DATA}/ENCRYPTION")
    keys = open_keys(disk, DATA, ring(OLD, NEW), False, never_asked)
    assert keys is not None and disk.read_file(f"{DATA}/ENCRYPTION") == before


def test_a_key_with_the_right_id_and_the_wrong_bytes(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.base.key_ring._identity", lambda text: (7, text[:16]))
    open_keys(disk, DATA, ring(OLD), True, never_asked)
    with pytest.raises(BraidError, match=r"ENCRYPTION_KEY_WRONG.*key 00000007 is not the one"):
        open_keys(disk, DATA, ring(NEW), True, never_asked)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2, "keys": {}}', b'{"format": 1, "keys": {}}', b'{"format": 1, "keys": {"x": "00"}}']
)
def test_damaged_proofs_refuse_the_start(disk: FaultyDisk, content: bytes) -> None:
    disk.replace_file(f"{DATA}/ENCRYPTION", content)
    with pytest.raises(BraidError, match=r"DATA_DIR_INVALID.*ENCRYPTION is damaged"):
        open_keys(disk, DATA, ring(OLD), True, none_used)
    assert disk.read_file(f"{DATA}/ENCRYPTION") == content


def test_a_flipped_bit_in_a_proof_refuses_the_start(disk: FaultyDisk) -> None:
    open_keys(disk, DATA, ring(OLD), True, never_asked)
    document = json.loads(disk.read_file(f"{DATA}/ENCRYPTION"))
    (name, proof), = document["keys"].items()
    document["keys"][name] = ("1" if proof[0] == "0" else "0") + proof[1:]
    disk.replace_file(f"{DATA}/ENCRYPTION", json.dumps(document).encode())
    with pytest.raises(BraidError, match="ENCRYPTION_KEY_WRONG"):
        open_keys(disk, DATA, ring(OLD), True, never_asked)
