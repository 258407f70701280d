"""Keys with their values and times, and what the store says about lifetimes and its index."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ephemera import InvalidArgument, ManualClock, Store, Ttl


def test_entries_are_what_scan_visits_with_their_times(store: Store, clock: ManualClock) -> None:
    store.put(b"a:1", b"x", ttl=60)
    store.checkpoint()
    clock.advance(10)
    store.put(b"a:2", b"y")
    store.put(b"b", b"z")
    found = dict(store.entries(b"a:"))
    assert found == {key: store.entry(key) for key in (b"a:1", b"a:2")}
    assert [entry.ttl for entry in found.values()] == [50.0, None]


@pytest.mark.parametrize(
    "options", [{"start": b"b"}, {"end": b"c"}, {"reverse": True}, {"limit": 2}, {"limit": 0}]
)
def test_entries_take_what_scan_takes(store: Store, options: dict[str, bytes | bool | int]) -> None:
    store.put_many({b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"})
    entries = store.entries(**options)  # type: ignore[arg-type]  # of several types
    scanned = store.scan(**options)  # type: ignore[arg-type]  # as above
    assert [(key, entry.value) for key, entry in entries] == list(scanned)


def test_entries_leave_out_what_dies_on_the_way(store: Store, clock: ManualClock) -> None:
    store.put(b"a", b"1")
    store.put(b"b", b"2", ttl=60)
    entries = store.entries()
    assert next(entries)[0] == b"a"
    clock.advance(timedelta(seconds=60))
    assert list(entries) == []


def test_entries_refuse_what_scan_refuses(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        store.entries(limit=-1)
    with pytest.raises(InvalidArgument, match="prefix"):
        store.entries(1)  # type: ignore[arg-type]  # on purpose


def test_a_family_tells_its_default_ttl(store: Store) -> None:
    assert store.default_ttl is None
    assert store.family("codes", default_ttl=300).default_ttl == 300.0
    assert store.family("kept", default_ttl=Ttl.NEVER).default_ttl is None


def test_a_sound_store_needs_no_repair(store: Store) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    store.checkpoint()
    assert store.repair() == 0
    assert store.check().is_clean
    assert store.count() == 2
