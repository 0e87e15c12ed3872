"""Times as reports show them: UTC, to the second."""

from __future__ import annotations

from datetime import UTC, datetime


def day_and_time(moment_ms: int) -> str:
    """`2026-01-31 12:00:00Z`; a dash for no time."""
    if moment_ms <= 0:
        return "-"
    try:
        return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "-"  # attributes that anybody may have written hold any number
