"""Every question about life and death is answered here.

`is_dead` is the only predicate; `lifetime` turns what a caller asked for (`ttl`, `at`, `idle`) into
the deadline that travels with the row. Nothing else in the package compares a deadline with a time.
"""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ephemera.core._row import is_dead
from ephemera.core.errors import InvalidArgument
from ephemera.core.row import NEVER_MS, Row

__all__ = [
    "DEADLINE_MS_MAX",
    "AtLike",
    "Lifetime",
    "Seconds",
    "Ttl",
    "TtlLike",
    "duration_ms",
    "instant_ms",
    "is_dead",
    "lifetime",
    "renewed",
    "show",
    "to_datetime",
]

DEADLINE_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: no deadline lies beyond it."""


class Ttl(enum.Enum):
    """The two lifetimes that are no duration."""

    DEFAULT = "the family's default, or none"
    NEVER = "no deadline"


TtlLike = float | timedelta | Ttl | None
"""What `ttl=` takes: seconds, a timedelta, `Ttl.DEFAULT`, `Ttl.NEVER`; None is the same as not given."""
AtLike = datetime | float | None
"""What `at=` takes: an aware datetime or epoch seconds."""
Seconds = float | timedelta
"""What `idle=` and `max_age=` take."""


class Lifetime(NamedTuple):
    """When a row dies: its deadline, and for a row that dies of idleness the idle time and the hard cap."""

    deadline_ms: int = NEVER_MS
    idle_ms: int = 0
    hard_ms: int = NEVER_MS


FOREVER = Lifetime()


def duration_ms(given: object, *, name: str) -> int:
    """A duration in whole milliseconds, at least 1. Raises InvalidArgument for anything else.

    >>> duration_ms(1.5, name="ttl")
    1500
    """
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = given
    else:
        raise InvalidArgument(
            f"{name} must be a number of seconds or a timedelta, not {show(given)}"
        )
    if not seconds > 0 or seconds == math.inf:
        raise InvalidArgument(
            f"{name} must be a positive, finite number of seconds, not {show(given)}"
        )
    if seconds > DEADLINE_MS_MAX / 1000:
        raise InvalidArgument(f"{name} of {show(given)} puts the deadline past the year 9999")
    return max(1, round(seconds * 1000))


def instant_ms(given: object, *, name: str) -> int:
    """An instant in UTC milliseconds, from an aware datetime or epoch seconds.

    >>> instant_ms(1_700_000_000, name="at")
    1700000000000
    """
    if isinstance(given, datetime):
        if given.utcoffset() is None:
            raise InvalidArgument(
                f"{name} must carry a time zone; {show(given)} has none (use datetime.now(UTC))"
            )
        seconds: float = given.timestamp()
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = given
    else:
        raise InvalidArgument(f"{name} must be a datetime or epoch seconds, not {show(given)}")
    if not -math.inf < seconds < math.inf:
        raise InvalidArgument(f"{name} must be finite, not {show(given)}")
    if seconds > DEADLINE_MS_MAX / 1000:
        raise InvalidArgument(
            f"{name} of {show(given)} is past 9999-12-31T23:59:59.999 UTC, the last deadline there is"
        )
    if seconds < 0:
        raise InvalidArgument(f"{name} of {show(given)} is before the year 1970")
    return round(seconds * 1000)


def lifetime(
    now_ms: int, *, ttl: object, at: object, idle: object, default_ttl_ms: int | None
) -> Lifetime:
    """The lifetime of a write at `now_ms`; raises InvalidArgument when it cannot be.

    With `idle`, what `ttl` or `at` says is the hard cap that no touch can move the row past.

    >>> lifetime(1_000, ttl=2, at=None, idle=None, default_ttl_ms=None).deadline_ms
    3000
    """
    hard_ms = _hard_deadline_ms(now_ms, ttl=ttl, at=at, default_ttl_ms=default_ttl_ms)
    if idle is None:
        return Lifetime(hard_ms)
    idle_ms = duration_ms(idle, name="idle")
    return Lifetime(_bounded(now_ms + idle_ms, hard_ms, name="idle"), idle_ms, hard_ms)


def renewed(row: Row, now_ms: int, *, default_ttl_ms: int | None) -> Lifetime:
    """The lifetime of a row that is touched without being told for how long.

    A row that dies of idleness starts its idle time again; another gets the family's default; where
    there is none, nothing is renewed and the deadline stays.
    """
    if row.idle_ms:
        deadline_ms = min(now_ms + row.idle_ms, row.hard_ms, DEADLINE_MS_MAX)
        return Lifetime(deadline_ms, row.idle_ms, row.hard_ms)
    if default_ttl_ms is not None:
        return Lifetime(min(now_ms + default_ttl_ms, DEADLINE_MS_MAX))
    return Lifetime(row.deadline_ms)


def to_datetime(instant: int) -> datetime:
    """UTC milliseconds as an aware datetime, exact to the millisecond."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant)


def _hard_deadline_ms(now_ms: int, *, ttl: object, at: object, default_ttl_ms: int | None) -> int:
    if at is not None:
        if ttl is not None:
            raise InvalidArgument(f"give ttl or at, not both (ttl={ttl!r}, at={at!r})")
        deadline_ms = instant_ms(at, name="at")
        if is_dead(deadline_ms, now_ms):
            raise InvalidArgument(
                f"at must lie in the future: {to_datetime(deadline_ms)} has passed, "
                f"it is {to_datetime(now_ms)} now"
            )
        return deadline_ms
    if ttl is None or ttl is Ttl.DEFAULT:
        if default_ttl_ms is None:
            return NEVER_MS
        return _bounded(now_ms + default_ttl_ms, NEVER_MS, name="default_ttl")
    if ttl is Ttl.NEVER:
        return NEVER_MS
    return _bounded(now_ms + duration_ms(ttl, name="ttl"), NEVER_MS, name="ttl")


def _bounded(deadline_ms: int, hard_ms: int, *, name: str) -> int:
    if deadline_ms > DEADLINE_MS_MAX:
        raise InvalidArgument(f"{name} puts the deadline past the year 9999")
    return min(deadline_ms, hard_ms)


def show(given: object) -> str:
    """What was given, short enough for a message."""
    try:
        text = repr(given)
    except ValueError:
        return "a number of more digits than Python prints"
    return text if len(text) <= 80 else text[:77] + "..."
