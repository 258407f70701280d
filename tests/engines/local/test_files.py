"""The seam at the operating system: disks that are full, syncs that fail, names that are taken."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import struct
import subprocess
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ephemera import Store, StoreClosed, StoreFailed, StoreFull
from ephemera.core import forks
from ephemera.engines.local._lock_file import LockFile
from ephemera.engines.local.files import FileLock, Files, Mapped
from tests.engines.local.stores import (
    SEGMENT_BYTES,
    THOUSAND,
    contents,
    crash_copy,
    engine_of,
    in_a_thread,
    open_files_of,
    open_local,
    run_python,
    segment_files,
    wait_until_forgotten,
    write_until,
)
from tests.waiting import wait_until


class FailingFiles(Files):
    """Files whose syncs fail while they are told to."""

    def __init__(self) -> None:
        self.is_failing = False
        self.fails_directory: str | None = None

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(mapped, start, end)

    def sync_directory(self, path: Path) -> None:
        if path.name == self.fails_directory:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_directory(path)


# --- syncs that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["commit", "none"])
def test_a_failed_sync_is_final_for_writes_and_nothing_to_reads(
    open_store: Callable[..., Store], durability: str
) -> None:
    files = FailingFiles()
    store = open_store(files=files, durability=durability)
    other = open_store()
    store.put("before", "1")
    files.is_failing = True
    with pytest.raises(StoreFailed):
        store.put("during", "2", durable=True)
    files.is_failing = False
    for write in (
        lambda: store.put("after", "3"),
        lambda: store.delete("before"),
        lambda: store.put_many({"a": "1"}),
        lambda: store.transaction(),
        lambda: store.incr("counter"),
        lambda: other.put("after", "3"),
        lambda: store.sync(),
    ):
        with pytest.raises(StoreFailed):
            write()
    assert store.get("before") == other.get("before") == b"1"
    assert store.stats()["has_failed"]
    store.close()
    other.close()
    store = open_store()
    assert store.get("before") == b"1"
    assert set(contents(store)) <= {b"before", b"during"}
    store.put("after", "3")
    store.sync()
    assert store.check().is_clean


def test_a_forgotten_store_whose_syncs_fail_is_closed_all_the_same(path: Path) -> None:
    files = FailingFiles()
    store = open_local(path, files=files, maintenance="background")
    store.put("key", "1")
    files.is_failing = True
    workers = engine_of(store)._workers
    wait_until(lambda: any(worker.error for worker in workers))
    engine = weakref.ref(engine_of(store))
    del store
    wait_until_forgotten(engine, path)
    with open_local(path) as again:
        assert again.get("key") == b"1"


def test_a_failed_sync_of_a_new_segment_is_one_of_our_errors(
    open_store: Callable[..., Store],
) -> None:
    files = FailingFiles()
    store = open_store(files=files, durability="none")
    store.put("key", "1")
    files.is_failing = True
    with pytest.raises((StoreFailed, StoreFull)):
        store.put("key", b"x" * SEGMENT_BYTES)


def test_a_segment_that_could_not_be_made_leaves_everything_as_it_was(
    open_store: Callable[..., Store], path: Path
) -> None:
    files = FailingFiles()
    store = open_store(files=files, durability="none")
    store.put("key", "1")
    files.is_failing = True
    with pytest.raises((OSError, StoreFailed)):
        store.put("key", b"x" * SEGMENT_BYTES)
    files.is_failing = False
    assert store.get("key") == b"1"
    assert [file.name for file in (path / "segments").iterdir()] == ["00000001.seg"]
    store.put("key", b"x" * SEGMENT_BYTES)
    assert store.get("key") == b"x" * SEGMENT_BYTES


def test_a_compaction_that_fails_halfway_loses_nothing(
    open_store: Callable[..., Store], path: Path
) -> None:
    files = FailingFiles()
    store = open_store(files=files)
    store.put("key", "old")
    store.checkpoint()
    files.fails_directory = "base"
    with pytest.raises((OSError, StoreFailed)):
        store.compact()
    files.fails_directory = None
    assert [file.name for file in path.glob("base/*.new")] == []
    store.put("key", "new")
    store.checkpoint()
    store.close()
    assert open_store().get("key") == b"new"


def test_one_sync_serves_all_who_wait(open_store: Callable[..., Store]) -> None:
    store = open_store(durability="none")
    store.put("a", "1")
    store.sync()
    before = store.stats()["syncs"]
    store.sync()
    assert store.stats()["syncs"] == before
    store.put("a", "2", durable=True)
    assert store.stats()["syncs"] == before + 1
    store.put("b", "3")
    assert store.stats()["syncs"] == before + 1


def test_a_durable_write_is_synced_before_it_returns_and_others_are_not(
    open_store: Callable[..., Store],
) -> None:
    synced: list[bytes] = []

    class Spy(Files):
        def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
            super().sync(mapped, start, end)
            synced.append(bytes(mapped.memory))

    store = open_store(files=Spy(), durability="none")
    store.put("a", "not synced")
    assert not any(b"not synced" in content for content in synced)
    store.put("b", "now synced", durable=True)
    assert b"now synced" in synced[-1]
    assert b"not synced" in synced[-1]


# --- a full disk ----------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own; skips where none can be mounted."""
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill_disk(disk: Path, *, leave: int = 0) -> Path:
    """Take what is free, but for some bytes."""
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize - leave
    filler = disk / "filler"
    if free > 0:
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free)
    return filler


