"""Durations and instants as a person types and reads them."""

from __future__ import annotations

import re
from datetime import datetime

from ephemera import InvalidArgument, Ttl
from ephemera.core.expiry import TtlLike

UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])\s*")
COMPACT_DATE = re.compile(r"(?:19|20|21)\d{6}")
"""20300131 is a date: as epoch seconds it would lie in 1970."""
NEVER = "never"


def parse_seconds(text: str) -> float:
    """The seconds of a duration like 90, 1h30m or 2d. Raises InvalidArgument for anything else.

    >>> parse_seconds("1h30m"), parse_seconds("90"), parse_seconds("59m 12s")
    (5400.0, 90.0, 3552.0)
    """
    given = text.strip()
    try:
        return float(given)
    except ValueError:
        pass
    parts = PART.findall(given)
    if not parts or PART.sub("", given):
        raise InvalidArgument(f"{text!r} is no duration: write 90, 1h30m or 2d (w d h m s ms)")
    return sum(float(number) * UNITS_MS[unit] for number, unit in parts) / 1000


def parse_ttl(text: str | None) -> TtlLike:
    """What `ttl=` takes, from a duration or `never`."""
    if text is None:
        return None
    return Ttl.NEVER if text == NEVER else parse_seconds(text)


def parse_at(text: str | None) -> datetime | float | None:
    """What `at=` takes, from a date, a date and time (both local unless a zone is given), or epoch seconds.

    Raises InvalidArgument for anything else.

    >>> str(parse_at("2030-01-31 12:00Z")), parse_at("1900000000")
    ('2030-01-31 12:00:00+00:00', 1900000000.0)
    """
    if text is None:
        return None
    given = text.strip()
    try:
        if not COMPACT_DATE.fullmatch(given):
            return float(given)
    except ValueError:
        pass
    try:
        instant = datetime.fromisoformat(given)
        return instant if instant.tzinfo else instant.astimezone()
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{text!r} is no instant: write 2030-01-31 or 2030-01-31 12:00 in local time "
            f"(zone {_local_zone()}), 2030-01-31T12:00:00Z, or seconds since 1970"
        ) from None


def _local_zone() -> str:
    """The name of the local time zone.

    Of a fixed day: which of its two names holds today does not matter to whom asks for the zone.
    """
    return datetime(2030, 1, 1).astimezone().tzname() or "UTC"


def parse_life(
    ttl: str | None, at: str | None, idle: str | None
) -> tuple[TtlLike, datetime | float | None, float | None]:
    """What `ttl=`, `at=` and `idle=` take. Raises InvalidArgument where two of them say when it dies."""
    if ttl is not None and at is not None:
        raise InvalidArgument(f"give --ttl or --at, not both ({ttl} and {at})")
    return parse_ttl(ttl), parse_at(at), None if idle is None else parse_seconds(idle)


def show_seconds(seconds: float | None) -> str:
    """A duration by its two largest units; None is `never`.

    >>> show_seconds(3552.9), show_seconds(0.25), show_seconds(None), show_seconds(86_400)
    ('59m 12s', '250ms', 'never', '1d')
    """
    if seconds is None:
        return NEVER
    left_ms = round(seconds * 1000)
    parts: list[str] = []
    for unit, unit_ms in UNITS_MS.items():
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
        if (parts and not count) or len(parts) == 2 or (parts and unit == "s"):
            break
    return " ".join(parts) or "0ms"


def show_instant(instant: datetime | None) -> str | None:
    """An instant as JSON has it: ISO, in UTC, to the millisecond."""
    if instant is None:
        return None
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
