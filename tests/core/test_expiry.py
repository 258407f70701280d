"""Life and death: the predicate, and how a TTL becomes a deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ephemera.core.errors import InvalidArgument
from ephemera.core.expiry import (
    DEADLINE_MS_MAX,
    FOREVER,
    Lifetime,
    Ttl,
    duration_ms,
    instant_ms,
    is_dead,
    lifetime,
    renewed,
    to_datetime,
)
from ephemera.core.row import NEVER_MS, Row

NOW = 1_700_000_000_000
instants = st.integers(0, DEADLINE_MS_MAX)


def life(
    *, ttl: object = None, at: object = None, idle: object = None, default_ttl_ms: int | None = None
) -> Lifetime:
    return lifetime(NOW, ttl=ttl, at=at, idle=idle, default_ttl_ms=default_ttl_ms)


def test_the_deadline_itself_is_dead() -> None:
    assert not is_dead(NOW + 1, NOW)
    assert is_dead(NOW, NOW)
    assert is_dead(NOW - 1, NOW)


@given(instants)
def test_what_has_no_deadline_is_never_dead(now_ms: int) -> None:
    assert not is_dead(NEVER_MS, now_ms)


@pytest.mark.parametrize(
    ("given_", "ms"),
    [
        (1, 1_000),
        (1.5, 1_500),
        (0.001, 1),
        (0.000_000_1, 1),
        (timedelta(seconds=2, microseconds=3_000), 2_003),
        (timedelta(microseconds=1), 1),
        (253_402_300_799, 253_402_300_799_000),
    ],
)
def test_a_duration_is_whole_milliseconds_and_at_least_one(given_: object, ms: int) -> None:
    assert duration_ms(given_, name="ttl") == ms


@pytest.mark.parametrize(
    "given_",
    [0, -1, -0.1, float("nan"), float("inf"), float("-inf"), True, False, "1", b"1", None, 1j,
     timedelta(0), timedelta(seconds=-1), 10**12, 10**400, 1e300, Ttl.NEVER],
)  # fmt: skip
def test_what_is_no_duration_is_refused_by_name(given_: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^idle"):
        duration_ms(given_, name="idle")


@pytest.mark.parametrize(
    ("given_", "ms"),
    [
        (0, 0),
        (1_700_000_000, NOW),
        (1_700_000_000.25, NOW + 250),
        (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), NOW),
        (datetime(2023, 11, 15, 7, 13, 20, tzinfo=timezone(timedelta(hours=9))), NOW),
    ],
)
def test_an_instant_is_utc_milliseconds(given_: object, ms: int) -> None:
    assert instant_ms(given_, name="at") == ms


@pytest.mark.parametrize(
    "given_",
    [datetime(2023, 11, 14), True, "2023", None, float("nan"), float("inf"), -1, -1e300,  # noqa: DTZ001
     datetime(1, 1, 1, tzinfo=UTC), 253_402_300_800, 10**400, timedelta(1)],
)  # fmt: skip
def test_what_is_no_instant_is_refused_by_name(given_: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^at"):
        instant_ms(given_, name="at")


def test_an_instant_without_a_time_zone_is_told_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        instant_ms(datetime(2023, 11, 14), name="at")  # noqa: DTZ001


def test_a_ttl_counts_from_now() -> None:
    assert life(ttl=60) == Lifetime(NOW + 60_000)
    assert life(ttl=timedelta(seconds=60), default_ttl_ms=5) == Lifetime(NOW + 60_000)


def test_an_instant_is_the_deadline() -> None:
    assert life(at=NOW / 1000 + 60, default_ttl_ms=5) == Lifetime(NOW + 60_000)


@pytest.mark.parametrize("ttl", [None, Ttl.DEFAULT])
def test_not_given_is_the_default_or_none(ttl: Ttl | None) -> None:
    assert life(ttl=ttl) == FOREVER
    assert life(ttl=ttl, default_ttl_ms=5_000) == Lifetime(NOW + 5_000)


def test_never_takes_no_default() -> None:
    assert life(ttl=Ttl.NEVER, default_ttl_ms=5_000) == FOREVER


@pytest.mark.parametrize("at", [0, NOW / 1000, NOW / 1000 - 1])
def test_an_instant_that_is_not_ahead_is_refused(at: float) -> None:
    with pytest.raises(InvalidArgument, match="future"):
        life(at=at)


@pytest.mark.parametrize("ttl", [1, Ttl.NEVER, Ttl.DEFAULT])
def test_ttl_and_at_exclude_each_other(ttl: object) -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        life(ttl=ttl, at=NOW / 1000 + 1)


def test_no_deadline_lies_past_the_year_9999() -> None:
    left_ms = DEADLINE_MS_MAX - NOW
    assert life(ttl=timedelta(milliseconds=left_ms)).deadline_ms == DEADLINE_MS_MAX
    for wrong in (
        {"ttl": timedelta(milliseconds=left_ms + 1)},
        {"idle": timedelta(milliseconds=left_ms + 1)},
        {"default_ttl_ms": left_ms + 1},
    ):
        with pytest.raises(InvalidArgument, match="9999"):
            life(**wrong)


def test_idleness_alone_has_no_cap() -> None:
    assert life(idle=60) == Lifetime(NOW + 60_000, 60_000, NEVER_MS)


def test_with_idle_the_ttl_is_the_hard_cap() -> None:
    assert life(idle=60, ttl=100) == Lifetime(NOW + 60_000, 60_000, NOW + 100_000)
    assert life(idle=60, ttl=10) == Lifetime(NOW + 10_000, 60_000, NOW + 10_000)
    assert life(idle=60, default_ttl_ms=10_000) == Lifetime(NOW + 10_000, 60_000, NOW + 10_000)
    assert life(idle=60, ttl=Ttl.NEVER, default_ttl_ms=1) == life(idle=60)


def test_a_touch_starts_the_idle_time_again_up_to_the_cap() -> None:
    row = Row(b"", NOW, NOW + 60_000, 60_000, NOW + 100_000)
    assert renewed(row, NOW + 30_000, default_ttl_ms=5).deadline_ms == NOW + 90_000
    assert renewed(row, NOW + 59_999, default_ttl_ms=5).deadline_ms == NOW + 100_000


def test_a_touch_gives_the_default_or_leaves_the_deadline() -> None:
    row = Row(b"", NOW, NOW + 60_000)
    assert renewed(row, NOW + 1, default_ttl_ms=5_000) == Lifetime(NOW + 5_001)
    assert renewed(row, NOW + 1, default_ttl_ms=None) == Lifetime(NOW + 60_000)
    assert renewed(Row(b"", NOW), NOW + 1, default_ttl_ms=None) == FOREVER


def test_no_touch_moves_a_deadline_past_the_year_9999() -> None:
    idle_ms = DEADLINE_MS_MAX - NOW
    row = Row(b"", NOW, DEADLINE_MS_MAX, idle_ms)
    assert renewed(row, NOW + 1, default_ttl_ms=None).deadline_ms == DEADLINE_MS_MAX
    assert renewed(Row(b"", NOW), NOW + 1, default_ttl_ms=idle_ms).deadline_ms == DEADLINE_MS_MAX


@given(st.integers(1, 10**12), instants)
def test_whatever_just_got_a_ttl_is_alive(ttl_ms: int, now_ms: int) -> None:
    if now_ms + ttl_ms > DEADLINE_MS_MAX:
        return
    ttl = timedelta(milliseconds=ttl_ms)
    made = lifetime(now_ms, ttl=ttl, at=None, idle=None, default_ttl_ms=None)
    assert not is_dead(made.deadline_ms, now_ms)
    assert is_dead(made.deadline_ms, now_ms + ttl_ms)


@given(instants)
def test_a_datetime_is_exact_to_the_millisecond(instant: int) -> None:
    shown = to_datetime(instant)
    assert shown.tzinfo is UTC
    assert shown - to_datetime(0) == timedelta(milliseconds=instant)