def test_on_a_full_disk_reads_go_on_and_writes_do_once_there_is_room(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        store = open_store(disk / "store", durability="none")
        store.put("key", "1")
        filler = fill_disk(disk)
        _, written = write_until(StoreFull, store)
        expected = {b"key": b"1", **{b"%d" % number: THOUSAND for number in range(written)}}
        assert contents(store) == expected
        with pytest.raises(StoreFull):
            store.put_many({"a": b"x" * 30_000, "b": b"x" * 30_000})
        assert contents(store) == expected
        filler.unlink()
        store.put_many({"a": "1", "b": "2"})
        expected |= {b"a": b"1", b"b": b"2"}
        store.checkpoint()
        assert contents(store) == expected
        assert store.check().is_clean
        store.close()
        assert contents(open_store(disk / "store")) == expected


def test_a_checkpoint_on_a_disk_that_fills_up_is_store_full(
    open_store: Callable[..., Store], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        store = open_store(disk / "store", durability="none")
        refused = 0
        for leave in range(4096, 40 * 4096, 4096):
            for number in range(40):
                store.put(b"%d" % number, b"x" * 1_000)
            filler = fill_disk(disk, leave=leave)
            try:
                store.checkpoint()
            except StoreFull:
                refused += 1
            finally:
                filler.unlink(missing_ok=True)
            assert store.count() == 40
        assert refused


CRASHES_ON_A_FULL_DISK = (
    "LMDB's lock file is sparse and mapped: touching a new page of it is SIGBUS"
)


def test_many_snapshots_on_a_full_disk_crash_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        done = run_python(
            """
            import os, sys
            from pathlib import Path
            import ephemera
            from tests.engines.local.test_files import fill_disk
            disk = Path(sys.argv[1])
            store = ephemera.open(disk / "store", segment_bytes=65536, maintenance="manual")
            store.put("key", "value")
            fill_disk(disk)
            snapshots = [store.snapshot() for _ in range(200)]
            assert snapshots[-1].get("key") == b"value"
            """,
            disk,
        )
        assert done.returncode == 0, done.stderr


def test_opening_on_a_full_disk_crashes_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        for pages in range(6):
            filler = fill_disk(disk, leave=pages * 4096)
            done = run_python(
                """
                import sys
                import ephemera
                try:
                    ephemera.open(sys.argv[1], segment_bytes=65536, maintenance="manual").close()
                except ephemera.StoreFull:
                    pass
                """,
                disk / f"store {pages}",
            )
            filler.unlink(missing_ok=True)
            assert done.returncode == 0, done.stderr


# --- creation -------------------------------------------------------------------------------------


def test_a_file_has_its_name_only_once_it_is_whole(tmp_path: Path) -> None:
    files = Files()
    path = tmp_path / "file"

    def fail(_memory: object) -> None:
        assert not path.exists()
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        files.create_mapped(path, 8192, fail)
    assert list(tmp_path.iterdir()) == []
    mapped = files.create_mapped(
        path, 8192, lambda memory: struct.pack_into("5s", memory, 0, b"begin")
    )
    assert path.read_bytes()[:5] == b"begin"
    assert path.stat().st_blocks * 512 >= 8192
    again = files.map_existing(path)
    mapped.memory[100:103] = b"abc"
    assert bytes(again.memory[100:103]) == b"abc"


def test_a_new_segment_that_finds_no_room_leaves_nothing(
    open_store: Callable[..., Store], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(durability="none")
    store.put("key", "1")

    def no_room(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(StoreFull, match="00000002"):
        store.put("key", b"x" * SEGMENT_BYTES)
    assert [file.name for file in (path / "segments").iterdir()] == ["00000001.seg"]
    store.put("key", "2")
    assert store.get("key") == b"2"
    monkeypatch.undo()
    store.put("key", b"x" * SEGMENT_BYTES)
    assert len(segment_files(path)) == 2


def test_no_descriptor_is_left_behind(path: Path) -> None:
    store = open_local(path)
    store.put("key", b"x" * 100_000)
    store.compact()
    store.put("key", "1")
    with store.snapshot() as snapshot:
        assert snapshot.get("key") == b"1"
    store.close()
    del store, snapshot
    gc.collect()
    assert open_files_of(path) == []


def mapped_files_of(path: Path) -> set[str]:
    """The files of a store that this process has in its memory, removed ones included."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line[line.index(str(path)) :] for line in lines if str(path) in line}


def test_a_closed_store_has_let_its_files_go(path: Path) -> None:
    store = open_local(path)
    store.put("key", b"x" * 100_000, ttl=60)
    store.compact()
    store.put("key", "1", ttl=60)
    assert store.purge_expired() == 0
    assert open_files_of(path)
    assert len(mapped_files_of(path)) > 2
    store.close()
    assert open_files_of(path) == []
    # Another thread may be reading its words at this very moment.
    assert mapped_files_of(path) == {str(path / "control")}
    del store
    gc.collect()
    assert mapped_files_of(path) == set()


def test_a_compaction_gives_the_former_file_back_to_the_disk(path: Path) -> None:
    def generations() -> set[str]:
        files = {*open_files_of(path), *mapped_files_of(path)}
        return {
            Path(file.split()[0]).name for file in files if ".mdb" in file and "lock" not in file
        }

    gc.disable()  # it is let go by the last who uses it, not some day
    try:
        with open_local(path) as store:
            store.put("key", "1")
            assert store.get("key") == b"1"
            store.compact()
            assert generations() == {"00000002.mdb"}
            with store.snapshot() as snapshot:
                store.compact()
                assert store.get("key") == b"1"
                assert generations() == {"00000002.mdb", "00000003.mdb"}
                assert snapshot.get("key") == b"1"
            del snapshot
            store.checkpoint()
            assert generations() == {"00000003.mdb"}
    finally:
        gc.enable()


def test_a_copy_of_the_files_of_a_failed_store_recovers(
    open_store: Callable[..., Store], path: Path, tmp_path: Path
) -> None:
    files = FailingFiles()
    store = open_store(files=files, durability="none")
    store.put("key", "1", durable=True)
    files.is_failing = True
    with pytest.raises(StoreFailed):
        store.put("key", "2", durable=True)
    files.is_failing = False
    recovered = open_store(crash_copy(path, tmp_path / "copy"))
    assert recovered.get("key") in (b"1", b"2")
    recovered.put("key", "3", durable=True)


# --- file locks -----------------------------------------------------------------------------------


def test_a_file_lock_excludes_shares_and_names_its_owner(tmp_path: Path) -> None:
    one, two = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert one.try_take()
    assert not two.try_take()
    assert not two.try_take(is_shared=True)
    one.write_owner(42)
    assert two.read_owner() == ("42", "")
    one.write_owner(42, "redis://127.0.0.1:6379")
    assert two.read_owner() == ("42", "redis://127.0.0.1:6379")
    one.write_owner(None)
    assert two.read_owner() == ("", "")
    with one.held():
        assert not two.try_take(is_shared=True)
    assert two.try_take(is_shared=True)
    one.take(0, is_shared=True)
    assert not one.try_take()
    two.close()
    two.close()
    assert in_a_thread(lambda: one.take(0)) == []
    one.close()


def test_a_lock_file_that_another_thread_closes_keeps_its_number_until_its_use_ends(
    tmp_path: Path,
) -> None:
    """Else what is written to it would go to whatever file was opened meanwhile."""
    lock = FileLock(tmp_path / "lock")
    other = tmp_path / "other"

    def close_and_write(fd: int, data: bytes) -> None:
        lock.close()
        with other.open("wb") as file:
            assert file.fileno() != fd
            os.write(fd, data)

    lock.file.use(close_and_write, b"42")
    assert (tmp_path / "lock").read_bytes() == b"42"
    assert other.read_bytes() == b""
    assert lock.file.fd == -1
    for use in (lambda: lock.write_owner(7), lock.read_owner, lock.try_take):
        with pytest.raises(StoreClosed):
            use()
    lock.file.unlock()


OPEN_BETWEEN_FORKS = """
    import os
    import sys
    import threading

    waiting, may_fork = threading.Semaphore(0), threading.Event()
    main = threading.current_thread()

    def wait():
        if threading.current_thread() is not main:
            waiting.release()
            may_fork.wait()

    os.register_at_fork(before=wait)  # before the import: called after the hook that counts
    from ephemera.engines.local._lock_file import LockFile

    def fork():
        if os.fork() == 0:
            os._exit(0)

    def open_once():
        opened.append(os.open(sys.argv[1], os.O_RDONLY))
        return opened[-1]

    opened = []
    threads = [threading.Thread(target=fork, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
        waiting.acquire()
    LockFile(open_once).close()
    print(len(opened) > 1)
    may_fork.set()
    for thread in threads:
        thread.join()
    opened.clear()
    LockFile(open_once).close()
    print(len(opened))
    """


def test_a_lock_file_that_was_opened_while_two_threads_fork_is_opened_again(tmp_path: Path) -> None:
    assert run_python(OPEN_BETWEEN_FORKS, tmp_path).stdout == "True\n1\n"


def test_a_lock_file_that_was_opened_during_a_fork_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child may have a copy of the first that nobody knows of."""
    fds: list[int] = []

    def open_in_a_fork() -> int:
        fds.append(os.open(tmp_path, os.O_RDONLY))
        forks_under_way = {1: 1, 2: 2, 3: 1, 4: 0, 5: 0}[len(fds)]
        if forks_under_way > forks.under_way:
            monkeypatch.setattr(forks, "begun", forks.begun + 1)
        monkeypatch.setattr(forks, "under_way", forks_under_way)
        return fds[-1]

    file = LockFile(open_in_a_fork)
    # One fork began during the first, another one during the second; both have ended after the fourth.
    assert len(fds) == 5
    assert file.is_open
    file.close()


@pytest.mark.parametrize("start", [0, 5_000])
def test_what_is_synced_in_bulk_is_there_afterwards_and_can_be_written_again(
    tmp_path: Path, start: int
) -> None:
    size = 1024 * 1024
    mapped = Files().allocate_mapped(tmp_path / "file", size)
    content = bytearray(random.Random(1).randbytes(size))
    mapped.memory[:] = content
    end = size - 5_000
    mapped.mapping.sync(start, end)
    assert mapped.memory[:] == content
    for at in (0, start, end - 1, end, size - 1):
        mapped.memory[at] = content[at] = content[at] ^ 1
    mapped.mapping.sync(0, size)
    assert mapped.memory[:] == content
    assert mapped.path.read_bytes() == content
