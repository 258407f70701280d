"""durability="commit": one sync serves every writer that waits, in all threads and processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

import ephemera
from ephemera import Store
from ephemera.core.keyvalue import KeyValue
from ephemera.core.options import Options
from ephemera.engines.local.engine import LocalEngine
from ephemera.engines.local.files import Files, Mapped
from tests.crash.processes import SMALL_SEGMENT_BYTES, Seat, peers

THREADS = 16


class GatedFiles(Files):
    """A disk whose syncs wait while its gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.is_syncing = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def shut(self) -> None:
        self.is_syncing.clear()
        self.gate.clear()

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        self.is_syncing.set()
        assert self.gate.wait(30)
        super().sync(mapped, start, end)


@contextmanager
def open_over(path: Path, files: Files) -> Iterator[Store]:
    options = Options(durability="commit", maintenance="manual", segment_bytes=SMALL_SEGMENT_BYTES)
    # The same cast as where `ephemera.open` picks an engine.
    engine = cast(KeyValue, LocalEngine(str(path), options, files))
    with Store(engine, str(path), None) as store:
        # There is a segment to write to, so that nothing but writes asks for a sync.
        store.put(b"first", b"x")
        yield store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "commit.eph"


def start_writers(store: Store, start: int, count: int) -> list[threading.Thread]:
    threads = [
        threading.Thread(target=store.put, args=(b"%d" % number, b"x"))
        for number in range(start, start + count)
    ]
    for thread in threads:
        thread.start()
    return threads


def wait_for_keys(store: Store, count: int) -> None:
    """What was written can be read before it is on the disk; it is only not acknowledged yet."""
    while store.count() < count:
        pass


def test_sixteen_threads_share_syncs(path: Path) -> None:
    files = GatedFiles()
    with open_over(path, files) as store:
        for turn in range(5):
            files.shut()
            before = store.stats()["syncs"]
            threads = start_writers(store, turn * THREADS, THREADS)
            assert files.is_syncing.wait(30)
            wait_for_keys(store, 1 + (turn + 1) * THREADS)
            assert all(thread.is_alive() for thread in threads)
            files.gate.set()
            for thread in threads:
                thread.join()
            # The one that was under way, and one for all that came meanwhile.
            assert store.stats()["syncs"] - before <= 2
        assert store.stats()["syncs"] <= 11 < store.count() == 81


def test_whoever_stands_before_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Files().syncs_directly is (sys.platform != "darwin")
    assert not GatedFiles().syncs_directly
    monkeypatch.setattr(Files, "sync", GatedFiles.sync)
    assert not Files().syncs_directly


def put_often(store: Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put(b"%d" % number, b"x")


def test_threads_share_the_syncs_of_the_system_too(path: Path) -> None:
    # Nothing stands between the store and the system here: the syncs are done without the GIL.
    with open_over(path, Files()) as store:
        before = store.stats()["syncs"]
        threads = [
            threading.Thread(target=put_often, args=(store, 100 * number, 100))
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.count() == 1 + 100 * THREADS
        assert 100 <= store.stats()["syncs"] - before <= 100 * THREADS


def test_a_write_is_acknowledged_only_after_a_sync_that_began_after_it(path: Path) -> None:
    files = GatedFiles()
    with open_over(path, files) as store:
        before = store.stats()["syncs"]
        files.shut()
        (first,) = start_writers(store, 0, 1)
        assert files.is_syncing.wait(30)
        (second,) = start_writers(store, 1, 1)
        wait_for_keys(store, 3)
        files.gate.set()
        first.join()
        second.join()
        assert store.stats()["syncs"] - before == 2


def test_a_transaction_and_a_batch_cost_one_sync_each(path: Path) -> None:
    with open_over(path, Files()) as store:
        before = store.stats()["syncs"]
        with store.transaction() as txn:
            for number in range(50):
                txn.put(b"%d" % number, b"x")
        store.put_many({b"%d" % number: b"y" for number in range(50)})
        assert store.stats()["syncs"] - before == 2


def test_a_write_may_say_otherwise_for_itself(path: Path) -> None:
    with open_over(path, Files()) as store:
        before = store.stats()["syncs"]
        store.put(b"a", b"1", durable=False)
        assert store.stats()["syncs"] == before
        store.put(b"b", b"2")
        assert store.stats()["syncs"] == before + 1
    other = path.with_name("other.eph")
    with ephemera.open(other, durability="none", maintenance="manual") as store:
        before = store.stats()["syncs"]
        store.put(b"a", b"1")
        assert store.stats()["syncs"] == before
        store.put(b"b", b"2", durable=True)
        assert store.stats()["syncs"] == before + 1


def put_through_gate(seat: Seat) -> int:
    """Write, and say when the sync has begun; it ends when the test says so."""
    files = GatedFiles()
    with open_over(Path(seat.store.stats()["path"]), files) as store:
        before: int = store.stats()["syncs"]
        files.shut()
        threads = start_writers(store, 0, 1)
        assert files.is_syncing.wait(30)
        seat.say("syncing")
        seat.hear()
        files.gate.set()
        for thread in threads:
            thread.join()
        after: int = store.stats()["syncs"]
        return after - before


def put_in_threads(seat: Seat, start: int, count: int) -> int:
    before: int = seat.store.stats()["syncs"]
    for thread in start_writers(seat.store, start, count):
        thread.join()
    after: int = seat.store.stats()["syncs"]
    return after - before


def test_processes_share_syncs(path: Path) -> None:
    quiet = {"durability": "none", "maintenance": "manual"}
    with (
        ephemera.open(path, **quiet) as store,
        peers(3, path, durability="commit", maintenance="manual") as (gated, one, other),
    ):
        gated.tell(put_through_gate)
        assert gated.answer() == "syncing"
        one.tell(put_in_threads, 1, 8)
        other.tell(put_in_threads, 9, 8)
        wait_for_keys(store, 18)
        gated.say("go on")
        syncs = gated.answer() + one.answer() + other.answer()
        assert syncs <= 2


@pytest.mark.parametrize("victim", [0, 1])
def test_a_death_inside_a_sync_leaves_the_others_to_sync(path: Path, victim: int) -> None:
    with peers(2, path, durability="commit", maintenance="manual") as crew:
        gated, other = crew
        gated.tell(put_through_gate)
        assert gated.answer() == "syncing"
        other.tell(put_in_threads, 1, 4)
        if victim == 0:
            gated.kill()
            assert other.answer() >= 1
            assert other.do("count") == 6
        else:
            other.kill()
            gated.say("go on")
            assert gated.answer() >= 1
            assert gated.do("get", b"0") == b"x"
