"""Writes that happen only when the key is as the caller believes."""

from __future__ import annotations

from ephemera import ManualClock, Store, Ttl
from tests.contract.times import after


def test_put_if_absent_writes_only_what_is_not_there(store: Store) -> None:
    assert store.put_if_absent(b"key", b"first") is True
    assert store.put_if_absent(b"key", b"second") is False
    assert store.get(b"key") == b"first"


def test_put_if_absent_that_fails_leaves_deadline_and_write_time(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"first", ttl=60)
    clock.advance(10)
    assert store.put_if_absent(b"key", b"second", ttl=600) is False
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"first", after(0), after(60))


def test_put_if_absent_sets_its_ttl(store: Store, clock: ManualClock) -> None:
    assert store.put_if_absent(b"lock", b"holder", ttl=30)
    assert store.ttl(b"lock") == 30.0
    clock.advance(29.999)
    assert not store.put_if_absent(b"lock", b"other", ttl=30)
    clock.advance(0.001)
    assert store.put_if_absent(b"lock", b"other", ttl=30)
    assert store.get(b"lock") == b"other"
    assert store.ttl(b"lock") == 30.0


def test_put_if_absent_over_a_dead_key_leaves_nothing_of_it_to_purge(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"old", ttl=1)
    clock.advance(1)
    assert store.put_if_absent(b"key", b"new")
    assert store.purge_expired() == 0
    assert store.get(b"key") == b"new"


def test_put_if_absent_after_a_delete_succeeds(store: Store) -> None:
    store.put(b"key", b"old")
    store.delete(b"key")
    assert store.put_if_absent(b"key", b"new") is True
    assert store.get(b"key") == b"new"


def test_put_if_absent_gives_the_familys_default(store: Store) -> None:
    family = store.family("codes", default_ttl=60)
    assert family.put_if_absent(b"key", b"value")
    assert family.ttl(b"key") == 60.0
    assert family.put_if_absent(b"other", b"value", ttl=Ttl.NEVER)
    assert family.ttl(b"other") is None


def test_an_empty_value_is_present(store: Store) -> None:
    store.put(b"key", b"")
    assert store.put_if_absent(b"key", b"new") is False
    assert store.compare_and_set(b"key", None, b"new") is False
    assert store.compare_and_set(b"key", b"", b"new") is True
    assert store.get(b"key") == b"new"


def test_compare_and_set_writes_when_the_value_is_the_expected_one(store: Store) -> None:
    store.put(b"key", b"1")
    assert store.compare_and_set(b"key", b"1", b"2") is True
    assert store.get(b"key") == b"2"


def test_compare_and_set_writes_nothing_when_the_value_is_another(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"1", ttl=60)
    clock.advance(10)
    assert store.compare_and_set(b"key", b"2", b"3", ttl=600) is False
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"1", after(0), after(60))


def test_compare_and_set_of_an_absent_key_fails_for_any_expected_value(store: Store) -> None:
    assert store.compare_and_set(b"key", b"1", b"2") is False
    assert store.compare_and_set(b"key", b"", b"2") is False
    assert store.get(b"key") is None


def test_expecting_none_means_that_the_key_must_be_absent(store: Store) -> None:
    assert store.compare_and_set(b"key", None, b"1") is True
    assert store.compare_and_set(b"key", None, b"2") is False
    assert store.get(b"key") == b"1"


def test_expecting_none_gives_a_new_key_its_ttl(store: Store) -> None:
    assert store.compare_and_set(b"key", None, b"1", ttl=60)
    assert store.ttl(b"key") == 60.0


def test_compare_and_set_without_ttl_keeps_the_deadline(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1", ttl=60)
    clock.advance(10)
    assert store.compare_and_set(b"key", b"1", b"2")
    entry = store.entry(b"key")
    assert entry is not None
    assert (entry.value, entry.written_at, entry.deadline) == (b"2", after(10), after(60))
    clock.advance(50)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1


def test_compare_and_set_without_ttl_keeps_a_permanent_key_permanent(store: Store) -> None:
    family = store.family("sessions", default_ttl=60)
    family.put(b"key", b"1", ttl=Ttl.NEVER)
    assert family.compare_and_set(b"key", b"1", b"2")
    assert family.ttl(b"key") is None


def test_compare_and_set_with_ttl_replaces_the_deadline(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1", ttl=60)
    assert store.compare_and_set(b"key", b"1", b"2", ttl=5)
    assert store.ttl(b"key") == 5.0
    assert store.compare_and_set(b"key", b"2", b"3", ttl=Ttl.NEVER)
    assert store.ttl(b"key") is None
    clock.advance(100)
    assert store.purge_expired() == 0
    assert store.get(b"key") == b"3"


def test_compare_and_set_may_leave_the_value_as_it_is(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"1")
    clock.advance(1)
    assert store.compare_and_set(b"key", b"1", b"1") is True
    entry = store.entry(b"key")
    assert entry is not None
    assert entry.written_at == after(1)


def test_str_is_compared_as_utf_8(store: Store) -> None:
    store.put("key", "ö")
    assert store.compare_and_set("key", "ö", "ü") is True
    assert store.get("key") == "ü".encode()
