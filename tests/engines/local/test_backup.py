"""Backups beside other people's files, beside one another, and beside the death of whoever makes them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ephemera import EphemeraError, InvalidArgument, Store
from ephemera.engines.local import backup
from ephemera.engines.local.base_tier import SUPERSEDED_BY
from ephemera.engines.local.files import Files, is_temporary, temporary_name
from tests.engines.local.stores import contents, engine_of, open_local, start_python

ROWS = {b"%d" % number: b"x" * 100 for number in range(1_000)}


@pytest.fixture
def filled(open_store: Callable[..., Store]) -> Store:
    store = open_store()
    store.put_many(ROWS)
    return store


def unfinished(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if is_temporary(path.name)]


def test_a_backup_leaves_alone_what_others_named_like_something_unfinished(
    filled: Store, tmp_path: Path, open_store: Callable[..., Store]
) -> None:
    neighbour = open_store(tmp_path / "copy.new")
    neighbour.put("key", "value")
    filled.backup(tmp_path / "copy")
    assert neighbour.get("key") == b"value"
    neighbour.close()
    assert contents(open_store(tmp_path / "copy.new")) == {b"key": b"value"}
    assert contents(open_store(tmp_path / "copy")) == ROWS
    assert unfinished(tmp_path) == []


def test_of_several_backups_to_one_path_one_succeeds_and_the_others_are_told_so(
    filled: Store, tmp_path: Path, open_store: Callable[..., Store]
) -> None:
    for number in range(5):
        target = tmp_path / f"copy {number}"
        together = threading.Barrier(4)

        def back_up(target: Path = target, together: threading.Barrier = together) -> str:
            together.wait(30)
            try:
                filled.backup(target)
            except EphemeraError as error:
                return str(error)
            return "made"

        with ThreadPoolExecutor(4) as pool:
            told = sorted(future.result() for future in [pool.submit(back_up) for _ in range(4)])
        assert told == sorted(["made", *[f"{target} exists: a backup goes to a new directory"] * 3])
        assert contents(open_store(target)) == ROWS
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "directory", "empty directory", "dangling link"])
def test_a_backup_never_replaces_what_appears_at_its_path_meanwhile(
    filled: Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy"
    copy_segment = backup._copy_segment

    def copy_beside_others(*given: object) -> None:
        copy_segment(*given)  # type: ignore[arg-type]  # handed on as it came
        if target.is_symlink() or target.exists():
            return
        if kind == "file":
            target.write_text("theirs")
        elif kind == "dangling link":
            target.symlink_to(tmp_path / "nowhere")
        else:
            target.mkdir()
            if kind == "directory":
                (target / "theirs").touch()

    monkeypatch.setattr(backup, "_copy_segment", copy_beside_others)
    with pytest.raises(InvalidArgument, match="exists"):
        filled.backup(target)
    assert target.is_symlink() == (kind == "dangling link")
    assert target.is_dir() == kind.endswith("directory")
    assert kind != "file" or target.read_text() == "theirs"
    assert kind != "directory" or [path.name for path in target.iterdir()] == ["theirs"]
    assert unfinished(tmp_path) == []


def test_a_backup_that_fails_leaves_nothing(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "_copy_segment", fail)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        filled.backup(tmp_path / "copy")
    assert sorted(tmp_path.iterdir()) == before


def test_a_backup_does_not_go_into_the_store(filled: Store, path: Path) -> None:
    for target in (path, path / "copy", path / "base" / "copy"):
        with pytest.raises(InvalidArgument, match="inside the store"):
            filled.backup(target)
    assert not (path / "copy").exists()


BACK_UP_SLOWLY = """
    import sys
    import ephemera
    from ephemera.engines.local import backup
    def pause(*given):
        print("copying", flush=True)
        input()
    backup._copy_segment = pause
    ephemera.open(sys.argv[1], maintenance="manual").backup(sys.argv[2])
    """


def test_a_killed_backup_is_not_in_the_way_of_the_next(path: Path, tmp_path: Path) -> None:
    with open_local(path) as store:
        store.put_many(ROWS)
        with start_python(BACK_UP_SLOWLY, path, tmp_path / "copy") as dying:
            assert dying.stdout is not None
            assert dying.stdout.readline() == "copying\n"
            dying.send_signal(signal.SIGKILL)
            assert dying.wait(30) == -signal.SIGKILL
        left = unfinished(tmp_path)
        assert [one.name.startswith(f"copy.{dying.pid}-") for one in left] == [True]
        store.backup(tmp_path / "copy")
        assert unfinished(tmp_path) == left
    with open_local(tmp_path / "copy") as copy:
        assert contents(copy) == ROWS


def test_opening_removes_unfinished_files_of_its_own_and_no_others(path: Path) -> None:
    open_local(path).close()
    mine = [temporary_name(path / "control"), temporary_name(path / "base" / "00000002.mdb")]
    mine.append(mine[1].with_name(mine[1].name + "-lock"))
    theirs = [path / "notes.new", path / "segments" / "00000002.seg.new", path / "x.newest"]
    for one in [*mine, *theirs]:
        one.touch()
    open_local(path).close()
    assert [one.exists() for one in mine] == [False, False, False]
    assert [one.exists() for one in theirs] == [True, True, True]


def test_a_directory_with_a_file_of_somebody_else_becomes_no_store(path: Path) -> None:
    path.mkdir()
    (path / "notes.new").touch()
    with pytest.raises(InvalidArgument, match="not empty"):
        open_local(path, files=Files())
    assert (path / "notes.new").exists()


def test_a_backup_of_a_superseded_generation_opens_for_writing(
    filled: Store, tmp_path: Path, open_store: Callable[..., Store]
) -> None:
    filled.checkpoint()
    # As after a death right behind the commit that supersedes: the control page knows no successor.
    engine = engine_of(filled)
    engine._base.file.rewrite(engine._layout.base_file(2))
    with engine._base.write() as txn:
        txn.set_number(SUPERSEDED_BY, 2)
    filled.backup(tmp_path / "copy")
    copy = open_store(tmp_path / "copy")
    copy.put("later", "1")
    copy.checkpoint()
    assert contents(copy) == {**ROWS, b"later": b"1"}


def test_a_backup_to_a_url_is_refused(filled: Store) -> None:
    with pytest.raises(InvalidArgument, match="not to a URL: memory://"):
        filled.backup("memory://")
