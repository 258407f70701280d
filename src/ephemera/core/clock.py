"""Time. Only this module and `_clock.pyx` beside it read a clock; everything else is handed one.

Instants are UTC milliseconds. The system's clock is steady: a wall clock that is set back changes
nothing and freezes nothing, a step forward of up to a day is followed, and a larger one is ignored
(and reported by `stats()`) until the store is reopened or told to resync.
"""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import Protocol

from ephemera.core._clock import STEP_MS_MAX, SteadyClock, boot_ns, elapsed_ns, wall_ms, wall_ns
from ephemera.core.errors import InvalidArgument

__all__ = [
    "STEP_MS_MAX",
    "Clock",
    "ContinuedClock",
    "ManualClock",
    "SteadyClock",
    "boot_ns",
    "elapsed_ns",
    "never_before",
    "wall_ms",
    "wall_ns",
]


class Clock(Protocol):
    """Anything that tells the time in UTC milliseconds."""

    def now_ms(self) -> int: ...


class ManualClock:
    """A clock that stands still until it is told to go on, for tests.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(2.5)
    >>> clock.now_ms()
    3500
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        if not isinstance(start_ms, int) or isinstance(start_ms, bool) or start_ms < 0:
            raise InvalidArgument(f"start_ms must be a whole number from 0 up, not {start_ms!r}")
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass. Raises InvalidArgument for a negative step: time never runs backwards."""
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not 0 <= seconds < inf
        ):
            raise InvalidArgument(f"a clock advances by seconds from 0 up, not {seconds!r}")
        self._now_ms += round(seconds * 1000)

    def __repr__(self) -> str:
        return f"ManualClock({self._now_ms})"


class ContinuedClock:
    """A clock that was set back between two openings, going on from the latest instant ever seen."""

    def __init__(self, clock: Clock, *, ahead_ms: int) -> None:
        self._clock = clock
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms


def never_before(clock: Clock, instant_ms: int) -> Clock:
    """The clock itself, or one that continues from `instant_ms` where it stands before it."""
    behind_ms = instant_ms - clock.now_ms()
    return ContinuedClock(clock, ahead_ms=behind_ms) if behind_ms > 0 else clock
