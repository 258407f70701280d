"""What keeps a store from opening is told in the store's own errors, with what to do about it."""

from __future__ import annotations

import errno
import os
import queue
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ephemera
from ephemera import (
    AccessDenied,
    CorruptStore,
    EphemeraError,
    InvalidArgument,
    NewerFormat,
    ResourcesExhausted,
    StoreFailed,
)
from ephemera.engines.local.files import explain
from tests.conftest import NoThreadsLeft

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.eph"
    with ephemera.open(path) as store:
        store.put("name", "ada")
    return path


def test_a_store_of_a_newer_format_asks_for_an_upgrade(path: Path) -> None:
    (path / "format").write_bytes(b"ephemera store, format 7\n")
    for is_read_only in (False, True):
        with pytest.raises(
            NewerFormat, match=r"newer version .*format 7; this one reads 1.*upgrade"
        ):
            ephemera.open(path, read_only=is_read_only)
    (path / "format").write_bytes(b"ephemera store, format one\n")
    with pytest.raises(CorruptStore):
        ephemera.open(path)


@contextmanager
def as_a_stranger() -> Iterator[None]:
    """As another user than the owner of the files."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("is_read_only", [False, True])
def test_another_users_store_is_denied(path: Path, is_read_only: bool) -> None:
    with as_a_stranger(), pytest.raises(AccessDenied, match="mode=0o660"):
        ephemera.open(path, read_only=is_read_only)


def test_files_that_may_not_be_written_are_denied(path: Path) -> None:
    for each in (path.parent.parent, path.parent, path):
        each.chmod(0o755)
    with as_a_stranger(), pytest.raises(AccessDenied, match="own"):
        ephemera.open(path)


def test_a_place_where_nothing_may_be_made_is_denied(path: Path) -> None:
    path.parent.chmod(0o755)
    with as_a_stranger(), pytest.raises(AccessDenied):
        ephemera.open(path.parent / "new.eph")


def test_a_read_only_file_system_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(place: object, flags: int, *more: object, **named: object) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(place))
        return real(place, flags, *more, **named)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDenied, match="mounted for writing"):
        ephemera.open(path)


def test_a_process_without_descriptors_is_told_so(path: Path, first_free: int) -> None:
    """However many are left, from none to enough."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    refusals = 0
    for left in range(40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + left, before[1]))
        try:
            with ephemera.open(path) as store:
                assert store.get("name") == b"ada"
                break
        except ResourcesExhausted as error:
            refusals += "ulimit -n" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    else:
        pytest.fail("it never opened")
    assert refusals == left > 3
    with ephemera.open(path) as store:
        assert store.check().is_clean


def test_a_mapping_without_memory_for_it_is_told_so(path: Path) -> None:
    with pytest.raises(ResourcesExhausted, match="size_limit"):
        ephemera.open(path, size_limit=2**60)
    with ephemera.open(path) as store:
        assert store.get("name") == b"ada"


def test_a_name_that_no_file_can_have_is_an_argument(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="too long"):
        ephemera.open(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    "number",
    [
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
    ],
)
def test_what_lost_no_write_is_no_failure_of_the_store(number: int) -> None:
    found = explain(number, "place")
    assert isinstance(found, EphemeraError)
    assert not isinstance(found, StoreFailed)
    assert os.strerror(number) in str(found)
    assert explain(errno.EIO, "place") is None


@pytest.mark.parametrize(
    "options", [{}, {"read_only": True}, {"maintenance": "manual"}, {"snapshot_max_age": 60}]
)
def test_a_lack_of_threads_says_which_limit_to_raise_and_leaves_nothing_open(
    path: Path, no_threads_left: NoThreadsLeft, options: dict[str, object]
) -> None:
    with (
        no_threads_left(),
        pytest.raises(ResourcesExhausted, match=r"can't start new thread.*ulimit -u"),
    ):
        ephemera.open(path, **options)
    with ephemera.open(path, exclusive=True) as store:
        assert store.get("name") == b"ada"


def test_a_lack_of_threads_leaves_no_listener_behind(
    path: Path, no_threads_left: NoThreadsLeft
) -> None:
    events: list[ephemera.Expired] = []
    with ephemera.open(path) as store:
        with no_threads_left(), pytest.raises(ResourcesExhausted, match="ulimit -u"):
            store.on_expire(events.append)
        later: queue.Queue[ephemera.Expired] = queue.Queue()
        store.on_expire(later.put)
        store.put("lease", "worker", ttl=0.001)
        assert later.get(timeout=30).key == b"lease"
    assert events == []


def test_the_advice_of_a_refusal_fits_the_case(path: Path) -> None:
    new = path.parent / "new.eph"
    absent = str(explain(errno.EACCES, new))
    assert f"the right to write in {new.parent}, or choose another path" in absent
    assert "mode=" not in absent
    assert "mode=0o660" in str(explain(errno.EACCES, path))
    assert "Only the owner of a store may change" in str(explain(errno.EPERM, path))
