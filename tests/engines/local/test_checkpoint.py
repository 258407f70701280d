"""Checkpoints: what frozen segments hold moves down, in any number of steps, and nothing changes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ephemera import InvalidArgument, ManualClock, Store, StoreBusy
from ephemera.engines.local import checkpoint, engine
from ephemera.engines.local._base import RowReader
from ephemera.engines.local._segment import Segment
from ephemera.engines.local.base_tier import BaseFile
from ephemera.engines.local.segments import SEGMENTS_WAITING_MAX
from tests.engines.local.stores import (
    SEGMENT_BYTES,
    THOUSAND,
    contents,
    crash_copy,
    engine_of,
    in_a_thread,
    open_local,
    segment_files,
    write_until,
)
from tests.waiting import wait_until


def fill_a_segment(store: Store, name: str = "filler") -> None:
    before = store.stats()["segments"]
    for number in range(200):
        store.put(f"{name} {number}", b"x" * 1_000)
        if store.stats()["segments"] != before:
            return


def test_a_full_segment_is_followed_by_another(store: Store, path: Path) -> None:
    expected: dict[bytes, bytes] = {}
    while store.stats()["segments"] < 3:
        key = b"%06d" % len(expected)
        store.put(key, key * 100)
        expected[key] = key * 100
    assert contents(store) == expected
    assert [file.stat().st_size for file in segment_files(path)] == [SEGMENT_BYTES] * 3
    assert store.check().is_clean


def test_a_checkpoint_follows_a_compaction_that_removes_its_base_file(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_store(), open_store()
    store.put("a", "1")
    segments, compacting = engine_of(store)._segments, engine_of(other)
    waiting = segments.waiting

    def waiting_before_a_compaction() -> list[Segment]:
        found: list[Segment] = waiting()
        other.compact()
        return found

    # A compaction begins with a checkpoint, which would wait for this one: that part is over by then.
    monkeypatch.setattr(compacting, "checkpoint", lambda: None)
    monkeypatch.setattr(segments, "waiting", waiting_before_a_compaction)
    store.checkpoint()
    assert contents(store) == contents(other) == {b"a": b"1"}
    assert store.stats()["base_rows"] == 1
    assert store.check().is_clean


def test_a_record_that_fits_to_the_byte_needs_no_other_segment(store: Store) -> None:
    store.put("a", "")
    room = SEGMENT_BYTES - 4096 - 4 * 512 - store.stats()["segment_bytes"]
    # Record head, one byte of key, row head without a deadline.
    store.put("b", b"x" * (room - 24 - 1 - 9))
    assert store.stats()["segments"] == 1
    store.put("c", "")
    assert store.stats()["segments"] == 2
    assert (store.count(), store.check().problems) == (3, ())


def test_a_checkpoint_retires_every_segment_and_its_file(store: Store, path: Path) -> None:
    for number in range(3):
        fill_a_segment(store, str(number))
    before = contents(store)
    store.checkpoint()
    stats = store.stats()
    assert (stats["segments"], stats["segments_waiting"], segment_files(path)) == (0, 0, [])
    assert contents(store) == before
    store.checkpoint()
    assert contents(store) == before


def test_an_empty_checkpoint_makes_no_segment(store: Store, path: Path) -> None:
    store.checkpoint()
    assert segment_files(path) == []


def test_writers_checkpoint_themselves_in_manual_mode_when_too_many_wait(store: Store) -> None:
    expected = {}
    for number in range(600):
        key = b"%d" % number
        store.put(key, b"x" * 1_000)
        expected[key] = b"x" * 1_000
        stats = store.stats()
        assert stats["segments_waiting"] <= SEGMENTS_WAITING_MAX
        assert stats["writers_wait"] == (stats["segments_waiting"] >= SEGMENTS_WAITING_MAX)
    assert store.stats()["base_rows"] > 0
    assert contents(store) == expected


def test_transactions_too_wait_for_room(store: Store) -> None:
    for number in range(40):
        with store.transaction() as transaction:
            transaction.put(b"%d" % number, b"x" * 30_000)
    assert store.stats()["segments_waiting"] <= SEGMENTS_WAITING_MAX
    assert store.count() == 40


def test_the_background_keeps_up_with_writers(open_store: Callable[..., Store]) -> None:
    store = open_store(maintenance="background", durability="none")
    for number in range(1_000):
        store.put(b"%d" % number, b"x" * 1_000)
    wait_until(lambda: store.stats()["segments_waiting"] == 0)
    assert store.count() == 1_000
    assert store.stats()["background_error"] is None


def test_segments_that_wait_together_are_applied_together(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1")
    store.put("deleted below", "1")
    store.checkpoint()
    applied: list[list[int]] = []
    monkeypatch.setattr(engine, "apply_segments", note_numbers(applied))
    for name in ("a", "b", "c"):
        store.put("counter", name)
        store.put("dies", name, ttl=1 if name == "c" else None)
        store.put("deleted in the last", name)
        if name == "b":
            store.delete("deleted below")
        fill_a_segment(store, name)
    store.delete("deleted in the last")
    clock.advance(1)
    expected = contents(store)
    number = engine_of(store)._control.newest
    store.checkpoint()
    assert applied == [[number - 3, number - 2], [number - 1, number]]
    assert (expected[b"counter"], expected.keys() & GONE) == (b"c", set())
    assert contents(store) == expected
    assert store.check().is_clean
    assert store.stats()["base_rows"] == len(expected)


GONE = {b"dies", b"deleted below", b"deleted in the last"}


def note_numbers(applied: list[list[int]]) -> Callable[..., bool]:
    """What applies segments, and notes which."""

    def apply_segments(base: Any, segments: list[Segment], *given: Any) -> bool:
        applied.append([segment.number for segment in segments])
        return checkpoint.apply_segments(base, segments, *given)

    return apply_segments


def test_where_there_may_be_no_room_for_two_segments_they_are_applied_one_by_one(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    applied: list[list[int]] = []
    monkeypatch.setattr(engine, "apply_segments", note_numbers(applied))
    for has_room in (True, False):
        monkeypatch.setattr(BaseFile, "has_room", lambda file, size, has_room=has_room: has_room)
        applied.clear()
        for name in ("a", "b"):
            store.put(f"{name} {has_room}", "1", ttl=1)
            fill_a_segment(store, f"{name} {has_room}")
        clock.advance(1)
        expected = contents(store)
        store.checkpoint()
        assert (contents(store), store.stats()["segments"]) == (expected, 0)
        assert store.purge_expired() == 2
        assert {len(numbers) for numbers in applied[:-1]} == {2 if has_room else 1}


def test_two_checkpoints_at_once_never_store_the_older_row(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "BATCH_ROWS", 1)
    slow, other = open_store(), open_store(lock_timeout=0.05)
    slow.put_many({"a": "1", "m": "old"})
    begun, may_go = threading.Event(), threading.Event()
    write = engine_of(slow)._base.write

    def wait_first() -> Any:
        begun.set()
        assert may_go.wait(30)
        return write()

    engine_of(slow)._base.write = wait_first
    thread = threading.Thread(target=slow.checkpoint, daemon=True)
    thread.start()
    assert begun.wait(30)
    other.put("m", "new")
    with pytest.raises(StoreBusy, match="the checkpoint lock is held"):
        other.checkpoint()
    may_go.set()
    thread.join(30)
    other.checkpoint()
    assert (other.get("m"), slow.get("m"), slow.stats()["segments"]) == (b"new", b"new", 0)


def test_a_full_segment_waits_for_another_but_not_for_ever(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    monkeypatch.setattr(engine, "elapsed_ns", lambda: now_ns)
    store = open_store()
    tend = engine_of(store)._tend
    store.put("first", "1")
    fill_a_segment(store)
    tend()
    assert store.stats()["segments_waiting"] == 1
    now_ns = engine.GATHER_NS // 2
    tend()
    assert store.stats()["segments_waiting"] == 1
    now_ns = engine.GATHER_NS
    tend()
    assert store.stats()["segments_waiting"] == 0
    fill_a_segment(store, "b")
    tend()
    assert store.stats()["segments_waiting"] == 1
    fill_a_segment(store, "c")
    tend()
    assert store.stats()["segments_waiting"] == 0


def test_a_backlog_that_nobody_works_off_ends_in_store_busy(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(maintenance="background", durability="none", lock_timeout=0.1)
    stuck = threading.Event()

    def wait_first(*given: Any) -> bool:
        stuck.wait(30)
        return checkpoint.apply_segments(*given)

    monkeypatch.setattr(engine, "apply_segments", wait_first)
    try:
        words, _ = write_until(StoreBusy, store)
        assert "checkpoint" in words
        assert store.get("0") == THOUSAND
        assert store.stats()["writers_wait"]
    finally:
        stuck.set()
    wait_until(lambda: not store.stats()["writers_wait"])
    store.put("again", "1")


def test_a_value_larger_than_a_segment_has_one_of_its_own(store: Store, path: Path) -> None:
    store.put("small", "1")
    store.put("huge", b"x" * 1_000_000)
    store.put("small", "2")
    assert max(file.stat().st_size for file in segment_files(path)) < 1_100_000
    store.checkpoint()
    assert contents(store) == {b"small": b"2", b"huge": b"x" * 1_000_000}


def test_a_batch_larger_than_a_segment_is_written_whole(store: Store, path: Path) -> None:
    store.put("before", "1")
    batch = {b"%d" % number: b"x" * 1_000 for number in range(200)}
    store.put_many(batch)
    assert contents(store) == {**batch, b"before": b"1"}
    assert len(segment_files(path)) == 2


def test_inside_a_transaction_a_checkpoint_is_refused_and_harms_nothing(store: Store) -> None:
    with store.transaction() as transaction:
        transaction.put("key", "1")
        for operation in (store.checkpoint, store.compact, store.clear):
            with pytest.raises(InvalidArgument, match="transaction"):
                operation()
    assert store.get("key") == b"1"
    store.checkpoint()
    assert store.get("key") == b"1"


def test_dying_between_two_batches_of_a_checkpoint_changes_nothing(
    store: Store,
    open_store: Callable[..., Store],
    clock: ManualClock,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(20):
        store.put(b"%02d" % number, b"old", ttl=5 if number % 3 else None)
    store.checkpoint()
    for number in range(0, 20, 2):
        store.put(b"%02d" % number, b"new", ttl=10)
    store.delete("01")
    store.put("03", "short", ttl=1)
    clock.advance(1)
    expected = contents(store)
    copies: list[Path] = []
    note_time = checkpoint.note_time

    def copy_first(txn: Any, now_ms: int) -> None:
        copies.append(crash_copy(path, tmp_path / f"copy {len(copies)}"))
        note_time(txn, now_ms)

    monkeypatch.setattr(checkpoint, "_rows_in", lambda *_: 3)
    monkeypatch.setattr(checkpoint, "note_time", copy_first)
    store.checkpoint()
    monkeypatch.undo()
    assert len(copies) > 3
    assert contents(store) == expected
    for copy in copies:
        crashed = open_store(copy)
        assert contents(crashed) == expected
        assert crashed.check().is_clean
        crashed.checkpoint()
        assert contents(crashed) == expected
        assert crashed.stats()["base_rows"] == store.stats()["base_rows"]
        assert crashed.check().is_clean


def test_two_openers_that_checkpoint_at_once_apply_each_segment_once(
    open_store: Callable[..., Store],
) -> None:
    one, two = open_store(), open_store()
    for round_ in range(10):
        one.put_many({b"%d" % n: b"%d" % round_ for n in range(100)}, ttl=60)
        barrier = threading.Barrier(2)

        def checkpoint_together(store: Store, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(30)
            store.checkpoint()

        thread = threading.Thread(target=checkpoint_together, args=(two,))
        thread.start()
        assert in_a_thread(lambda: checkpoint_together(one)) == []
        thread.join(30)
        assert one.check().is_clean
        assert set(contents(two).values()) == {b"%d" % round_}


def test_an_aged_segment_is_checkpointed_in_the_background(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none")
    store.put("key", "value")
    clock.advance(61)
    wait_until(lambda: store.stats()["base_rows"] == 1)
    assert store.get("key") == b"value"


# --- what an exclusive store keeps of applied segments --------------------------------------------


@pytest.fixture
def kept_store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with open_local(tmp_path / "kept.eph", clock, exclusive=True) as store:
        yield store


def forbid_the_base_tier(store: Store) -> None:
    """Let every read that goes below the segments fail."""

    class Forbidden(RowReader):
        def __init__(self) -> None:
            super().__init__(lambda: pytest.fail("the base tier was asked"), lambda error: None)

    engine_of(store)._segments.reader = Forbidden()


def test_reads_find_applied_segments_that_an_exclusive_store_keeps(
    kept_store: Store, clock: ManualClock
) -> None:
    kept_store.put("stays", "1")
    kept_store.put("changes", "old", ttl=100)
    kept_store.put("goes", "1")
    kept_store.put("dies", "1", ttl=5)
    kept_store.checkpoint()
    kept_store.put("changes", "new")
    kept_store.delete("goes")
    kept_store.checkpoint()
    forbid_the_base_tier(kept_store)
    assert kept_store.get("stays") == b"1"
    assert (kept_store.get("changes"), kept_store.ttl("changes")) == (b"new", None)
    assert kept_store.get("goes") is None
    assert kept_store.get("dies") == b"1"
    clock.advance(5)
    assert kept_store.get("dies") is None
    assert kept_store.incr("stays") == 2


def test_a_family_that_is_cleared_has_nothing_in_kept_segments(kept_store: Store) -> None:
    family = kept_store.family("other")
    family.put("a", "1")
    kept_store.checkpoint()
    family.clear()
    assert family.get("a") is None
    kept_store.drop_family("other")
    assert kept_store.family("other").get("a") is None


def test_what_is_kept_is_bounded_and_let_go_with_the_store(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "KEPT_BYTES", 3 * SEGMENT_BYTES)
    store = open_local(tmp_path / "bounded.eph", clock, exclusive=True)
    expected = {}
    for number in range(8 * SEGMENT_BYTES // 1000):
        key = b"%06d" % (number % 300)
        expected[key] = THOUSAND + key
        store.put(key, expected[key])
        if number % 40 == 0:
            store.checkpoint()
    kept = engine_of(store)._segments._kept
    assert 0 < sum(segment.records_bytes for segment in kept) <= 3 * SEGMENT_BYTES
    assert {key: store.get(key) for key in expected} == expected
    alive = [weakref.ref(segment) for segment in kept]
    del kept
    store.close()
    gc.collect()
    assert [segment() for segment in alive] == [None] * len(alive)


def test_a_store_that_others_may_open_keeps_nothing(store: Store) -> None:
    store.put("a", "1")
    store.checkpoint()
    assert engine_of(store)._segments._kept == []


@pytest.mark.parametrize("count", [1, 4, 5, 6, 9, 10, 11])
def test_batches_of_several_chunks_leave_nothing_out(
    store: Store, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(checkpoint, "CHUNK_ROWS", 2)
    monkeypatch.setattr(checkpoint, "BATCH_ROWS", 5)
    rows = {b"%02d" % number: b"v" for number in range(count)}
    store.put_many(rows, ttl=10)
    store.checkpoint()
    assert store.stats()["segments"] == 0
    assert contents(store) == rows
    assert store.check().problems == ()
