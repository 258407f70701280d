"""A database that SlateDB has closed because one of its background tasks failed: it is opened again, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ephemera
from ephemera import EphemeraError, Store, StoreFenced
from tests.engines.slatedb.buckets import file_url, wait_until


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
