"""A store that was open when its process forked works in parent and child alike."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

import ephemera
from ephemera import ManualClock, Store
from ephemera.engines.local import base_tier
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import FileLock
from tests.crash.processes import SMALL_SEGMENT_BYTES, TINY_SEGMENT_BYTES, Forked, Peer, in_fork
from tests.engines.local.stores import engine_of, in_a_thread, wait_until_forgotten


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


def test_a_child_works_while_a_thread_of_the_parent_opens_or_closes_files(store: Store) -> None:
    store.put(b"a", b"1")
    store.checkpoint()
    is_taken, may_end = threading.Event(), threading.Event()

    def close_slowly() -> None:
        with base_tier._opening:
            is_taken.set()
            may_end.wait(60)

    thread = threading.Thread(target=close_slowly)
    thread.start()
    is_taken.wait()
    assert in_fork(lambda: store.get(b"a")).result() == b"1"
    may_end.set()
    thread.join()
    assert store.get(b"a") == b"1"


@contextmanager
def thread_inside_lmdb(store: Store) -> Iterator[None]:
    """Have a thread in the middle of a call of LMDB: it copies the base tier to a pipe that nobody reads."""
    store.put(b"large", bytes(1_000_000))
    store.checkpoint()
    reader, writer = os.pipe()

    def copy() -> None:
        engine_of(store)._base.file._env.copyfd(writer, compact=True)
        os.close(writer)

    thread = threading.Thread(target=copy)
    thread.start()
    os.read(reader, 1)  # so it has begun
    yield
    while os.read(reader, 65_536):
        pass
    os.close(reader)
    thread.join()


def test_a_child_does_not_wait_for_a_thread_that_was_inside_lmdb(store: Store) -> None:
    with thread_inside_lmdb(store):
        child = in_fork(lambda: (store.incr(b"n"), store.count(), store.checkpoint()))
        assert child.result() == (1, 2, None)
        assert store.incr(b"n") == 2
    assert store.check().problems == ()


def test_the_interpreter_of_a_child_ends_though_a_thread_was_inside_lmdb(tmp_path: Path) -> None:
    """It finalizes every object; but not the environment that it inherited."""
    script = f"""
import os, sys
import ephemera
from tests.crash.test_fork import thread_inside_lmdb
with ephemera.open({str(tmp_path / "store")!r}) as store:
    with thread_inside_lmdb(store):
        child = os.fork()
        if child == 0:
            assert store.count() == 1
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ran.stdout, ran.stderr) == ("7\n", "")


def keep_busy(store: Store, is_over: threading.Event, failures: list[BaseException]) -> None:
    """Scan, take snapshots, transact and checkpoint, until it is over."""
    try:
        for number in itertools.count():
            if is_over.is_set():
                return
            for _ in store.scan():
                pass
            with store.snapshot() as snapshot:
                snapshot.get(b"key:%d" % (number % 500))
                for _ in snapshot.scan(reverse=True):
                    pass
            with store.transaction() as txn:
                txn.incr(b"busy")
                for _ in txn.scan(start=b"key:1", end=b"key:2"):
                    pass
            if number % 8 == 0:
                store.checkpoint()
    except BaseException as error:
        failures.append(error)


