"""A database that SlateDB has closed because one of its background tasks failed: it is opened again, once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import CorruptStore, EngineUnavailable, EphemeraError, Store, StoreClosed, StoreFenced
from ephemera.engines.slatedb import engine, library, opening
from ephemera.engines.slatedb.writing import Writer
from tests.engines.slatedb.buckets import file_url
from tests.waiting import wait_until

SHORT_S = 0.3


@contextmanager
def unreadable_manifest(directory: Path) -> Iterator[None]:
    """Put a manifest that is none after the last one: the background tasks that poll it fail."""
    manifests = directory / "store" / "manifest"
    last = max(int(path.stem) for path in manifests.glob("*.manifest"))
    garbage = manifests / f"{last + 1:020}.manifest"
    garbage.write_bytes(b"no manifest")
    try:
        yield
    finally:
        garbage.unlink()


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except EphemeraError:
        return True
    return False


def close_by_failure(store: Store, directory: Path) -> None:
    """Make a background task of the store fail, and return once calls do."""
    with unreadable_manifest(directory):
        wait_until(lambda: fails(lambda: store.get("kept")), what="SlateDB closes itself")


def test_a_store_whose_background_task_failed_opens_itself_again(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        family = store.family("sessions", default_ttl=60)
        store.put("kept", "1", durable=True)
        family.put("kept", "2", durable=True)
        close_by_failure(store, tmp_path)
        assert store.get("kept") == b"1"
        assert family.get("kept") == b"2"
        store.put("after", "3", durable=True)
        assert store.incr("count") == 1
        with store.transaction() as transaction:
            transaction.put("inside", "4")
        assert store.stats()["reopened"] == 1
    with ephemera.open(file_url(tmp_path)) as store:
        assert dict(store.scan()) == {
            b"after": b"3", b"count": b"1", b"inside": b"4", b"kept": b"1",
        }  # fmt: skip


def test_snapshots_and_transactions_of_before_the_failure_raise(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put_many({f"key:{number:04}": "" for number in range(1_000)}, durable=True)
        snapshot, scan = store.snapshot(), iter(store.scan())
        next(scan)

        def transact() -> None:
            with store.transaction() as transaction:
                transaction.put("lost", "")
                close_by_failure(store, tmp_path)
                assert store.get("key:0000") == b""

        with pytest.raises(EphemeraError):
            transact()
        with pytest.raises(EphemeraError):
            snapshot.get("key:0000")
        assert len(list(scan)) == 999  # its iterator has the state of before in memory
        assert store.count() == 1_000
        with store.snapshot() as snapshot:
            assert snapshot.count() == 1_000


def test_a_family_that_was_made_just_before_the_failure_is_still_there(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path, "flush_interval=600&poll_interval=0.02")) as store:
        store.put("kept", "1")
        store.sync()
        family = store.family("new")  # in memory alone
        close_by_failure(store, tmp_path)
        family.put("key", "2")
        assert family.get("key") == b"2"
        assert "new" in store.families()


def test_a_store_that_another_writer_has_taken_over_meanwhile_stays_fenced(tmp_path: Path) -> None:
    older = ephemera.open(file_url(tmp_path))
    older.put("kept", "1", durable=True)
    close_by_failure(older, tmp_path)
    with ephemera.open(file_url(tmp_path), durability="commit") as newer:
        for _ in range(2):
            with pytest.raises(StoreFenced, match="another writer"):
                older.put("lost", "")
        newer.put("after", "2")
        assert dict(newer.scan()) == {b"kept": b"1", b"after": b"2"}
        with pytest.raises(EphemeraError):
            older.close()


def test_a_reader_opens_itself_again(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as writer:
        writer.put("kept", "1", durable=True)
    with ephemera.open(file_url(tmp_path), read_only=True) as reader:
        close_by_failure(reader, tmp_path)
        assert reader.get("kept") == b"1"
        assert reader.stats()["reopened"] == 1


# --- opening again that fails halfway -------------------------------------------------------------


@contextmanager
def unreadable_log(directory: Path) -> Iterator[None]:
    """Make the write-ahead log unreadable: opening takes the writer's epoch, and fails in the replay."""
    kept = {path: path.read_bytes() for path in (directory / "store" / "wal").glob("*.sst")}
    for path in kept:
        path.write_bytes(b"no log" * 20)
    try:
        yield
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_a_store_opens_itself_again_after_tries_that_had_taken_its_epoch(tmp_path: Path) -> None:
    with ephemera.open(file_url(tmp_path)) as store:
        store.put("kept", "1", durable=True)
        for number in (1, 2):
            close_by_failure(store, tmp_path)
            with unreadable_log(tmp_path):
                for _ in range(3):
                    with pytest.raises(CorruptStore):
                        store.get("kept")
            assert store.get("kept") == b"1"
            assert store.stats()["reopened"] == number
        store.put("after", "2", durable=True)


