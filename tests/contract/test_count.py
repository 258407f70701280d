"""How many keys are alive."""

from __future__ import annotations

from ephemera import ManualClock, Store


def test_an_empty_store_counts_nothing(store: Store) -> None:
    assert store.count() == 0
    assert len(store) == 0


def test_each_key_counts_once_however_often_it_is_written(store: Store) -> None:
    for _ in range(3):
        store.put_many({b"a": b"1", b"b": b"2"})
        store.checkpoint()
        store.put(b"a", b"3")
    assert store.count() == len(store) == 2


def test_deleted_keys_do_not_count(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    store.checkpoint()
    store.delete(b"a")
    assert store.count() == 1
    store.delete(b"a")
    store.delete(b"absent")
    assert store.count() == 1


def test_dead_keys_do_not_count_from_their_deadline_on(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"1", ttl=10)
    store.put(b"b", b"2", ttl=20)
    store.put(b"c", b"3")
    clock.advance(9.999)
    assert store.count() == 3
    clock.advance(0.001)
    assert store.count() == len(store) == 2
    clock.advance(10)
    assert store.count() == 1


def test_purging_does_not_change_the_count(store: Store, clock: ManualClock) -> None:
    store.put_many({b"%d" % number: b"" for number in range(10)}, ttl=1)
    store.put_many({b"x%d" % number: b"" for number in range(10)})
    clock.advance(1)
    assert store.count() == 10
    assert store.purge_expired() == 10
    assert store.count() == 10


def test_a_dead_key_that_is_written_again_counts_again(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"1", ttl=1)
    clock.advance(1)
    assert store.count() == 0
    store.put(b"a", b"2")
    assert store.count() == 1


def test_families_are_counted_apart(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"})
    other = store.family("other")
    other.put(b"a", b"3")
    assert store.count() == 2
    assert other.count() == len(other) == 1
    other.clear()
    assert other.count() == 0
    assert store.count() == 2