def fork_under_threads(store: Store, forks: int) -> None:
    """Every child works, and so does the parent."""
    store.put_many({b"key:%d" % number: bytes(500) for number in range(500)})
    store.checkpoint()
    is_over, failures = threading.Event(), []  # type: ignore[var-annotated]  # BaseException
    threads = [
        threading.Thread(target=keep_busy, args=(store, is_over, failures)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()

    def use() -> tuple[int, int]:
        with store.snapshot() as snapshot:
            count = snapshot.count()
        assert store.get(b"key:7") == bytes(500)
        return store.incr(b"children"), count

    try:
        for number in range(1, forks + 1):
            assert in_fork(use).result() == (number, 502 if number > 1 else ANY)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert store.check().problems == ()


def test_forks_under_threads_that_scan_and_transact(store: Store) -> None:
    fork_under_threads(store, 15)


@pytest.mark.soak
def test_a_thousand_forks_under_threads_that_scan_and_transact(store: Store) -> None:
    fork_under_threads(store, 1_000)


def test_a_child_does_not_keep_the_locks_of_a_parent_that_closed(path: Path) -> None:
    store = ephemera.open(path)
    engine = engine_of(store)
    assert engine._attachment.maintenance.try_take()
    is_forked, may_end = (multiprocessing.get_context("fork").Event() for _ in range(2))
    child = in_fork(lambda: (is_forked.set(), may_end.wait(60)))
    assert is_forked.wait(60)
    store.close()
    other = FileLock(path / "locks" / "maintenance")
    assert other.try_take()
    other.close()
    may_end.set()
    assert child.result() == (None, True)


def fork_in(method: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have the next call of a method of an engine begin with a fork, in another thread. What is returned ends
    the child, which lives until then."""
    is_forked, may_end = (multiprocessing.get_context("fork").Event() for _ in range(2))
    act = getattr(LocalEngine, method)
    children: list[Forked] = []

    def fork() -> None:
        children.append(in_fork(lambda: (is_forked.set(), may_end.wait(60))))
        assert is_forked.wait(60)

    def fork_and_act(*given: object, **named: object) -> object:
        monkeypatch.setattr(LocalEngine, method, act)
        assert in_a_thread(fork) == []
        return act(*given, **named)

    monkeypatch.setattr(LocalEngine, method, fork_and_act)

    def end() -> None:
        may_end.set()
        assert [child.result() for child in children] == [(None, True)]

    return end


def test_a_child_keeps_no_lock_of_a_store_that_a_thread_was_opening(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = fork_in("_open", monkeypatch)
    ephemera.open(path).close()
    ephemera.open(path, exclusive=True).close()
    end()


def test_a_child_keeps_no_lock_of_a_forgotten_store_that_a_thread_was_closing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = fork_in("_let_go", monkeypatch)
    store = ephemera.open(path, maintenance="manual", durability="none")
    engine = weakref.ref(engine_of(store))
    del store
    wait_until_forgotten(engine, path)
    end()


def test_a_child_is_told_that_a_thread_of_its_parent_was_closing_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(b"a", b"1")
    settle = LocalEngine._settle
    outcomes: list[object] = []

    def fork_and_settle(engine: LocalEngine, *, is_last: bool) -> None:
        uses = (lambda: store.get(b"a"), lambda: store.put(b"a", b"2"), lambda: list(store.scan()))
        assert (
            in_a_thread(
                lambda: outcomes.append(in_fork(lambda: [outcome(use) for use in uses]).result())
            )
            == []
        )
        settle(engine, is_last=is_last)

    monkeypatch.setattr(LocalEngine, "_settle", fork_and_settle)
    store.close()
    assert outcomes == [["StoreClosed"] * 3]


def test_a_child_does_not_keep_an_exclusive_store_that_its_parent_has_closed(path: Path) -> None:
    """It could not use that: it is the parent's alone."""
    store = ephemera.open(path, exclusive=True)
    may_look = multiprocessing.get_context("fork").Event()
    child = in_fork(lambda: (may_look.wait(60), outcome(lambda: store.get(b"a"))))
    store.close()
    with ephemera.open(path, exclusive=True) as again:
        again.put(b"a", b"1")
    may_look.set()
    assert child.result() == (True, "StoreLocked")


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


@pytest.mark.parametrize(
    "use",
    [
        lambda txn: txn.get(b"a"),
        lambda txn: txn.put(b"a", b"child"),
        lambda txn: txn.delete(b"a"),
        lambda txn: txn.incr(b"n"),
        lambda txn: list(txn.scan()),
        lambda txn: txn.count(),
        lambda txn: txn.family("default"),
        lambda txn: txn.commit(),
        lambda txn: txn.rollback(),
    ],
)
def test_the_first_call_of_a_child_to_its_parent_s_transaction_says_that_it_is_not_its_own(
    store: Store, use: Callable[[ephemera.Transaction], object]
) -> None:
    with store.transaction() as txn:
        txn.put(b"a", b"parent")
        assert in_fork(lambda: outcome(lambda: use(txn))).result() == "StoreClosed"
    assert store.get(b"a") == b"parent"
    assert store.incr(b"after") == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda snapshot: snapshot.get(b"a"),
        lambda snapshot: list(snapshot.scan()),
        lambda snapshot: snapshot.count(),
        lambda snapshot: snapshot.family("default"),
        lambda snapshot: snapshot.__enter__(),
    ],
)
def test_the_first_call_of_a_child_to_its_parent_s_snapshot_says_that_it_is_not_its_own(
    store: Store, use: Callable[[ephemera.Snapshot], object]
) -> None:
    store.put(b"a", b"1")
    with store.snapshot() as snapshot:
        assert in_fork(lambda: outcome(lambda: use(snapshot))).result() == "StoreClosed"
        assert in_fork(snapshot.close).result() is None
        assert snapshot.get(b"a") == b"1"


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_child_is_told_that_a_scan_is_its_parent_s(
    store: Store, is_checkpointed: bool, is_begun: bool
) -> None:
    store.put_many({b"%d" % number: b"x" for number in range(9)})
    if is_checkpointed:
        store.checkpoint()
    with store.snapshot() as snapshot:
        for scan in (store.scan(), snapshot.scan()):
            seen = [next(scan)] if is_begun else []
            assert in_fork(lambda: outcome(lambda: next(scan))).result() == "StoreClosed"  # noqa: B023
            assert len([*seen, *scan]) == 9


def test_a_child_that_exits_inside_its_parent_s_transaction_exits_as_it_was_asked(
    store: Store,
) -> None:
    parent = os.getpid()
    try:
        with store.transaction() as txn:
            txn.put(b"a", b"parent")
            child = os.fork()
            if child == 0:
                sys.exit(7)
    except SystemExit:
        os._exit(7)
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.get(b"a") == b"parent"


def test_a_fork_inside_a_write_transaction_of_the_base_tier_leaves_it_to_the_parent(
    store: Store,
) -> None:
    file = engine_of(store)._base.file

    def commit_the_copy() -> None:
        with file.write() as txn:
            child = os.fork()
            txn.set_number(b"n", 1 if child else 2)
            if child:
                os.waitpid(child, 0)

    parent = os.getpid()
    try:
        commit_the_copy()
    except ephemera.StoreClosed:
        os._exit(0 if os.getpid() != parent else 1)
    finally:
        if os.getpid() != parent:
            os._exit(1)
    assert file.number(b"n") == 1


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
