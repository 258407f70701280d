"""Expiry: who died is told once, in order, wherever the key lay; and then it really leaves."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import Expired, ManualClock, Store, StoreFull
from ephemera.core._block import block
from ephemera.core.row import NEVER_MS, Row
from ephemera.engines.local import engine, expiry
from ephemera.engines.local.checkpoint import apply_segments
from tests.engines.local.stores import base_file, crash_copy, engine_of, in_a_thread, keys_of
from tests.waiting import wait_until

TOLD_AT = 256
"""Where a segment's header says how far its deaths were told."""


def rotate(store: Store) -> None:
    """Let the next write go to another segment."""
    store.put("rotate", b"x" * 60_000)
    store.put("rotate", b"x" * 60_000)


def test_the_dead_of_segments_and_base_tier_are_told_in_one_order(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("third", "3", ttl=3)
    store.put("first", "1", ttl=1)
    store.checkpoint()
    store.put("fourth", "4", ttl=4)
    store.put("second", "2", ttl=2)
    rotate(store)
    store.put("fifth", "5", ttl=5)
    clock.advance(5)
    assert store.purge_expired() == 5
    assert keys_of(events) == [b"first", b"second", b"third", b"fourth", b"fifth"]
    assert store.purge_expired() == 0


@pytest.mark.parametrize("maintenance", ["manual", "background"])
def test_a_damaged_row_keeps_no_other_death_from_being_told(
    open_store: Callable[..., Store], path: Path, clock: ManualClock, maintenance: str
) -> None:
    store = open_store()
    store.put("bad", "precious value", ttl=1)
    store.put("good", "untouched", ttl=2)
    store.checkpoint()
    store.close()
    file = base_file(path)
    file.write_bytes(file.read_bytes().replace(b"precious", b"Precious"))
    store = open_store(maintenance=maintenance)
    died: queue.SimpleQueue[Expired] = queue.SimpleQueue()
    store.on_expire(died.put)
    store.put("young", "in a segment", ttl=3)
    clock.advance(3)
    if maintenance == "manual":
        store.purge_expired()
    assert [died.get(timeout=20).key for _ in range(2)] == [b"good", b"young"]
    assert died.empty()
    # Nor does it keep anything from the base tier.
    store.put("later", "1", ttl=60)
    store.checkpoint()
    store.purge_expired()
    assert store.check().is_clean


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_limits_take_the_longest_dead_first(
    store: Store, clock: ManualClock, events: list[Expired], batch: int
) -> None:
    for number in range(6):
        store.put(b"%d" % number, b"", ttl=6 - number)
        if number % 2:
            store.checkpoint()
    clock.advance(10)
    assert store.purge_expired(limit=4, batch=batch) == 4
    assert keys_of(events) == [b"5", b"4", b"3", b"2"]
    assert store.purge_expired(batch=batch) == 2
    assert keys_of(events)[4:] == [b"1", b"0"]


def test_an_earlier_death_in_a_younger_segment_is_told_after_a_checkpoint(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("later", "1", ttl=2)
    rotate(store)
    store.put("earlier", "2", ttl=1)
    clock.advance(3)
    store.checkpoint()
    assert store.purge_expired() == 2
    assert keys_of(events) == [b"earlier", b"later"]


def test_what_a_checkpoint_left_out_is_told_by_the_next_purge(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("key", "value", ttl=1)
    clock.advance(1)
    store.checkpoint()
    assert (store.stats()["base_rows"], events) == (0, [])
    assert store.purge_expired() == 1
    assert events == [Expired("default", b"key", b"value", clock.now_ms())]
    assert store.purge_expired() == 0
    assert len(events) == 1


def test_what_was_left_out_is_told_after_reopening_and_after_a_crash(
    open_store: Callable[..., Store], clock: ManualClock, path: Path, tmp_path: Path
) -> None:
    store = open_store()
    store.put("key", "value", ttl=1)
    clock.advance(1)
    store.checkpoint()
    crashed = open_store(crash_copy(path, tmp_path / "copy"))
    store.close()
    for again in (open_store(), crashed):
        events: list[Expired] = []
        again.on_expire(events.append)
        assert again.purge_expired() == 1
        assert keys_of(events) == [b"key"]


def test_replaced_while_alive_is_not_a_death(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("a", "1", ttl=1)
    store.put("b", "1", ttl=1)
    store.checkpoint()
    store.put("a", "2", ttl=5)
    store.put("c", "1", ttl=1)
    store.delete("c")
    store.delete("b")
    clock.advance(1)
    assert (store.purge_expired(), events) == (0, [])
    clock.advance(4)
    assert store.purge_expired() == 1
    assert keys_of(events) == [b"a"]


def test_a_dead_key_written_again_is_told_once_and_stays(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("key", "old", ttl=1)
    store.checkpoint()
    clock.advance(2)
    store.put("key", "new")
    assert store.purge_expired() == 0
    assert [event.value for event in events] == [b"old"]
    store.checkpoint()
    assert store.purge_expired() == 0
    assert (len(events), store.get("key")) == (1, b"new")


def test_a_key_that_died_twice_before_a_checkpoint_is_told_twice_and_counted_once(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("key", "old", ttl=1)
    store.checkpoint()
    clock.advance(2)
    store.put("key", "new", ttl=1)
    clock.advance(2)
    store.checkpoint()
    assert store.purge_expired() == 1
    assert [event.value for event in events] == [b"old", b"new"]


def test_events_of_dropped_families_are_not_told(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.family("gone").put("key", "1", ttl=1)
    store.family("cleared").put("key", "1", ttl=1)
    store.checkpoint()
    store.drop_family("gone")
    store.family("cleared").clear()
    clock.advance(1)
    assert (store.purge_expired(), events) == (0, [])


def test_purging_without_a_listener_counts_the_same(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path
) -> None:
    chance = random.Random(3)
    work = [
        (chance.choice(["put", "put", "delete", "checkpoint", "advance", "purge"]), chance.random())
        for _ in range(400)
    ]
    counts = []
    for name in ("silent", "heard"):
        own = ManualClock()
        store = open_store(tmp_path / name, clock=own)
        if name == "heard":
            store.on_expire(lambda _: None)
        removed = []
        for what, number in work:
            key = b"%d" % (number * 20)
            match what:
                case "put":
                    store.put(key, b"", ttl=1 + int(number * 100) % 5)
                case "delete":
                    store.delete(key)
                case "checkpoint":
                    store.checkpoint()
                case "advance":
                    own.advance(number * 3)
                case _:
                    removed.append(store.purge_expired())
        counts.append(removed)
        assert store.check().is_clean
    assert counts[0] == counts[1]


def test_purging_costs_what_is_dead(store: Store, clock: ManualClock) -> None:
    store.put_many({b"alive %d" % n: b"" for n in range(3_000)}, ttl=1_000)
    store.put_many({b"dead %d" % n: b"" for n in range(10)}, ttl=1)
    store.checkpoint()
    clock.advance(1)
    base = engine_of(store)._base.file
    with base.reading() as txn:
        assert len(list(base.entries(txn, -1, clock.now_ms()))) == 10
    assert store.purge_expired() == 10
    stats = store.stats()
    assert (stats["base_rows"], stats["deadline_entries"]) == (3_000, 3_000)


def test_in_the_background_the_dead_are_told_and_leave(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none")
    told = threading.Event()
    events: list[Expired] = []

    def hear(event: Expired) -> None:
        events.append(event)
        if len(events) == 2:
            told.set()

    store.on_expire(hear)
    store.put("below", "1", ttl=1)
    store.checkpoint()
    store.put("above", "2", ttl=2)
    assert store.stats()["base_rows"] == 1
    clock.advance(5)
    assert told.wait(30)
    assert keys_of(events) == [b"below", b"above"]
    wait_until(lambda: store.stats()["base_rows"] == 0)
    assert (len(events), store.stats()["expired"]) == (2, 2)
    assert store.check().is_clean


def test_a_purge_beside_the_background_tells_nobody_twice(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none")
    events: list[Expired] = []
    store.on_expire(events.append)
    for number in range(20):
        store.put(b"%d" % number, b"", ttl=1)
        if number == 10:
            store.checkpoint()
    clock.advance(1)
    store.purge_expired()
    wait_until(lambda: len(set(events)) == 20)
    assert len(events) == 20


def test_a_listener_of_a_read_only_store_is_told(
    open_store: Callable[..., Store], store: Store, clock: ManualClock
) -> None:
    reader = open_store(read_only=True, maintenance="background")
    events: list[Expired] = []
    reader.on_expire(events.append)
    store.put("below", "1", ttl=1)
    store.checkpoint()
    store.put("above", "2", ttl=2)
    clock.advance(2)
    wait_until(lambda: len(events) == 2)
    assert keys_of(events) == [b"below", b"above"]
    assert store.stats()["base_rows"] == 1


def test_a_checkpoint_leaves_the_telling_to_the_one_thread_that_tells(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none")
    heard: list[tuple[bytes, str]] = []
    is_telling, may_go_on = threading.Event(), threading.Event()

    def hear(event: Expired) -> None:
        heard.append((event.key, threading.current_thread().name))
        is_telling.set()
        may_go_on.wait(30)

    store.on_expire(hear)
    store.put("first", "1", ttl=1)
    clock.advance(1)
    assert is_telling.wait(30)
    store.put("second", "2", ttl=1)
    clock.advance(1)
    threading.Timer(5, may_go_on.set).start()  # so that a checkpoint that tells comes to an end
    store.checkpoint()
    assert heard == [(b"first", "ephemera-announce")]
    may_go_on.set()
    wait_until(lambda: len(heard) == 2)
    assert heard[1] == (b"second", "ephemera-announce")


def test_what_died_before_the_closing_is_told_before_its_end(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none")
    heard: list[bytes] = []
    is_telling, may_go_on = threading.Event(), threading.Event()

    def hear(event: Expired) -> None:
        heard.append(event.key)
        is_telling.set()
        may_go_on.wait(30)

    store.on_expire(hear)
    store.put("first", "1", ttl=1)
    clock.advance(1)
    assert is_telling.wait(30)
    store.put("second", "2", ttl=1)
    clock.advance(1)
    store.checkpoint()
    may_go_on.set()
    store.close()
    assert heard == [b"first", b"second"]


def test_closing_lets_a_listener_that_writes_come_to_its_end(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background", durability="none", lock_timeout=2)
    is_telling, may_go_on, is_done = threading.Event(), threading.Event(), threading.Event()

    def hear(_event: Expired) -> None:
        is_telling.set()
        may_go_on.wait(30)
        for _ in range(20):
            rotate(store)  # needs checkpoints, or it waits for them in vain
        is_done.set()

    store.on_expire(hear)
    store.put("key", "1", ttl=1)
    clock.advance(1)
    assert is_telling.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    wait_until(lambda: "closed" in repr(store))
    may_go_on.set()
    closing.join(30)
    assert is_done.is_set()


def test_a_key_that_was_dead_before_its_transaction_ended_is_told(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("before", "1", ttl=3)
    with store.transaction() as txn:
        txn.put("late", "2", ttl=1)
        clock.advance(5)
        assert store.purge_expired() == 1
    assert store.purge_expired() == 1
    assert keys_of(events) == [b"before", b"late"]
    assert store.purge_expired() == 0


def test_the_dead_of_a_checkpoint_that_failed_are_told_by_a_later_purge(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreFull("no room")

    store.put("key", "1", ttl=1)
    clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr("ephemera.engines.local.engine.apply_segments", fail)
        with pytest.raises(StoreFull):
            store.checkpoint()
    store.checkpoint()
    assert store.purge_expired() == 1
    assert keys_of(events) == [b"key"]
    assert store.purge_expired() == 0


def test_a_callback_that_fails_keeps_nobody_from_hearing(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes] = []

    def fail(event: Expired) -> None:
        raise RuntimeError(event.key)

    store.on_expire(fail)
    store.on_expire(lambda event: heard.append(event.key))
    store.put_many({"a": "1", "b": "2"}, ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 2
    assert sorted(heard) == [b"a", b"b"]
    assert "on_expire" in caplog.text


def test_a_callback_may_use_the_store(store: Store, clock: ManualClock) -> None:
    def renew(event: Expired) -> None:
        store.put(event.key, event.value + b"+", ttl=1)
        assert store.get(event.key) is not None

    store.on_expire(renew)
    store.put("key", "", ttl=1)
    for _ in range(5):
        clock.advance(1)
        assert store.purge_expired() == 1
    assert store.get("key") == b"+++++"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 7])
def test_a_purge_of_segments_counts_on_beyond_what_it_counts_at_once(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(expiry, "LOOKS_AT_ONCE", 3)
    store.put_many({b"%d" % number: b"v" for number in range(count)}, ttl=1)
    clock.advance(2)
    assert store.purge_expired() == count
    assert store.purge_expired() == 0


def test_deadlines_of_more_lifetimes_than_there_are_queues_come_in_order(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    # Longest first: each lifetime needs a queue of its own, and the last ones find none.
    lives = [20, 18, 16, 14, 12, 10, 8, 15, 13, 9] * 3
    for number, seconds in enumerate(lives):
        store.put(b"%02d" % number, b"v", ttl=seconds)
        clock.advance(0.001)
    clock.advance(30)
    assert store.purge_expired() == len(lives)
    assert [event.deadline_ms for event in events] == sorted(event.deadline_ms for event in events)
    assert sorted(keys_of(events)) == [b"%02d" % number for number in range(len(lives))]


def commits_of(store: Store) -> int:
    """How many transactions the base tier has committed, each with a sync."""
    return int(engine_of(store)._base.file._env.info()["last_txnid"])


def test_a_purge_of_segments_commits_nothing(store: Store, clock: ManualClock) -> None:
    for number in range(100):
        store.put(b"%d" % number, b"", ttl=1)
    store.put("live", "1", ttl=10)
    clock.advance(1)
    before = commits_of(store)
    assert store.purge_expired() == 100
    assert commits_of(store) == before


@pytest.mark.parametrize("limit", [3, None])
def test_what_a_purge_counted_in_segments_is_not_counted_again(
    open_store: Callable[..., Store],
    clock: ManualClock,
    path: Path,
    tmp_path: Path,
    limit: int | None,
) -> None:
    store = open_store()
    others = [open_store(), open_store()]
    for number in range(10):
        store.put(b"%d" % number, b"", ttl=1)
        if number == 5:
            rotate(store)
    clock.advance(1)
    counted = store.purge_expired(limit=limit)
    crashed = open_store(crash_copy(path, tmp_path / "crashed"))
    store.backup(tmp_path / "backup")
    others[0].checkpoint()
    left = 10 - counted
    assert counted == (limit or 10)
    assert crashed.purge_expired() == left
    assert open_store(tmp_path / "backup").purge_expired() == left
    assert others[1].purge_expired() == left
    assert others[0].purge_expired() == 0
    for one in (store, *others):
        one.close()
    assert open_store().purge_expired() == 0


def test_a_purge_after_a_checkpoint_of_another_counts_what_came_since(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store, other = open_store(), open_store()
    store.put("a", "", ttl=1)
    clock.advance(1)
    assert store.purge_expired() == 1
    other.checkpoint()
    store.put("b", "", ttl=1)
    clock.advance(1)
    assert other.purge_expired() == 1
    assert store.purge_expired() == 0


def test_a_damaged_note_of_what_was_told_counts_again_and_harms_nothing(
    open_store: Callable[..., Store], clock: ManualClock, path: Path, tmp_path: Path
) -> None:
    store = open_store()
    store.put("key", "value", ttl=1)
    store.put("live", "value")
    clock.advance(1)
    assert store.purge_expired() == 1
    (segment,) = (crash_copy(path, tmp_path / "copy") / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    content[TOLD_AT] ^= 1
    segment.write_bytes(content)
    again = open_store(tmp_path / "copy")
    assert again.purge_expired() == 1
    assert (again.get("live"), again.check().problems) == (b"value", ())


def test_what_was_told_of_a_purge_that_broke_off_is_not_told_again(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store, other = open_store(), open_store()
    for number in range(4):
        store.put(b"%d" % number, b"", ttl=number + 1)
    clock.advance(4)
    told: list[bytes] = []

    def note(event: Expired) -> None:
        told.append(event.key)
        if event.key == b"1":
            raise KeyboardInterrupt

    store.on_expire(note)
    with pytest.raises(KeyboardInterrupt):
        store.purge_expired(batch=1)
    other.checkpoint()
    assert told == [b"0", b"1"]
    assert other.purge_expired() == 2


@pytest.mark.parametrize("way", ["put", "put_many", "transaction", "incr", "touch"])
def test_every_way_to_write_a_deadline_wakes_who_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    # In a store of its own it looks for nothing that others may have written.
    monkeypatch.setattr(engine, "CLOCK_STEP_SECONDS", 3600.0)
    heard: list[Expired] = []
    with ephemera.open(tmp_path / "s.eph", exclusive=True) as store:
        store.on_expire(heard.append)
        store.put("key", "1")
        store.put("far", "1", ttl=1000)
        segments = engine_of(store)._segments
        # The deadline of the far one: it is set once the look is over.
        wait_until(lambda: engine.ASLEEP_MS < segments.wake_before_ms < NEVER_MS)
        if way == "put":
            store.put("key", "1", ttl=0.001)
        elif way == "put_many":
            store.put_many({"key": "1"}, ttl=0.001)
        elif way == "incr":
            store.delete("key")
            store.incr("key", ttl=0.001)
        elif way == "touch":
            store.touch("key", ttl=0.001)
        else:
            with store.transaction() as txn:
                txn.put("key", "1", ttl=0.001)
        wait_until(lambda: keys_of(heard) == [b"key"])


def test_between_slices_of_the_dead_other_threads_read_and_write(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOKS_AT_ONCE", 7)
    store.put_many({b"dead %03d" % number: b"v" for number in range(100)}, ttl=1)
    store.put_many({b"renewed %03d" % number: b"v" for number in range(100)}, ttl=1)
    store.put_many({b"renewed %03d" % number: b"v" for number in range(100)}, ttl=100)
    clock.advance(2)
    engine = engine_of(store)
    pop_dead, taken = engine._segments.pop_dead, list[int]()

    def pop_some(*given: Any) -> Any:  # Any: as it is, only watched
        assert in_a_thread(lambda: store.put("other", store.get("other", b"") + b"+")) == []
        before = sum(map(len, given[0]))
        found = pop_dead(*given)
        taken.append(before - sum(map(len, given[0])))
        return found

    monkeypatch.setattr(engine._segments, "pop_dead", pop_some)
    engine._expiry.collect(clock.now_ms())
    assert (max(taken), sum(taken)) == (7, 200)
    assert store.get("other") == b"+" * len(taken)
    assert [dead.key for dead in engine._expiry._collected] == [
        b"dead %03d" % n for n in range(100)
    ]


def test_a_slice_of_large_values_is_short(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOKS_AT_ONCE", 12)
    store.put_many({b"%d" % number: b"v" * 10_000 for number in range(5)}, ttl=1)
    clock.advance(2)
    queue = engine_of(store)._expiry._queue
    queue.follow()
    assert [len(dead) for dead in queue.pop_dead(clock.now_ms())] == [4, 1]


def move_to_base(store: Store, now_ms: int) -> None:
    """End a checkpoint that began at this instant."""
    engine = engine_of(store)
    engine._segments.freeze()
    waiting = engine._segments.waiting()
    apply_segments(engine._base, waiting, now_ms)
    engine._segments.retire(waiting[-1].number)


def test_a_key_that_was_renewed_is_not_told_dead_when_its_segments_are_retired_between_slices(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "LOOKS_AT_ONCE", 7)
    store.put_many({b"dead %02d" % number: b"v" for number in range(10)}, ttl=1)
    store.put("renewed", "old", ttl=2)
    store.put("renewed", "new")
    engine, began_ms = engine_of(store), clock.now_ms()
    clock.advance(3)
    pop_dead, slices = engine._segments.pop_dead, list[int]()

    def pop_some(*given: Any) -> Any:  # Any: as it is, with a checkpoint behind it
        found = pop_dead(*given)
        if not slices:
            assert in_a_thread(lambda: move_to_base(store, began_ms)) == []
        slices.append(found[1])
        return found

    monkeypatch.setattr(engine._segments, "pop_dead", pop_some)
    engine._expiry.collect(clock.now_ms())
    assert len(slices) > 1
    assert [dead.key for dead in engine._expiry._collected] == [b"dead %02d" % n for n in range(10)]
    assert store.get("renewed") == b"new"


def test_a_key_that_a_checkpoint_moves_while_deaths_are_picked_is_told_once(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", "v", ttl=10)
    telling, began_ms = engine_of(store)._expiry, clock.now_ms()
    clock.advance(11)
    died_below = telling._all_below

    def died_after_a_checkpoint(*given: Any) -> Any:  # Any: as it is
        assert in_a_thread(lambda: move_to_base(store, began_ms)) == []
        return died_below(*given)

    with monkeypatch.context() as patch:
        patch.setattr(telling, "_all_below", died_after_a_checkpoint)
        telling.announce(clock.now_ms())
    telling.announce(clock.now_ms())
    assert keys_of(events) == [b"k"]
    assert store.stats()["expired"] == 1


def test_a_listener_that_goes_keeps_no_retired_segment(store: Store, clock: ManualClock) -> None:
    telling = engine_of(store)._expiry
    store.put("k", "v", ttl=10)
    telling.announce(clock.now_ms())
    store.checkpoint()
    telling.stop_announcing()
    assert telling._queue.followed == []


def test_a_key_replaced_by_a_row_whose_write_time_is_ahead_did_not_die(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    engine = engine_of(store)
    store.put("k", "v", ttl=10)
    copied = Row(b"copied", clock.now_ms() + 3_600_000)
    engine.write([(engine.family("default", create=False), b"k", copied)])
    clock.advance(20)
    engine._expiry.announce(clock.now_ms())
    assert (events, store.get("k")) == ([], b"copied")


class BlockedCommits:
    """Lets the commits of a store's base tier wait until they may go on."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = engine_of(store)._base.write
        self.has_one = threading.Event()
        self.may_go_on = threading.Event()
        monkeypatch.setattr(engine_of(store)._base, "write", self._write_slowly)

    @block
    def _write_slowly(self) -> Iterator[Any]:  # Any: what the engine writes with
        with self._write() as write:
            yield write
            self.has_one.set()
            assert self.may_go_on.wait(30)


def test_an_event_is_told_while_a_sweep_commits(
    store: Store,
    clock: ManualClock,
    events: list[Expired],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.put("below", "1", ttl=1)
    store.put("later below", "2", ttl=2)
    store.checkpoint()
    clock.advance(1)
    telling = engine_of(store)._expiry
    telling.announce(clock.now_ms())
    commits = BlockedCommits(store, monkeypatch)
    sweep = threading.Thread(target=telling.sweep, args=[clock.now_ms()])
    sweep.start()
    assert commits.has_one.wait(30)
    store.put("above", "3", ttl=1)
    clock.advance(1)
    assert in_a_thread(lambda: telling.announce(clock.now_ms())) == []
    assert keys_of(events) == [b"below", b"above", b"later below"]
    assert sweep.is_alive()
    commits.may_go_on.set()
    sweep.join(30)
    assert store.stats()["base_rows"] == 1
    telling.announce(clock.now_ms())
    telling.sweep(clock.now_ms())
    assert (len(events), store.stats()["expired"], store.stats()["base_rows"]) == (3, 3, 0)


@pytest.mark.parametrize("is_late", [False, True])
def test_who_begins_to_listen_while_a_sweep_commits_lets_nobody_be_counted_twice(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    store.put("key", "1", ttl=1)
    store.checkpoint()
    clock.advance(1)
    telling = engine_of(store)._expiry
    commits = BlockedCommits(store, monkeypatch)
    sweep = threading.Thread(target=telling.sweep, args=[clock.now_ms()])
    heard: list[Expired] = []

    def listen() -> None:
        telling.subscribe(heard.append)
        telling.announce(clock.now_ms())

    # Late is after the commit, before the sweep has counted what it removed.
    monkeypatch.setattr(telling, "_on_removed", listen if is_late else lambda: None)
    sweep.start()
    assert commits.has_one.wait(30)
    if not is_late:
        listen()
    commits.may_go_on.set()
    sweep.join(30)
    assert keys_of(heard) == ([] if is_late else [b"key"])
    assert (store.stats()["expired"], store.stats()["base_rows"]) == (1, 0)


def test_a_purge_that_somebody_begins_to_listen_beside_tells_nobody_twice(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    clock.advance(1)
    telling = engine_of(store)._expiry
    collecting = telling.collecting

    class Announcing:
        """The lock, which somebody else had just before."""

        def __enter__(self) -> None:
            telling.collecting = collecting
            telling.announce(clock.now_ms())
            collecting.acquire()

        def __exit__(self, *_: object) -> None:
            collecting.release()

    monkeypatch.setattr(telling, "collecting", Announcing())
    assert telling._purge_batch(clock.now_ms(), 10, 10) == (0, True)
    assert telling._purge_batch(clock.now_ms(), 10, 10) == (1, False)
    assert keys_of(events) == [b"below"]
