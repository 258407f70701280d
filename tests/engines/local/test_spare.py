"""The segment that is made ready before it is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ephemera import Store, StoreFull
from ephemera.engines.local import segments as segments_module
from ephemera.engines.local.files import Files, Mapped
from tests.engines.local.stores import (
    SEGMENT_BYTES,
    THOUSAND,
    contents,
    crash_copy,
    engine_of,
    open_local,
    segment_files,
)
from tests.waiting import wait_until

A_SEGMENT = SEGMENT_BYTES // 1_000


class WatchedFiles(Files):
    """Files that count what they allocate, and fail in the way they are told."""

    def __init__(self) -> None:
        self.allocated = 0
        self.has_unnamed = True
        self.can_name = True
        self.is_failing = False
        self.syncs = 0
        self.meanwhile: Callable[[], object] | None = None

    def allocate_mapped(self, path: Path, size: int) -> Mapped:
        self.allocated += 1
        return super().allocate_mapped(path, size)

    def allocate_unnamed(self, directory: Path, size: int) -> Mapped:
        if not self.has_unnamed:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return super().allocate_unnamed(directory, size)

    def name_temporarily(self, mapped: Mapped, path: Path) -> None:
        if not self.can_name:
            raise OSError(errno.ENOENT, "No such file or directory")
        super().name_temporarily(mapped, path)

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        self.syncs += 1
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().sync(mapped, start, end)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def store(open_store: Callable[..., Store], files: WatchedFiles) -> Store:
    return open_store(files=files)


def fill(store: Store, count: int = A_SEGMENT, start: int = 0) -> dict[bytes, bytes]:
    """Write about so many thousand bytes."""
    rows = {b"%d" % n: THOUSAND for n in range(start, start + count)}
    for key, value in rows.items():
        store.put(key, value)
    return rows


def prepare(store: Store) -> None:
    engine_of(store)._segments.prepare()


def spare_of(store: Store) -> Mapped | None:
    spare: Mapped | None = engine_of(store)._segments._spare
    return spare


def has_spare(store: Store) -> bool:
    return spare_of(store) is not None


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_the_next_segment_is_the_spare(
    open_store: Callable[..., Store], files: WatchedFiles, path: Path, durability: str
) -> None:
    store = open_store(files=files, durability=durability)
    rows = fill(store, 10)
    prepare(store)
    spare = spare_of(store)
    assert spare is not None
    assert len(spare.memory) == SEGMENT_BYTES
    assert not any(spare.memory)
    allocated, inode = files.allocated, os.fstat(spare.fd).st_ino
    rows |= fill(store, A_SEGMENT, 10)
    assert files.allocated == allocated
    assert segment_files(path)[-1].stat().st_ino == inode
    assert not has_spare(store)
    assert contents(store) == rows
    assert store.check().problems == ()


def test_a_spare_has_no_name_that_a_death_could_leave(store: Store, path: Path) -> None:
    fill(store, 10)
    before = sorted((path / "segments").iterdir())
    prepare(store)
    assert has_spare(store)
    assert sorted((path / "segments").iterdir()) == before


def test_nothing_is_prepared_for_a_store_that_takes_little(store: Store) -> None:
    prepare(store)
    fill(store, 2)
    prepare(store)
    store.checkpoint()
    prepare(store)
    fill(store, 2)
    prepare(store)
    assert not has_spare(store)


def test_after_a_full_segment_the_next_is_prepared_at_once(store: Store) -> None:
    fill(store, A_SEGMENT + 1)
    assert not has_spare(store)
    prepare(store)
    assert has_spare(store)


def test_who_only_reads_prepares_nothing(store: Store, open_store: Callable[..., Store]) -> None:
    reader = open_store()
    fill(store, 10)
    assert reader.get(b"1") == THOUSAND
    prepare(reader)
    assert not has_spare(reader)


def test_a_spare_is_given_up_when_another_makes_the_segments(
    store: Store, open_store: Callable[..., Store]
) -> None:
    fill(store, 10)
    prepare(store)
    other = open_store()
    fill(other, A_SEGMENT, 10)
    prepare(store)
    assert not has_spare(store)


def test_a_spare_is_given_up_when_the_writing_ends(store: Store) -> None:
    fill(store, 10)
    prepare(store)
    store.checkpoint()
    prepare(store)
    assert not has_spare(store)


def test_a_spare_goes_with_its_store(store: Store) -> None:
    fill(store, 10)
    prepare(store)
    store.close()
    assert not has_spare(store)


def test_a_retired_segment_is_let_go(store: Store, path: Path) -> None:
    fill(store, 10)
    prepare(store)
    store.checkpoint()
    assert store.get(b"1") == THOUSAND
    prepare(store)
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [name for name in opened if name.startswith(f"{path}/") and "deleted" in name]


def test_a_large_value_takes_a_segment_of_its_own_size_and_leaves_the_spare(
    store: Store, path: Path
) -> None:
    fill(store, 10)
    prepare(store)
    large = b"l" * (3 * SEGMENT_BYTES)
    store.put("large", large)
    assert store.get("large") == large
    assert segment_files(path)[-1].stat().st_size > SEGMENT_BYTES
    assert has_spare(store)


def test_a_spare_made_while_another_is_named_is_a_file_of_its_own(
    store: Store, files: WatchedFiles
) -> None:
    rows = fill(store, 10)
    prepare(store)
    files.meanwhile = lambda: prepare(store)
    rows |= fill(store, 2 * A_SEGMENT, 10)
    assert contents(store) == rows
    assert store.check().problems == ()


@pytest.mark.parametrize("missing", ["has_unnamed", "can_name"])
def test_where_files_cannot_be_without_a_name_there_is_no_spare(
    store: Store, files: WatchedFiles, missing: str
) -> None:
    setattr(files, missing, False)
    rows = fill(store, 10)
    prepare(store)
    rows |= fill(store, A_SEGMENT, 10)
    assert contents(store) == rows
    assert store.check().problems == ()


def test_a_disk_that_is_nearly_full_is_left_to_the_writers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "SPARE_ROOM", 10**9)
    fill(store, 10)
    prepare(store)
    assert not has_spare(store)


def test_a_full_disk_gets_the_spare_back(store: Store) -> None:
    fill(store, 10)
    prepare(store)
    engine = engine_of(store)

    def no_room() -> None:
        raise StoreFull("no room")

    engine._is_worth_applying = lambda: True
    engine._apply_waiting = no_room
    with pytest.raises(StoreFull):
        engine._tend()
    del engine._apply_waiting, engine._is_worth_applying
    assert not has_spare(store)


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_what_cannot_be_prepared_keeps_nobody_from_syncing(
    open_store: Callable[..., Store], files: WatchedFiles, durability: str
) -> None:
    store = open_store(files=files, durability=durability)
    rows = fill(store, 10)
    files.is_failing = True
    files.has_unnamed = False
    prepare(store)
    files.is_failing = False
    before = files.syncs
    rows |= fill(store, 1, 10)
    store.sync()
    assert files.syncs > before
    prepare(store)
    assert not has_spare(store), "it was tried again at once"
    assert contents(store) == rows


def test_a_child_leaves_the_spare_to_its_parent(store: Store) -> None:
    rows = fill(store, 10)
    prepare(store)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fill(store, A_SEGMENT, 10)
            store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert has_spare(store)
    rows |= {b"%d" % n: THOUSAND for n in range(10, 10 + A_SEGMENT)}
    rows |= fill(store, A_SEGMENT, 1_000)
    assert contents(store) == rows
    assert store.check().problems == ()


def test_the_background_prepares(open_store: Callable[..., Store]) -> None:
    store = open_store(maintenance="background", clock=None)
    fill(store, A_SEGMENT + 1)
    wait_until(lambda: has_spare(store))


@pytest.mark.parametrize("durability", ["commit", "none"])
def test_the_background_syncs_only_where_that_was_asked_for(
    open_store: Callable[..., Store], durability: str
) -> None:
    store = open_store(maintenance="background", clock=None, durability=durability)
    store.put("a", "1", durable=False)
    engine_of(store)._sync()
    assert store.stats()["syncs"] == 0


@pytest.mark.parametrize("durability", ["interval", "commit"])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_interrupt_in_the_middle_of_a_new_segment_loses_nothing_that_is_written_later(
    open_store: Callable[..., Store],
    files: WatchedFiles,
    tmp_path: Path,
    path: Path,
    durability: str,
    is_prepared: bool,
) -> None:
    store = open_store(files=files, durability=durability)
    rows = fill(store, A_SEGMENT - 8)
    if is_prepared:
        prepare(store)

    def interrupt() -> None:
        raise KeyboardInterrupt

    def interrupt_at_the_directory() -> None:
        files.meanwhile = interrupt

    # The first sync is of the new segment, what comes after it is its name.
    files.meanwhile = interrupt_at_the_directory
    with pytest.raises(KeyboardInterrupt):
        store.put("large", b"l" * 20_000)
    assert len(segment_files(path)) == 2
    for n in range(5):
        store.put(b"small %d" % n, b"s", durable=True)
        rows[b"small %d" % n] = b"s"
    left = crash_copy(path, tmp_path / "left")
    with open_local(left) as found:
        assert contents(found) == rows
        assert found.check().problems == ()
    assert contents(store) == rows
