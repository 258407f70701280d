"""Keys that die of idleness: renewed by a touch, up to a hard cap."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ephemera import ManualClock, Store
from tests.contract.times import after


@pytest.mark.parametrize("idle", [60, timedelta(minutes=1)])
def test_an_idle_key_dies_when_nobody_touches_it(
    store: Store, clock: ManualClock, idle: float | timedelta
) -> None:
    store.put(b"key", b"value", idle=idle)
    assert store.ttl(b"key") == 60.0
    clock.advance(59.999)
    assert store.get(b"key") == b"value"
    clock.advance(0.001)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1


def test_reading_does_not_renew_an_idle_key(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60)
    clock.advance(30)
    assert store.get(b"key") == b"value"
    assert store.entry(b"key") is not None
    assert store.ttl(b"key") == 30.0


def test_a_touch_starts_the_idle_time_again(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60)
    for _ in range(5):
        clock.advance(59)
        assert store.touch(b"key")
        assert store.ttl(b"key") == 60.0
    clock.advance(60)
    assert not store.touch(b"key")
    assert store.get(b"key") is None


def test_no_touch_moves_an_idle_key_past_its_hard_cap(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60, ttl=100)
    clock.advance(50)
    assert store.touch(b"key")
    assert store.ttl(b"key") == 50.0
    clock.advance(49.999)
    assert store.touch(b"key")
    assert store.ttl(b"key") == 0.001
    clock.advance(0.001)
    assert not store.touch(b"key")
    assert store.get(b"key") is None
    assert store.purge_expired() == 1


def test_the_hard_cap_may_be_an_instant(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60, at=after(90))
    clock.advance(59)
    assert store.touch(b"key")
    assert store.ttl(b"key") == 31.0


def test_a_hard_cap_before_the_idle_time_is_the_deadline(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60, ttl=10)
    assert store.ttl(b"key") == 10.0
    clock.advance(5)
    assert store.touch(b"key")
    assert store.ttl(b"key") == 5.0


def test_the_familys_default_is_the_hard_cap_of_an_idle_key(
    store: Store, clock: ManualClock
) -> None:
    sessions = store.family("sessions", default_ttl=100)
    sessions.put(b"key", b"value", idle=60)
    assert sessions.ttl(b"key") == 60.0
    clock.advance(59)
    assert sessions.touch(b"key")
    assert sessions.ttl(b"key") == 41.0


def test_a_put_without_idle_ends_idleness(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old", idle=60)
    store.put(b"key", b"new")
    clock.advance(120)
    assert store.get(b"key") == b"new"
    assert store.ttl(b"key") is None
    assert store.touch(b"key")
    assert store.ttl(b"key") is None


def test_persist_ends_idleness(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60, ttl=3_600)
    assert store.persist(b"key")
    assert store.ttl(b"key") is None
    assert store.touch(b"key")
    assert store.ttl(b"key") is None
    clock.advance(7_200)
    assert store.get(b"key") == b"value"
    assert store.purge_expired() == 0


def test_compare_and_set_without_ttl_keeps_idleness(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1", idle=60, ttl=100)
    clock.advance(30)
    assert store.compare_and_set(b"key", b"1", b"2")
    assert store.ttl(b"key") == 30.0
    assert store.touch(b"key")
    assert store.ttl(b"key") == 60.0
    clock.advance(59)
    assert store.touch(b"key")
    assert store.ttl(b"key") == 11.0


def test_incr_keeps_idleness_and_does_not_renew_it(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1", idle=60)
    clock.advance(30)
    assert store.incr(b"key") == 2
    assert store.ttl(b"key") == 30.0
    assert store.touch(b"key")
    assert store.ttl(b"key") == 60.0


def test_an_idle_key_touched_in_a_transaction_is_renewed(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60)
    clock.advance(30)
    with store.transaction() as transaction:
        assert transaction.touch(b"key")
        assert transaction.ttl(b"key") == 60.0
    assert store.ttl(b"key") == 60.0
