"""Stored passwords: what verifies, what does not, and what a refusal must not tell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.base import limits
from braidmq.base.errors import BraidError
from braidmq.security import passwords
from braidmq.security.passwords import DEFAULT_COST, Cost, hash_password, needs_rehash, verify_password

CHEAP = Cost(4, 8, 1)


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=40), st.text(max_size=40))
def test_only_the_same_password_verifies(password: str, other: str) -> None:
    stored = hash_password(password, CHEAP)
    assert verify_password(password, stored, CHEAP)
    assert verify_password(other, stored, CHEAP) == (other == password)


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password("x", CHEAP) != hash_password("x", CHEAP)


def test_the_default_cost_is_at_least_what_is_promised() -> None:
    stored = hash_password("x")
    assert stored.startswith("scrypt$ln=15,r=8,p=1$") and DEFAULT_COST.log2_n >= 14
    assert verify_password("x", stored) and not needs_rehash(stored)
    assert needs_rehash(hash_password("x", CHEAP)) and needs_rehash("nonsense")


def test_an_old_cost_still_verifies() -> None:
    assert verify_password("x", hash_password("x", CHEAP), Cost(5, 8, 1))


def test_known_answer() -> None:
    # Second vector of RFC 7914, section 12: its first 32 bytes.
    expected = "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
    assert Cost(10, 8, 16).derive("password", b"NaCl").hex() == expected


@pytest.mark.parametrize(
    "stored",
    ["", "x", "scrypt$", hash_password("x", CHEAP)[:-1], hash_password("x", CHEAP).replace("ln=4", "ln=63"),
     hash_password("x", CHEAP).replace("r=8", "r=99"), hash_password("x", CHEAP).replace("p=1", "p=0")],
    ids=["empty", "a letter", "a name alone", "cut short", "ln=63", "r=99", "p=0"],
)  # fmt: skip
def test_a_damaged_hash_is_a_wrong_password(stored: str) -> None:
    assert not verify_password("x", stored, CHEAP)


@pytest.mark.parametrize(("password", "stored"), [("x", None), ("x" * (limits.PASSWORD_BYTES_MAX + 1), "known"), ("x", "damaged")])
def test_refusing_costs_as_much_as_verifying(password: str, stored: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    known = hash_password("x", CHEAP)
    derived: list[Cost] = []
    real = Cost.derive

    def counting(self: Cost, password: str, salt: bytes) -> bytes:
        derived.append(self)
        return real(self, password, salt)

    monkeypatch.setattr(passwords.Cost, "derive", counting)
    assert not verify_password(password, known if stored == "known" else stored, CHEAP)
    assert derived == [CHEAP], "one hash at the usual cost, as for a user that exists"


@pytest.mark.parametrize("password", ["", "x" * (limits.PASSWORD_BYTES_MAX + 1), "ä" * (limits.PASSWORD_BYTES_MAX // 2 + 1)])
def test_what_cannot_be_a_password_is_refused(password: str) -> None:
    with pytest.raises(BraidError, match="INVALID_ARGUMENT"):
        hash_password(password, CHEAP)
    hash_password("x" * limits.PASSWORD_BYTES_MAX, CHEAP)
