"""An interrupt at every moment of an operation at which Python may raise one: no lock stays taken.

Signals come by luck; here the moments are counted. What handles the interrupt keeps its traceback alive, and
with it every frame that the interrupt left.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import Store
from ephemera.core.clock import ManualClock
from ephemera.engines.local import base_tier
from tests.crash.moments import Moments
from tests.crash.processes import TINY_SEGMENT_BYTES
from tests.engines.local.stores import engine_of


def compact(store: Store) -> None:
    store.compact()


def checkpoint(store: Store) -> None:
    store.put("a", "1")
    store.checkpoint()


def purge(store: Store) -> None:
    store.put("dies", "1", ttl=0.001)
    assert isinstance(store.clock, ManualClock)
    store.clock.advance(1)
    store.purge_expired()


def begin_and_end(store: Store) -> None:
    with store.transaction() as txn, store.snapshot() as snap:
        txn.incr("a")
        snap.get("a")


def drop(store: Store) -> None:
    store.family("own").put("a", "1")
    store.family("own").clear()
    store.drop_family("own")


def walk(store: Store) -> None:
    list(store.scan())
    store.check()


@pytest.fixture
def open_before() -> frozenset[tuple[int, int]]:
    """The files that earlier tests in this process have not let go of: one that failed may still be held."""
    return frozenset(base_tier._environments)


@pytest.fixture
def store(open_before: frozenset[tuple[int, int]], tmp_path: Path) -> Iterator[Store]:
    # A lock that stays taken shows as StoreBusy soon, or as the time limit of the test.
    with ephemera.open(
        tmp_path / "s.eph",
        maintenance="manual",
        clock=ManualClock(),
        lock_timeout=1,
        size_limit=2**26,
        segment_bytes=TINY_SEGMENT_BYTES,
    ) as store:
        store.put("a", "1")
        yield store


# An interrupt in a `__del__` is told to nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", [compact, checkpoint, purge, begin_and_end, drop, walk])
def test_whoever_handles_an_interrupt_can_go_on_with_the_store(
    open_before: frozenset[tuple[int, int]], store: Store, act: Callable[[Store], None]
) -> None:
    interrupts = 0
    while Moments(interrupts + 1).is_met_in(act, store):
        interrupts += 1
    assert interrupts > 20
    assert store.get("after") == str(interrupts).encode()
    assert store.check().problems == ()
    store.close()
    assert base_tier._environments.keys() <= open_before


def lay_dead(store: Store, number: int) -> set[bytes]:
    """Keys that are dead and undelivered, in every place where there can be any; half of them were written again."""
    assert isinstance(store.clock, ManualClock)
    keys = [
        f"{number} {place}"
        for place in ("undelivered", "below", "below again", "above", "above again")
    ]
    store.put(keys[0], "1", ttl=1)
    store.clock.advance(2)
    store.checkpoint()
    store.put_many(dict.fromkeys(keys[1:3], "1"), ttl=1)
    store.checkpoint()
    store.put_many(dict.fromkeys(keys[3:], "1"), ttl=1)
    store.clock.advance(2)
    store.put_many({keys[2]: "2", keys[4]: "2"})
    return {key.encode() for key in keys}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("act", [Store.purge_expired, Store.checkpoint])
def test_an_interrupt_costs_no_death_but_the_one_that_is_being_told(
    store: Store, act: Callable[[Store], object]
) -> None:
    told: Counter[bytes] = Counter()
    store.on_expire(lambda event: told.update([event.key]))
    moments = Moments(0)
    while moments.count == moments.fatal:
        moments = Moments(moments.fatal + 1)
        keys = lay_dead(store, moments.fatal)
        moments.interrupt(act, store)
        store.purge_expired()
        missing = keys - told.keys()
        assert len(missing) <= ("_deliver" in moments.callers), moments.place
        assert all(told[key] <= 1 for key in keys), moments.place
    assert moments.count > 30


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_of_what_the_background_does_for_others_costs_no_more(store: Store) -> None:
    assert isinstance(store.clock, ManualClock)
    told: Counter[bytes] = Counter()
    store.on_expire(lambda event: told.update([event.key]))
    telling = engine_of(store)._expiry
    moments = Moments(0)
    while moments.count == moments.fatal:
        moments = Moments(moments.fatal + 1)
        below, above = b"%d below" % moments.fatal, b"%d above" % moments.fatal
        store.put(below, "1", ttl=1)
        store.checkpoint()
        store.put(above, "1", ttl=1)
        store.clock.advance(2)
        moments.interrupt(telling.announce, store.clock.now_ms())
        telling.announce(store.clock.now_ms())
        assert told[below] + told[above] >= 2 - ("_deliver" in moments.callers), moments.place
        assert max(told[below], told[above]) == 1, moments.place
    assert moments.count > 30


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("fatal", range(1, 9))
def test_a_file_that_nobody_has_any_more_is_let_go_whatever_interrupts_its_end(
    open_before: frozenset[tuple[int, int]], tmp_path: Path, fatal: int
) -> None:
    path = tmp_path / "00000001.mdb"
    path.touch()
    held = [base_tier.BaseFile(path, 1)]
    held[0].open(2**26, creates=True)
    sys.settrace(Moments(fatal))
    try:
        held.clear()
    finally:
        sys.settrace(None)
    base_tier._close_released()
    assert base_tier._environments.keys() <= open_before
