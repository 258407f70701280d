"""A store is used like a dictionary."""

from __future__ import annotations

import pytest

from ephemera import ManualClock, Store


def test_items_are_set_got_and_deleted(store: Store) -> None:
    store[b"a"] = b"1"
    store["b"] = "2"
    assert store[b"a"] == b"1"
    assert store["b"] == b"2"
    del store[b"a"]
    assert b"a" not in store
    assert "b" in store


def test_an_absent_key_raises_key_error_that_names_it(store: Store) -> None:
    with pytest.raises(KeyError, match="absent"):
        store[b"absent"]
    with pytest.raises(KeyError, match="absent"):
        del store[b"absent"]


def test_a_dead_key_raises_key_error(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    assert b"key" not in store
    with pytest.raises(KeyError):
        store[b"key"]
    with pytest.raises(KeyError):
        del store[b"key"]


def test_setting_an_item_makes_the_key_permanent(store: Store) -> None:
    store.put(b"key", b"value", ttl=1)
    store[b"key"] = b"other"
    assert store.ttl(b"key") is None


def test_iteration_and_len_are_about_live_keys(store: Store, clock: ManualClock) -> None:
    store[b"b"] = b"2"
    store[b"a"] = b"1"
    store.put(b"c", b"3", ttl=1)
    assert list(store) == [b"a", b"b", b"c"]
    assert len(store) == 3
    clock.advance(1)
    assert list(store) == [b"a", b"b"]
    assert len(store) == 2


def test_an_empty_store_is_still_true(store: Store) -> None:
    assert len(store) == 0
    assert bool(store) is True
    assert bool(store.family("empty")) is True
