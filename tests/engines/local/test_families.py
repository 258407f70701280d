"""Families: ids that are given up at once and emptied later, and never used again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ephemera import InvalidArgument, Store
from ephemera.engines.local import families as family_table
from ephemera.engines.local._scan import ViewTransaction
from ephemera.engines.local.base_tier import BaseFile
from ephemera.engines.local.check import check_state
from ephemera.engines.local.views import take_state
from tests.engines.local.stores import contents, engine_of, in_a_thread
from tests.waiting import wait_until

ROWS = 500


def fill(store: Store, name: str, ttl: float | None = None) -> None:
    store.family(name).put_many({b"%03d" % n: b"value" for n in range(ROWS)}, ttl=ttl)
    store.checkpoint()


@pytest.mark.parametrize("way", ["drop", "clear"])
def test_dropping_and_clearing_touch_no_row(store: Store, way: str) -> None:
    fill(store, "many", ttl=60)
    family = store.family("many")
    store.drop_family("many") if way == "drop" else family.clear()
    stats = store.stats()
    assert (stats["base_rows"], stats["deadline_entries"]) == (ROWS, ROWS)
    assert store.family("many").count() == 0
    assert store.check().is_clean
    store.compact()
    stats = store.stats()
    assert (stats["base_rows"], stats["deadline_entries"]) == (0, 0)


def test_given_up_rows_leave_in_the_background(open_store: Callable[..., Store]) -> None:
    store = open_store(maintenance="background")
    fill(store, "many")
    store.put("kept", "1")
    store.checkpoint()
    store.family("many").clear()
    assert store.family("many").count() == 0
    wait_until(lambda: store.stats()["base_rows"] == 1)
    assert store.check().is_clean


def test_more_given_up_rows_than_a_batch_all_leave(store: Store) -> None:
    family = store.family("many")
    family.put_many({b"%d" % n: b"" for n in range(2_500)})
    store.put("kept", "1")
    store.checkpoint()
    family.clear()
    family.put("new", "2")
    store.compact()
    assert store.stats()["base_rows"] == 2
    assert (contents(store), contents(family)) == ({b"kept": b"1"}, {b"new": b"2"})


def test_rows_of_a_dropped_family_are_never_written_to_the_base_tier(store: Store) -> None:
    store.family("gone").put("key", "value", ttl=60)
    store.drop_family("gone")
    store.checkpoint()
    stats = store.stats()
    assert (stats["base_rows"], stats["deadline_entries"]) == (0, 0)


def test_ids_are_never_used_again_whatever_is_closed_between(
    open_store: Callable[..., Store],
) -> None:
    seen: list[int] = []
    for round_ in range(4):
        store = open_store()
        family = store.family("name")
        assert family.count() == 0
        family.put("key", str(round_))
        seen.append(family._ref.id)  # type: ignore[attr-defined]  # the local engine's ref
        store.checkpoint() if round_ % 2 else None
        store.drop_family("name")
        store.close()
    assert len(set(seen)) == 4
    store = open_store()
    assert store.family("name").get("key") is None
    assert store.families() == ["default", "name"]


def test_default_ttls_survive_clear_and_reopening(open_store: Callable[..., Store]) -> None:
    store = open_store()
    store.family("codes", default_ttl=300).clear()
    store.close()
    codes = open_store().family("codes")
    codes.put("a", "1")
    assert codes.ttl("a") == 300


def test_other_openers_follow_clear_drop_and_creation(open_store: Callable[..., Store]) -> None:
    one, two = open_store(), open_store()
    ours, theirs = one.family("f"), two.family("f")
    theirs.put("key", "1")
    ours.clear()
    assert theirs.get("key") is None
    theirs.put("key", "2")
    assert ours.get("key") == b"2"
    one.drop_family("f")
    with pytest.raises(InvalidArgument, match="dropped"):
        theirs.get("key")
    with pytest.raises(InvalidArgument, match="dropped"):
        theirs.put("key", "3")
    ours = one.family("f")
    with pytest.raises(InvalidArgument, match="dropped"):
        theirs.get("key")
    two.family("f").put("key", "4")
    assert ours.get("key") == b"4"


def test_a_family_that_was_dropped_and_made_again_unseen_is_another_one(
    open_store: Callable[..., Store],
) -> None:
    one, two = open_store(), open_store()
    theirs = two.family("f")
    one.drop_family("f")
    one.family("f").put("key", "new")
    with pytest.raises(InvalidArgument, match="dropped"):
        theirs.put("key", "old")
    assert two.family("f").get("key") == b"new"


def test_a_snapshot_keeps_a_family_that_was_cleared_dropped_and_swept(store: Store) -> None:
    fill(store, "old")
    with store.snapshot() as snapshot:
        store.family("old").clear()
        store.compact()
        view = snapshot.family("old")
        assert view.count() == ROWS
        assert view.get("007") == b"value"
    assert store.family("old").count() == 0


def test_a_family_changed_during_a_transaction_waits_for_it(
    open_store: Callable[..., Store],
) -> None:
    store = open_store(lock_timeout=0.1)
    family = store.family("f")
    with store.transaction() as transaction:
        transaction.family("f").put("key", "1")
        (error,) = in_a_thread(family.clear)
        assert "the writer lock is held" in str(error)
    assert family.get("key") == b"1"


def test_a_check_is_clean_though_given_up_rows_leave_meanwhile(store: Store) -> None:
    fill(store, "f")
    store.drop_family("f")
    engine = engine_of(store)
    state = take_state(engine._segments, engine._base, engine._families)
    store.compact()
    try:
        assert check_state(state).problems == ()
    finally:
        state.close()


def test_a_state_never_has_a_newer_family_table_than_its_rows(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "many")
    engine = engine_of(store)
    begin = BaseFile.begin

    def begin_and_fall_behind(file: BaseFile) -> ViewTransaction:
        """Another process has dropped the family and not published that; another thread loads it."""
        monkeypatch.setattr(BaseFile, "begin", begin)
        txn = begin(file)
        with engine._base.write() as write:
            family_table.drop(write, "many")
        with file.reading() as newer:
            engine._families.load(file, newer)
        return txn

    monkeypatch.setattr(BaseFile, "begin", begin_and_fall_behind)
    state = take_state(engine._segments, engine._base, engine._families)
    try:
        assert "many" in state.families
        assert check_state(state).is_clean
    finally:
        state.close()
