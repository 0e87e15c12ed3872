"""The bounds of push: how much is handed out at a time, how much is kept for the next, and how long."""

from __future__ import annotations

from work_bench import run_broker, settings_of

from braidmq.base import limits
from braidmq.base.clock import ManualClock
from braidmq.base.errors import BraidError
from braidmq.broker.broker import Broker
from braidmq.broker.push import Chunk, Feed
from braidmq.log.level import Level

SETTINGS = settings_of(Level.OS)


class Reader:
    """Reads when the test says so."""

    def wake(self, feed: Feed) -> None:
        """The test knows."""

    def feed_closed(self, feed: Feed) -> None:
        raise AssertionError("nobody deleted the topic")

    def feed_failed(self, feed: Feed, error: BraidError) -> None:
        raise error

    def read(self, feed: Feed, position: int) -> Chunk:
        chunk = feed.read(position, self)
        assert chunk is not None
        return chunk

    def read_all(self, feed: Feed) -> list[Chunk]:
        """Every chunk from the first record on."""
        found, position = [], feed.start
        while position < feed.tail:
            found.append(self.read(feed, position))
            position = found[-1].next_offset
        return found


async def filled(broker: Broker, records: int, size: int, flush_every: int = 1, ttl_ms: int = 0) -> tuple[Feed, Reader]:
    """The feed of a partition with records, and somebody who reads it."""
    topic = await broker.create_topic("t", 1)
    reader = Reader()
    feed = broker.push.feed(topic, 0)
    feed.attach(reader)
    for number in range(records):
        staged = broker.stage(topic, 0, b"", b"%08d" % number + bytes(size - 8), ttl_ms=ttl_ms)
        if number % flush_every == flush_every - 1 or number == records - 1:
            await broker.durable(staged.log, staged.base_offset + 1)
    return feed, reader


def test_a_chunk_is_no_larger_than_its_bound_however_much_there_is() -> None:
    async def script(broker: Broker) -> None:
        size = limits.PUSH_CHUNK_BYTES // 8
        feed, reader = await filled(broker, 20, size)
        chunks = reader.read_all(feed)
        assert all(chunk.size <= limits.PUSH_CHUNK_BYTES for chunk in chunks)
        assert sum(len(chunk.records()) for chunk in chunks) == 20 and 3 <= len(chunks) <= 4

    run_broker(script, settings=SETTINGS)


def test_one_batch_over_the_bound_goes_out_in_parts() -> None:
    async def script(broker: Broker) -> None:
        feed, reader = await filled(broker, 64, limits.PUSH_CHUNK_BYTES // 8, flush_every=64)
        chunks = reader.read_all(feed)
        assert len(chunks) >= 8, "one batch of eight times the bound"
        assert [record.offset for chunk in chunks for record in chunk.records()] == list(range(64))

    run_broker(script, settings=SETTINGS)


def test_a_record_over_the_bound_is_a_chunk_of_its_own() -> None:
    async def script(broker: Broker) -> None:
        feed, reader = await filled(broker, 3, 3 * limits.PUSH_CHUNK_BYTES)
        assert [len(chunk.records()) for chunk in reader.read_all(feed)] == [1, 1, 1]

    run_broker(script, settings=SETTINGS)


def test_chunks_are_kept_for_the_next_reader_within_a_bound_for_all() -> None:
    async def script(broker: Broker) -> None:
        size = 2 * limits.PUSH_CHUNK_BYTES - 1024
        records = limits.PUSH_CHUNKS_BYTES_MAX // size + 10
        feed, reader = await filled(broker, records, size)
        first, *_, last = reader.read_all(feed)
        hub = broker.push
        assert limits.PUSH_CHUNKS_BYTES_MAX - size < hub._chunk_bytes <= limits.PUSH_CHUNKS_BYTES_MAX
        assert reader.read(feed, last.first) is last, "kept"
        assert reader.read(feed, first.first) is not first, "the one that was read longest ago made room"
        feed.detach(reader)
        assert hub._chunk_bytes == 0, "nothing is kept when nobody reads"

    run_broker(script, settings=SETTINGS)


def test_a_chunk_whose_records_expire_is_soon_read_anew() -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        feed, reader = await filled(broker, 2, 100, ttl_ms=limits.PUSH_CHUNK_EXPIRING_MS_MAX // 2)
        chunk = reader.read(feed, 0)
        assert len(chunk.records()) == 2
        clock.advance((limits.PUSH_CHUNK_EXPIRING_MS_MAX - 1) / 1000)
        assert reader.read(feed, 0) is chunk, "used again within the bound"
        clock.advance(1 / 1000)
        later = reader.read(feed, 0)
        assert later is not chunk and later.records() == [] and later.next_offset == 2

    run_broker(script, settings=SETTINGS, clock=clock)


def test_a_chunk_that_does_not_expire_is_used_for_as_long_as_it_is_kept() -> None:
    clock = ManualClock()

    async def script(broker: Broker) -> None:
        feed, reader = await filled(broker, 2, 100)
        chunk = reader.read(feed, 0)
        clock.advance(limits.PUSH_CHUNK_EXPIRING_MS_MAX)
        assert reader.read(feed, 0) is chunk

    run_broker(script, settings=SETTINGS, clock=clock)
