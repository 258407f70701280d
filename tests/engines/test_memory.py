"""What is particular to the engine in memory; the contract suite holds for it as for every other."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ephemera
from ephemera.core.keyvalue import Range, Write
from ephemera.core.options import Options
from ephemera.core.row import NEVER_MS, Row
from ephemera.engines import memory
from ephemera.engines.memory import MemoryEngine, MemoryFamily
from tests.conftest import NoThreadsLeft

PATIENCE_S = 30


@pytest.fixture
def clock() -> ephemera.ManualClock:
    return ephemera.ManualClock()


@pytest.fixture
def store(clock: ephemera.ManualClock) -> Iterator[ephemera.Store]:
    with ephemera.open("memory://", clock=clock, maintenance="manual") as store:
        yield store


@pytest.fixture
def engine(clock: ephemera.ManualClock) -> Iterator[MemoryEngine]:
    engine = MemoryEngine(Options(clock=clock, maintenance="manual", lock_timeout=0.05))
    yield engine
    engine.close()


def family_of(engine: MemoryEngine, name: str = "default") -> MemoryFamily:
    family = engine.family(name, create=True)
    assert family is not None
    return family


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_two_stores_in_memory_have_nothing_in_common(store: ephemera.Store) -> None:
    store.put(b"key", b"value")
    with ephemera.open("memory://") as other:
        assert other.count() == 0


def test_memory_has_no_place_in_its_url() -> None:
    with pytest.raises(ephemera.InvalidArgument, match="nothing after it"):
        ephemera.open("memory://somewhere")


def test_there_is_no_backup(store: ephemera.Store) -> None:
    assert ephemera.Capability.BACKUP not in store.capabilities
    with pytest.raises(ephemera.UnsupportedOperation, match="path"):
        store.backup("anywhere")


def test_the_heap_does_not_grow_with_overwriting(
    engine: MemoryEngine, clock: ephemera.ManualClock
) -> None:
    family, now_ms = family_of(engine), clock.now_ms()
    for number in range(1, 50_000):
        engine.put(family, b"key", b"", now_ms, now_ms + number, 0, NEVER_MS, None)
    assert engine.stats()["deadline_entries"] == 1
    assert engine.stats()["stale_deadline_entries"] <= memory.STALE_ENTRIES_MIN + 2
    assert engine.check().is_clean


def test_the_heap_does_not_grow_with_deadlines_that_come_and_go(
    engine: MemoryEngine, clock: ephemera.ManualClock
) -> None:
    family, now_ms = family_of(engine), clock.now_ms()
    for number in range(5_000):
        engine.put(family, b"key", b"", now_ms, now_ms + 5 + number % 2, 0, NEVER_MS, None)
        engine.put(family, b"key", b"", now_ms, NEVER_MS, 0, NEVER_MS, None)
    assert engine.stats()["deadline_entries"] == 0
    assert engine.stats()["stale_deadline_entries"] <= memory.STALE_ENTRIES_MIN + 2
    clock.advance(60)
    assert engine.purge_expired(limit=None, batch=10) == 0
    assert engine.get(family, b"key", clock.now_ms()) == b""


def test_cleared_and_dropped_families_leave_no_live_deadlines(
    store: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    for name in ("cleared", "dropped"):
        store.family(name).put_many({b"%d" % number: b"" for number in range(100)}, ttl=1)
    store.family("cleared").clear()
    store.drop_family("dropped")
    assert store.stats()["deadline_entries"] == 0
    clock.advance(1)
    assert store.purge_expired() == 0
    assert store.check().is_clean


def test_check_finds_a_deadline_that_is_not_in_the_heap(engine: MemoryEngine) -> None:
    family = family_of(engine)
    engine.put(family, b"key", b"", 0, 10**14, 0, NEVER_MS, None)
    engine._deadlines.heap.clear()
    problems = engine.check().problems
    assert len(problems) == 1
    assert "b'key'" in problems[0]


def test_check_finds_a_wrong_count_and_a_wrong_order(engine: MemoryEngine) -> None:
    family = family_of(engine)
    engine.put(family, b"key", b"", 0, 10**14, 0, NEVER_MS, None)
    family.mortal_count += 1
    family.rows.ordered = [b"other"]
    assert len(engine.check().problems) == 3


def test_a_death_that_was_overwritten_before_the_purge_is_told_too(
    store: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    told: list[ephemera.Expired] = []
    store.on_expire(told.append)
    store.put(b"key", b"old", ttl=1)
    clock.advance(1)
    store.put(b"key", b"new")
    assert told == []
    assert store.purge_expired() == 0
    assert [event.value for event in told] == [b"old"]
    assert store.stats()["expired"] == 1


def test_the_lag_is_that_of_the_last_purge_or_of_what_waits(
    store: ephemera.Store, clock: ephemera.ManualClock
) -> None:
    store.put(b"a", b"", ttl=1)
    assert store.stats()["expiry_lag_ms"] == 0
    clock.advance(1.25)
    assert store.stats()["expiry_lag_ms"] == 250
    store.purge_expired()
    clock.advance(100)
    assert store.stats()["expiry_lag_ms"] == 250


def test_a_failing_callback_is_logged(
    store: ephemera.Store, clock: ephemera.ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: ephemera.Expired) -> None:
        raise LookupError("its own trouble")

    store.on_expire(fail)
    store.put(b"key", b"", ttl=1)
    clock.advance(1)
    with caplog.at_level(logging.ERROR, logger="ephemera"):
        assert store.purge_expired() == 1
    assert "b'key'" in caplog.text
    assert "its own trouble" in caplog.text


# --- turns ------------------------------------------------------------------------------------


def test_a_writer_waits_for_its_turn_only_so_long(engine: MemoryEngine) -> None:
    family = family_of(engine)
    raised: list[Exception] = []

    def write() -> None:
        try:
            engine.put(family, b"key", b"", 0, NEVER_MS, 0, NEVER_MS, None)
        except ephemera.EphemeraError as error:
            raised.append(error)

    transaction = engine.begin()
    in_a_thread(write)
    assert [type(error) for error in raised] == [ephemera.StoreBusy]
    transaction.close()
    in_a_thread(write)
    assert len(raised) == 1
    assert engine.get(family, b"key", 0) == b""


def test_readers_do_not_wait_for_a_turn(engine: MemoryEngine) -> None:
    family = family_of(engine)
    engine.put(family, b"key", b"value", 0, NEVER_MS, 0, NEVER_MS, None)
    transaction = engine.begin()
    seen: list[object] = []

    def read() -> None:
        seen.append(engine.get(family, b"key", 0))
        seen.append([key for key, _ in engine.scan(family, Range(), None)])
        seen.append(engine.count(family, 0))
        row = engine.snapshot().row(family, b"key")
        seen.append(row and row.value)

    in_a_thread(read)
    transaction.close()
    assert seen == [b"value", [b"key"], 1, b"value"]


def test_closing_the_store_ends_the_wait_for_a_turn() -> None:
    engine = MemoryEngine(Options(lock_timeout=PATIENCE_S))
    family = family_of(engine)
    transaction = engine.begin()
    raised: list[Exception] = []
    is_waiting = threading.Event()

    def write() -> None:
        is_waiting.set()
        try:
            engine.put(family, b"key", b"", 0, NEVER_MS, 0, NEVER_MS, None)
        except ephemera.EphemeraError as error:
            raised.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    is_waiting.wait(PATIENCE_S)
    engine.close()
    thread.join(PATIENCE_S)
    assert [type(error) for error in raised] == [ephemera.StoreClosed]
    transaction.close()


def test_a_turn_that_ended_commits_nothing(engine: MemoryEngine) -> None:
    family = family_of(engine)
    transaction = engine.begin()
    transaction.close()
    transaction.close()
    with pytest.raises(ephemera.StoreClosed):
        transaction.commit([Write(family, b"key", Row(b"", 0))], durable=None)
    assert engine.count(family, 0) == 0


def test_no_reader_meets_half_a_batch(engine: MemoryEngine, monkeypatch: Any) -> None:
    """Reads at every step of the batch's way into the rows, over two families."""
    one, two = family_of(engine, "one"), family_of(engine, "two")
    keys = [(one, b"a"), (two, b"b"), (one, b"c"), (two, b"gone")]
    engine.put(two, b"gone", b"old", 0, NEVER_MS, 0, NEVER_MS, None)
    seen: list[tuple[bytes | None, ...]] = []
    place = engine._place

    def place_and_look(*given: Any) -> None:
        seen.append(tuple(engine.get(family, key, 0) for family, key in keys))
        place(*given)
        seen.append(tuple(engine.get(family, key, 0) for family, key in keys))

    monkeypatch.setattr(engine, "_place", place_and_look)
    rows = [Row(b"new", 0), Row(b"new", 0), Row(b"new", 0), None]
    engine.write(
        [Write(family, key, row) for (family, key), row in zip(keys, rows, strict=True)],
        durable=None,
    )
    assert set(seen) == {(b"new", b"new", b"new", None)}


