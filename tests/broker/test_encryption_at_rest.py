"""A whole broker with encryption and compression: nothing readable on the disk, no start with wrong keys, nothing lost."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq import hot
from braidmq.base.clock import SystemClock
from braidmq.base.disk import Disk
from braidmq.base.disk_faulty import FaultyDisk, SimulatedCrash
from braidmq.base.disk_real import RealDisk
from braidmq.base.errors import BraidError
from braidmq.base.key_ring import KeyRing, open_keys, shown_key_id
from braidmq.broker.broker import Broker, BrokerSettings
from braidmq.hot import layout
from braidmq.log.batch_codec import BatchCodec
from braidmq.log.key_use import keys_in_use
from braidmq.log.level import Level
from braidmq.log.partition import LogSettings
from braidmq.log.partition_reads import Cold
from braidmq.log.rekey import rekey

OLD, NEW, OTHER = "0f" * 32, "a1" * 32, "5c" * 32
OLD_ID, NEW_ID = KeyRing([OLD]).newest_id, KeyRing([NEW]).newest_id
SECRET = b"PLAINTEXT-MARKER"
NAME = "topic-" + SECRET.decode()


def on_loop(test: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run on a loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def running(
    disk: Disk, data_dir: str, *keys: str, encrypt: bool = True, level: Level = Level.OS, stop: bool = True
) -> AsyncIterator[Broker]:
    """A broker; without `stop` it ends as a killed process does."""
    settings = BrokerSettings(
        data_dir, LogSettings(level, segment_bytes=20_000), encryption_enabled=encrypt,
        load_keys=lambda: KeyRing(keys) if keys else None,
    )  # fmt: skip
    broker = Broker(settings, disk, SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        if stop:
            await broker.stop()
        else:
            broker.coordinator.members.close()
            for task in broker._housekeeping:
                task.cancel()
            await asyncio.gather(*broker._housekeeping, return_exceptions=True)
            broker.commit.flush()
            await asyncio.get_running_loop().run_in_executor(None, broker.commit.close)
            broker.store.abandon()
            broker._io.shutdown()


async def fill(broker: Broker, **properties: str) -> list[bytes]:
    """Records by both ways in, a group's offset, and a second topic, all of them with the marker."""
    topic = await broker.create_topic(NAME, 1, properties)
    values = [SECRET + b" %d " % number + SECRET * 20 for number in range(30)]
    for value in values:
        await broker.append(topic, 0, SECRET, value)
    staged = [b"staged " + value for value in values]
    for start in range(0, 30, 10):
        batch = hot.encode_batch([SECRET] * 10, staged[start : start + 10])
        taken = broker.stage_batch(topic, 0, batch)
        await broker.durable(taken.log, taken.base_offset + taken.records)
    await broker.commit_offset(NAME, "group-" + SECRET.decode(), 0, 7)
    await broker.create_topic("other-" + SECRET.decode(), 3)
    return values + staged


async def values_of(broker: Broker) -> list[bytes]:
    log = broker.partition(NAME, 0)
    offset = 0
    found: list[bytes] = []
    while offset < log.high_watermark:
        read = await broker.read_batches(log, offset, 1 << 20, 1, 0)
        some, offset = hot.decode_records(b"".join(read.slices), offset, 1 << 20, lambda _at, _time, _key, value, _attrs: value)
        found += some
    return found


