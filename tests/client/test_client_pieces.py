"""The small parts of the client that need no server: pauses, encryption, error texts, hex dumps, the generated twin."""

from __future__ import annotations

import importlib.util
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from braidmq import hot
from braidmq.base.errors import BraidError
from braidmq.client.backoff import Backoff
from braidmq.client.cipher import NONCE_BYTES, TAG_BYTES, ValueCipher
from braidmq.client.faults import ServerError, lacks_opcode, server_error
from braidmq.client.models import Record
from braidmq.client.reading import read_batches, record_maker
from braidmq.client.tracing import DUMP_BYTES_MAX, dump_frame, hex_rows
from braidmq.log.attrs import encode_headers

ROOT = Path(__file__).resolve().parents[2]
KEY = "ab" * 32


# --- pauses


def test_pauses_grow_stay_bounded_and_start_again() -> None:
    longest = Backoff(0.1, 2.0, lambda _low, high: high)
    assert [round(longest.next(), 3) for _ in range(5)] == [0.3, 0.9, 2.0, 2.0, 2.0]
    longest.reset()
    assert longest.next() == pytest.approx(0.3)
    shortest = Backoff(0.1, 2.0, lambda low, _high: low)
    assert [shortest.next() for _ in range(3)] == [0.1, 0.1, 0.1]


def test_pauses_of_two_clients_differ() -> None:
    assert [Backoff(0.1, 60.0).next() for _ in range(20)] != [Backoff(0.1, 60.0).next() for _ in range(20)]


# --- encryption


@pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)) * 1000])
def test_a_value_comes_back(value: bytes) -> None:
    cipher = ValueCipher(KEY)
    sealed = cipher.encrypt(value)
    assert len(sealed) == NONCE_BYTES + len(value) + TAG_BYTES
    assert cipher.decrypt(sealed, "t", 0, 0) == value
    assert cipher.encrypt(value) != sealed, "a nonce must not be used twice"


def test_the_layout_is_the_documented_one() -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = bytes(range(12))
    sealed = nonce + AESGCM(bytes.fromhex(KEY)).encrypt(nonce, b"value", None)
    assert ValueCipher(KEY).decrypt(sealed, "t", 0, 0) == b"value"


def test_what_does_not_decrypt_is_an_error_with_its_place() -> None:
    sealed = ValueCipher(KEY).encrypt(b"secret")
    changed = bytearray(sealed)
    changed[20] ^= 1
    for value, cipher in ((sealed, ValueCipher("cd" * 32)), (bytes(changed), ValueCipher(KEY)), (b"plain", ValueCipher(KEY))):
        with pytest.raises(BraidError) as caught:
            cipher.decrypt(value, "orders", 3, 77)
        assert str(caught.value) == "DECRYPTION_FAILED: cannot decrypt orders/3 offset 77"


@pytest.mark.parametrize("key", ["", "ab" * 31, "ab" * 33, "zz" * 32, "a" * 64 + "\n"])
def test_a_wrong_key_is_refused(key: str) -> None:
    with pytest.raises(BraidError, match="INVALID_KEY"):
        ValueCipher(key)


# --- records


def test_batches_become_records() -> None:
    headers = {"trace": b"1", "b": b""}
    data = hot.encode_batch([b"k", None], [b"v0", b"v1"], [encode_headers(headers), b""])
    records, after = read_batches(data, 1, record_maker("t", 4, None))
    assert after == 2
    assert [(r.topic, r.partition, r.offset, r.key, r.value, r.headers) for r in records] == [("t", 4, 1, None, b"v1", {})]
    records, after = read_batches(data, 0, record_maker("t", 4, None), 1)
    assert after == 1
    assert records[0].headers == headers
    assert records[0]._replace(attrs=b"") == Record("t", 4, 0, records[0].timestamp, b"k", b"v0")


def test_records_before_one_that_does_not_decrypt_are_read() -> None:
    cipher = ValueCipher(KEY)
    data = hot.encode_batch([None] * 3, [cipher.encrypt(b"a"), cipher.encrypt(b"b"), b"not encrypted at all, but long enough"])
    make = record_maker("t", 0, cipher)
    records, after = read_batches(data, 0, make)
    assert ([record.value for record in records], after) == ([b"a", b"b"], 2)
    with pytest.raises(BraidError, match="DECRYPTION_FAILED: cannot decrypt t/0 offset 2"):
        read_batches(data, 2, make)