def test_threads_see_whole_batches_only(store: ephemera.Store) -> None:
    """Two keys always change together; whoever reads the first, then the second, never finds the
    second older, and a snapshot or a scan finds them equal."""
    keys = [b"a", b"b"]
    store.put_many(dict.fromkeys(keys, b"0"))
    is_done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not is_done.is_set():
            first, second = int(store[b"a"]), int(store[b"b"])
            if second < first:
                wrong.append((first, second))
            if len(set(store.values())) != 1:
                wrong.append("scan")
            with store.snapshot() as snap:
                if snap.get(b"a") != snap.get(b"b"):
                    wrong.append("snapshot")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(2_000):
        store.put_many([(key, b"%d" % number) for key in reversed(keys)])
    is_done.set()
    for reader in readers:
        reader.join(PATIENCE_S)
    assert wrong == []


# --- the sweeper ------------------------------------------------------------------------------


def test_no_thread_runs_while_nothing_can_die(clock: ephemera.ManualClock) -> None:
    engine = MemoryEngine(Options(clock=clock))
    engine.put(family_of(engine), b"key", b"", 0, NEVER_MS, 0, NEVER_MS, None)
    assert engine._sweeper is None
    engine.close()


def test_the_sweeper_follows_a_clock_that_is_moved_by_hand(clock: ephemera.ManualClock) -> None:
    dead = threading.Event()
    with ephemera.open("memory://", clock=clock) as store:
        store.on_expire(lambda event: dead.set())
        store.put(b"key", b"", ttl=3_600)
        store.put(b"other", b"", ttl=7_200)
        clock.advance(3_600)
        assert dead.wait(PATIENCE_S)
        assert store.stats()["keys"] == 1


