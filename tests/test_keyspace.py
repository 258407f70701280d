"""The short way through `put` means exactly what the long way means."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ephemera
from ephemera.core.expiry import DEADLINE_MS_MAX, duration_ms

seconds = st.one_of(
    st.integers(1, 10**11),
    st.floats(1e-9, 1e11),
    st.integers(1, 10**6).map(lambda halves: halves / 2_000),
)


@given(seconds)
@example(0.0005)
@example(0.0025)
@example(10**9)
@example(10**9 + 1)
@example(1e9)
def test_numbers_of_seconds_become_the_same_deadline_either_way(ttl: float) -> None:
    with ephemera.open("memory://", clock=ephemera.ManualClock(), maintenance="manual") as store:
        store.put(b"short", b"", ttl=ttl)
        store.put_many({b"long": b""}, ttl=ttl)
        assert store.ttl(b"short") == store.ttl(b"long") == duration_ms(ttl, name="ttl") / 1000


@pytest.mark.parametrize("ttl", [2, 2.0, timedelta(seconds=2)])
def test_near_the_end_of_time_the_short_way_is_as_strict(ttl: float | timedelta) -> None:
    clock = ephemera.ManualClock(DEADLINE_MS_MAX - 1_000)
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        with pytest.raises(ephemera.InvalidArgument, match="9999"):
            store.put(b"key", b"", ttl=ttl)
        store.put(b"key", b"", ttl=1)
        assert store.ttl(b"key") == 1.0


def test_a_single_str_or_bytes_is_no_list_of_keys() -> None:
    with ephemera.open("memory://") as store:
        for wrong in (b"abc", "abc", 7, None):
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.get_many(wrong)  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.delete_many(wrong)  # type: ignore[arg-type]  # wrong on purpose
            with pytest.raises(ephemera.InvalidArgument, match="iterable"):
                store.put_many(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_a_scan_raises_at_the_call_what_is_wrong_with_it() -> None:
    with ephemera.open("memory://") as store:
        for wrong in ({"limit": -1}, {"limit": True}, {"prefix": 1}, {"end": 1}, {"reverse": 1}):
            with pytest.raises(ephemera.InvalidArgument, match=next(iter(wrong))):
                store.scan(**wrong)
