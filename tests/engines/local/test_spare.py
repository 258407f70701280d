"""The segment that is made ready before it is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ephemera import Store, StoreFailed, StoreFull
from ephemera.engines.local.files import Files, Mapped
from tests.engines.local.stores import (
    SEGMENT_BYTES,
    THOUSAND,
    contents,
    crash_copy,
    engine_of,
    open_local,
    segment_files,
    wait_until,
)

A_SEGMENT = SEGMENT_BYTES // 1_000


class WatchedFiles(Files):
    """Files that count what they allocate, and fail in the way they are told."""

    def __init__(self) -> None:
        self.allocated = 0
        self.is_full = False
        self.is_failing = False
        self.while_syncing: Callable[[], object] | None = None

    def allocate_mapped(self, path: Path, size: int) -> Mapped:
        if self.is_full:
            raise StoreFull("no room")
        self.allocated += 1
        return super().allocate_mapped(path, size)

    def sync(self, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        meanwhile, self.while_syncing = self.while_syncing, None
        if meanwhile is not None:
            meanwhile()
        super().sync(mapped, start, end)


def spares(path: Path) -> list[Path]:
    return sorted((path / "segments").glob("spare*"))


def fill(store: Store, count: int = A_SEGMENT, start: int = 0) -> dict[bytes, bytes]:
    """Write about so many thousand bytes."""
    rows = {b"%d" % n: THOUSAND for n in range(start, start + count)}
    for key, value in rows.items():
        store.put(key, value)
    return rows


def prepare(store: Store) -> None:
    engine_of(store)._segments.prepare()


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_the_next_segment_is_the_spare(
    open_store: Callable[..., Store], path: Path, durability: str
) -> None:
    files = WatchedFiles()
    store = open_store(files=files, durability=durability)
    rows = fill(store, 10)
    prepare(store)
    (spare,) = spares(path)
    assert spare.stat().st_size == SEGMENT_BYTES
    assert not any(spare.read_bytes())
    allocated, inode = files.allocated, spare.stat().st_ino
    rows |= fill(store, A_SEGMENT, 10)
    assert files.allocated == allocated
    assert segment_files(path)[-1].stat().st_ino == inode
    assert spares(path) == []
    assert contents(store) == rows
    assert store.check().problems == ()


def test_nothing_is_prepared_for_a_store_that_takes_little(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    prepare(store)
    fill(store, 2)
    prepare(store)
    store.checkpoint()
    prepare(store)
    fill(store, 2)
    prepare(store)
    assert spares(path) == []


def test_there_is_one_spare_at_a_time(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store()
    fill(store, 10)
    prepare(store)
    prepare(store)
    assert len(spares(path)) == 1


def test_after_a_full_segment_the_next_is_prepared_at_once(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    fill(store, A_SEGMENT + 1)
    assert spares(path) == []
    prepare(store)
    assert len(spares(path)) == 1


def test_a_large_value_takes_a_segment_of_its_own_size(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
    fill(store, 10)
    prepare(store)
    large = b"l" * (3 * SEGMENT_BYTES)
    store.put("large", large)
    assert store.get("large") == large
    assert segment_files(path)[-1].stat().st_size > SEGMENT_BYTES
    assert spares(path) == []


def test_a_spare_goes_with_its_store(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store()
    fill(store, 10)
    prepare(store)
    store.close()
    assert spares(path) == []


def test_a_spare_that_a_death_left_is_cleared_away(
    open_store: Callable[..., Store], path: Path, tmp_path: Path
) -> None:
    store = open_store()
    rows = fill(store, 10)
    prepare(store)
    left = crash_copy(path, tmp_path / "left")
    assert len(spares(left)) == 1
    with open_local(left) as found:
        assert spares(left) == []
        assert contents(found) == rows


def test_a_spare_made_while_another_is_named_is_a_file_of_its_own(
    open_store: Callable[..., Store], path: Path
) -> None:
    files = WatchedFiles()
    store = open_store(files=files)
    rows = fill(store, 10)
    prepare(store)
    files.while_syncing = lambda: prepare(store)
    rows |= fill(store, 2 * A_SEGMENT, 10)
    assert contents(store) == rows
    assert store.check().problems == ()


def test_a_full_disk_leaves_it_to_the_writer_to_say_so(
    open_store: Callable[..., Store], path: Path
) -> None:
    files = WatchedFiles()
    store = open_store(files=files)
    rows = fill(store, 10)
    files.is_full = True
    prepare(store)
    assert spares(path) == []
    with pytest.raises(StoreFull):
        fill(store, A_SEGMENT, 10)
    files.is_full = False
    rows |= fill(store, A_SEGMENT, 10)
    assert contents(store) == rows


def test_a_spare_that_cannot_be_synced_harms_nothing(
    open_store: Callable[..., Store], path: Path
) -> None:
    files = WatchedFiles()
    store = open_store(files=files)
    rows = fill(store, 10)
    files.is_failing = True
    with pytest.raises(StoreFailed):
        prepare(store)
    files.is_failing = False
    assert spares(path) == []
    rows |= fill(store, A_SEGMENT, 10)
    assert contents(store) == rows


def test_a_segment_in_use_that_cannot_be_synced_takes_no_more_writes(
    open_store: Callable[..., Store],
) -> None:
    files = WatchedFiles()
    store = open_store(files=files, durability="commit")
    rows = fill(store, 10)
    files.is_failing = True
    with pytest.raises(StoreFailed):
        prepare(store)
    files.is_failing = False
    with pytest.raises(StoreFailed):
        store.put("more", "1")
    assert contents(store) == rows


def test_a_child_leaves_the_spare_to_its_parent(
    open_store: Callable[..., Store], path: Path
) -> None:
    store = open_store()
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
    assert len(spares(path)) == 1
    rows |= {b"%d" % n: THOUSAND for n in range(10, 10 + A_SEGMENT)}
    rows |= fill(store, A_SEGMENT, 1_000)
    assert contents(store) == rows
    assert store.check().problems == ()


def test_the_background_prepares(open_store: Callable[..., Store], path: Path) -> None:
    store = open_store(maintenance="background", clock=None)
    fill(store, A_SEGMENT + 1)
    wait_until(lambda: len(spares(path)) == 1)
