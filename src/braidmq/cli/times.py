"""Times and durations as commands print them."""

from __future__ import annotations


def show_time(milliseconds: int) -> str:
    """Milliseconds since the epoch in UTC, as ISO 8601; a dash for none."""
    if milliseconds <= 0:
        return "-"
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_age(milliseconds: int) -> str:
    """A duration in the unit that suits it; a dash for none."""
    if milliseconds <= 0:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