def test_a_store_stays_fenced_if_another_writer_came_after_a_try_that_failed(
    tmp_path: Path,
) -> None:
    older = ephemera.open(file_url(tmp_path))
    older.put("kept", "1", durable=True)
    close_by_failure(older, tmp_path)
    with unreadable_log(tmp_path), pytest.raises(CorruptStore):
        older.get("kept")
    with ephemera.open(file_url(tmp_path), durability="commit") as newer:
        newer.put("after", "2")
        for _ in range(2):
            with pytest.raises(StoreFenced, match="another writer"):
                older.get("kept")
        newer.put("later", "3")
        with pytest.raises(EphemeraError):
            older.close()


def test_a_store_stays_fenced_if_another_writer_has_the_epoch_that_it_could_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ephemera.open(file_url(tmp_path))
    older.put("kept", "1", durable=True)
    close_by_failure(older, tmp_path)

    def fail(*_: object) -> None:
        raise EngineUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(library.Library, "run_long", fail)
        with pytest.raises(EngineUnavailable, match="not now"):
            older.get("kept")
    with ephemera.open(file_url(tmp_path), durability="commit") as newer:
        newer.put("after", "2")
        with pytest.raises(StoreFenced, match="another writer"):
            older.get("kept")
        newer.put("later", "3")
        with pytest.raises(EphemeraError):
            older.close()


def test_a_writer_that_takes_over_while_another_opens_again_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can tell them apart: the last one that has opened writes, and one of them always does."""
    older = ephemera.open(file_url(tmp_path))
    older.put("kept", "1", durable=True)
    close_by_failure(older, tmp_path)
    newer: list[Store] = []
    read_manifest = opening.read_manifest

    def read_too_early(admin: Any) -> Any:  # Any: of an untyped module
        manifest = read_manifest(admin)
        monkeypatch.undo()
        newer.append(ephemera.open(file_url(tmp_path), durability="commit"))
        return manifest

    monkeypatch.setattr(opening, "read_manifest", read_too_early)
    assert older.get("kept") == b"1"
    older.put("after", "2", durable=True)
    with pytest.raises(StoreFenced, match="another writer"):
        newer[0].put("lost", "3")
    older.close()
    with pytest.raises(EphemeraError):
        newer[0].close()


def test_families_that_could_not_be_kept_are_kept_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = file_url(tmp_path, "flush_interval=600&poll_interval=0.02")
    with ephemera.open(url) as store:
        store.put("kept", "1")
        store.sync()
        family = store.family("new")  # in memory alone
        close_by_failure(store, tmp_path)

        def fail(*_: object) -> None:
            monkeypatch.undo()
            raise EngineUnavailable("not now")

        monkeypatch.setattr(Writer, "write", fail)
        with pytest.raises(EngineUnavailable, match="not now"):
            store.get("kept")
        assert store.get("kept") == b"1"
        family.put("key", "2")
    with ephemera.open(url, read_only=True) as reader:
        assert "new" in reader.families()
        assert reader.family("new").get("key") == b"2"


def test_closing_a_store_that_another_thread_opens_again_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ephemera.open(file_url(tmp_path), maintenance="manual")
    store.put("kept", "1", durable=True)
    close_by_failure(store, tmp_path)
    is_opening, may_open = threading.Event(), threading.Event()
    open_writer = opening.open_writer

    def wait_and_open(*args: Any, **options: Any) -> Any:  # Any: as the one it stands for
        is_opening.set()
        may_open.wait()
        return open_writer(*args, **options)

    monkeypatch.setattr(engine, "open_writer", wait_and_open)
    monkeypatch.setattr(library, "ANSWER_S", SHORT_S)
    raised: list[EphemeraError] = []

    def read() -> None:
        try:
            store.get("kept")
        except EphemeraError as error:
            raised.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    is_opening.wait()
    with pytest.raises(EngineUnavailable, match="another thread"):
        store.close()
    monkeypatch.setattr(library, "ANSWER_S", 30.0)
    may_open.set()
    reader.join()
    assert [type(error) for error in raised] == [StoreClosed]
    store.close()
    with ephemera.open(file_url(tmp_path)) as store:
        assert store.get("kept") == b"1"
