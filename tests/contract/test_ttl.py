"""Deadlines: when a key dies, and that a dead key is met nowhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ephemera import InvalidArgument, ManualClock, Store, Ttl
from tests.contract.times import START_MS, after

LAST_SECOND = 253_402_300_799


@pytest.mark.parametrize("ttl", [60, 60.0, timedelta(minutes=1)], ids=["int", "float", "timedelta"])
def test_a_key_is_alive_until_its_deadline_and_dead_from_then_on(
    store: Store, clock: ManualClock, ttl: float | timedelta
) -> None:
    store.put(b"key", b"value", ttl=ttl)
    clock.advance(59.999)
    assert store.get(b"key") == b"value"
    clock.advance(0.001)
    assert store.get(b"key") is None


@pytest.mark.parametrize(
    "at",
    [
        START_MS / 1000 + 60,
        START_MS // 1000 + 60,
        after(60),
        after(60).astimezone(timezone(timedelta(hours=9))),
    ],
    ids=["float", "int", "utc", "another-zone"],
)
def test_a_deadline_may_be_given_as_an_instant(
    store: Store, clock: ManualClock, at: float | datetime
) -> None:
    store.put(b"key", b"value", at=at)
    assert store.ttl(b"key") == 60.0
    clock.advance(59.999)
    assert store.get(b"key") == b"value"
    clock.advance(0.001)
    assert store.get(b"key") is None


def test_the_shortest_ttl_is_a_millisecond(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=0.000_001)
    assert store.get(b"key") == b"value"
    assert store.ttl(b"key") == 0.001
    clock.advance(0.001)
    assert store.get(b"key") is None


def test_the_last_deadline_is_the_end_of_the_year_9999(store: Store) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    store.put(b"key", b"value", at=last)
    entry = store.entry(b"key")
    assert entry is not None
    assert entry.deadline == last
    with pytest.raises(InvalidArgument, match="9999"):
        store.put(b"key", b"other", at=LAST_SECOND + 1)
    assert store.get(b"key") == b"value"


def test_ttl_counts_down(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=2.5)
    assert store.ttl(b"key") == 2.5
    clock.advance(1.25)
    assert store.ttl(b"key") == 1.25


def test_ttl_of_a_permanent_key_is_none(store: Store) -> None:
    store.put(b"key", b"value")
    assert store.ttl(b"key") is None


def test_ttl_of_an_absent_or_dead_key_raises_key_error(store: Store, clock: ManualClock) -> None:
    with pytest.raises(KeyError):
        store.ttl(b"absent")
    store.put(b"dead", b"value", ttl=1)
    clock.advance(1)
    with pytest.raises(KeyError):
        store.ttl(b"dead")


def test_put_without_ttl_makes_the_key_permanent(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old", ttl=60)
    store.put(b"key", b"new")
    assert store.ttl(b"key") is None
    clock.advance(3_600)
    assert store.get(b"key") == b"new"
    assert store.purge_expired() == 0
    assert store.get(b"key") == b"new"


@pytest.mark.parametrize("seconds", [30, 120], ids=["shorter", "longer"])
def test_put_with_ttl_replaces_the_deadline(store: Store, clock: ManualClock, seconds: int) -> None:
    store.put(b"key", b"old", ttl=60)
    store.put(b"key", b"new", ttl=seconds)
    assert store.ttl(b"key") == seconds
    clock.advance(seconds - 0.001)
    assert store.get(b"key") == b"new"
    clock.advance(0.001)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1
    assert store.purge_expired() == 0


def test_put_with_ttl_gives_a_permanent_key_a_deadline(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old")
    store.put(b"key", b"new", ttl=1)
    clock.advance(1)
    assert store.get(b"key") is None


@pytest.mark.parametrize("ttl", [Ttl.NEVER, Ttl.DEFAULT, None])
def test_never_default_and_none_are_permanent_where_there_is_no_default(
    store: Store, ttl: Ttl | None
) -> None:
    store.put(b"key", b"value", ttl=60)
    store.put(b"key", b"value", ttl=ttl)
    assert store.ttl(b"key") is None


def test_a_dead_key_hides_the_older_permanent_value_below_it(
    store: Store, clock: ManualClock
) -> None:
    store.put(b"key", b"permanent")
    store.checkpoint()
    store.put(b"key", b"brief", ttl=1)
    clock.advance(1)
    assert store.get(b"key") is None
    store.checkpoint()
    assert store.get(b"key") is None
    assert list(store.scan()) == []
    store.purge_expired()
    assert store.get(b"key") is None
    assert list(store.scan()) == []


def test_a_dead_key_can_be_written_again(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"first", ttl=1)
    clock.advance(1)
    store.put(b"key", b"second", ttl=1)
    assert store.get(b"key") == b"second"
    assert store.ttl(b"key") == 1.0
    clock.advance(0.999)
    assert store.get(b"key") == b"second"
    clock.advance(0.001)
    assert store.get(b"key") is None


def test_reading_a_dead_key_does_not_remove_it(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"value", ttl=1)
    clock.advance(1)
    for _ in range(3):
        assert store.get(b"key") is None
        assert store.entry(b"key") is None
        assert list(store.scan()) == []
    assert store.purge_expired() == 1


def _ttl_or_absent(store: Store, key: bytes) -> float | str | None:
    try:
        return store.ttl(key)
    except KeyError:
        return "absent"


LOOKS: dict[str, tuple[Callable[[Store], object], object]] = {
    "get": (lambda store: store.get(b"key"), None),
    "entry": (lambda store: store.entry(b"key"), None),
    "ttl": (lambda store: _ttl_or_absent(store, b"key"), "absent"),
    "in": (lambda store: b"key" in store, False),
    "count": (lambda store: store.count(), 0),
    "len": (lambda store: len(store), 0),
    "iteration": (lambda store: list(store), []),
    "scan": (lambda store: list(store.scan()), []),
    "scan-reverse": (lambda store: list(store.scan(reverse=True)), []),
    "scan-prefix": (lambda store: list(store.scan(prefix=b"k")), []),
    "get-many": (lambda store: dict(store.get_many([b"key"])), {}),
    "touch": (lambda store: store.touch(b"key"), False),
    "touch-ttl": (lambda store: store.touch(b"key", ttl=60), False),
    "persist": (lambda store: store.persist(b"key"), False),
    "delete": (lambda store: store.delete(b"key"), False),
    "delete-many": (lambda store: store.delete_many([b"key"]), 0),
    "pop": (lambda store: store.pop(b"key", b"default"), b"default"),
    "compare-and-set": (lambda store: store.compare_and_set(b"key", b"7", b"8"), False),
}


@pytest.mark.parametrize("look", LOOKS)
def test_at_its_deadline_a_key_is_dead_to_every_operation(
    store: Store, clock: ManualClock, look: str
) -> None:
    operation, result_when_dead = LOOKS[look]
    store.put(b"key", b"7", ttl=10)
    clock.advance(10)
    assert operation(store) == result_when_dead


@pytest.mark.parametrize("look", LOOKS)
def test_a_millisecond_before_its_deadline_a_key_is_alive_to_every_operation(
    store: Store, clock: ManualClock, look: str
) -> None:
    operation, result_when_dead = LOOKS[look]
    store.put(b"key", b"7", ttl=10)
    clock.advance(9.999)
    assert operation(store) != result_when_dead


@pytest.mark.parametrize("look", LOOKS)
def test_what_fails_on_a_dead_key_leaves_it_dead_and_to_be_purged(
    store: Store, clock: ManualClock, look: str
) -> None:
    operation, _ = LOOKS[look]
    store.put(b"key", b"7", ttl=10)
    clock.advance(10)
    operation(store)
    assert store.get(b"key") is None
    assert store.purge_expired() == 1
    assert store.get(b"key") is None


def test_a_dead_key_is_absent_to_put_if_absent(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old", ttl=10)
    clock.advance(9.999)
    assert not store.put_if_absent(b"key", b"new")
    clock.advance(0.001)
    assert store.put_if_absent(b"key", b"new")
    assert store.get(b"key") == b"new"
    assert store.ttl(b"key") is None


def test_a_dead_key_is_absent_to_compare_and_set(store: Store, clock: ManualClock) -> None:
    store.put(b"key", b"old", ttl=10)
    clock.advance(9.999)
    assert not store.compare_and_set(b"key", None, b"new")
    clock.advance(0.001)
    assert not store.compare_and_set(b"key", b"old", b"new")
    assert store.compare_and_set(b"key", None, b"new")
    assert store.get(b"key") == b"new"


def test_a_dead_counter_starts_anew(store: Store, clock: ManualClock) -> None:
    store.incr(b"key", 41, ttl=10)
    clock.advance(9.999)
    assert store.incr(b"key") == 42
    clock.advance(0.001)
    assert store.incr(b"key", ttl=20) == 1
    assert store.ttl(b"key") == 20.0


def test_many_keys_die_each_at_its_own_deadline(store: Store, clock: ManualClock) -> None:
    with store.transaction() as transaction:
        for number in range(1, 501):
            transaction.put(b"key:%04d" % number, b"", ttl=number)
    for dead in (1, 2, 250, 499):
        clock.advance((START_MS + dead * 1000 - clock.now_ms()) / 1000)
        assert store.count() == 500 - dead
        assert len(list(store.scan())) == 500 - dead
    clock.advance(1)
    assert store.count() == 0