# --- errors


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("TOPIC_NOT_FOUND: topic not found: orders", "TOPIC_NOT_FOUND", "topic not found: orders"),
        ("topic not found", "TOPIC_NOT_FOUND", "topic not found"),
        ("EOF", "EOF", "EOF"),
        ("EOF: offset 3 is at or past the end of t/0", "EOF", "offset 3 is at or past the end of t/0"),
        ("unknown opcode: 12", "UNKNOWN_OPCODE", "unknown opcode: 12"),
        ("Offset out of range", "OFFSET_OUT_OF_RANGE", "Offset out of range"),
        ("NO_SUCH_CODE: what", "SERVER_ERROR", "NO_SUCH_CODE: what"),
        ("", "SERVER_ERROR", ""),
    ],
)
def test_the_text_of_an_error_frame_becomes_the_error(text: str, code: str, sentence: str) -> None:
    fault = server_error(text)
    assert (fault.code, fault.text, str(fault)) == (code, sentence, f"{code}: {sentence}")
    assert fault.hint
    copy = pickle.loads(pickle.dumps(fault))
    assert isinstance(copy, ServerError)
    assert str(copy) == str(fault)


def test_a_missing_opcode_is_recognised_in_any_words() -> None:
    assert lacks_opcode(server_error("UNKNOWN_OPCODE: unknown opcode: 12"))
    assert lacks_opcode(server_error("Error 7, Unknown Opcode 0x0C"))
    assert not lacks_opcode(server_error("TOPIC_NOT_FOUND: topic not found: x"))


# --- hex dumps


def test_a_dump_shows_bytes_and_text_and_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "braidmq.client"):
        dump_frame("->", "h:1", 4, b"\x00\x05hello\xff")
        dump_frame("<-", "h:1", 0x99, bytes(10 * DUMP_BYTES_MAX))
    first, second = caplog.messages
    assert "METADATA (04), 8 bytes" in first
    assert "0000  00 05 68 65 6c 6c 6f ff" in first
    assert first.endswith("..hello.")
    assert f"{9 * DUMP_BYTES_MAX} more bytes" in second
    assert len(hex_rows(bytes(10 * DUMP_BYTES_MAX)).splitlines()) == DUMP_BYTES_MAX // 16 + 1


# --- the generated twin


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unasync", ROOT / "tools" / "unasync.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_twin_is_what_the_generator_makes() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "unasync.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_stale_twin_is_noticed_and_repaired(generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "_async", tmp_path / "_sync"
    source.mkdir()
    (source / "__init__.py").write_text("")
    (source / "a.py").write_text("async def f():\n    await g()\n")
    monkeypatch.setattr(generator, "SOURCE", source)
    monkeypatch.setattr(generator, "TARGET", target)
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (target / "a.py").write_text("def f():\n    g()  # changed by hand\n")
    (target / "left_over.py").write_text("")
    assert generator.main(["--check"]) == 1
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    assert not (target / "left_over.py").exists()
    assert generator.main(["--nonsense"]) == 2


def test_what_the_generator_changes_and_what_not(generator: ModuleType) -> None:
    source = (
        "from braidmq.client._backend import asyncio as backend\n"
        "async def f(self) -> AsyncIterator[int]:\n"
        '    """await asyncio: text stays."""\n'
        "    async with self._lock:  # await\n"
        "        async for x in await g(await h()): yield x\n"
        "async def __aenter__(self): awaited = asynchronous\n"
    )
    assert generator.unasync(source) == (
        "from braidmq.client._backend import threads as backend\n"
        "def f(self) -> Iterator[int]:\n"
        '    """await asyncio: text stays."""\n'
        "    with self._lock:  # await\n"
        "        for x in g(h()): yield x\n"
        "def __enter__(self): awaited = asynchronous\n"
    )


def test_both_worlds_offer_the_same_names() -> None:
    import braidmq.client
    import braidmq.client.sync

    assert braidmq.client.__all__ == braidmq.client.sync.__all__
