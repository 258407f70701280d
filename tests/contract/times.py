"""Where the tests' clock starts, and instants counted from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START_MS = 1_700_000_000_000


def after(seconds: float) -> datetime:
    """The instant that lies so many seconds after the clock's start."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=START_MS + round(seconds * 1000)
    )
