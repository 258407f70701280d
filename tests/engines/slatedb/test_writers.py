"""Who may write: one process at a time, its threads together, and nobody after a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import ephemera
from ephemera import StoreFenced, TransactionConflict, UnsupportedOperation
from ephemera.core.row import Row
from ephemera.engines.slatedb import library
from ephemera.engines.slatedb.library import wait
from ephemera.engines.slatedb.writing import Writer
from tests.engines.slatedb.buckets import file_url, s3_url
from tests.waiting import wait_until

KEEPS_WRITING = """
import sys
import ephemera
with ephemera.open(sys.argv[1], durability="commit") as store:
    number = 0
    while True:
        batch = {f"key:{number + more:08}": str(number + more) for more in range(3)}
        store.put_many(batch, ttl=3600)
        store.incr("batches")
        number += 3
        print(number, flush=True)
"""
WRITES_BEFORE_DEATH = 20
SIGNAL_S = 0.02


@pytest.mark.parametrize("place", ["file", "s3"])
def test_what_was_acknowledged_as_durable_survives_kill_9(tmp_path: Path, place: str) -> None:
    url = file_url(tmp_path) if place == "file" else s3_url()
    writer = subprocess.Popen(
        [sys.executable, "-c", KEEPS_WRITING, url], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(WRITES_BEFORE_DEATH):
        writer.stdout.readline()
    writer.kill()
    acknowledged = [int(line) for line in writer.stdout.read().split()] or [WRITES_BEFORE_DEATH * 3]
    writer.wait()
    writer.stdout.close()
    with ephemera.open(url) as store:
        keys = [key for key, _ in store.scan("key:")]
        assert len(keys) >= acknowledged[-1] >= WRITES_BEFORE_DEATH * 3
        assert len(keys) % 3 == 0  # batches whole
        assert keys == [b"key:%08d" % number for number in range(len(keys))]
        assert int(store["batches"]) >= acknowledged[-1] // 3
        assert store.check().is_clean


@pytest.mark.parametrize("place", ["file", "s3"])
def test_a_newer_writer_fences_the_older_one(tmp_path: Path, place: str) -> None:
    url = file_url(tmp_path) if place == "file" else s3_url()
    older = ephemera.open(url, durability="commit")
    older.put("old", "1")
    with ephemera.open(url, durability="commit") as newer:
        assert newer.get("old") == b"1"
        newer.put("new", "2")
        for _ in range(3):
            with pytest.raises(StoreFenced, match="another writer"):
                older.put("lost", "3")
            with pytest.raises(StoreFenced):
                older.put_many({"lost": "3"})
            with pytest.raises(StoreFenced):
                older.incr("lost")
            with pytest.raises(StoreFenced), older.transaction() as transaction:
                transaction.put("lost", "3")
            with pytest.raises(StoreFenced):
                older.sync()
        assert dict(newer.scan()) == {b"old": b"1", b"new": b"2"}
        with pytest.raises(StoreFenced):
            older.close()
        newer.put("after", "4")
    with ephemera.open(url) as store:
        assert dict(store.scan()) == {b"old": b"1", b"new": b"2", b"after": b"4"}


def test_a_fenced_writer_that_waits_for_no_flush_stops_within_a_poll(tmp_path: Path) -> None:
    older = ephemera.open(file_url(tmp_path))
    with ephemera.open(file_url(tmp_path)) as newer:

        def is_fenced() -> bool:
            try:
                older.put("lost", "1")
            except StoreFenced:
                return True
            return False

        wait_until(is_fenced, what="the older writer is fenced")
        assert newer.count() == 0
        with pytest.raises(StoreFenced):
            older.close()


def test_an_update_is_repeated_when_a_write_came_in_between(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        ref = store.engine.family("default", create=False)
        assert ref is not None
        seen: list[bytes | None] = []

        def change(row: Row | None, now_ms: int) -> Row:
            seen.append(None if row is None else row.value)
            if len(seen) < 3:
                store.put("key", f"{len(seen)}")
            return Row(b"last", now_ms)

        store.engine.update(ref, b"key", change, durable=None)
        assert seen == [None, b"1", b"2"]
        assert store.get("key") == b"last"


def test_an_update_that_never_comes_through_says_so(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        ref = store.engine.family("default", create=False)
        assert ref is not None

        def change(row: Row | None, now_ms: int) -> Row:
            store.put("key", "in between")
            return Row(b"never", now_ms)

        with pytest.raises(TransactionConflict, match="100 times"):
            store.engine.update(ref, b"key", change, durable=None)
        assert store.get("key") == b"in between"


def test_threads_that_put_and_count_on_the_same_keys_lose_nothing(tmp_path: Path) -> None:
    threads, rounds = 8, 50
    with ephemera.open(file_url(tmp_path)) as store:

        def work(number: int) -> None:
            for step in range(rounds):
                store.incr("counter")
                store.put(f"own:{number}", str(step))
                store.put("shared", str(number))

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert store.get("counter") == b"%d" % (threads * rounds)
        assert all(store[f"own:{number}"] == b"%d" % (rounds - 1) for number in range(threads))


def test_threads_that_make_a_family_at_the_same_time_share_it(tmp_path: Path) -> None:
    threads = 8
    with ephemera.open(file_url(tmp_path)) as store:
        for attempt in range(10):
            ready = threading.Barrier(threads)

            def make(number: int, name: str, ready: threading.Barrier) -> None:
                ready.wait()
                store.family(name).put(str(number), "")

            workers = [
                threading.Thread(target=make, args=(number, f"family{attempt}", ready))
                for number in range(threads)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            family = store.family(f"family{attempt}")
            assert family.count() == threads
            family.clear()
            assert family.count() == store.family(f"family{attempt}").count() == 0


def test_a_scan_is_of_one_state_while_batches_are_written(tmp_path: Path) -> None:
    keys = [f"key:{number:04}" for number in range(2_000)]
    with ephemera.open(file_url(tmp_path)) as store:
        store.put_many(dict.fromkeys(keys, "0"))
        stop = threading.Event()

        def rewrite() -> None:
            generation = 1
            while not stop.is_set():
                store.put_many(dict.fromkeys(keys, str(generation)))
                generation += 1

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            for _ in range(10):
                values = [value for _, value in store.scan()]
                assert len(values) == len(keys)
                assert len(set(values)) == 1
        finally:
            stop.set()
            writer.join()


class Interrupted(Exception):
    """What the handler of a signal raises."""


@contextmanager
def signals() -> Iterator[None]:
    """Signals for this thread, again and again; one that finds it waiting for durability raises Interrupted.

    Anywhere else an interrupt would show something else, or be lost: in a finalizer nobody hears of it.
    """

    def interrupt(_: int, frame: FrameType | None) -> None:
        caller = None if frame is None else frame.f_back
        codes = [each.f_code for each in (frame, caller) if each is not None]
        if codes == [wait.__code__, Writer._wait_for.__code__]:
            raise Interrupted

    main, is_over = threading.get_ident(), threading.Event()

    def send() -> None:
        while not is_over.wait(SIGNAL_S):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def _is_interrupted(write: Callable[[], object]) -> bool:
    try:
        with signals():
            write()
    except Interrupted:
        return True
    return False


def test_an_interrupt_ends_a_wait_and_nothing_else(tmp_path: Path) -> None:
    store = ephemera.open(file_url(tmp_path, "flush_interval=600"))

    def commit() -> None:
        with store.transaction(durable=True) as transaction:
            transaction.put("b", "2")

    writes: list[Callable[[], object]] = [lambda: store.put("a", "1", durable=True), commit]
    for write in writes:
        # Each would take ten minutes; but SlateDB flushes for the first time soon after it was opened, and the
        # write that this finds is durable at once. The next one is not.
        assert _is_interrupted(write) or _is_interrupted(write)
    store.put("c", "3")
    with store.transaction() as transaction:
        transaction.put("d", "4")
    store.sync()
    assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}
    store.close()


def test_the_child_of_a_fork_is_told_to_open_elsewhere(tmp_path: Path) -> None:
    store = ephemera.open(file_url(tmp_path))
    store.put("a", "1")
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(
                told,
                _tried(lambda: store.get("a")) + _tried(lambda: ephemera.open(file_url(tmp_path))),
            )
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        assert pipe.read() == b"StoreClosed UnsupportedOperation "
    assert store.get("a") == b"1"
    store.close()


def _tried(call: object) -> bytes:
    assert callable(call)
    try:
        call()
    except ephemera.EphemeraError as error:
        return type(error).__name__.encode() + b" "
    return b"nothing raised "


def test_another_version_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library.METHODS, "db_write", (1, "writehandle"))
    with pytest.raises(UnsupportedOperation, match=r"another db_write than version 0\.17"):
        library.load.__wrapped__()


def test_without_the_package_the_install_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slatedb.uniffi._slatedb_uniffi", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'ephemera-kv\[slatedb\]'"):
        library.load.__wrapped__()
