"""A hurried write is refused where it would wait, and goes ahead where it need not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import ephemera
from ephemera import Store, StoreBusy
from ephemera.core.hurry import hurried, is_hurried

PATIENCE_S = 30.0


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = "memory://" if request.param == "memory" else tmp_path / "s.eph"
    # Whoever waited in vain here would wait longer than a test may take.
    with ephemera.open(url, lock_timeout=3_600, segment_bytes=64 * 1024) as opened:
        yield opened


def test_a_hurried_write_goes_ahead_when_the_turn_is_free(store: Store) -> None:
    hurried(store.put, b"a", b"1", ttl=60)
    assert hurried(store.incr, b"n") == 1
    assert hurried(store.get, b"a") == b"1"


def test_a_hurried_write_is_refused_at_once_when_the_turn_is_taken(store: Store) -> None:
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
            lambda: hurried(store.put, b"a", b"1"),
            lambda: hurried(store.incr, b"a"),
            lambda: hurried(store.delete, b"a"),
            lambda: hurried(store.transaction),
        ):
            with pytest.raises(StoreBusy):
                write()
    finally:
        leave.set()
        thread.join(PATIENCE_S)
    assert store.count() == 0
    store.put(b"a", b"2")
    assert store.get(b"a") == b"2"


def test_hurry_ends_with_the_call_also_when_it_raises() -> None:
    with pytest.raises(KeyError):
        hurried(dict[str, int]().__getitem__, "absent")
    assert not is_hurried()


def test_hurry_is_one_threads_own() -> None:
    seen: list[bool] = []

    def look() -> None:
        thread = threading.Thread(target=lambda: seen.append(is_hurried()))
        thread.start()
        thread.join(PATIENCE_S)

    hurried(look)
    assert seen == [False]


def test_a_hurried_write_does_not_wait_for_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "s.eph"
    options = {"maintenance": "manual", "segment_bytes": 64 * 1024}
    with ephemera.open(path, **options) as store:
        refused = 0
        for number in range(100):  # segments fill, and nobody applies them
            try:
                hurried(store.put, b"%d" % number, bytes(20_000))
            except StoreBusy:
                refused += 1
                store.put(b"%d" % number, bytes(20_000))
        assert 0 < refused < 100
        assert store.count() == 100
