"""Expiry when something fails in the middle, or is damaged: no other death is lost, and none told twice."""

from __future__ import annotations

import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ephemera import CorruptStore, Expired, ManualClock, Store, StoreBusy, StoreClosed, StoreFull
from ephemera.core._block import block
from ephemera.core.row import NEVER_MS
from ephemera.engines.local import checkpoint, engine
from ephemera.engines.local.base_tier import BaseWrite
from ephemera.engines.local.checkpoint import apply_segments
from ephemera.engines.local.expiry import SegmentExpiryQueue
from tests.engines.local.stores import base_file, crash_copy, engine_of, keys_of
from tests.waiting import wait_until


def fail_once(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    """Let the next call there find no room."""
    real = getattr(place, name)

    def refuse(*_: object, **__: object) -> None:
        monkeypatch.setattr(place, name, real)
        raise StoreFull("not now")

    monkeypatch.setattr(place, name, refuse)


def test_the_dead_of_segments_are_told_once_when_the_base_tier_refused_at_first(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1", ttl=2)
    store.checkpoint()
    store.put("above", "2", ttl=1)
    clock.advance(2)
    telling = engine_of(store)._expiry
    fail_once(monkeypatch, telling, "_find_below")
    with pytest.raises(StoreFull):
        telling.announce(clock.now_ms())
    telling.announce(clock.now_ms())
    assert keys_of(events) == [b"above", b"below"]


def compact_elsewhere(path: Path, clock: ManualClock) -> None:
    program = (
        "import sys, ephemera\n"
        "clock = ephemera.ManualClock(int(sys.argv[2]))\n"
        "ephemera.open(sys.argv[1], clock=clock, maintenance='manual').compact()\n"
    )
    subprocess.run([sys.executable, "-c", program, path, str(clock.now_ms())], check=True)


@pytest.mark.parametrize("way", ["announce", "purge"])
def test_another_process_may_compact_in_the_middle_of_telling(
    store: Store,
    path: Path,
    clock: ManualClock,
    events: list[Expired],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    store.put("above", "2", ttl=1)
    clock.advance(2)
    pop_dead = SegmentExpiryQueue.pop_dead
    compactions = iter([compact_elsewhere])

    def pop_dead_and_compact(
        self: SegmentExpiryQueue, *given: Any, **named: Any
    ) -> Any:  # Any: as it is
        for some in pop_dead(self, *given, **named):
            for compact in compactions:
                compact(path, clock)
                store.get("whatever")  # this process follows
            yield some

    monkeypatch.setattr(SegmentExpiryQueue, "pop_dead", pop_dead_and_compact)
    if way == "announce":
        engine_of(store)._expiry.announce(clock.now_ms())
    store.purge_expired()
    assert sorted(keys_of(events)) == [b"above", b"below"]
    assert next(compactions, None) is None


def test_a_purge_that_fails_loses_no_death_and_keeps_their_order(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("second", "below", ttl=2)
    store.checkpoint()
    for key, ttl in (("first", 1), ("third", 3), ("fourth", 4)):
        store.put(key, "above", ttl=ttl)
    clock.advance(3)
    fail_once(monkeypatch, engine_of(store)._base, "write")
    with pytest.raises(StoreFull):
        store.purge_expired()
    assert events == []
    clock.advance(1)
    assert store.purge_expired(limit=3) == 3
    assert store.purge_expired() == 1
    assert keys_of(events) == [b"first", b"second", b"third", b"fourth"]
    store.checkpoint()
    assert store.purge_expired() == 0


def test_what_was_removed_is_told_though_nobody_can_note_it(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    store.put("above", "2", ttl=2)
    clock.advance(3)
    fail_once(monkeypatch, engine_of(store)._expiry, "_keep_delivered")
    with pytest.raises(StoreFull):
        store.purge_expired()
    store.purge_expired()
    assert keys_of(events) == [b"below", b"above"]


@pytest.mark.parametrize("lay", ["above", "below"])
def test_a_checkpoint_that_fails_makes_no_death_be_told_twice_or_never(
    store: Store,
    clock: ManualClock,
    events: list[Expired],
    monkeypatch: pytest.MonkeyPatch,
    lay: str,
) -> None:
    store.put("k", "old", ttl=1)
    if lay == "below":
        store.checkpoint()
    clock.advance(2)
    store.put("k", "new")
    fail_once(monkeypatch, engine, "apply_segments")
    with pytest.raises(StoreFull):
        store.checkpoint()
    for _ in range(2):
        store.purge_expired()
        store.checkpoint()
    store.purge_expired()
    assert [(event.key, event.value) for event in events] == [(b"k", b"old")]


def test_a_damaged_record_of_a_segment_keeps_no_other_death_from_being_told(
    store: Store, path: Path, clock: ManualClock, events: list[Expired], caplog: Any
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    for number in range(9):
        store.put(b"%d" % number, b"value %d" % number, ttl=1)
    (file,) = path.glob("segments/*.seg")
    with file.open("r+b") as opened:
        at = opened.read().index(b"value 4")
        opened.seek(at)
        opened.write(b"V")
    clock.advance(2)
    store.purge_expired()
    assert keys_of(events) == [b"below", *(b"%d" % number for number in range(9) if number != 4)]
    assert file.name in caplog.text


def test_a_damaged_index_entry_takes_no_living_row_with_it(
    open_store: Callable[..., Store], path: Path, clock: ManualClock
) -> None:
    store = open_store()
    store.put("dies", "1", ttl=1)
    for number in range(100):
        store.put(b"%03d" % number, b"v", ttl=100 + number)
    store.checkpoint()
    deadline_ms = clock.now_ms() + 150_000
    store.close()
    entry = struct.pack(">q", deadline_ms) + b"\0\0\0\x01050"
    file = base_file(path)
    file.write_bytes(file.read_bytes().replace(entry, b"\0" * 4 + entry[4:]))
    store = open_store()
    clock.advance(2)
    store.purge_expired()
    assert store.count() == 100


def test_what_was_kept_to_be_told_is_not_told_when_it_is_damaged(
    open_store: Callable[..., Store], path: Path, clock: ManualClock
) -> None:
    store = open_store()
    store.put("bad", "precious value", ttl=1)
    store.put("good", "untouched", ttl=2)
    clock.advance(3)
    store.checkpoint()
    store.close()
    file = base_file(path)
    file.write_bytes(file.read_bytes().replace(b"precious", b"Precious"))
    store = open_store()
    assert any("bad" in problem for problem in store.check().problems)
    events: list[Expired] = []
    store.on_expire(events.append)
    store.purge_expired()
    assert [(event.key, event.value) for event in events] == [(b"good", b"untouched")]
    assert store.check().is_clean


def test_the_announcer_outlives_what_nobody_foresaw(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(maintenance="background")
    died: queue.SimpleQueue[Expired] = queue.SimpleQueue()
    failed = threading.Event()

    def fail(*_: object) -> None:
        failed.set()
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(engine_of(store)._expiry, "collect", fail)
        store.on_expire(died.put)
        assert failed.wait(20)
        wait_until(lambda: store.stats()["background_error"] == "a defect")
    store.put("k", "v", ttl=1)
    clock.advance(2)
    assert died.get(timeout=20).key == b"k"
    wait_until(lambda: store.stats()["background_error"] is None)


@pytest.mark.parametrize("failing", ["purge", "checkpoint"])
@pytest.mark.parametrize("then", ["purge", "checkpoint", "one by one", "nothing"])
def test_after_a_failure_every_death_is_told_once_and_in_order_also_by_the_next_opener(
    open_store: Callable[..., Store],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    then: str,
) -> None:
    store = open_store()
    events: list[Expired] = []
    store.on_expire(events.append)
    store.put("b", "below", ttl=2)
    store.checkpoint()
    for number, key in enumerate("acde", 1):
        store.put(key, "above", ttl=number if number == 1 else number + 1)
    clock.advance(4)
    if failing == "purge":
        fail_once(monkeypatch, engine_of(store)._base, "write")
        with pytest.raises(StoreFull):
            store.purge_expired()
    else:
        fail_once(monkeypatch, engine, "apply_segments")
        with pytest.raises(StoreFull):
            store.checkpoint()
    if then == "purge":
        store.purge_expired()
    elif then == "checkpoint":
        store.checkpoint()
    elif then == "one by one":
        assert [store.purge_expired(limit=1) for _ in range(2)] == [1, 1]
    clock.advance(4)
    store.close()
    store = open_store()
    store.on_expire(events.append)
    store.purge_expired()
    assert keys_of(events) == [b"a", b"b", b"c", b"d", b"e"]
    store.checkpoint()
    assert store.purge_expired() == 0


def test_a_failed_purge_is_made_up_for_though_nobody_listens(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    for number in range(5):
        store.put(b"%d" % number, "2", ttl=1)
    clock.advance(2)
    fail_once(monkeypatch, engine_of(store)._base, "write")
    with pytest.raises(StoreFull):
        store.purge_expired()
    store.put("0", "again")
    assert store.purge_expired() == 5
    assert store.stats()["expired"] == 6


def test_an_interrupt_in_a_callback_loses_none_of_the_others(
    store: Store, clock: ManualClock
) -> None:
    told: list[bytes] = []

    def hear(event: Expired) -> None:
        told.append(event.key)
        if len(told) == 4:
            raise KeyboardInterrupt

    store.on_expire(hear)
    for number in range(10):
        store.put(b"%d" % number, "1", ttl=1)
    clock.advance(2)
    with pytest.raises(KeyboardInterrupt):
        store.purge_expired()
    assert (len(told), store.stats()["expired"]) == (4, 4)
    store.purge_expired()
    assert told == [b"%d" % number for number in range(10)]
    assert store.stats()["expired"] == 10


def test_an_index_that_cannot_be_read_stops_no_death_above_it_and_no_checkpoint(
    open_store: Callable[..., Store], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(maintenance="background")
    died: queue.SimpleQueue[Expired] = queue.SimpleQueue()
    store.on_expire(died.put)

    def refuse(*_: object) -> Any:  # Any: it never returns
        raise CorruptStore("base tier", None, "no index")

    file = engine_of(store)._base.file
    with monkeypatch.context() as patch:
        patch.setattr(file, "entries", refuse)
        patch.setattr(file, "next_deadline_ms", lambda *_: NEVER_MS)
        store.put("k", "v", ttl=1)
        clock.advance(2)
        assert died.get(timeout=20).key == b"k"
        wait_until(lambda: "no index" in str(store.stats()["background_error"]))
        store.put("kept", "1")
        store.checkpoint()
    assert store.get("kept") == b"1"


def checkpoint_half(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    """Let a checkpoint find no room after its first commit; the keys that died before they were written again."""
    keys = [b"%d" % number for number in range(6)]
    store.put_many(dict.fromkeys(keys, b"old"), ttl=1)
    store.checkpoint()
    clock.advance(2)
    store.put_many(dict.fromkeys(keys, b"new"))
    monkeypatch.setattr(checkpoint, "BATCH_ROWS", 2)
    monkeypatch.setattr(checkpoint, "CHUNK_ROWS", 2)
    base = engine_of(store)._base
    real, writes = base.write, iter([1])

    def write_once() -> Any:  # Any: as it is
        if next(writes, None) is None:
            raise StoreFull("not now")
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(base, "write", write_once)
        with pytest.raises(StoreFull):
            store.checkpoint()
    return keys


@pytest.mark.parametrize("is_purged", [False, True])
def test_a_checkpoint_that_fails_after_its_first_commit_loses_no_death_and_repeats_none(
    store: Store,
    clock: ManualClock,
    events: list[Expired],
    monkeypatch: pytest.MonkeyPatch,
    is_purged: bool,
) -> None:
    keys = checkpoint_half(store, clock, monkeypatch)
    if is_purged:
        store.purge_expired()
    store.checkpoint()
    store.purge_expired()
    assert sorted(event.key for event in events) == keys
    assert {event.value for event in events} == {b"old"}


@pytest.mark.parametrize("way", ["closed", "crashed"])
def test_a_checkpoint_that_ends_after_its_first_commit_leaves_the_deaths_to_the_next_opener(
    open_store: Callable[..., Store],
    path: Path,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    store = open_store()
    keys = checkpoint_half(store, clock, monkeypatch)
    if way == "crashed":
        path = crash_copy(path, tmp_path / "copy")
    store.close()
    store = open_store(path)
    events: list[Expired] = []
    store.on_expire(events.append)
    store.purge_expired()
    store.checkpoint()
    store.purge_expired()
    assert sorted(keys_of(events)) == keys
    assert {event.value for event in events} == {b"old"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreBusy])
def test_a_checkpoint_that_breaks_off_after_its_last_commit_has_no_death_told_twice(
    store: Store,
    clock: ManualClock,
    events: list[Expired],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    store.put("k", "v", ttl=1)
    clock.advance(2)

    def break_off(*given: Any) -> bool:  # Any: passed on
        apply_segments(*given)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine, "apply_segments", break_off)
        with pytest.raises(error):
            store.checkpoint()
    for _ in range(2):
        store.purge_expired()
        store.checkpoint()
    assert keys_of(events) == [b"k"]


def test_an_interrupt_during_the_commit_of_a_purge_loses_no_death(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("below", "1", ttl=1)
    store.checkpoint()
    store.put("above", "1", ttl=1)
    clock.advance(2)
    base = engine_of(store)._base
    real = base.write

    @block
    def interrupted() -> Iterator[Any]:  # Any: as it is
        with real() as write:
            yield write
        raise KeyboardInterrupt  # as a signal does that comes during the sync

    with monkeypatch.context() as patch:
        patch.setattr(base, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.purge_expired()
    for _ in range(2):
        store.purge_expired()
    assert sorted(keys_of(events)) == [b"above", b"below"]


def test_a_damaged_page_of_the_index_stops_no_death_above_it(
    open_store: Callable[..., Store], path: Path, clock: ManualClock
) -> None:
    store = open_store()
    for number in range(1_000):
        store.put(b"%03d" % number, b"v", ttl=100 + number)
    store.checkpoint()
    first = struct.pack(">q", clock.now_ms() + 100_000) + b"\0\0\0\x01000"
    store.close()
    file = base_file(path)
    data = bytearray(file.read_bytes())
    assert data.count(first) == 1
    head = data.index(first) // 4096 * 4096
    data[head + 8 : head + 24] = (
        b"\xff" * 16
    )  # what kind of page it is, and where its entries begin
    file.write_bytes(data)
    store = open_store(maintenance="background")
    died: queue.SimpleQueue[Expired] = queue.SimpleQueue()
    store.on_expire(died.put)
    wait_until(lambda: engine_of(store)._announcer.error is not None)
    store.put("above", "v", ttl=1)
    clock.advance(2)
    assert died.get(timeout=20).key == b"above"


def test_an_entry_that_cannot_be_read_for_a_moment_costs_no_death(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_many({b"%d" % number: b"v" for number in range(5)}, ttl=1)
    store.checkpoint()
    clock.advance(2)
    expiry_ = engine_of(store)._expiry
    entries = engine_of(store)._base.file.entries

    def broken(*given: Any) -> Iterator[tuple[int, bytes]]:  # Any: passed on
        for number, entry in enumerate(entries(*given)):
            if number == 3:
                raise CorruptStore("base tier", None, "no entry")
            yield entry

    with monkeypatch.context() as patch:
        patch.setattr(engine_of(store)._base.file, "entries", broken)
        with pytest.raises(CorruptStore):
            expiry_.announce(clock.now_ms())
        expiry_.sweep(clock.now_ms())
        assert store.stats()["base_rows"] == 5
    expiry_.announce(clock.now_ms())
    assert sorted(keys_of(events)) == [b"%d" % number for number in range(5)]


def test_nothing_is_swept_before_who_listens_was_told_for_the_first_time(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", "v", ttl=1)
    store.checkpoint()
    clock.advance(2)
    expiry_ = engine_of(store)._expiry
    fail_once(monkeypatch, engine_of(store)._segments, "refresh")
    with pytest.raises(StoreFull):
        expiry_.announce(clock.now_ms())
    assert not expiry_.sweep(clock.now_ms())
    expiry_.announce(clock.now_ms())
    expiry_.sweep(clock.now_ms())
    assert keys_of(events) == [b"k"]
    assert store.stats()["base_rows"] == 0


def test_who_begins_to_listen_as_the_last_one_has_gone_hears_what_was_picked_for_it(
    store: Store, clock: ManualClock, events: list[Expired]
) -> None:
    store.put("k", "v", ttl=1)
    clock.advance(2)
    expiry_ = engine_of(store)._expiry
    expiry_.collect(clock.now_ms())
    expiry_.stop_announcing()  # by a thread that looked before there was anybody
    expiry_.deliver_collected(clock.now_ms())
    assert keys_of(events) == [b"k"]


@pytest.mark.parametrize("lay", ["below", "undelivered"])
def test_a_damaged_record_that_replaced_a_key_costs_no_other_death(
    store: Store, path: Path, clock: ManualClock, events: list[Expired], lay: str
) -> None:
    keys = [b"key-%d" % number for number in range(9)]
    store.put_many(dict.fromkeys(keys, b"old"), ttl=1)
    if lay == "undelivered":
        clock.advance(2)
    store.checkpoint()
    store.put(b"key-4", b"new" * 20)
    (file,) = path.glob("segments/*.seg")
    with file.open("r+b") as opened:
        opened.seek(opened.read().index(b"key-4") - 12)
        opened.write(b"\xff\xff\xff\x7f")  # the size of its row
    clock.advance(2)
    store.purge_expired()
    told = [key for key in keys if lay == "undelivered" or key != b"key-4"]
    assert sorted(keys_of(events)) == told


def test_what_a_checkpoint_keeps_for_a_later_listener_has_its_value(
    store: Store, clock: ManualClock
) -> None:
    store.put("k", "old", ttl=1)
    store.checkpoint()
    clock.advance(2)
    store.put("k", "new")
    store.checkpoint()
    events: list[Expired] = []
    store.on_expire(events.append)
    store.purge_expired()
    assert [event.value for event in events] == [b"old"]


def test_a_callback_that_exits_ends_no_thread_that_tells(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(maintenance="background")
    died: queue.SimpleQueue[Expired] = queue.SimpleQueue()

    def leave(event: Expired) -> None:
        died.put(event)
        if event.key == b"first":
            raise SystemExit

    store.on_expire(leave)
    for key in (b"first", b"second"):
        store.put(key, "v", ttl=1)
        clock.advance(2)
        assert died.get(timeout=20).key == key


def test_a_batch_of_a_purge_is_no_larger_where_entries_are_stale(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"%d" % number for number in range(100)]
    store.put_many(dict.fromkeys(keys, b"old"), ttl=1)
    store.checkpoint()
    store.put_many(dict.fromkeys(keys, b"new"))  # renewed in time: all entries are stale
    clock.advance(2)
    sizes: list[int] = []
    remove = BaseWrite.remove

    def noted(self: BaseWrite, entries: list[bytes]) -> list[bytes]:
        sizes.append(len(entries))
        return remove(self, entries)

    monkeypatch.setattr(BaseWrite, "remove", noted)
    assert store.purge_expired(batch=10, limit=1) == 0
    assert sizes == [10] * 10
    assert events == []


@pytest.mark.parametrize("has_newer", [False, True])
@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("is_undelivered", [False, True])
def test_a_key_that_dies_before_its_applied_segment_is_retired_is_told_and_counted(
    store: Store,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    has_newer: bool,
    is_heard: bool,
    is_undelivered: bool,
) -> None:
    events: list[Expired] = []
    if is_heard:
        store.on_expire(events.append)
    store.put("k", "v", ttl=1)
    clock.advance(2 * is_undelivered)
    fail_once(monkeypatch, engine_of(store)._segments, "retire")
    with pytest.raises(StoreFull):
        store.checkpoint()
    if has_newer:
        store.put("newer", "1")
    clock.advance(2)
    assert [store.purge_expired(), store.purge_expired()] == [1, 0]
    assert keys_of(events) == [b"k"] * is_heard


def test_what_a_purge_did_not_remove_is_told_once_whoever_commits_meanwhile(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", "v", ttl=1)
    store.checkpoint()
    clock.advance(2)
    base = engine_of(store)._base
    real = base.write

    @block
    def fail_before_another() -> Iterator[Any]:  # Any: as it is
        with suppress(ZeroDivisionError), real() as write:
            yield write
            raise ZeroDivisionError  # it is not committed
        with real() as write:
            write.set_number(b"of another", 1)  # and gets the same number
        raise StoreFull("not now")

    with monkeypatch.context() as patch:
        patch.setattr(base, "write", fail_before_another)
        with pytest.raises(StoreFull):
            store.purge_expired()
    store.purge_expired()
    assert keys_of(events) == [b"k"]


def test_a_purge_of_a_store_that_is_closed_meanwhile_says_so(
    store: Store, clock: ManualClock, events: list[Expired], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", "v", ttl=1)
    store.checkpoint()
    clock.advance(2)
    base = engine_of(store)._base

    def close_first() -> Any:  # Any: as it is
        monkeypatch.undo()
        store.close()
        return base.write()

    monkeypatch.setattr(base, "write", close_first)
    with pytest.raises(StoreClosed):
        store.purge_expired()
    assert events == []
