"""Every limit of BraidMQ, with its unit and its reason.

Limits that an operator may want to move are settings (`config.py`) whose defaults or bounds come from here; the rest are
part of a format or a protocol. Each one has a test that goes over it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- FlyMQ frames
FRAME_PAYLOAD_BYTES_MAX: Final = 32 * MIB
"""The documented frame limit, inclusive. Also caps what a compressed payload may unpack to."""
RECORD_BYTES_MAX: Final = FRAME_PAYLOAD_BYTES_MAX - 1 * KIB
"""Key and value together, or a whole batch: what fits a frame going in must fit one coming out."""
ERROR_TEXT_BYTES_MAX: Final = 4096
"""Longer error texts are cut, so that an error about a huge input is not huge itself."""

# --- names
TOPIC_NAME_BYTES_MAX: Final = 255
"""What BlipMQ documents, and a name a person can still read."""
GROUP_NAME_BYTES_MAX: Final = 255
"""As for topics."""
PARTITIONS_MAX: Final = 10_000
"""A topic with more is a mistake in a request, not a design."""
TOPICS_MAX: Final = 1_000_000
"""Keeps a runaway client from filling the metadata with names."""

# --- batches and segments
BATCH_BYTES_MAX: Final = 64 * MIB
"""A batch position is 32 bits and a batch is held in memory once: one full frame fits twice over."""
BATCH_RECORDS_MAX: Final = 1_000_000
"""Bounds the columns of one batch to 20 MB."""
FLUSH_BYTES_TARGET: Final = 8 * MIB
"""A partition's rows are sealed into a batch when they pass this within one turn of the loop."""
SEGMENT_BYTES_MIN: Final = 4 * KIB
SEGMENT_BYTES_MAX: Final = 2 * GIB
"""A segment is mapped whole; more files are cheaper than larger maps."""
INDEX_INTERVAL_BYTES: Final = 4 * KIB
"""One index entry for at least so many bytes of log: 0.6 % of the data, at most a page of headers to walk."""
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
"""Idempotent producers remembered a partition; the one silent for longest is forgotten first."""
PRODUCER_BATCHES_KEPT: Final = 5
"""A producer has at most this many batches in flight, so a duplicate is among its last five."""

# --- reading
FETCH_BYTES_TARGET: Final = 8 * MIB
"""A FETCH answer stops after so many payload bytes, once it holds a record."""
FETCH_RECORDS_DEFAULT: Final = 10
"""What `max_messages` of zero or less means."""
FILTER_SCAN_SECONDS_MAX: Final = 1.0
"""How long a filtered FETCH may search before it answers with what it has."""
LONG_POLL_SECONDS_MAX: Final = 30.0
"""Longest wait of FETCH_BATCHES; a client asks again."""

# --- connections
RECEIVE_BUFFER_BYTES: Final = 256 * KIB
"""One shared buffer that every plain connection receives into."""
REQUEST_BACKLOG_BYTES_MAX: Final = 1 * MIB
"""Unparsed bytes a connection may hold while an earlier request runs; past it, its socket is not read."""
WRITE_BUFFER_BYTES_HIGH: Final = 4 * MIB
"""Unsent bytes at which a connection's requests wait."""
WRITE_BUFFER_BYTES_LOW: Final = 1 * MIB
LISTEN_BACKLOG: Final = 4096
"""asyncio's default of 100 makes a burst of connects time out."""
STOP_SECONDS_MAX: Final = 5.0
"""A stop ends within this: half of it for running requests, then connections are closed and the log is synced."""

# --- disk
SYNC_FILES_ONE_BY_ONE_MAX: Final = 16
"""Past so many dirty files one syncfs is cheaper than fdatasync for each."""
OPEN_FILES_RESERVED: Final = 256
"""Descriptors kept free for sockets and maps when the log decides how many files to keep open."""
