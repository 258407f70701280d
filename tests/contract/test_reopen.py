"""What is there after closing and opening again. Engines that keep nothing skip this file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ephemera import Capability, Expired, ManualClock, Store, Ttl
from tests.contract.times import START_MS, after

Reopen = Callable[..., Store]


def test_everything_survives(store: Store, reopen: Reopen) -> None:
    store.put_many({b"a": b"1", b"b": b"2", b"c": b"", b"\x00": b"\x00", b"\xff" * 9: b"\xff"})
    store.put(b"big", b"x" * 1_000_000)
    store.delete(b"b")
    store.put(b"a", b"3")
    expected = dict(store.scan())
    again = reopen(store)
    assert dict(again.scan()) == expected
    assert again.get(b"a") == b"3"
    assert again.get(b"b") is None
    assert again.count() == 5
    assert again.check().is_clean


def test_deadlines_and_write_times_survive(
    store: Store, reopen: Reopen, clock: ManualClock
) -> None:
    store.put(b"brief", b"1", ttl=60)
    store.put(b"permanent", b"2", ttl=Ttl.NEVER)
    clock.advance(10)
    again = reopen(store)
    entry = again.entry(b"brief")
    assert entry is not None
    assert (entry.written_at, entry.deadline, entry.ttl) == (after(0), after(60), 50.0)
    assert again.ttl(b"permanent") is None
    clock.advance(49.999)
    assert again.get(b"brief") == b"1"
    clock.advance(0.001)
    assert again.get(b"brief") is None
    assert again.purge_expired() == 1


def test_idleness_survives(store: Store, reopen: Reopen, clock: ManualClock) -> None:
    store.put(b"key", b"value", idle=60, ttl=100)
    clock.advance(50)
    again = reopen(store)
    assert again.touch(b"key")
    assert again.ttl(b"key") == 50.0
    clock.advance(20)
    assert again.touch(b"key")
    assert again.ttl(b"key") == 30.0


def test_what_died_while_the_store_was_closed_is_dead(
    store: Store, reopen: Reopen, clock: ManualClock
) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    store.put(b"c", b"3")
    store.close()
    clock.advance(60)
    again = reopen(store)
    assert dict(again.scan()) == {b"c": b"3"}
    assert again.get(b"a") is None
    assert again.purge_expired() == 2
    assert again.purge_expired() == 0


def test_what_was_dead_and_unpurged_is_purged_after_reopening(
    store: Store, reopen: Reopen, clock: ManualClock
) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    # Before the deaths: a checkpoint after them would have left the dead out.
    store.checkpoint()
    clock.advance(60)
    again = reopen(store)
    assert again.purge_expired() == 2


def test_what_was_purged_stays_purged(store: Store, reopen: Reopen, clock: ManualClock) -> None:
    store.put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    clock.advance(60)
    assert store.purge_expired() == 2
    again = reopen(store)
    assert again.purge_expired() == 0
    assert again.count() == 0


@pytest.mark.needs(Capability.EXPIRY_EVENTS)
def test_deaths_while_the_store_was_closed_are_told_later(
    store: Store, reopen: Reopen, clock: ManualClock
) -> None:
    store.put(b"key", b"value", ttl=60)
    store.close()
    clock.advance(100)
    again = reopen(store)
    events: list[Expired] = []
    again.on_expire(events.append)
    assert again.purge_expired() == 1
    assert events == [Expired("default", b"key", b"value", START_MS + 60_000)]


def test_families_and_their_defaults_survive(store: Store, reopen: Reopen) -> None:
    store.family("sessions", default_ttl=60).put(b"a", b"1")
    store.family("cleared", default_ttl=30).put(b"a", b"1")
    store.family("cleared").clear()
    store.family("dropped", default_ttl=10).put(b"a", b"1")
    store.drop_family("dropped")
    again = reopen(store)
    assert sorted(again.families()) == ["cleared", "default", "sessions"]
    sessions = again.family("sessions")
    sessions.put(b"b", b"2")
    assert dict(sessions.scan()) == {b"a": b"1", b"b": b"2"}
    assert sessions.ttl(b"b") == 60.0
    cleared = again.family("cleared")
    assert cleared.count() == 0
    cleared.put(b"a", b"2")
    assert cleared.ttl(b"a") == 30.0
    assert again.family("dropped").count() == 0


def test_dropped_rows_do_not_come_back(store: Store, reopen: Reopen, clock: ManualClock) -> None:
    store.family("one").put_many({b"a": b"1", b"b": b"2"}, ttl=60)
    store.drop_family("one")
    again = reopen(store)
    assert list(again.families()) == ["default"]
    assert again.family("one").count() == 0
    clock.advance(60)
    assert again.purge_expired() == 0
    assert again.check().is_clean


def test_transactions_survive_whole_and_rolled_back_ones_not_at_all(
    store: Store, reopen: Reopen
) -> None:
    store.family("one")
    with store.transaction() as transaction:
        transaction.put(b"a", b"1")
        transaction.family("one").put(b"a", b"2", ttl=60)
    with store.transaction() as transaction:
        transaction.put(b"b", b"3")
        transaction.rollback()
    again = reopen(store)
    assert dict(again.scan()) == {b"a": b"1"}
    assert again.family("one").get(b"a") == b"2"
    assert again.family("one").ttl(b"a") == 60.0


def test_work_goes_on_over_many_reopenings(
    store: Store, reopen: Reopen, clock: ManualClock
) -> None:
    purged = 0
    for number in range(1, 6):
        assert store.incr(b"openings") == number
        store.put(b"%d" % number, b"x" * 10_000, ttl=3)
        clock.advance(1)
        purged += store.purge_expired()
        if number == 3:
            store.checkpoint()
        store = reopen(store)
    assert dict(store.scan()) == {
        b"openings": b"5",
        b"4": b"x" * 10_000,
        b"5": b"x" * 10_000,
    }
    assert purged == 3
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_time_never_goes_back_when_the_clock_does(store: Store, reopen: Reopen) -> None:
    """The highest time that was seen is stored: what was dead is not raised by an older clock."""
    store.put(b"brief", b"1", ttl=60)
    later = ManualClock(START_MS + 61_000)
    store = reopen(store, clock=later)
    assert store.get(b"brief") is None
    store.put(b"seen", b"at the later time")
    store = reopen(store, clock=ManualClock(START_MS))
    assert store.get(b"brief") is None
    assert dict(store.scan()) == {b"seen": b"at the later time"}


def test_a_store_opened_again_with_another_default_ttl_uses_that(
    store: Store, reopen: Reopen
) -> None:
    store.put(b"old", b"1")
    again = reopen(store, default_ttl=30)
    again.put(b"new", b"2")
    assert again.ttl(b"old") is None
    assert again.ttl(b"new") == 30.0


def test_an_empty_store_opens_again_empty(store: Store, reopen: Reopen) -> None:
    again = reopen(store)
    assert again.count() == 0
    assert list(again.families()) == ["default"]
    again.put(b"a", b"1")
    assert again.get(b"a") == b"1"


def test_segments_of_another_size_are_opened(store: Store, reopen: Reopen) -> None:
    store.put_many({b"%02d" % number: b"x" * 5_000 for number in range(30)})
    again = reopen(store, segment_bytes=64 * 1024)
    again.put_many({b"%02d" % number: b"y" * 5_000 for number in range(30, 60)})
    more = reopen(again, segment_bytes=1024 * 1024)
    assert more.count() == 60
