"""Families: ordered maps of their own, with their own default TTL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from ephemera import Family, InvalidArgument, ManualClock, Store, Ttl


def test_the_default_family_always_exists(store: Store) -> None:
    assert list(store.families()) == ["default"]
    store.put(b"key", b"value")
    assert store.family("default").get(b"key") == b"value"


def test_a_family_exists_once_it_was_asked_for(store: Store) -> None:
    store.family("sessions")
    store.family("codes")
    assert sorted(store.families()) == ["codes", "default", "sessions"]


def test_a_family_knows_its_name(store: Store) -> None:
    assert store.family("sessions").name == "sessions"


def test_the_same_key_lives_apart_in_each_family(store: Store) -> None:
    one, two = store.family("one"), store.family("two")
    store.put(b"key", b"0")
    one.put(b"key", b"1", ttl=60)
    two.put(b"key", b"2")
    assert [part.get(b"key") for part in (store, one, two)] == [b"0", b"1", b"2"]
    assert one.delete(b"key")
    assert [part.get(b"key") for part in (store, one, two)] == [b"0", None, b"2"]


def test_two_handles_of_a_family_are_one_family(store: Store) -> None:
    store.family("one").put(b"key", b"1")
    assert store.family("one").get(b"key") == b"1"


def test_a_scan_stays_in_its_family(store: Store) -> None:
    for name in ("a", "b", "c"):
        store.family(name).put_many({b"\x00": name, b"\xff\xff": name})
        store.checkpoint()
        store.family(name).put(b"m", name)
    for name in ("a", "b", "c"):
        family = store.family(name)
        assert list(family.scan()) == [(key, name.encode()) for key in (b"\x00", b"m", b"\xff\xff")]
        assert list(family.scan(reverse=True)) == list(family.scan())[::-1]
    assert list(store.scan()) == []


@pytest.mark.parametrize("default_ttl", [60, 60.0, timedelta(minutes=1)])
def test_a_put_gets_the_familys_default(
    store: Store, clock: ManualClock, default_ttl: float | timedelta
) -> None:
    family = store.family("sessions", default_ttl=default_ttl)
    family.put(b"key", b"value")
    assert family.ttl(b"key") == 60.0
    clock.advance(60)
    assert family.get(b"key") is None


def test_a_ttl_of_its_own_goes_before_the_familys_default(store: Store) -> None:
    family = store.family("sessions", default_ttl=60)
    family.put(b"brief", b"", ttl=5)
    family.put(b"default", b"", ttl=Ttl.DEFAULT)
    family.put(b"none", b"", ttl=None)
    family.put(b"never", b"", ttl=Ttl.NEVER)
    assert [family.ttl(key) for key in (b"brief", b"default", b"none", b"never")] == [
        5.0,
        60.0,
        60.0,
        None,
    ]


def test_setting_an_item_gets_the_familys_default(store: Store) -> None:
    family = store.family("sessions", default_ttl=60)
    family[b"key"] = b"value"
    assert family.ttl(b"key") == 60.0


def test_a_familys_default_is_its_own(store: Store) -> None:
    store.family("sessions", default_ttl=60)
    store.put(b"key", b"value")
    store.family("other").put(b"key", b"value")
    assert store.ttl(b"key") is None
    assert store.family("other").ttl(b"key") is None


def test_a_familys_default_is_remembered(store: Store) -> None:
    store.family("sessions", default_ttl=60)
    again = store.family("sessions")
    again.put(b"key", b"value")
    assert again.ttl(b"key") == 60.0


def test_a_familys_default_can_be_changed_and_holds_for_later_writes(store: Store) -> None:
    first = store.family("sessions", default_ttl=60)
    first.put(b"old", b"value")
    second = store.family("sessions", default_ttl=120)
    second.put(b"new", b"value")
    assert second.ttl(b"old") == 60.0
    assert second.ttl(b"new") == 120.0
    first.put(b"newer", b"value")
    assert first.ttl(b"newer") == 120.0


def test_never_takes_a_familys_default_away(store: Store) -> None:
    store.family("sessions", default_ttl=60)
    family = store.family("sessions", default_ttl=Ttl.NEVER)
    family.put(b"key", b"value")
    assert family.ttl(b"key") is None


def test_the_stores_default_ttl_holds_for_the_default_family(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(default_ttl=30)
    store.put(b"key", b"value")
    store.put(b"permanent", b"value", ttl=Ttl.NEVER)
    assert store.ttl(b"key") == 30.0
    assert store.ttl(b"permanent") is None
    clock.advance(30)
    assert list(store) == [b"permanent"]


def test_the_stores_default_ttl_holds_for_families_without_one_of_their_own(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(default_ttl=30)
    plain, own = store.family("plain"), store.family("own", default_ttl=60)
    never = store.family("never", default_ttl=Ttl.NEVER)
    for family in (plain, own, never):
        family.put(b"key", b"value")
    assert (plain.ttl(b"key"), own.ttl(b"key"), never.ttl(b"key")) == (30.0, 60.0, None)


def test_clear_empties_one_family_at_once(store: Store, clock: ManualClock) -> None:
    one, two = store.family("one", default_ttl=60), store.family("two")
    for part in (store, one, two):
        part.put_many({b"a": b"1", b"b": b"2"})
        store.checkpoint()
        part.put(b"c", b"3")
    one.clear()
    assert (store.count(), one.count(), two.count()) == (3, 0, 3)
    assert list(one.scan()) == []
    assert one.get(b"a") is None
    assert sorted(store.families()) == ["default", "one", "two"]
    store.clear()
    assert (store.count(), one.count(), two.count()) == (0, 0, 3)
    assert store.check().is_clean
    clock.advance(100)
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_a_cleared_family_is_used_on_with_the_same_handle_and_default(store: Store) -> None:
    family = store.family("one", default_ttl=60)
    family.put(b"a", b"1")
    family.clear()
    assert family.put_if_absent(b"a", b"2")
    assert family.get(b"a") == b"2"
    assert family.ttl(b"a") == 60.0
    assert list(family.scan()) == [(b"a", b"2")]


def test_clearing_twice_and_an_empty_family_works(store: Store) -> None:
    store.clear()
    store.clear()
    store.put(b"a", b"1")
    assert store.count() == 1


def test_a_dropped_family_is_gone(store: Store) -> None:
    store.family("one").put(b"a", b"1")
    assert store.drop_family("one") is True
    assert list(store.families()) == ["default"]
    assert store.drop_family("one") is False


def test_dropping_a_family_that_never_was_says_false(store: Store) -> None:
    assert store.drop_family("nothing") is False


USES: dict[str, Callable[[Family], object]] = {
    "get": lambda family: family.get(b"a"),
    "entry": lambda family: family.entry(b"a"),
    "put": lambda family: family.put(b"a", b"2"),
    "put_many": lambda family: family.put_many({b"a": b"2", b"b": b"2"}),
    "incr": lambda family: family.incr(b"b"),
    "touch": lambda family: family.touch(b"a", ttl=60),
    "delete": lambda family: family.delete(b"a"),
    "delete_many": lambda family: family.delete_many([b"a"]),
    "scan": lambda family: list(family.scan()),
    "count": lambda family: family.count(),
    "clear": lambda family: family.clear(),
}


@pytest.mark.parametrize("is_made_again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("name", USES)
def test_a_handle_of_a_dropped_family_refuses_rather_than_lose_what_it_is_given(
    store: Store, name: str, is_made_again: bool
) -> None:
    family = store.family("one")
    family.put(b"a", b"1")
    store.drop_family("one")
    if is_made_again:
        store.family("one").put(b"key", b"another")
    with pytest.raises(InvalidArgument, match="family 'one' was dropped"):
        USES[name](family)
    assert dict(store.family("one").scan()) == ({b"key": b"another"} if is_made_again else {})


def test_a_family_made_again_after_a_drop_is_empty_and_without_default(store: Store) -> None:
    family = store.family("one", default_ttl=60)
    family.put_many({b"a": b"1", b"b": b"2"})
    store.checkpoint()
    family.put(b"c", b"3")
    store.drop_family("one")
    again = store.family("one")
    assert again.count() == 0
    assert list(again.scan()) == []
    assert again.get(b"a") is None
    again.put(b"a", b"4")
    assert again.ttl(b"a") is None
    assert list(again.scan()) == [(b"a", b"4")]


def test_dropped_rows_are_not_expired_later(store: Store, clock: ManualClock) -> None:
    store.family("one").put(b"a", b"1", ttl=10)
    store.checkpoint()
    store.family("one").put(b"b", b"1", ttl=10)
    store.drop_family("one")
    clock.advance(20)
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_the_default_family_cannot_be_dropped(store: Store) -> None:
    store.put(b"a", b"1")
    with pytest.raises(InvalidArgument, match="default"):
        store.drop_family("default")
    assert store.get(b"a") == b"1"


@pytest.mark.parametrize("name", ["__ephemera_meta", "__ephemera_"])
def test_reserved_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidArgument, match="__ephemera_"):
        store.family(name)
    with pytest.raises(InvalidArgument, match="__ephemera_"):
        store.drop_family(name)
    assert list(store.families()) == ["default"]


@pytest.mark.parametrize("name", ["f", "f" * 255, "with space", "ünï", "a/b", "__ephemera", "0"])
def test_any_other_name_is_fine(store: Store, name: str) -> None:
    store.family(name).put(b"a", b"1")
    assert store.family(name).get(b"a") == b"1"
    assert sorted(store.families()) == sorted(["default", name])


def test_a_family_has_the_whole_api(store: Store, clock: ManualClock) -> None:
    family = store.family("one")
    family.put(b"a", b"1", ttl=60)
    assert family.incr(b"a") == 2
    assert family.compare_and_set(b"a", b"2", b"3")
    assert family.touch(b"a", ttl=90)
    assert family.ttl(b"a") == 90.0
    assert family.persist(b"a")
    assert family.put_if_absent(b"b", b"4", ttl=1)
    entry = family.entry(b"b")
    assert entry is not None
    assert entry.ttl == 1.0
    assert family.get_many([b"a", b"b"]) == {b"a": b"3", b"b": b"4"}
    clock.advance(1)
    assert family.pop(b"a") == b"3"
    assert b"b" not in family
    family.put_many({b"c": b"5", b"d": b"6"})
    assert family.delete_many([b"c", b"d"]) == 2
    assert family.count() == len(family) == 0
    assert store.count() == 0


def test_hundreds_of_families_stay_apart(store: Store) -> None:
    for number in range(100):
        store.family(f"f{number}").put(b"key", b"%d" % number)
    for number in range(0, 100, 2):
        assert store.drop_family(f"f{number}")
    assert len(store.families()) == 51
    for number in range(1, 100, 2):
        assert store.family(f"f{number}").get(b"key") == b"%d" % number
