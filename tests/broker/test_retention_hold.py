"""Retention that waits for groups, and how long."""

from __future__ import annotations

import pytest
from work_bench import run_broker, settings_of

from braidmq.base import limits
from braidmq.base.disk_faulty import FaultyDisk
from braidmq.broker.broker import Broker


def test_what_a_group_has_not_read_stays_up_to_a_bound_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETENTION_HOLD_BYTES_DEFAULT", 40_000)
    disk = FaultyDisk()

    async def write(broker: Broker) -> None:
        small = {"segment_bytes": "4096", "retention_bytes": "4096"}
        for name, more in (("held", {"retention_hold": "slow,fast"}), ("free", {})):
            topic = await broker.create_topic(name, 1, small | more)
            for _ in range(20):
                await broker.append(topic, 0, b"", bytes(1000))
        await broker.commit_offset("held", "slow", 0, 6)
        await broker.commit_offset("held", "fast", 0, 20)

    run_broker(write, disk, settings=settings_of())

    async def check(broker: Broker) -> None:
        held, free = broker.partition("held", 0), broker.partition("free", 0)
        await broker.apply_retention()
        assert free.log_start > 12, "what nobody holds goes"
        assert 0 < held.log_start <= 6, "what was read by all goes, what one of them has not read stays"
        topic = broker.topic("held")
        for _ in range(60):
            await broker.append(topic, 0, b"", bytes(1000))
        await broker.apply_retention()
        assert held.log_start > 6 and held.size_bytes <= limits.RETENTION_HOLD_BYTES_DEFAULT, "a forgotten group fills no disk"
        await broker.commit_offset("held", "slow", 0, 80)
        await broker.commit_offset("held", "fast", 0, 80)
        await broker.apply_retention()
        assert held.size_bytes < 12_000

    run_broker(check, disk, settings=settings_of())
