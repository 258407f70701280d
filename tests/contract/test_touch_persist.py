"""Changing a deadline without changing the value."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ephemera import ManualClock, Store, Ttl
from tests.contract.times import after


@pytest.mark.parametrize("ttl", [90, 90.0, timedelta(seconds=90)])
def test_touch_with_ttl_sets_a_new_deadline_from_now(
    store: Store, clock: ManualClock, ttl: float | timedelta
) -> None:
    store.put(b"key", b"value", ttl=60)
    clock.advance(30)
    assert store.touch(b"key", ttl=ttl) is True
    assert store.ttl(b"key") == 90.0
    clock.advance(89.999)
    assert store.get(b"key") == b"value"
    clock.advance(0.001)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1


def test_touch_may_shorten_a_life(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=60)
    assert store.touch(b"key", ttl=5)
    clock.advance(5)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1


def test_touch_with_ttl_gives_a_permanent_key_a_deadline(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value")
    assert store.touch(b"key", ttl=5)
    assert store.ttl(b"key") == 5.0
    clock.advance(5)
    assert store.get(b"key") is None


def test_touch_with_never_takes_the_deadline_away(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=5)
    assert store.touch(b"key", ttl=Ttl.NEVER)
    assert store.ttl(b"key") is None
    clock.advance(10)
    assert store.get(b"key") == b"value"
    assert store.purge_expired() == 0


def test_touch_without_arguments_gives_the_familys_default(
    store: Store, clock: ManualClock
) -> None:
    family = store.family("sessions", default_ttl=60)
    family.put(b"key", b"value", ttl=10)
    clock.advance(5)
    assert family.touch(b"key")
    assert family.ttl(b"key") == 60.0


def test_touch_without_arguments_or_default_leaves_the_deadline(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"brief", b"value", ttl=10)
    store.put(b"permanent", b"value")
    clock.advance(5)
    assert store.touch(b"brief") is True
    assert store.touch(b"permanent") is True
    assert store.ttl(b"brief") == 5.0
    assert store.ttl(b"permanent") is None


def test_touch_and_persist_of_an_absent_key_say_false_and_write_nothing(store: Store) -> None:
    assert store.touch(b"absent") is False
    assert store.touch(b"absent", ttl=60) is False
    assert store.persist(b"absent") is False
    assert store.count() == 0
    assert store.get(b"absent") is None


def test_touch_and_persist_of_a_deleted_key_say_false(store: Store) -> None:
    store.put(b"key", b"value", ttl=60)
    store.delete(b"key")
    assert store.touch(b"key", ttl=60) is False
    assert store.persist(b"key") is False
    assert store.get(b"key") is None


def test_touch_keeps_value_and_write_time(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=60)
    clock.advance(10)
    assert store.touch(b"key", ttl=100)
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"value", after(0), after(110))
    assert store.get(b"key", max_age=9) is None


def test_persist_keeps_value_and_write_time(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=60)
    clock.advance(10)
    assert store.persist(b"key") is True
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"value", after(0), None)


def test_persist_leaves_nothing_to_purge(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=60)
    assert store.persist(b"key")
    clock.advance(61)
    assert store.purge_expired() == 0
    assert store.get(b"key") == b"value"


def test_persist_in_a_family_with_a_default_is_still_permanent(
    store: Store, clock: ManualClock
) -> None:
    family = store.family("sessions", default_ttl=60)
    family.put(b"key", b"value")
    assert family.persist(b"key")
    assert family.ttl(b"key") is None
    clock.advance(61)
    assert family.get(b"key") == b"value"


def test_a_dead_key_stays_dead_when_touched_or_persisted(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    assert store.touch(b"key", ttl=60) is False
    assert store.touch(b"key", ttl=Ttl.NEVER) is False
    assert store.persist(b"key") is False
    assert store.get(b"key") is None


def test_touch_moves_a_key_to_its_new_place_in_the_order_of_deadlines(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"early", b"", ttl=10)
    store.put(b"late", b"", ttl=20)
    store.touch(b"early", ttl=30)
    clock.advance(20)
    assert store.purge_expired() == 1
    assert list(store) == [b"early"]
    clock.advance(10)
    assert store.purge_expired() == 1
    assert store.purge_expired() == 0
