"""The engine as a whole: many openers, reads that touch nothing, backups, and its end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ephemera import (
    CorruptStore,
    EphemeraError,
    InvalidArgument,
    ManualClock,
    ReadOnly,
    Store,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreLocked,
)
from ephemera.core.row import Row
from ephemera.engines.local import base_tier, engine, maintenance
from ephemera.engines.local._pages import Tree
from ephemera.engines.local._segment import Segment
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import FileLock, Files, Mapped
from ephemera.engines.local.segments import Segments
from tests.engines.local.stores import (
    THOUSAND,
    contents,
    crash_copy,
    engine_of,
    in_a_thread,
    is_free,
    open_local,
    python,
    run_python,
    segment_files,
    start_python,
    wait_until_forgotten,
)
from tests.waiting import PATIENCE_S, wait_until

# --- reads ----------------------------------------------------------------------------------------


def fill(store: Store) -> None:
    """Some in the base tier, some in segments, some dead in both."""
    store.put_many({b"below %d" % n: b"1" for n in range(20)})
    store.put("dead below", "1", ttl=1)
    store.checkpoint()
    store.put_many({b"above %d" % n: b"2" for n in range(20)})
    store.put("dead above", "2", ttl=1)


def read_everything(store: Store) -> None:
    """Every operation that only reads."""
    assert store.get("below 1") == b"1"
    assert store.get("above 1") == b"2"
    for key in ("absent", "dead below", "dead above"):
        assert store.get(key) is None
        assert store.entry(key) is None
        assert key not in store
    assert store.entry("below 2") is not None
    assert store.count() == len(list(store.scan(reverse=True))) == 40
    assert len(store.get_many(["below 1", "above 1", "absent"])) == 2
    with store.snapshot() as snapshot:
        assert snapshot.get("above 3") == b"2"
        assert snapshot.count() == 40
    assert store.families() == ["default"]
    assert store.stats()["base_rows"] == 21


def test_reads_never_wait_for_a_writer(
    open_store: Callable[..., Store], clock: ManualClock
) -> None:
    store = open_store(lock_timeout=0.05)
    fill(store)
    clock.advance(1)
    with store.transaction() as transaction:
        transaction.put("above 1", "changed")
        assert in_a_thread(lambda: read_everything(store)) == []
        (error,) = in_a_thread(lambda: store.put("above 1", "refused"))
        assert isinstance(error, StoreBusy)
    assert store.get("above 1") == b"changed"


def test_reads_never_wait_for_a_writer_of_another_process(
    open_store: Callable[..., Store], path: Path, clock: ManualClock
) -> None:
    store = open_store()
    fill(store)
    clock.advance(1)
    code = """
        import sys
        import ephemera
        store = ephemera.open(sys.argv[1], segment_bytes=65536, maintenance="manual")
        with store.transaction():
            print("inside", flush=True)
            sys.stdin.readline()
    """
    with start_python(code, path) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "inside\n"
        read_everything(store)
        writer.stdin.write("\n")
        writer.stdin.close()
        assert writer.wait(30) == 0


class WaitingFiles(Files):
    """Lets who makes a segment wait for the disk."""

    def __init__(self) -> None:
        self.disk = threading.Event()
        self.disk.set()
        self.is_waiting = threading.Event()

    def sync_directory(self, path: Path) -> None:
        if not self.disk.is_set():
            self.is_waiting.set()
            assert self.disk.wait(PATIENCE_S)
        super().sync_directory(path)


def test_reads_never_wait_for_a_segment_that_is_being_made(
    open_store: Callable[..., Store],
) -> None:
    files = WaitingFiles()
    store = open_store(files=files)
    store.put("key", "1")
    files.disk.clear()
    writer = threading.Thread(target=write_segments, args=(store, 1))
    writer.start()
    try:
        assert files.is_waiting.wait(PATIENCE_S)
        assert in_a_thread(lambda: store.get("key")) == []
    finally:
        files.disk.set()
        writer.join()
    assert store.stats()["segments"] == 2


def write_segments(store: Store, count: int) -> None:
    """Write until so many more segments were made."""
    wanted = store.stats()["segments"] + count
    while store.stats()["segments"] < wanted:
        store.put("filler", THOUSAND)


@pytest.mark.skipif(sys.platform != "linux", reason="the system lists mappings so on Linux")
def test_a_reader_leaves_unmapping_to_the_background(
    open_store: Callable[..., Store], path: Path
) -> None:
    store, other = open_store(), open_store()
    engine_of(store)._segments.frees_later = True
    other.put("key", "1")
    assert store.get("key") == b"1"
    other.checkpoint()
    assert store.get("key") == b"1"
    mapped = removed_mappings(path)
    engine_of(store)._segments.free()
    assert removed_mappings(path) == mapped - 1


def removed_mappings(path: Path) -> int:
    """How many segments are mapped whose files are gone."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(str(path / "segments") in line and line.endswith("(deleted)") for line in lines)