def leaks(data_dir: Path) -> list[str]:
    """Files that hold the marker, or whose name does."""
    marker = SECRET.decode()
    files = [path for path in data_dir.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [str(path) for path in files if SECRET in path.read_bytes() or marker in path.name]


# --- nothing readable on the disk


@pytest.mark.parametrize("compression", ["none", "gzip"])
@on_loop
async def test_nothing_readable_lies_on_the_disk(tmp_path: Path, compression: str) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    for keys in ((OLD,), (OLD, NEW)):
        async with running(disk, data_dir, *keys) as broker:
            if keys == (OLD,):
                values = await fill(broker, compression=compression)
            await broker.checkpoint()
            assert leaks(tmp_path) == []
            assert await values_of(broker) == values
        names = " ".join(contents(tmp_path))
        assert "snapshot-" in names and ".idx" in names, "an orderly stop leaves all kinds of files"
        assert leaks(tmp_path) == []
    stored = b"".join(contents(tmp_path).values())
    assert OLD.encode() not in stored and bytes.fromhex(NEW) not in stored, "keys are on no disk either"


@on_loop
async def test_the_search_would_find_it(tmp_path: Path) -> None:
    async with running(RealDisk(), str(tmp_path), encrypt=False) as broker:
        await fill(broker)
    found = " ".join(leaks(tmp_path))
    assert "topics/1/0" in found and "internal/metadata" in found and "snapshot-" in found and "internal/offsets" in found
    assert not (tmp_path / "ENCRYPTION").exists()


# --- wrong, missing, rotated keys


async def refused(disk: Disk, data_dir: str, *keys: str, encrypt: bool = True) -> BraidError:
    with pytest.raises(BraidError) as caught:
        async with running(disk, data_dir, *keys, encrypt=encrypt):
            pass
    return caught.value


def contents(data_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}


@pytest.mark.parametrize("killed", [True, False])
@on_loop
async def test_wrong_keys_refuse_the_start_and_change_nothing(tmp_path: Path, killed: bool) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD, stop=not killed) as broker:
        values = await fill(broker)
    before = contents(tmp_path)
    for encrypt in (True, False):
        assert (await refused(disk, data_dir, encrypt=encrypt)).code == "ENCRYPTION_KEY_MISSING"
        assert (await refused(disk, data_dir, NEW, encrypt=encrypt)).code == "ENCRYPTION_KEY_WRONG"
        assert (await refused(disk, data_dir, NEW, OTHER, encrypt=encrypt)).code == "ENCRYPTION_KEY_WRONG"
    assert contents(tmp_path) == before
    async with running(disk, data_dir, OLD) as broker:
        assert await values_of(broker) == values
        assert broker.recovery()["clean"] is not killed and broker.recovery()["bytes_truncated"] == 0


