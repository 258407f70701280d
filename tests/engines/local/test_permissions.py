"""A store is private: its owner alone reads its files, whatever the umask, unless `mode=` says otherwise."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import ephemera
from ephemera import InvalidArgument, ReadOnly
from tests.crash.processes import TINY_SEGMENT_BYTES

MODES = {0o600: 0o700, 0o660: 0o770, 0o640: 0o750, 0o666: 0o777}
"""The permissions of files, and of their directories."""


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    former = os.umask(request.param)
    yield request.param
    os.umask(former)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "private.eph"


def use(path: Path, **options: Any) -> ephemera.Store:  # Any: those of `ephemera.open`
    """A store that has made every kind of file it makes, and is still open."""
    store = ephemera.open(path, segment_bytes=TINY_SEGMENT_BYTES, **options)
    for number in range(30):
        store.put(f"key:{number}", b"v" * 8_000, ttl=3600)
    store.checkpoint()
    store.compact()
    store.put("last", "in a segment")
    return store


def modes_under(root: Path) -> dict[str, int]:
    """The permissions of a directory and of everything in it that the background does not remove meanwhile."""
    modes = {}
    for each in [root, *sorted(root.rglob("*"))]:
        with suppress(FileNotFoundError):
            modes[str(each.relative_to(root))] = stat.S_IMODE(each.stat().st_mode)
    return modes


def assert_all_are(mode: int, root: Path) -> None:
    for name, found in modes_under(root).items():
        wanted = MODES[mode] if (root / name).is_dir() else mode
        assert found == wanted, f"{name}: {found:o}, not {wanted:o}"


def test_every_file_of_a_store_is_its_owners_alone(umask: int, path: Path) -> None:
    with use(path) as store:
        names = modes_under(path)
        assert "base/00000002.mdb" in names
        assert "base/00000002.mdb-lock" in names
        assert any(name.endswith(".seg") for name in names)
        assert_all_are(0o600, path)
        store.backup(path.with_name("copy.eph"))
    assert_all_are(0o600, path)
    assert_all_are(0o600, path.with_name("copy.eph"))


@pytest.mark.parametrize("mode", [0o660, 0o640, 0o666])
def test_mode_is_that_of_every_file(umask: int, path: Path, mode: int) -> None:
    with use(path, mode=mode) as store:
        assert_all_are(mode, path)
        store.backup(path.with_name("copy.eph"))
    assert_all_are(mode, path.with_name("copy.eph"))


def test_a_store_keeps_its_mode_when_it_is_opened_without_one(path: Path) -> None:
    use(path, mode=0o660).close()
    former = os.umask(0o077)
    try:
        use(path).close()
    finally:
        os.umask(former)
    assert_all_are(0o660, path)


def test_another_mode_changes_every_file_that_is_there(path: Path) -> None:
    use(path, mode=0o666, maintenance="manual").close()
    assert any(name.endswith(".seg") for name in modes_under(path))
    with ephemera.open(path, mode=0o600, maintenance="manual"):
        assert_all_are(0o600, path)
    with use(path, mode=0o660):
        assert_all_are(0o660, path)


def test_a_spare_segment_is_private_too(umask: int, path: Path) -> None:
    with use(path) as store:
        store.engine._segments.prepare()  # type: ignore[attr-defined]  # what the background does
        for number in range(30):
            store.put(f"more:{number}", b"v" * 8_000)
        assert_all_are(0o600, path)


def test_a_directory_that_was_there_stays_as_it_is(path: Path) -> None:
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with use(path):
        found = modes_under(path)
        assert found.pop(".") == 0o755
        assert set(found.values()) == {0o600, 0o700}


def test_directories_above_the_store_follow_the_umask(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        ephemera.open(tmp_path / "above" / "private.eph").close()
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "above").stat().st_mode) == 0o750
    assert_all_are(0o600, tmp_path / "above" / "private.eph")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere files inherit the group anyway")
def test_a_directory_that_hands_on_its_group_goes_on_doing_so(path: Path) -> None:
    path.mkdir()
    path.chmod(0o2770)
    with ephemera.open(path, mode=0o660):
        assert stat.S_IMODE((path / "segments").stat().st_mode) == 0o2770


@pytest.mark.parametrize("mode", ["600", 0o400, 0o755, 0o1600, -1, True, 6.0, 0])
def test_what_is_no_mode_of_a_file_is_refused(path: Path, mode: object) -> None:
    with pytest.raises(InvalidArgument, match="0o600"):
        ephemera.open(path, mode=mode)
    assert not path.exists()


def test_reading_alone_changes_no_permissions(path: Path) -> None:
    use(path).close()
    with pytest.raises(InvalidArgument, match="read_only"):
        ephemera.open(path, mode=0o660, read_only=True)
    with ephemera.open(path, read_only=True) as store, pytest.raises(ReadOnly):
        store.put("a", "b")
    assert_all_are(0o600, path)
