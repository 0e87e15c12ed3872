"""Transactions: records for any topics, and consumer offsets, that appear together or not at all.

A transaction has a connection to itself and ends with it: when either breaks before the commit was asked for, the broker
drops everything. When the connection breaks while the commit is under way, the commit is asked for again on a new one, which
the broker answers with what really happened. So `commit` either returns, and everything is there, or raises; only when no
broker answers for the whole time-out does it raise an error (CONNECTION_LOST, UNREACHABLE, TIMED_OUT) that leaves it open.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from braidmq.base.errors import BraidError
from braidmq.client._backend import asyncio as backend
from braidmq.client.cipher import ValueCipher
from braidmq.client.faults import passes
from braidmq.client.models import RecordMetadata, TopicPartition
from braidmq.client.settings import ClientSettings
from braidmq.client.tracing import log
from braidmq.wire import flymq

from .asking import Asker, expect
from .connection import Connection, encode
from .dialer import Dialer
from .pool import MOMENT_S

T = TypeVar("T")


class Transaction:
    """Made by `Client.transaction`; use it as a context manager, which commits, or rolls back when an exception leaves it."""

    def __init__(
        self, dialer: Dialer, settings: ClientSettings, cipher: ValueCipher | None, epochs: dict[str, int], transactional_id: str,
        timeout_s: float | None,
    ) -> None:
        self.id = ""
        """The broker's name for it, once it has begun."""
        self.state = "new"
        """`new`, `active`, `committed`, `rolled back`, or `lost` when that is not known."""
        self._dialer = dialer
        self._settings = settings
        self._cipher = cipher
        self._epochs = epochs
        """Transactional id to the epoch that this client has under it."""
        self._begin = flymq.TxnBegin(transactional_id, 0 if timeout_s is None else max(1, round(timeout_s * 1000)))
        self._connection: Connection | None = None

    async def __aenter__(self) -> Transaction:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.state != "active":
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except BraidError as refusal:
            # The exception that is on its way matters more, and the broker drops what is not committed by itself.
            log.info("transaction %s was not rolled back: %s", self.id, refusal)

    async def begin(self) -> None:
        """Begin it. The first of a client under a transactional id ends what an earlier producer of that name began, and shuts it
        out. Those that follow go on under the name; once a newer client has it they fail with FENCED_PRODUCER.
        """
        if self.state != "new":
            raise BraidError("TRANSACTION_NOT_ACTIVE", state=self.state)
        self._connection = await self._dialer.dial(self._settings.timeout_s)
        name = self._begin.transactional_id
        try:
            begun = await self._ask(replace(self._begin, epoch=self._epochs.get(name, -1)), flymq.TxnDone)
        except BaseException:
            await self._disconnect()
            raise
        if name:
            self._epochs[name] = begun.epoch
        self.id = begun.id
        self.state = "active"

    async def produce(
        self, topic: str, value: bytes, *, key: bytes | None = None, partition: int | None = None
    ) -> RecordMetadata:
        """Add a record. Nobody sees it before the commit, and it has no offset until then."""
        self._check_active()
        if self._cipher is not None:
            value = self._cipher.encrypt(value)
        request = flymq.TxnProduce(self.id, topic, value, key or b"", -1 if partition is None else partition)
        written = await self._ask(request, flymq.RecordMetadata)
        return RecordMetadata(written.topic, written.partition, written.offset, written.timestamp)

    async def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Let a group's positions be stored with the transaction: `consumer.positions()` are those of a consumer."""
        self._check_active()
        rows = tuple(flymq.TopicOffset(topic, partition, offset) for (topic, partition), offset in offsets.items())
        if rows:
            await self._ask(flymq.TxnOffsets(self.id, group, rows), flymq.Ok)

    async def commit(self) -> None:
        """Make everything readable at once; durable when this returns."""
        self._check_active()
        request = flymq.TxnCommit(self.id)
        deadline_s = time.monotonic() + self._settings.timeout_s
        backoff = self._dialer.backoff()
        self.state = "lost"
        try:
            while True:
                left_s = max(MOMENT_S, deadline_s - time.monotonic())
                try:
                    if self._connection is None:
                        self._connection = await self._dialer.dial(left_s)
                    await self._ask(request, flymq.TxnDone, left_s)
                    self.state = "committed"
                    return
                except BraidError as fault:
                    if fault.code != "CONNECTION_LOST" and not passes(fault):
                        self.state = "lost" if fault.retriable else "rolled back"
                        raise
                    pause_s = min(backoff.next(), deadline_s - time.monotonic())
                    if pause_s <= 0:
                        raise
                await self._disconnect()
                await backend.sleep(pause_s)
        finally:
            await self._disconnect()

    async def rollback(self) -> None:
        """Drop everything."""
        self._check_active()
        self.state = "rolled back"
        try:
            await self._ask(flymq.TxnRollback(self.id), flymq.TxnDone)
        finally:
            await self._disconnect()

    @property
    def closed(self) -> bool:
        return self._connection is None and self.state != "new"

    async def close(self) -> None:
        """Drop it, unless it has ended; its connection takes it along."""
        if self.state == "active":
            self.state = "rolled back"
        await self._disconnect()

    def _check_active(self) -> None:
        if self.state != "active":
            raise BraidError("TRANSACTION_NOT_ACTIVE", state=self.state)

    async def _ask(self, request: flymq.Request, kind: type[T], timeout_s: float | None = None) -> T:
        connection = self._connection
        assert connection is not None, "an active transaction has one"
        frames = await connection.call([encode(request)], timeout_s or self._settings.timeout_s)
        return expect(request, frames[0], kind)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class Transactions:
    """`client.txn`: all transactions of the broker, for administration."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def ls(self) -> list[flymq.Transaction]:
        """Those that are open."""
        return list((await self._asker.ask(flymq.TxnList(), flymq.Transactions)).transactions)

    async def abort(self, transaction_id: str) -> None:
        """Roll one back, whoever began it."""
        await self._asker.ask(flymq.TxnRollback(transaction_id), flymq.TxnDone)