@on_loop
async def test_lost_proofs_do_not_let_a_wrong_key_in(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        values = await fill(broker)
    (tmp_path / "ENCRYPTION").unlink()
    assert (await refused(disk, data_dir, NEW)).code == "ENCRYPTION_KEY_MISSING"
    (tmp_path / "ENCRYPTION").unlink()
    error = await refused(disk, data_dir, encrypt=False)
    assert error.code == "ENCRYPTION_KEY_MISSING" and shown_key_id(OLD_ID) in error.text
    async with running(disk, data_dir, OLD) as broker:
        assert await values_of(broker) == values


@on_loop
async def test_a_rotation(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        values = await fill(broker)
    async with running(disk, data_dir, OLD, NEW) as broker:
        topic = broker.topic(NAME)
        await broker.append(topic, 0, b"", b"after")
        assert await values_of(broker) == [*values, b"after"]
    assert keys_in_use(disk, data_dir, {OLD_ID, NEW_ID, 5}) == {OLD_ID, NEW_ID}
    error = await refused(disk, data_dir, NEW)
    assert error.code == "ENCRYPTION_KEY_MISSING" and shown_key_id(OLD_ID) in error.text


@on_loop
async def test_a_key_may_go_when_nothing_needs_it(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD):
        pass
    assert keys_in_use(disk, data_dir, {OLD_ID}) == set()
    async with running(disk, data_dir, OLD, NEW) as broker:
        values = await fill(broker)
    async with running(disk, data_dir, NEW) as broker:
        assert await values_of(broker) == values
    assert list(json.loads((tmp_path / "ENCRYPTION").read_text())["keys"]) == [shown_key_id(NEW_ID)]
    assert (await refused(disk, data_dir, OLD)).code == "ENCRYPTION_KEY_WRONG"


@on_loop
async def test_a_key_may_go_after_everything_was_encrypted_anew(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        values = await fill(broker, compression="gzip")
    before = contents(tmp_path)
    async with running(disk, data_dir, OLD, NEW):
        pass
    changed = rekey(disk, data_dir, KeyRing([OLD, NEW]))
    assert rekey(disk, data_dir, KeyRing([OLD, NEW])) == [], "once is enough"
    after = contents(tmp_path)
    segments = {path for path, data in before.items() if path.endswith(".log") and data}
    assert {path for path in changed if path.endswith(".log")} == segments
    assert any("snapshot-" in path for path in changed)
    assert all(len(after[path]) == len(before[path]) for path in changed)
    assert keys_in_use(disk, data_dir, {OLD_ID, NEW_ID}) == {NEW_ID}
    async with running(disk, data_dir, NEW) as broker:
        assert broker.recovery()["clean"] is True, "an orderly stop stays one"
        assert await values_of(broker) == values
        assert broker.subscribe(NAME, "group-" + SECRET.decode(), 0, "commit", object(), "here") == 7


@pytest.mark.parametrize("crash_at", range(0, 40, 3))
def test_a_crash_while_encrypting_anew_leaves_every_segment_whole(crash_at: int) -> None:
    disk = FaultyDisk(crash_at)
    values: list[bytes] = []

    async def written() -> None:
        async with running(disk, "/data", OLD) as broker:
            values.extend(await fill(broker))

    asyncio.run(written())
    keys = KeyRing([OLD, NEW])
    open_keys(disk, "/data", lambda: keys, True, lambda _: set())
    disk.crash_after(crash_at)
    try:
        rekey(disk, "/data", keys)
    except SimulatedCrash:
        disk = disk.crash(crash_at)
    else:
        disk = disk.crash(crash_at, power=False)
    disk.write_file(f"/data/topics/1/0/{7:020d}.log.rekey", b"of a segment that retention took")
    rekey(disk, "/data", keys)
    disk = disk.crash(crash_at, unsynced="lost")
    assert keys_in_use(disk, "/data", {OLD_ID}) == set(), "once it is done it stays done"
    assert not [name for name in disk.list_directory("/data/topics/1/0") if name.endswith(".rekey")]

    async def read() -> None:
        async with running(disk, "/data", NEW) as broker:
            assert await values_of(broker) == values

    asyncio.run(read())


@on_loop
async def test_encrypting_anew_copies_what_is_damaged(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        await fill(broker)
    segment = sorted((tmp_path / "topics/1/0").glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    second = layout.read_header(data).length
    data[second + 200] ^= 1
    segment.write_bytes(data)
    async with running(disk, data_dir, OLD, NEW):
        pass
    rekey(disk, data_dir, KeyRing([OLD, NEW]))
    after = segment.read_bytes()
    assert after[second:] == data[second:] and layout.read_header(after).key_id == NEW_ID
    assert keys_in_use(disk, data_dir, {OLD_ID}) == {OLD_ID}


@on_loop
async def test_a_file_that_cannot_be_walked_may_need_every_key(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        await fill(broker)
    assert keys_in_use(disk, data_dir, {NEW_ID}) == set()
    segment = next((tmp_path / "topics/1/0").glob("*.log"))
    whole = segment.read_bytes()
    segment.write_bytes(whole + b"torn")
    assert keys_in_use(disk, data_dir, {NEW_ID}) == {NEW_ID}
    segment.write_bytes(b"?" + whole[1:])
    assert keys_in_use(disk, data_dir, {NEW_ID}) == {NEW_ID}


def test_a_snapshot_alone_needs_its_key() -> None:
    disk = FaultyDisk()
    disk.make_directory("/data/internal/metadata")
    sealed = BatchCodec("none", KeyRing([OLD])).seal(b"{}", "snapshot-1.json")
    disk.write_file("/data/internal/metadata/snapshot-1.json", b"%08x\n" % hot.crc32c(sealed) + sealed)
    disk.write_file("/data/internal/metadata/snapshot-2.json", b"%08x\n{}" % hot.crc32c(b"{}"))
    disk.write_file("/data/internal/metadata/snapshot-3.json", b"")
    assert keys_in_use(disk, "/data", {OLD_ID, NEW_ID}) == {OLD_ID}


@on_loop
async def test_switched_on_and_off_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, encrypt=False) as broker:
        values = await fill(broker)
    async with running(disk, data_dir, OLD) as broker:
        await broker.append(broker.topic(NAME), 0, b"", b"encrypted")
        assert await values_of(broker) == [*values, b"encrypted"]
    with caplog.at_level(logging.WARNING):
        async with running(disk, data_dir, OLD, encrypt=False) as broker:
            await broker.append(broker.topic(NAME), 0, b"", b"plain again")
            assert await values_of(broker) == [*values, b"encrypted", b"plain again"]
    assert "is not encrypted" in caplog.text
    stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "topics/1/0").glob("*.log")))
    assert b"plain again" in stored and b"encrypted" not in stored


# --- crashes


@pytest.mark.parametrize("seed", range(6))
@on_loop
async def test_the_loss_of_power_loses_nothing(seed: int) -> None:
    disk = FaultyDisk(seed)
    async with running(disk, "/data", OLD, level=Level.FSYNC, stop=False) as broker:
        values = await fill(broker, compression="gzip")
        if seed % 2:
            await broker.checkpoint()
        disk = disk.crash(seed)
    async with running(disk, "/data", OLD, NEW, level=Level.FSYNC) as broker:
        assert await values_of(broker) == values
        assert broker.recovery()["clean"] is False
        assert broker.subscribe(NAME, "group-" + SECRET.decode(), 0, "commit", object(), "here") == 7


@on_loop
async def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path) -> None:
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        await fill(broker)
    async with running(disk, data_dir, OLD) as broker:
        await broker.create_topic("later")
    newest = sorted((tmp_path / "internal/metadata").glob("snapshot-*"))[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    async with running(disk, data_dir, OLD) as broker:
        assert {NAME, "later"} <= set(broker.topic_names())


@on_loop
async def test_a_snapshot_of_another_name_is_refused(tmp_path: Path) -> None:
    """An old snapshot under a new name would turn the state back; its checksum would not tell."""
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, OLD) as broker:
        await fill(broker)
    newest = sorted((tmp_path / "internal/metadata").glob("snapshot-*"))[-1]
    newest.rename(newest.with_name(f"snapshot-{99:020d}.json"))
    error = await refused(disk, data_dir, OLD)
    assert error.code == "CORRUPT_LOG" and "does not decrypt" in error.text


# --- topics with compression


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd", "snappy"])
@on_loop
async def test_a_topic_with_compression(tmp_path: Path, name: str) -> None:
    pytest.importorskip({"gzip": "zlib", "snappy": "cramjam", "zstd": "zstandard"}.get(name, name))
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, encrypt=False) as broker:
        values = await fill(broker, compression=name)
        assert await values_of(broker) == values
        assert broker.partition("other-" + SECRET.decode(), 0).codec is None, "topics without it pay nothing"
    async with running(disk, data_dir, encrypt=False) as broker:
        assert await values_of(broker) == values
        rows = broker.partition(NAME, 0).read_rows(31, 2, 1 << 20, warmed=True)
        assert not isinstance(rows, Cold) and rows.count == 2
    stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "topics/1/0").glob("*.log")))
    assert layout.read_header(stored).flags == layout.FLAG_COMPRESSED
    assert len(stored) < sum(map(len, values)) / 2