def test_dead_rows_leave_memory_without_anyone_reading() -> None:
    class Told(threading.Event):
        def __call__(self, _: ephemera.Expired) -> None:
            self.set()

    told = Told()
    with ephemera.open("memory://") as store:
        store.on_expire(told)
        store.put_many({b"%d" % number: b"" for number in range(5_000)}, ttl=0.02)
        store.put(b"last", b"", ttl=0.05)
        store.put(b"stays", b"")
        assert told.wait(PATIENCE_S)
        while store.stats()["keys"] > 1:
            told.wait(0.01)
        assert store.stats()["expired"] == 5_001
        assert list(store) == [b"stays"]


def test_the_sweeper_waits_for_a_transaction_and_goes_on(clock: ephemera.ManualClock) -> None:
    dead = threading.Event()
    with ephemera.open("memory://", clock=clock, lock_timeout=0.01) as store:
        store.on_expire(lambda event: dead.set())
        store.put(b"key", b"value", ttl=1)
        with store.transaction() as txn:
            clock.advance(1)
            assert not dead.wait(0.1)
            assert txn.get(b"key") == b"value"
        assert dead.wait(PATIENCE_S)


def test_a_callback_may_close_the_store(clock: ephemera.ManualClock) -> None:
    store = ephemera.open("memory://", clock=clock)
    closed = threading.Event()

    def close(_: ephemera.Expired) -> None:
        store.close()
        closed.set()

    store.on_expire(close)
    store.put(b"key", b"", ttl=1)
    clock.advance(1)
    assert closed.wait(PATIENCE_S)
    with pytest.raises(ephemera.StoreClosed):
        store.get(b"key")


def test_closing_ends_the_sweeper(clock: ephemera.ManualClock) -> None:
    engine = MemoryEngine(Options(clock=clock))
    engine.put(family_of(engine), b"key", b"", 0, 10**14, 0, NEVER_MS, None)
    sweeper = engine._sweeper
    assert sweeper is not None
    engine.close()
    assert not sweeper.is_alive()


def test_a_store_that_nobody_has_any_more_is_let_go() -> None:
    engine = MemoryEngine(Options())
    engine.put(family_of(engine), b"key", b"", 0, 10**14, 0, NEVER_MS, None)
    sweeper, gone = engine._sweeper, weakref.ref(engine)
    assert sweeper is not None
    del engine
    sweeper.join(PATIENCE_S)
    gc.collect()
    assert gone() is None
    assert not sweeper.is_alive()


def test_memory_keeps_its_writes_where_no_thread_can_sweep(
    no_threads_left: NoThreadsLeft, caplog: pytest.LogCaptureFixture
) -> None:
    with ephemera.open("memory://") as store:
        with no_threads_left():
            store.put("name", "ada", ttl=60)
        assert store.get("name") == b"ada"
        assert "ulimit -u" in caplog.text
