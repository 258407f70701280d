"""Taking keys away."""

from __future__ import annotations

import pytest

from ephemera import ManualClock, Store


def test_a_deleted_key_is_gone(store: Store) -> None:
    store.put(b"key", b"value")
    assert store.delete(b"key") is True
    assert store.get(b"key") is None
    assert b"key" not in store
    assert list(store.scan()) == []
    assert store.count() == 0


def test_deleting_twice_says_false_the_second_time(store: Store) -> None:
    store.put(b"key", b"value")
    assert store.delete(b"key") is True
    assert store.delete(b"key") is False


def test_deleting_an_absent_key_says_false(store: Store) -> None:
    assert store.delete(b"absent") is False


def test_deleting_a_dead_key_says_false(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    assert store.delete(b"key") is False


def test_deleting_a_key_with_a_ttl_leaves_nothing_to_purge(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"value", ttl=1)
    store.checkpoint()
    assert store.delete(b"key")
    clock.advance(2)
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_a_deletion_hides_the_older_row_below_it(store: Store) -> None:
    store.put(b"key", b"value")
    store.checkpoint()
    assert store.delete(b"key")
    assert store.get(b"key") is None
    assert list(store.scan()) == []
    store.checkpoint()
    assert store.get(b"key") is None
    assert list(store.scan()) == []


def test_a_deleted_key_can_be_written_again(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old", ttl=10)
    store.delete(b"key")
    store.put(b"key", b"new")
    assert store.get(b"key") == b"new"
    assert store.ttl(b"key") is None
    clock.advance(20)
    assert store.get(b"key") == b"new"


def test_deleting_takes_no_neighbour_along(store: Store) -> None:
    store.put_many({b"a": b"1", b"aa": b"2", b"b": b"3"})
    store.delete(b"a")
    assert dict(store.scan()) == {b"aa": b"2", b"b": b"3"}


def test_pop_gives_the_value_and_takes_the_key_away(store: Store) -> None:
    store.put(b"key", b"value")
    assert store.pop(b"key") == b"value"
    assert store.get(b"key") is None


def test_pop_without_default_raises_key_error_when_absent(store: Store) -> None:
    with pytest.raises(KeyError):
        store.pop(b"absent")


@pytest.mark.parametrize("default", [None, b"default", b""])
def test_pop_with_a_default_gives_it_when_absent(store: Store, default: bytes | None) -> None:
    assert store.pop(b"absent", default) == default


def test_pop_of_a_dead_key_is_pop_of_an_absent_one(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    with pytest.raises(KeyError):
        store.pop(b"key")
    assert store.pop(b"key", None) is None


def test_a_popped_key_with_a_ttl_leaves_nothing_to_purge(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    assert store.pop(b"key") == b"value"
    clock.advance(2)
    assert store.purge_expired() == 0


def test_one_value_is_popped_once(store: Store) -> None:
    store.put(b"key", b"")
    assert store.pop(b"key") == b""
    with pytest.raises(KeyError):
        store.pop(b"key")
