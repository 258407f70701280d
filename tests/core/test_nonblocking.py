"""A nonblocking write is refused where it would wait, and goes ahead where it need not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import Store, StoreBusy
from ephemera.core.nonblocking import is_nonblocking, nonblocking

PATIENCE_S = 30.0


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory://" if request.param == "memory" else tmp_path / "s.eph"
    # Whoever waited in vain here would wait longer than a test may take.
    with ephemera.open(url, lock_timeout=3_600, segment_bytes=64 * 1024) as opened:
        yield opened


def test_a_nonblocking_write_succeeds_when_the_writer_lock_is_free(store: Store) -> None:
    nonblocking(store.put, b"a", b"1", ttl=60)
    assert nonblocking(store.incr, b"n") == 1
    assert nonblocking(store.get, b"a") == b"1"


def test_a_nonblocking_write_is_refused_at_once_when_the_writer_lock_is_held(store: Store) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            inside.set()
            leave.wait(PATIENCE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(PATIENCE_S)
        for write in (
            lambda: nonblocking(store.put, b"a", b"1"),
            lambda: nonblocking(store.incr, b"a"),
            lambda: nonblocking(store.delete, b"a"),
            lambda: nonblocking(store.transaction),
        ):
            with pytest.raises(StoreBusy):
                write()
    finally:
        leave.set()
        thread.join(PATIENCE_S)
    assert store.count() == 0
    store.put(b"a", b"2")
    assert store.get(b"a") == b"2"


def test_nonblocking_ends_with_the_call_also_when_it_raises() -> None:
    with pytest.raises(KeyError):
        nonblocking(dict[str, int]().__getitem__, "absent")
    assert not is_nonblocking()


def test_a_call_inside_a_nonblocking_call_leaves_it_nonblocking() -> None:
    def outer() -> bool:
        nonblocking(is_nonblocking)
        return is_nonblocking()

    assert nonblocking(outer)
    assert not is_nonblocking()


def test_nonblocking_is_one_threads_own() -> None:
    seen: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(is_nonblocking()))
        thread.start()
        thread.join(PATIENCE_S)

    nonblocking(look)
    assert seen == [False]


def test_a_nonblocking_write_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "s.eph"
    options = {"maintenance": "manual", "segment_bytes": 64 * 1024}
    with ephemera.open(path, **options) as store:
        refused = 0
        for number in range(100):  # segments fill, and nobody applies them
            try:
                nonblocking(store.put, b"%d" % number, bytes(20_000))
            except StoreBusy:
                refused += 1
                store.put(b"%d" % number, bytes(20_000))
        assert 0 < refused < 100
        assert store.count() == 100