class CountingFiles(Files):
    """Counts whatever changes a file or its name."""

    changes = 0

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        self.changes += 1
        super().sync(mapped, start, end)

    def sync_path(self, path: Path) -> None:
        self.changes += 1
        super().sync_path(path)

    def remove(self, path: Path) -> None:
        self.changes += 1
        super().remove(path)


def test_reads_never_write(
    open_store: Callable[..., Store], path: Path, clock: ManualClock
) -> None:
    files = CountingFiles()
    store = open_store(files=files, durability="none")
    fill(store)
    clock.advance(1)
    before = bytes_of(path), files.changes
    read_everything(store)
    assert store.check().is_clean
    assert (bytes_of(path), files.changes) == before


def bytes_of(path: Path) -> dict[str, bytes]:
    """All files of a store but for LMDB's table of readers."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.endswith("-lock")
    }


def test_a_scan_is_of_one_state_whatever_happens_meanwhile(store: Store) -> None:
    expected = [b"%04d" % n for n in range(2_000)]
    store.put_many(dict.fromkeys(expected, b"1"))
    store.checkpoint()
    store.put_many(dict.fromkeys(expected[::3], b"2"))
    seen = []
    for number, (key, value) in enumerate(store.scan()):
        seen.append((key, value))
        if number % 400 == 0:
            store.delete(expected[-1 - number])
            store.put(expected[number] + b"+", b"new")
            store.compact() if number == 800 else store.checkpoint()
    assert [key for key, _ in seen] == expected
    assert [value for _, value in seen[::3]] == [b"2"] * len(expected[::3])


def test_more_snapshots_than_there_is_room_for_are_refused_in_our_words(store: Store) -> None:
    store.put("key", "value")
    store.checkpoint()
    snapshots = []
    try:
        for _ in range(2_000):
            snapshots.append(store.snapshot())  # noqa: PERF401  what was made is closed below
    except EphemeraError:
        pass
    finally:
        for snapshot in snapshots:
            snapshot.close()
    assert store.get("key") == b"value"


# --- many openers ---------------------------------------------------------------------------------


def test_two_stores_of_one_path_see_each_others_writes(open_store: Callable[..., Store]) -> None:
    one, two = open_store(), open_store()
    for round_ in range(20):
        one.put("key", f"{round_} of one")
        assert two.get("key") == b"%d of one" % round_
        two.put("key", f"{round_} of two" + "x" * 9_000)
        assert one.get("key") == b"%d of two" % round_ + b"x" * 9_000
        if round_ % 5 == 0:
            one.checkpoint()
        if round_ % 7 == 0:
            two.compact()
    one.close()
    assert two.get("key") is not None
    two.put("key", "last")
    two.close()
    assert open_store().get("key") == b"last"


def test_counters_of_many_threads_and_processes_add_up(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store(clock=None)
    code = """
        import sys, threading
        import ephemera
        with ephemera.open(sys.argv[1], segment_bytes=65536, maintenance=sys.argv[2]) as store:
            def count():
                for _ in range(500):
                    store.incr("counter")
            threads = [threading.Thread(target=count) for _ in range(2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
    """
    workers = [
        subprocess.Popen([*python(code), str(path), maintenance])
        for maintenance in ("manual", "background", "background")
    ]
    for _ in range(100):
        store.incr("counter")
        store.checkpoint()
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    assert store.get("counter") == b"3100"
    assert store.check().is_clean


def test_an_exclusive_owner_keeps_others_out_and_is_named(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store(exclusive=True)
    with pytest.raises(StoreLocked, match=f"in process {os.getpid()} .*: close it there"):
        open_local(path)
    done = run_python(
        """
        import sys
        import ephemera
        try:
            ephemera.open(sys.argv[1])
        except ephemera.StoreLocked as error:
            print(error)
        """,
        path,
    )
    assert f"in process {os.getpid()} " in done.stdout
    assert done.stdout.endswith("close it there, or end that process\n")
    store.put("key", "value")
    store.close()
    assert open_store().get("key") == b"value"


def test_nobody_becomes_exclusive_beside_others(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    with pytest.raises(StoreLocked, match="exclusive"):
        open_local(path, exclusive=True)
    store.put("key", "value")
    store.close()
    assert open_store(exclusive=True).get("key") == b"value"


def test_an_exclusive_owner_is_named_to_one_who_wants_the_same(
    open_store: Callable[..., Store], path: Path
) -> None:
    open_store(exclusive=True)
    with pytest.raises(StoreLocked, match=f"in process {os.getpid()} .*: close it there"):
        open_local(path, exclusive=True)


def test_a_killed_exclusive_owner_locks_nobody_out(
    open_store: Callable[..., Store], path: Path
) -> None:
    code = """
        import sys
        import ephemera
        store = ephemera.open(sys.argv[1], exclusive=True, segment_bytes=65536)
        store.put("key", "value")
        print("open", flush=True)
        sys.stdin.readline()
    """
    with start_python(code, path) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=str(owner.pid)):
            open_local(path)
        owner.kill()
        owner.wait(30)
    assert open_store(clock=None).get("key") == b"value"


def test_two_who_create_a_store_at_once_both_have_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    others: list[Store] = []

    def create_meanwhile(fd: int) -> None:
        monkeypatch.undo()
        fsync(fd)
        others.append(open_local(path))

    # The first sync of all is that of the file `format`, which has no name yet.
    monkeypatch.setattr(os, "fsync", create_meanwhile)
    try:
        with open_local(path) as store:
            store.put("key", "value")
            assert [other.get("key") for other in others] == [b"value"]
    finally:
        for other in others:
            other.close()


def test_openers_and_closers_in_a_crowd_lose_nothing(path: Path) -> None:
    open_local(path).close()
    errors: list[BaseException] = []
    threads = [
        threading.Thread(target=come_and_go, args=(path, str(n), errors), daemon=True)
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    with open_local(path) as store:
        assert store.count() == 60
        assert store.check().is_clean


def test_one_who_opens_while_the_last_one_leaves_is_not_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_local(path)
    attachment = engine_of(store)._attachment
    close = attachment.close
    opened: list[Store] = []

    def open_and_close() -> None:
        opened.append(open_local(path))
        close()

    monkeypatch.setattr(attachment, "close", open_and_close)
    store.close()
    assert len(opened) == 1
    for late in opened:
        late.put("key", "value")
        late.close()


def come_and_go(path: Path, name: str, errors: list[BaseException]) -> None:
    try:
        for number in range(15):
            with open_local(path) as store:
                store.put(f"{name} {number}", "1")
                assert store.get(f"{name} {number}") == b"1"
    except BaseException as error:
        errors.append(error)


# --- read only ------------------------------------------------------------------------------------


def test_a_read_only_store_follows_a_writer_and_writes_nothing(
    open_store: Callable[..., Store],
) -> None:
    writer, reader = open_store(), open_store(read_only=True)
    writer.put("key", "1")
    assert reader.get("key") == b"1"
    writer.compact()
    assert contents(reader) == {b"key": b"1"}
    for write in (
        lambda: reader.put("key", "2"),
        lambda: reader.delete("key"),
        lambda: reader.delete("absent"),
        lambda: reader.incr("counter"),
        lambda: reader.transaction(),
        lambda: reader.clear(),
        lambda: reader.family("new"),
        lambda: reader.purge_expired(),
        lambda: reader.checkpoint(),
        lambda: reader.compact(),
    ):
        with pytest.raises(ReadOnly):
            write()
    assert writer.families() == ["default"]


def test_a_read_only_store_needs_one_that_is_there(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no store"):
        open_local(path, read_only=True)
    assert not path.exists()


def test_a_read_only_first_opener_shows_what_a_crash_left(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    store.put("key", "1")
    store.close()
    assert len(segment_files(path)) == 1
    reader = open_store(read_only=True)
    assert reader.get("key") == b"1"
    writer = open_store()
    writer.put("key", "2")
    assert reader.get("key") == b"2"


# --- backup ---------------------------------------------------------------------------------------


def test_a_backup_under_writes_is_a_consistent_store(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    store = open_store()
    with store.transaction() as transaction:
        transaction.put("left", "0")
        transaction.put("right", "0")
    is_over, has_begun = threading.Event(), threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            store.put_many({"left": str(number), "right": str(number), "pad": "x" * 900})
            has_begun.set()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    assert has_begun.wait(30)
    for number in range(5):
        store.backup(tmp_path / f"backup {number}")
        if number % 2:
            store.checkpoint()
    is_over.set()
    thread.join(30)
    lasts = []
    for number in range(5):
        copy = open_store(tmp_path / f"backup {number}")
        assert copy.check().is_clean
        assert copy.get("left") == copy.get("right")
        lasts.append(int(copy["left"]))
        copy.put("left", "written to the copy")
        copy.checkpoint()
        assert copy.get("left") == b"written to the copy"
    assert lasts == sorted(lasts)
    assert store.get("left") == store.get("right")


def test_a_backup_carries_families_deadlines_and_the_untold(
    open_store: Callable[..., Store], clock: ManualClock, tmp_path: Path
) -> None:
    store = open_store()
    store.family("codes", default_ttl=300).put("a", "1")
    store.put("undelivered", "2", ttl=1)
    clock.advance(1)
    store.checkpoint()
    store.put("above", "3", ttl=60)
    store.backup(tmp_path / "backup")
    copy = open_store(tmp_path / "backup")
    assert copy.family("codes").ttl("a") == 299
    assert copy.ttl("above") == 60
    assert copy.purge_expired() == 1


def test_a_backup_goes_to_a_new_place_only(store: Store, path: Path, tmp_path: Path) -> None:
    store.put("key", "value")
    (tmp_path / "taken").mkdir()
    for place in (tmp_path / "taken", path):
        with pytest.raises(InvalidArgument, match=place.name):
            store.backup(place)
    assert store.get("key") == b"value"


# --- the end --------------------------------------------------------------------------------------


def test_whatever_is_left_open_ends_with_its_store(open_store: Callable[..., Store]) -> None:
    store = open_store()
    store.put_many({b"%d" % n: b"1" for n in range(2_000)})
    store.checkpoint()
    snapshot = store.snapshot()
    scan = store.scan()
    next(scan)
    store.close()
    for use in (
        lambda: store.get("1"),
        lambda: store.put("1", "2"),
        lambda: snapshot.get("1"),
        lambda: list(scan),
        lambda: store.snapshot(),
        lambda: store.stats(),
    ):
        with pytest.raises(StoreClosed):
            use()
    snapshot.close()
    store.close()


def test_a_forgotten_store_closes_itself(path: Path) -> None:
    store = open_local(path, maintenance="background")
    store.put("key", "value")
    engine = weakref.ref(engine_of(store))
    del store
    wait_until_forgotten(engine, path)
    with open_local(path) as again:
        assert again.get("key") == b"value"


def test_a_forgotten_store_may_be_collected_in_the_middle_of_an_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten = open_local(path)
    forgotten.put("key", "value")
    knot: list[object] = [forgotten]
    knot.append(knot)
    del forgotten, knot
    look_up = base_tier._identity

    def collect(path: Path) -> tuple[int, int]:
        gc.collect()
        return look_up(path)

    monkeypatch.setattr(base_tier, "_identity", collect)
    with open_local(path) as again:
        assert again.get("key") == b"value"
    wait_until(lambda: is_free(path))


def test_a_collection_leaves_a_lock_to_the_thread_that_closes_the_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have begun before all that was collected is finalized."""

    class Closing(deque[LocalEngine]):
        def append(self, collected: LocalEngine) -> None:
            super().append(collected)
            assert collected._attachment._opening.try_take()

    monkeypatch.setattr(maintenance, "forgotten", forgotten := Closing())
    monkeypatch.setattr(maintenance, "close_forgotten", lambda seconds=0.0: None)
    store = open_local(path)
    del store
    gc.collect()
    (collected,) = forgotten
    other = FileLock(path / "locks" / "open")
    assert not other.try_take()
    collected.close()
    assert other.try_take()
    other.close()


def test_an_opening_waits_for_the_thread_that_closes_a_forgotten_store(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closing, is_opening = threading.Event(), threading.Event()
    let_go, close_forgotten = LocalEngine._let_go, maintenance.close_forgotten

    def let_go_slowly(collected: LocalEngine) -> None:
        is_closing.set()
        assert is_opening.wait(PATIENCE_S)
        let_go(collected)

    def close_them(seconds: float = 0.0) -> None:
        if threading.current_thread() is threading.main_thread():
            is_opening.set()
        close_forgotten(seconds)

    store = open_local(path)
    monkeypatch.setattr(LocalEngine, "_let_go", let_go_slowly)
    del store
    wait_until(lambda: gc.collect() >= 0 and is_closing.is_set())
    monkeypatch.setattr(maintenance, "close_forgotten", close_them)
    open_local(path, exclusive=True).close()


def test_the_last_one_out_leaves_nothing_but_the_base_tier(path: Path) -> None:
    one = open_local(path, maintenance="background")
    two = open_local(path, maintenance="background")
    one.put("key", "1")
    one.close()
    two.put("key", "2")
    two.close()
    assert segment_files(path) == []
    with open_local(path) as store:
        assert store.get("key") == b"2"


def test_a_failed_opening_leaves_the_store_to_others(path: Path) -> None:
    with open_local(path) as store:
        store.put("key", "value")
    (file,) = segment_files(path)
    whole = file.read_bytes()
    file.write_bytes(b"\0" * len(whole))
    for _ in range(3):
        with pytest.raises(CorruptStore):
            open_local(path)
    file.write_bytes(whole)
    with open_local(path, exclusive=True) as store:
        assert store.get("key") == b"value"


def test_a_failed_opening_is_undone_before_anybody_else_may_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_local(path).close()
    is_open_to_others: dict[str, bool] = {}

    def note(name: str) -> None:
        other = FileLock(path / "locks" / "open")
        is_open_to_others.setdefault(name, other.try_take())
        other.close()

    close_base, close_lock = base_tier.BaseTier.close, FileLock.close

    def closing_base(self: base_tier.BaseTier) -> None:
        note("base tier")
        close_base(self)

    def closing_lock(self: FileLock) -> None:
        if self.path.name == "attach":
            note("attach")
        close_lock(self)

    def fail(*given: object) -> None:
        raise StoreFull("no room")

    monkeypatch.setattr(base_tier.BaseTier, "close", closing_base)
    monkeypatch.setattr(FileLock, "close", closing_lock)
    monkeypatch.setattr(engine, "Expiry", fail)
    with pytest.raises(StoreFull):
        open_local(path)
    assert not is_open_to_others["base tier"]
    assert not is_open_to_others["attach"]
    monkeypatch.undo()
    open_local(path, exclusive=True).close()


def test_a_closed_store_makes_no_segment(open_store: Callable[..., Store], path: Path) -> None:
    store, other = open_store(), open_store()
    entered, closed = threading.Event(), threading.Event()

    def change(row: Row | None, now_ms: int) -> Row:
        entered.set()
        assert closed.wait(60)
        return Row(b"late", now_ms)

    family = engine_of(store).family("default", create=False)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(engine_of(store).update, family, b"k", change)
        assert entered.wait(60)
        store.close()
        before = segment_files(path)
        closed.set()
        with pytest.raises(StoreClosed):
            late.result()
    assert segment_files(path) == before
    assert other.get("k") is None
    other.put("k", "in time")
    assert other.get("k") == b"in time"


def test_a_store_that_is_closed_while_it_makes_room_says_so(
    open_store: Callable[..., Store],
) -> None:
    store, other = open_store(), open_store()
    engine_of(store)._segments.on_frozen = lambda: in_a_thread(store.close) and None
    with pytest.raises(StoreClosed):
        store.put("k", "v")
    other.put("k", "v")
    assert other.get("k") == b"v"


def test_a_read_goes_on_with_its_reader_when_another_thread_follows_a_compaction(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = open_store(), open_store()
    store.put("k", "v")
    store.checkpoint()
    pinned, followed = threading.Event(), threading.Event()
    pin = base_tier.BaseFile.pin

    def pin_slowly(file: base_tier.BaseFile) -> Tree | None:
        tree = pin(file)
        if threading.current_thread() is not threading.main_thread():
            pinned.set()
            assert followed.wait(60)
        return tree

    monkeypatch.setattr(base_tier.BaseFile, "pin", pin_slowly)
    other.compact()
    assert store.get("absent") is None
    reader = engine_of(store)._base.reader
    reader.renew()
    with ThreadPoolExecutor(1) as threads:
        held = sys.getrefcount(reader)
        found = threads.submit(store.get, "k")
        assert pinned.wait(60)
        assert sys.getrefcount(reader) > held  # whoever reads has it too
        other.compact()
        assert store.get("absent") is None
        assert engine_of(store)._base.reader is not reader
        followed.set()
        assert found.result() == b"v"


def test_an_interrupt_between_segments_brings_no_older_value_back(
    open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(exclusive=True)
    store.put("k", "old")
    store.checkpoint()
    assert store.get("k") == b"old"
    store.put("k", "new")
    kept_with = Segments._kept_with

    def interrupted(*_: object) -> list[Segment]:
        monkeypatch.setattr(Segments, "_kept_with", kept_with)
        raise KeyboardInterrupt

    monkeypatch.setattr(Segments, "_kept_with", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.checkpoint()
    assert store.get("k") == b"new"


def test_an_interrupt_before_a_new_segment_is_told_of_loses_nothing_at_recovery(
    open_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "before")
    store.put("a", "1")
    engine_of(store)._segments.freeze()
    page = engine_of(store)._segments.control

    class Interrupted:
        """The control page, until the new segment is to be published."""

        def __getattr__(self, name: str) -> object:
            return getattr(page, name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(page, name, value)

        def publish(self) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Segments, "control", Interrupted(), raising=False)
        with pytest.raises(KeyboardInterrupt):
            store.put("b", "2")
    store.put("c", "3")
    again = open_store(crash_copy(tmp_path / "before", tmp_path / "after"))
    assert contents(again) == {b"a": b"1", b"c": b"3"}


def test_an_interrupt_after_half_a_batch_leaves_the_rest_to_the_next_writer(
    open_store: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "before")
    engine = engine_of(store)
    store.put("a", "1")
    family = engine.family("default", create=False)
    broken = Row("text", 0)  # type: ignore[arg-type]  # no bytes: the batch ends in its middle
    seen_to = Segments.writer_died

    def interrupted(_: Segments) -> None:
        monkeypatch.setattr(Segments, "writer_died", seen_to)
        raise KeyboardInterrupt

    monkeypatch.setattr(Segments, "writer_died", interrupted)
    half = [(family, b"half", Row(b"2", 0)), (family, b"broken", broken)]
    with pytest.raises(KeyboardInterrupt):
        engine.write(half)
    store.put("c", "3")
    assert len(segment_files(tmp_path / "before")) == 2  # what is linked is not written over
    assert contents(store) == {b"a": b"1", b"c": b"3"}
    assert store.check().is_clean
    again = open_store(crash_copy(tmp_path / "before", tmp_path / "after"))
    assert contents(again) == {b"a": b"1", b"c": b"3"}


def test_a_thread_that_never_waits_for_checkpoints_is_that_one_alone(store: Store) -> None:
    segments = engine_of(store)._segments
    segments.asking.goes_on = True
    assert segments.goes_on()
    waits: list[bool] = []
    assert in_a_thread(lambda: waits.append(not segments.goes_on())) == []
    assert waits == [True]


def test_a_list_of_a_scan_lets_signals_and_other_threads_in(store: Store) -> None:
    store.put_many({b"%06d" % number: b"v" for number in range(300_000)})
    store.checkpoint()
    rows = store.scan()
    taken, heard = [next(rows)], list[int]()
    before = signal.signal(signal.SIGVTALRM, lambda *_: heard.append(len(taken)))
    gc.disable()  # whoever is called back by it lets signals in, too
    try:
        # Of this process's own time, which the system counts in steps of a few milliseconds: the scan takes fifty.
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
        taken.extend(rows)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()
    assert heard
    assert heard[0] < len(taken) == 300_000


def test_a_turn_ends_in_the_thread_that_took_it(open_store: Callable[..., Store]) -> None:
    store = open_store(lock_timeout=0.1)
    transaction = engine_of(store).begin()
    refusals: list[str] = []

    def end() -> None:
        try:
            transaction.commit([], durable=None)
        except InvalidArgument as error:
            refusals.append(str(error))

    in_a_thread(end)
    assert len(refusals) == 1
    assert "thread" in refusals[0]
    transaction.close()
    store.put("key", "2")
    assert store.get("key") == b"2"


def test_a_path_below_a_file_is_refused_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(InvalidArgument):
        open_local(tmp_path / "file" / "store")


def test_a_store_closes_however_long_lock_timeout_is(path: Path) -> None:
    """Python waits for a thread for 292 years at most."""
    store = open_local(path, maintenance="background", lock_timeout=threading.TIMEOUT_MAX * 2)
    store.put("a", "1")
    store.close()
    assert is_free(path)