@on_loop
async def test_compressions_a_topic_may_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(RealDisk(), str(tmp_path), encrypt=False) as broker:
        with pytest.raises(BraidError, match=r"INVALID_ARGUMENT.*'brotli' is not one of none, gzip, lz4, zstd, snappy"):
            await broker.create_topic("t", 1, {"compression": "brotli"})
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(BraidError, match=r"UNSUPPORTED_COMPRESSION.*zstd.*braidmq\[compression\]"):
            await broker.create_topic("t", 1, {"compression": "zstd"})
        assert broker.topic_names() == []
        topic = await broker.create_topic("t", 1, {"compression": "none"})
        assert await broker.append(topic, 0, b"", b"v") is not None


@on_loop
async def test_a_topic_outlives_the_package_of_its_compression(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zstandard")
    disk, data_dir = RealDisk(), str(tmp_path)
    async with running(disk, data_dir, encrypt=False) as broker:
        values = await fill(broker, compression="zstd")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        async with running(disk, data_dir, encrypt=False) as broker:
            await broker.append(broker.topic(NAME), 0, b"", b"stored plain")
            with pytest.raises(BraidError, match=r"UNSUPPORTED_COMPRESSION.*braidmq\[compression\]"):
                await values_of(broker)
    async with running(disk, data_dir, encrypt=False) as broker:
        assert await values_of(broker) == [*values, b"stored plain"]
