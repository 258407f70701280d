"""A store that was open when its process forked works in parent and child alike."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import ManualClock, Store
from ephemera.engines.local import base_tier
from tests.crash.processes import SMALL_SEGMENT_BYTES, TINY_SEGMENT_BYTES, Peer, in_fork
from tests.engines.local.stores import engine_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fork.eph"


@pytest.fixture(params=["manual", "background"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Store]:
    with ephemera.open(
        path, maintenance=request.param, segment_bytes=SMALL_SEGMENT_BYTES, lock_timeout=5
    ) as store:
        yield store


def test_parent_and_child_see_each_other_s_writes(store: Store) -> None:
    store.put(b"before", b"1")
    child = in_fork(lambda: (store.get(b"before"), store.put(b"child", b"2"), store.incr(b"n")))
    assert child.result() == (b"1", None, 1)
    assert store.get(b"child") == b"2"
    assert store.incr(b"n") == 2
    assert in_fork(lambda: store.get(b"n")).result() == b"2"
    assert store.check().problems == ()


def test_parent_and_child_write_at_the_same_time(store: Store) -> None:
    def count() -> None:
        for number in range(1_500):
            store.incr(b"n")
            store.put(b"%d:%d" % (os.getpid(), number % 50), b"x" * 300, ttl=3600)

    child = in_fork(count)
    count()
    child.result()
    assert store.get(b"n") == b"3000"
    assert store.count() == 101
    assert store.check().problems == ()


def test_the_child_of_a_manual_store_tells_nothing_by_itself(path: Path) -> None:
    clock = ManualClock()
    with ephemera.open(path, maintenance="manual", clock=clock) as store:
        store.on_expire(lambda event: None)
        store.put("k", "v", ttl=1)
        clock.advance(2)
        child = in_fork(lambda: (store.get("k"), engine_of(store)._announcer))
        assert child.result() == (None, None)


def test_a_child_reads_what_lies_in_the_base_tier(store: Store) -> None:
    store.put_many({b"%d" % number: b"x" for number in range(100)})
    store.checkpoint()
    assert store.get(b"7") == b"x"
    assert in_fork(lambda: (store.get(b"7"), store.count())).result() == (b"x", 100)
    assert (store.get(b"7"), store.count()) == (b"x", 100)


def test_a_snapshot_of_a_former_generation_does_not_keep_a_child_from_its_store(
    store: Store,
) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as snapshot:
        store.compact()
        assert in_fork(lambda: store.get(b"a")).result() == b"1"
        assert snapshot.get(b"a") == b"1"


def test_a_child_follows_a_compaction_that_came_before_its_first_use(store: Store) -> None:
    store.put(b"a", b"1")
    store.checkpoint()
    reader, writer = os.pipe()
    child = in_fork(lambda: (os.read(reader, 1), store.get(b"a"), store.incr(b"n")))
    store.compact()
    store.compact()
    os.write(writer, b"!")
    assert child.result() == (b"!", b"1", 1)
    os.close(reader)
    os.close(writer)
    assert store.get(b"n") == b"1"


def test_a_fork_waits_for_files_that_are_being_opened_or_closed(store: Store) -> None:
    store.put(b"a", b"1")
    store.checkpoint()
    is_taken = threading.Event()

    def close_slowly() -> None:
        with base_tier._opening:
            is_taken.set()
            threading.Event().wait(0.1)

    thread = threading.Thread(target=close_slowly)
    thread.start()
    is_taken.wait()
    assert in_fork(lambda: store.get(b"a")).result() == b"1"
    thread.join()
    assert store.get(b"a") == b"1"


def test_a_child_does_not_end_what_the_parent_has_pinned(store: Store) -> None:
    store.put(b"a", b"1")
    store.checkpoint()
    file = engine_of(store)._base.file
    tree = file.pin()
    assert tree is not None
    readers = file._env.readers()
    assert str(os.getpid()) in readers
    in_fork(lambda: store.get(b"a")).result()
    assert str(os.getpid()) in file._env.readers()
    assert tree.is_sure


def test_the_child_s_exit_does_not_harm_the_parent(store: Store) -> None:
    for number in range(5):
        in_fork(lambda: store.incr(b"n")).result()
        assert store.incr(b"parent") == number + 1
        store.checkpoint()
    assert store.get(b"n") == b"5"
    assert store.check().problems == ()


def test_the_child_may_close_the_store_and_the_parent_goes_on(store: Store) -> None:
    in_fork(store.close).result()
    store.put(b"a", b"1")
    store.checkpoint()
    assert store.get(b"a") == b"1"


def test_the_parent_may_close_the_store_and_the_child_goes_on(path: Path) -> None:
    store = ephemera.open(path)
    store.put(b"a", b"1")
    may_go_on = multiprocessing.get_context("fork").Event()

    def go_on() -> bytes | None:
        assert may_go_on.wait(30)
        store.put(b"b", b"2")
        store.checkpoint()
        return store.get(b"a")

    child = in_fork(go_on)
    store.close()
    may_go_on.set()
    assert child.result() == b"1"
    with ephemera.open(path) as again:
        assert again.get(b"b") == b"2"


def test_killing_the_child_does_not_harm_the_parent(store: Store) -> None:
    begun = multiprocessing.get_context("fork").Event()

    def write_on() -> None:
        while True:
            store.incr(b"n")
            begun.set()

    child = in_fork(write_on)
    assert begun.wait(30)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    before = int(store[b"n"])
    assert store.incr(b"n") == before + 1
    assert store.check().problems == ()


def outcome(act: Callable[[], object]) -> object:
    """What a function returns, or the name of the error of ours that it raises."""
    try:
        return act()
    except ephemera.EphemeraError as error:
        return type(error).__name__


def test_a_fork_inside_a_transaction_does_not_harm_the_parent(store: Store) -> None:
    with store.transaction() as txn:
        txn.put(b"a", b"parent")
        child = in_fork(lambda: outcome(lambda: store.get(b"a")))
        # The child sees the state before the commit, or is told that it cannot use this store.
        assert child.result() in (None, "StoreClosed")
        txn.put(b"b", b"parent")
    assert store.get_many([b"a", b"b"]) == {b"a": b"parent", b"b": b"parent"}
    assert in_fork(lambda: store.get(b"a")).result() == b"parent"
    store.put(b"c", b"1")
    assert store.check().problems == ()


def test_a_child_of_a_fork_inside_a_transaction_can_open_the_store_anew(
    store: Store, path: Path
) -> None:
    store.put(b"n", b"1")

    def open_anew() -> bytes | None:
        with ephemera.open(path) as again:
            return again.get(b"n")

    with store.transaction() as txn:
        txn.incr(b"n")
        child = in_fork(open_anew)
        assert child.result() == b"1"
    assert store.get(b"n") == b"2"


def test_the_copy_of_a_transaction_in_the_child_changes_nothing(store: Store) -> None:
    def commit_the_copy(txn: ephemera.Transaction) -> None:
        txn.put(b"a", b"child")
        txn.commit()

    with store.transaction() as txn:
        txn.put(b"a", b"parent")
        child = in_fork(lambda: outcome(lambda: commit_the_copy(txn)))
        assert child.result() == "StoreClosed"
        assert store.get(b"a") is None
    assert store.get(b"a") == b"parent"
    store.put(b"b", b"1")
    assert store.check().problems == ()


def test_a_snapshot_survives_a_fork_in_the_parent(store: Store) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as snap:
        in_fork(lambda: None).result()
        store.put(b"a", b"2")
        assert snap.get(b"a") == b"1"
        assert dict(snap.scan()) == {b"a": b"1"}


def test_forking_while_threads_of_the_parent_write(store: Store) -> None:
    is_over = threading.Event()
    failures: list[BaseException] = []

    def write_on(number: int) -> None:
        try:
            while not is_over.is_set():
                store.incr(b"thread:%d" % number)
                store.get(b"thread:%d" % (1 - number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write_on, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            child = in_fork(lambda: (store.incr(b"children"), store.count()))
            assert child.result()[0] == number + 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert store.check().problems == ()


def test_a_grandchild_works_too(store: Store) -> None:
    def beget() -> object:
        store.put(b"child", b"1")
        return in_fork(lambda: store.incr(b"child")).result()

    assert in_fork(beget).result() == 2
    assert store.get(b"child") == b"2"


def test_families_snapshots_and_scans_work_in_the_child(store: Store) -> None:
    guests = store.family("guests", default_ttl=60)
    guests.put(b"a", b"1")

    def use() -> list[str]:
        guests.put(b"b", b"2")
        with store.snapshot() as snap:
            assert dict(snap.family("guests").scan()) == {b"a": b"1", b"b": b"2"}
        store.family("fresh").put(b"c", b"3")
        guests.clear()
        return store.families()

    assert in_fork(use).result() == ["default", "fresh", "guests"]
    assert guests.count() == 0
    assert store.family("fresh").get(b"c") == b"3"


def test_the_background_works_in_the_child(path: Path) -> None:
    """A child that writes more than may wait gets on only if somebody checkpoints."""
    with ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES) as store:

        def fill_and_listen() -> bytes:
            for number in range(1_000):
                store.put(b"%d" % number, b"x" * 1_000)
            heard = threading.Event()
            keys: list[bytes] = []
            store.on_expire(lambda expired: (keys.append(expired.key), heard.set()))
            store.put(b"brief", b"1", ttl=0.01)
            assert heard.wait(30)
            return keys[0]

        assert in_fork(fill_and_listen).result() == b"brief"
        assert store.count() == 1_000
        assert store.stats()["background_error"] is None


def test_the_background_of_an_orphan_goes_on(path: Path) -> None:
    """The parent held the maintenance lock; when it has closed, its child takes over."""
    store = ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES)
    may_go_on = multiprocessing.get_context("fork").Event()

    def fill() -> int:
        assert may_go_on.wait(30)
        for number in range(1_000):
            store.put(b"%d" % number, b"x" * 1_000)
        return store.count()

    child = in_fork(fill)
    store.close()
    may_go_on.set()
    assert child.result() == 1_000


def test_a_listener_in_the_parent_is_not_called_in_the_child(path: Path) -> None:
    heard: list[tuple[int, bytes]] = []
    told = threading.Event()
    with ephemera.open(path) as store:
        store.on_expire(lambda expired: (heard.append((os.getpid(), expired.key)), told.set()))
        in_fork(lambda: store.put(b"brief", b"1", ttl=0.01)).result()
        assert told.wait(30)
    assert heard == [(os.getpid(), b"brief")]


def test_a_store_that_nobody_uses_in_the_child_costs_it_nothing(path: Path) -> None:
    """An exclusive store stays the parent's; a child that never touches it takes nothing away."""
    with ephemera.open(path) as store:
        in_fork(lambda: None).result()
        store.put(b"a", b"1")
        with Peer(path) as peer:
            assert peer.do("get", b"a") == b"1"
    with ephemera.open(path, exclusive=True) as store:
        assert store.get(b"a") == b"1"


def _count_in_process(store: Store, times: int) -> None:
    for _ in range(times):
        store.incr(b"n")


def test_multiprocessing_with_fork_works(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_count_in_process, args=(store, 200)) for _ in range(3)]
    for child in children:
        child.start()
    _count_in_process(store, 200)
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert store.get(b"n") == b"800"
    assert store.check().problems == ()


def test_a_process_that_was_started_by_exec_inherits_no_lock(path: Path) -> None:
    import subprocess
    import sys

    store = ephemera.open(path)
    store.put(b"a", b"1")
    other = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        close_fds=False,
    )
    assert other.stdout is not None
    try:
        # The parent of an exec may go on a moment before the child's files are closed.
        other.stdout.readline()
        store.close()
        with ephemera.open(path, exclusive=True) as again:
            assert again.get(b"a") == b"1"
    finally:
        other.communicate(b"\n")


@pytest.mark.soak
def test_a_thousand_forks(store: Store) -> None:
    act: Callable[[], int] = lambda: store.incr(b"n")  # noqa: E731
    for number in range(1_000):
        assert in_fork(act).result() == number + 1
    assert store.check().problems == ()
