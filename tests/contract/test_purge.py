"""Removing the dead: exactly them, the earliest first, as many as asked for."""

from __future__ import annotations

import pytest

from ephemera import Capability, Expired, ManualClock, Store
from tests.contract.times import START_MS


def test_nothing_is_purged_when_nothing_is_dead(store: Store, clock: ManualClock) -> None:
    assert store.purge_expired() == 0
    store.put(b"permanent", b"")
    store.put(b"long", b"", ttl=60)
    clock.advance(59.999)
    assert store.purge_expired() == 0
    assert store.count() == 2


def test_a_purge_says_exactly_how_many_were_dead(store: Store, clock: ManualClock) -> None:
    for number in range(1, 11):
        store.put(b"%02d" % number, b"", ttl=number)
    clock.advance(4)
    assert store.purge_expired() == 4
    assert store.purge_expired() == 0
    assert store.count() == 6
    clock.advance(6)
    assert store.purge_expired() == 6
    assert store.purge_expired() == 0


def test_a_key_is_purged_at_its_deadline_and_not_before(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"", ttl=1)
    clock.advance(0.999)
    assert store.purge_expired() == 0
    clock.advance(0.001)
    assert store.purge_expired() == 1


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in-segments", "in-base-tier"])
def test_a_purge_counts_wherever_the_rows_are(
    store: Store, clock: ManualClock, is_checkpointed: bool
) -> None:
    store.put_many({b"%02d" % number: b"" for number in range(20)}, ttl=1)
    if is_checkpointed:
        store.checkpoint()
    store.put_many({b"%02d" % number: b"" for number in range(10, 30)}, ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 30
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_keys_that_died_before_a_checkpoint_are_counted_after_it(
    store: Store, clock: ManualClock
) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=1)
    clock.advance(1)
    store.checkpoint()
    assert store.purge_expired() == 2
    assert store.purge_expired() == 0


@pytest.mark.parametrize("batch", [1, 2, 7, 1_000])
def test_the_batch_size_changes_no_result(store: Store, clock: ManualClock, batch: int) -> None:
    store.put_many({b"%02d" % number: b"" for number in range(15)}, ttl=1)
    store.put(b"alive", b"")
    clock.advance(1)
    assert store.purge_expired(batch=batch) == 15
    assert store.purge_expired(batch=batch) == 0
    assert list(store) == [b"alive"]


@pytest.mark.parametrize("batch", [1, 3, 1_000])
def test_a_limit_bounds_one_call(store: Store, clock: ManualClock, batch: int) -> None:
    store.put_many({b"%02d" % number: b"" for number in range(10)}, ttl=1)
    clock.advance(1)
    assert store.purge_expired(limit=4, batch=batch) == 4
    assert store.count() == 0
    assert store.purge_expired(limit=4, batch=batch) == 4
    assert store.purge_expired(limit=4, batch=batch) == 2
    assert store.purge_expired(limit=4, batch=batch) == 0


def test_a_purge_reaches_every_family(store: Store, clock: ManualClock) -> None:
    for name in ("one", "two", "three"):
        store.family(name).put_many({b"a": b"", b"b": b""}, ttl=1)
        store.family(name).put(b"alive", b"")
    store.put(b"a", b"", ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 7
    assert [store.family(name).count() for name in ("one", "two", "three")] == [1, 1, 1]


@pytest.mark.needs(Capability.EXPIRY_EVENTS)
def test_the_earliest_deadline_goes_first_whatever_the_family_or_key(
    store: Store, clock: ManualClock
) -> None:
    events: list[Expired] = []
    store.on_expire(events.append)
    seconds = [5, 2, 9, 1, 7, 3, 8, 4, 6]
    for place, ttl in enumerate(seconds):
        if place == 4:
            store.checkpoint()
        store.family(f"family{place % 3}").put(b"%d" % (place * 7 % 10), b"", ttl=ttl)
    clock.advance(10)
    assert store.purge_expired(limit=4) == 4
    assert [event.deadline_ms - START_MS for event in events] == [1_000, 2_000, 3_000, 4_000]
    assert store.purge_expired(batch=2) == 5
    assert [event.deadline_ms - START_MS for event in events] == [
        second * 1_000 for second in range(1, 10)
    ]


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["in-segments", "in-base-tier"])
def test_what_was_overwritten_persisted_touched_or_deleted_is_not_purged(
    store: Store, clock: ManualClock, is_checkpointed: bool
) -> None:
    keys = [b"put", b"put-ttl", b"put-many", b"persist", b"touch", b"swap", b"delete", b"pop",
            b"delete-many"]  # fmt: skip
    store.put_many(dict.fromkeys(keys, b"old"), ttl=10)
    if is_checkpointed:
        store.checkpoint()
    store.put(b"put", b"new")
    store.put(b"put-ttl", b"new", ttl=100)
    store.put_many({b"put-many": b"new"})
    assert store.persist(b"persist")
    assert store.touch(b"touch", ttl=100)
    assert store.compare_and_set(b"swap", b"old", b"new", ttl=100)
    assert store.delete(b"delete")
    assert store.pop(b"pop") == b"old"
    assert store.delete_many([b"delete-many"]) == 1
    clock.advance(10)
    assert store.purge_expired() == 0
    assert list(store) == sorted(keys[:6])
    assert store.check().is_clean


def test_a_dead_key_that_was_written_again_is_not_purged(store: Store, clock: ManualClock) -> None:
    store.put_many({b"a": b"old", b"b": b"old"}, ttl=1)
    store.checkpoint()
    clock.advance(1)
    store.put(b"a", b"new")
    store.put(b"b", b"new", ttl=10)
    assert store.purge_expired() == 0
    assert dict(store.scan()) == {b"a": b"new", b"b": b"new"}


def test_a_purged_key_can_be_written_again(store: Store, clock: ManualClock) -> None:
    for _ in range(3):
        store.put(b"key", b"value", ttl=1)
        clock.advance(1)
        assert store.purge_expired() == 1
        assert store.get(b"key") is None
    store.put(b"key", b"last")
    assert store.get(b"key") == b"last"
    assert store.purge_expired() == 0


def test_a_thousand_dead_leave_the_living_untouched(store: Store, clock: ManualClock) -> None:
    store.put_many({b"dead:%04d" % number: b"x" * 100 for number in range(1_000)}, ttl=1)
    store.put_many({b"live:%04d" % number: b"y" * 100 for number in range(100)}, ttl=100)
    clock.advance(1)
    assert store.purge_expired() == 1_000
    assert store.count() == 100
    assert [key for key, _ in store.scan(limit=1)] == [b"live:0000"]
    assert store.check().is_clean


def test_a_limit_is_not_used_up_by_what_was_written_again(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"1", ttl=1)
    store.put(b"b", b"1", ttl=2)
    store.checkpoint()
    clock.advance(3)
    store.put(b"a", b"2")
    assert store.purge_expired(limit=1) == 1
    assert store.purge_expired(limit=1) == 0
    assert dict(store.scan()) == {b"a": b"2"}
